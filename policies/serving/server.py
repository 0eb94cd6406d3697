"""A policy behind a websocket, for robots and evaluators that speak openpi's protocol.

On connecting, a client is sent the metadata; then each of its frames is answered in turn
(:mod:`trimtab.policies.serving.session`). The server never computes itself: a decision is made in
another process, while pings and other clients are answered.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.files import Contract
from trimtab.policies.serving.protocol import KEY, Refusal, is_loopback
from trimtab.policies.serving.session import EXTENSIONS, Session, most_rows, request_bytes
from trimtab.policies.serving.worker import PolicyProcess

__all__ = ["Bounds", "PolicyServer"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bounds:
    """What a client may take of a server.

    Attributes:
        connections: at the same time.
        most_bytes: of a message; one observation always fits.
        fragments: of a message.
        handshake_seconds: until a connection is a websocket.
        message_seconds: from a message's first fragment to its last, and to send an answer.
        idle_seconds: between two messages.
    """

    connections: int = 8
    most_bytes: int = 4 << 20
    fragments: int = 1024
    handshake_seconds: float = 10.0
    message_seconds: float = 10.0
    idle_seconds: float = 600.0


class PolicyServer:
    """Serves one policy to several clients, each with a history, a state and noise of its own.

    Args:
        process: what decides; it is closed as :meth:`run` ends.
        host: address to listen at.
        port: 0 for any that is free.
        key: that clients have to know; empty for none.
        seed: of the noise of each session.
        deterministic: zero noise where a client sends none; None for what the bundle says.
        inputs: values of the policy's inputs that differ from their defaults where a client sends
            none; ``noise``, of one row, is that of every decision.
        bounds: what a client may take.

    Raises:
        TrimtabError: if others than this machine could connect without a key, or an input does
            not fit the policy.
    """

    def __init__(
        self,
        process: PolicyProcess,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        key: str = "",
        seed: int = 0,
        deterministic: bool | None = None,
        inputs: Mapping[str, Any] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        if not key and not is_loopback(host):
            raise TrimtabError(
                f"serve: host={host}: others than this machine could steer the policy; set a key "
                f"in the environment variable {KEY}, here and where the client runs"
            )
        self.process, self.host, self.port = process, host, port
        self.bounds = bounds or Bounds()
        self._key = key.encode()
        self._seed = seed
        self._contract = Contract.parse(process.config, process.policy)
        if taken := sorted(set(self._contract.parts) & set(EXTENSIONS)):
            raise TrimtabError(
                f"serve: {process.policy}: reads a part called {taken[0]}, which is a key of its "
                "own in a request; name the part otherwise"
            )
        judged = self._contract.evaluate_deterministic
        self._deterministic = judged if deterministic is None else deterministic
        self._inputs = dict(inputs or {})
        self._contract.inputs.values(self._inputs)  # refuses what does not fit
        row = request_bytes(self._contract)
        self._most_bytes = max(self.bounds.most_bytes, 4096 + row + row // 2)
        self._threads = ThreadPoolExecutor(self.bounds.connections + 1)
        self._connected = 0

    async def run(self, ready: Callable[[int], None] = lambda port: None) -> None:
        """Serve until the task is cancelled.

        Args:
            ready: called with the port, once clients can connect.

        Raises:
            TrimtabError: if the address is taken or no address of this machine.
        """
        quiet = logging.getLogger(f"{__name__}.websockets")
        quiet.setLevel(logging.CRITICAL)  # what clients do wrong would be logged with tracebacks
        try:
            server = await serve(
                self._converse,
                self.host,
                self.port,
                process_request=self._admit,
                origins=[None],  # a browser names one: no page that it shows may ask
                compression=None,
                max_size=self._most_bytes,
                max_queue=2,
                open_timeout=self.bounds.handshake_seconds,
                close_timeout=2.0,
                server_header=None,
                logger=quiet,
            )
        except OSError as error:
            raise TrimtabError(
                f"serve: {self.host}:{self.port}: {error.strerror or error}; choose another port= "
                "or host="
            ) from error
        async with server:
            ready(server.sockets[0].getsockname()[1])
            try:
                await asyncio.get_running_loop().create_future()  # until this is cancelled
            finally:
                self.process.close()  # or the end would wait for the decisions that are asked for

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Return None for a client that may connect, and else the answer to its request."""
        verb = request.method
        if verb != "GET":
            return connection.respond(HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n")
        if request.path in ("/healthz", "/health"):
            return connection.respond(HTTPStatus.OK, "OK\n")
        if request.path != "/":
            return connection.respond(HTTPStatus.NOT_FOUND, "the policy is at /\n")
        if self._key and not self._knows_key(request):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "wrong key\n")
        if self._connected >= self.bounds.connections:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        return None

    def _knows_key(self, request: Request) -> bool:
        given = request.headers.get_all("Authorization")
        expected = b"Api-Key " + self._key
        return len(given) == 1 and hmac.compare_digest(given[0].encode(), expected)

    async def _converse(self, connection: ServerConnection) -> None:
        """Answer one client until it goes or sends what cannot be answered."""
        if self._connected >= self.bounds.connections:  # taken during the handshake
            await connection.close(CloseCode.TRY_AGAIN_LATER, "too many connections")
            return
        self._connected += 1
        try:
            with suppress(ConnectionClosed):
                await self._answer_all(connection)
        except TimeoutError:
            await connection.close(CloseCode.POLICY_VIOLATION, "too slow")
        finally:
            self._connected -= 1

    async def _answer_all(self, connection: ServerConnection) -> None:
        rows = most_rows(self._contract, self._most_bytes)
        session = Session(
            self.process, self._contract, rows=rows, seed=self._seed,
            deterministic=self._deterministic, inputs=self._inputs,
        )  # fmt: skip
        limits = {"most_rows": rows, "most_bytes": self._most_bytes}
        await self._send(connection, session.metadata(**limits))
        while True:
            frame = await self._receive(connection)
            received = time.monotonic()
            try:
                answer = await self._answer(session, frame, received)
            except Refusal as refusal:
                await self._send(connection, refusal.text)
                if refusal.closes:
                    await connection.close(CloseCode.INTERNAL_ERROR, refusal.code)
                    return
            else:
                if answer is not None:
                    await self._send(connection, answer)
                session.last_total = time.monotonic() - received

    async def _answer(self, session: Session, frame: bytes, received: float) -> bytes | str | None:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, session.answer, frame, received)
        except Refusal as refusal:
            if refusal.__cause__ is not None and not refusal.closes:
                logger.warning("serve: %s (%s)", refusal.text, refusal.__cause__)
            raise
        except Exception as error:
            logger.error("serve: %s: %s", type(error).__name__, error)
            raise Refusal("internal", "the server failed with this request") from error

    async def _receive(self, connection: ServerConnection) -> bytes:
        """Return the next message, all of it, as bytes.

        Raises:
            TimeoutError: if it does not begin or does not end in time.
            ConnectionClosed: if the client goes, or sends too many fragments.
        """
        fragments = connection.recv_streaming(decode=False)
        async with asyncio.timeout(self.bounds.idle_seconds):
            pieces = [await anext(fragments)]
        async with asyncio.timeout(self.bounds.message_seconds):
            async for piece in fragments:
                pieces.append(piece)
                if len(pieces) > self.bounds.fragments:
                    await connection.close(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
        return b"".join(pieces)

    async def _send(self, connection: ServerConnection, answer: bytes | str) -> None:
        async with asyncio.timeout(self.bounds.message_seconds):
            await connection.send(answer)
