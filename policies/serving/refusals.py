"""Why a server does not answer a request with actions: a code, and a sentence without secrets."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CODES", "Refusal"]

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
