"""Serve a policy from a thread of the test's process, with a real worker of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.policies.serving.server import PolicyServer
from trimtab.policies.serving.worker import PolicyProcess

__all__ = ["Served", "running"]


@dataclass
class Served:
    """A server that runs."""

    server: PolicyServer
    process: PolicyProcess
    port: int

    @property
    def address(self) -> str:
        """What clients connect to."""
        return f"ws://127.0.0.1:{self.port}"


@contextmanager
def running(
    policy: Path, *, seconds: float = 60.0, backend: str = "onnx", **settings: Any
) -> Iterator[Served]:
    """Serve a policy at a free port for as long as this lasts."""
    process = PolicyProcess(str(policy), backend=backend, seconds=seconds)
    server = PolicyServer(process, **{"port": 0, **settings})
    ports: queue.Queue[int] = queue.Queue()
    loops: queue.Queue[tuple[Any, Any]] = queue.Queue()

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None
        loops.put((asyncio.get_running_loop(), task))
        with suppress(asyncio.CancelledError):
            await server.run(ports.put)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, task = loops.get(timeout=60)
    try:
        yield Served(server, process, ports.get(timeout=60))
    finally:
        loop.call_soon_threadsafe(task.cancel)
        process.close()
        thread.join(60)
        assert not thread.is_alive()
