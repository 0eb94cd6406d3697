"""Servers of real policies, each in a thread of the test's process, with a worker of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.policies.bundle.bundle import save_bundle
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.serving.server import PolicyServer
from trimtab.policies.serving.worker import PolicyProcess
from trimtab.types import Part, PolicySpec

PARTS = PolicySpec(
    2 * (3 + 12) + 1, 4, 2, (-1.0, -0.5), (1.0, 2.0),
    parts={
        "state": Part((3,)), "picture": Part((2, 2, 3), "uint8"), "guidance": Part((1,), given=1.5),
    },
    history=2,
)  # fmt: skip
"""Two parts with a history of two, and an input that the user chooses."""


@dataclass
class Served:
    server: PolicyServer
    process: PolicyProcess
    port: int

    @property
    def address(self) -> str:
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


@pytest.fixture(scope="session")
def parts_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of several parts with a history and an input."""
    torch.manual_seed(5)
    policy = FlowPolicy(PARTS, hidden=(16,), sampling_steps=2)
    contract = {"env": "x/y", "control_rate": 20.0, "act_steps": 2}
    return save_bundle(policy, tmp_path_factory.mktemp("parts") / "bundle", contract=contract)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start servers that end with the test."""
    with ExitStack() as stack:
        yield lambda policy, **settings: stack.enter_context(running(policy, **settings))


@pytest.fixture(scope="module")
def served(bundle_of: Callable[[str], Path]) -> Iterator[Served]:
    """One server for tests that leave it as it is."""
    with running(bundle_of("flow")) as found:
        yield found
