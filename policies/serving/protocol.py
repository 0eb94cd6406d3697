"""What server and client have in common: addresses, the key, and codes of what is refused."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from trimtab.errors import TrimtabError

__all__ = ["CODES", "KEY", "Refusal", "host_of", "is_loopback", "is_server", "read_key"]

KEY = "TRIMTAB_SERVE_KEY"
"""Environment variable of a server's key: never a word of a command, an address or a log."""


def read_key() -> str:
    """Return the key of this process's environment; empty if there is none.

    Raises:
        TrimtabError: if no header can carry it; the error does not show it.
    """
    key = os.environ.get(KEY, "")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise TrimtabError(
            f"{KEY}: has letters beyond ASCII, a line break, or a blank at an end; choose another "
            "key, here and where the other side runs"
        )
    return key


def is_server(text: str) -> bool:
    """Return whether a text is the address of a policy server, and not a folder."""
    return text.startswith(("ws://", "wss://"))


def host_of(address: str) -> str:
    """Return the host of an address; empty if it names none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its number or as ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


CODES: Mapping[str, bool] = {
    "frame": True,
    "request": True,
    "contract": True,
    "internal": True,
    "late": False,
    "timeout": False,
    "worker": False,
    "policy": False,
}
"""Codes of refusals, and whether the connection is closed after one.

``frame``: the bytes are no frame. ``request``: the policy cannot read what is in it. ``contract``:
the client was made for another policy. ``internal``: a fault of the server. ``late``: the answer
would come after ``deadline_ms``. ``timeout``, ``worker``, ``policy``: the computation took too
long, its process ended, or the policy failed.
"""


class Refusal(Exception):
    """A request that gets no actions.

    Attributes:
        code: one of ``CODES``.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code

    @property
    def text(self) -> str:
        """The text frame that a client is sent."""
        return f"{self.code}: {self}"

    @property
    def closes(self) -> bool:
        """Whether the connection is closed after it."""
        return CODES[self.code]
