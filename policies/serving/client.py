"""A policy that another process or machine computes: observation and noise go to its server.

The server sends its bundle's contract and golden rows first. The client replays the golden rows
over the connection, as every other loader does, before it takes an action from it. A request is a
function of what it holds, so that a connection that was lost is made again and the request sent
once more; the policy behind it must still be the same.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
    WebSocketException,
)
from websockets.sync.client import ClientConnection, connect

from trimtab.errors import TrimtabError
from trimtab.observations import count
from trimtab.policies.agent import ArrayObs
from trimtab.policies.bundle.checked import checked_array, checked_rows
from trimtab.policies.bundle.files import (
    GOLDEN,
    Array,
    Contract,
    checked_config,
    inputs_of,
    read_golden,
    replay_error,
)
from trimtab.policies.memory import following, state_parts
from trimtab.policies.serving.codec import pack, unpack
from trimtab.policies.serving.protocol import KEY, read_key

__all__ = ["PolicyClient"]

_MOST_BYTES = 64 << 20
"""Of an answer or of the metadata; a server that sends more is not listened to."""


class PolicyClient:
    """A connection to a policy server of Trimtab.

    Attributes:
        config: the ``config.json`` of the policy's bundle.
        contract: shapes, limits and defaults.
        golden: the bundle's golden rows by name.

    Args:
        address: ``ws://host:port``, or ``wss://`` where a proxy in front has a certificate.
        seconds: how long to wait for a connection, and for each answer.

    Raises:
        TrimtabError: if there is no such server, its golden rows do not replay, or it wants a key
            other than that of the environment variable ``TRIMTAB_SERVE_KEY``.
    """

    def __init__(self, address: str, *, seconds: float = 60.0) -> None:
        self.address, self.seconds = address, seconds
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._connection: ClientConnection | None = None
        metadata = self._connect()
        try:
            self.config = _config_of(metadata, address)
            self.contract = Contract.parse(self.config, address)
            self._most_rows = _whole(metadata, "most_rows", address)
            self.golden = self._golden(metadata)
            self._replay()
        except BaseException:
            self.close()
            raise

    def predict(self, obs: ArrayObs, noise: Array) -> Array:
        """Return action chunks ``[B, H, A]``, raw units, inside the contract's limits.

        Args:
            obs: ``[B, O]``, or parts ``[B, ...]``, with their history and all inputs.
            noise: ``[B, *noise_shape]``.

        Raises:
            TrimtabError: if they do not fit, the server does not answer in time, or its answer is
                not what the contract promises.
        """
        answer, rows = self._decided(obs, noise)
        shape = (rows, self.contract.horizon, self.contract.action_dim)
        clipped: Array = np.clip(
            self._array(answer, "actions", shape),
            np.array(self.contract.action_low, np.float32),
            np.array(self.contract.action_high, np.float32),
        )
        return clipped

    def advance(self, obs: ArrayObs, noise: Array) -> dict[str, Array]:
        """Return what the policy hands on to its next decision, by the part that will have it.

        The server is asked once more: it keeps nothing of whole rows.

        Args:
            obs: as of :meth:`predict`.
            noise: as of :meth:`predict`.

        Raises:
            TrimtabError: as :meth:`predict`.
        """
        answer, rows = self._decided(obs, noise)
        return {
            name: self._array(answer, following(name), (rows, *part.shape))
            for name, part in state_parts(self.contract.parts).items()
        }

    def close(self) -> None:
        """Close the connection; the next request would open it again."""
        self._connection = None
        self._stack.close()

    def _decided(self, obs: ArrayObs, noise: Array) -> tuple[Mapping[str, Any], int]:
        """Return the server's answer to B rows, and B."""
        checked = checked_rows(obs, self.contract)
        rows = count(checked)
        if rows > self._most_rows:
            raise TrimtabError(
                f"{self.address}: takes {self._most_rows} rows at a time, this asks for {rows}; "
                "take a smaller batch, or run a copy of the bundle here"
            )
        drawn = checked_array(noise, (rows, *self.contract.noise_shape), "noise")
        sha = {"contract_sha": self.config["sha256"]}
        answer = self._answer(pack({**checked, "noise": drawn, **sha}))
        return (answer if isinstance(answer, Mapping) else {}), rows

    def _array(self, answer: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Array:
        try:
            return checked_array(answer.get(name), shape, name)
        except TrimtabError as error:
            raise TrimtabError(f"{self.address}: answered with {error}") from error

    def _answer(self, request: bytes) -> Any:
        """Send a request, on a new connection if the old one is lost, and return its answer."""
        with self._lock:
            if self._connection is not None:
                try:
                    return self._asked(self._connection, request)
                except ConnectionClosed:
                    pass
            self._connect()
            assert self._connection is not None
            try:
                return self._asked(self._connection, request)
            except ConnectionClosed as error:
                raise TrimtabError(f"{self.address}: closed the connection ({error})") from error

    def _asked(self, connection: ClientConnection, request: bytes) -> Any:
        try:
            connection.send(request)
            answer = connection.recv(self.seconds)
        except TimeoutError as error:
            self.close()  # an answer that comes later would be taken for that of the next request
            raise TrimtabError(
                f"{self.address}: did not answer within {self.seconds:g} s; look at the server"
            ) from error
        except BaseException:  # likewise, such as by Ctrl+C
            self.close()
            raise
        if isinstance(answer, str):
            raise TrimtabError(f"{self.address}: {answer[:300]}")
        return _decoded(answer, self.address)

    def _connect(self) -> Mapping[str, Any]:
        """Connect; return the server's metadata."""
        key = read_key()
        try:
            connection = self._stack.enter_context(
                connect(
                    self.address,
                    compression=None,
                    proxy=None,
                    max_size=_MOST_BYTES,
                    open_timeout=min(self.seconds, 10.0),
                    close_timeout=2.0,
                    additional_headers={"Authorization": f"Api-Key {key}"} if key else None,
                )
            )
            first = connection.recv(self.seconds)
        except (OSError, ValueError, EOFError, WebSocketException) as error:
            self.close()
            raise TrimtabError(f"{self.address}: {_fault(error)}") from error
        self._connection = connection
        metadata = {} if isinstance(first, str) else _decoded(first, self.address)
        if isinstance(metadata, Mapping) and "noise" in _listed(metadata.get("extensions")):
            return metadata
        self.close()
        raise TrimtabError(
            f"{self.address}: is a server that takes no noise, and a policy is judged and steered "
            "by its noise; serve it by trimtab serve"
        )

    def _golden(self, metadata: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        data = metadata.get("golden")
        expected = self.config["files"][GOLDEN]
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != expected:
            raise TrimtabError(f"{self.address}: sent golden rows that are not its bundle's")
        return read_golden(data, self.contract, f"{self.address}: {GOLDEN}")

    def _replay(self) -> None:
        """Check that the server's policy gives the golden actions."""
        obs, noise = inputs_of(self.golden, self.contract)
        rows = min(len(noise), self._most_rows)
        given = {n: x[:rows] for n, x in obs.items()} if isinstance(obs, Mapping) else obs[:rows]
        replayed = {"action": self.predict(given, noise[:rows])}
        if state_parts(self.contract.parts):
            replayed |= {following(n): x for n, x in self.advance(given, noise[:rows]).items()}
        for name, values in replayed.items():
            replay_error(
                values, self.golden[name][:rows], self.address, "the server",
                self.contract.tolerance,
            )  # fmt: skip


def _fault(error: Exception) -> str:
    """Return why there is no connection, and what to do."""
    match error:
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate does not hold ({error.verify_message}); if you trust its "
                "authority, write that one's file into SSL_CERT_FILE"
            )
        case InvalidURI() | ValueError():
            return "is no address of a policy server; write ws://host:port"
        case InvalidStatus():
            status = error.response.status_code
            return {
                401: f"wants a key; set the environment variable {KEY} to it",
                503: "has as many clients as it takes; end one, or serve with connections=…",
            }.get(status, f"is no policy server: it answers with HTTP status {status}")
        case TimeoutError():
            return "something listens there and does not answer; look at the server"
        case InvalidHandshake() | ConnectionClosed() | EOFError():
            return f"is no policy server ({error})"
    return f"no server can be reached ({error}); start one by trimtab serve, or check the address"


def _decoded(frame: bytes, address: str) -> Any:
    try:
        return unpack(frame)
    except TrimtabError as error:
        raise TrimtabError(f"{address}: sent what cannot be read ({error})") from error


def _config_of(metadata: Mapping[str, Any], address: str) -> dict[str, Any]:
    try:
        config = json.loads(metadata["config"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TrimtabError(f"{address}: sent no contract of its policy") from error
    return checked_config(config, address)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(metadata: Mapping[str, Any], key: str, address: str) -> int:
    value = metadata.get(key)
    if type(value) is not int or value < 1:
        raise TrimtabError(f"{address}: announces {key}={value!r:.50}")
    return value
