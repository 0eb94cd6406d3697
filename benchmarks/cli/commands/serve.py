"""``trimtab serve``: a policy behind a websocket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from trimtab.benchmarks.cli.screen import print_line
from trimtab.benchmarks.core.signals import interrupts_cancel, sigterm_cancels
from trimtab.errors import Stopped, TrimtabError

__all__ = ["serve"]


def serve(
    policy: str,
    host: str,
    port: int,
    backend: str,
    deterministic: str,
    inputs: str,
    seed: int,
    connections: int,
    timeout: float,
) -> int:
    """Serve a policy until Ctrl+C or SIGTERM."""
    try:
        from trimtab.policies.serving.protocol import read_key
        from trimtab.policies.serving.server import Bounds, PolicyServer
        from trimtab.policies.serving.worker import PolicyProcess
    except ModuleNotFoundError as error:
        raise TrimtabError(
            f"serve: {error.name} is not installed; install Trimtab's extra 'serve'"
        ) from error
    if port > 65535:
        raise TrimtabError(f"serve: port={port}: must be at most 65535; 0 takes any that is free")
    key, chosen = read_key(), {}
    if inputs:
        from trimtab.benchmarks.cli.options import policy_inputs

        chosen = policy_inputs("serve", inputs)
    process = PolicyProcess(policy, backend=backend, seconds=timeout)
    try:
        server = PolicyServer(
            process,
            host=host,
            port=port,
            key=key,
            seed=seed,
            deterministic=deterministic == "true" if deterministic else None,
            inputs=chosen,
            bounds=Bounds(connections=connections),
        )
        with interrupts_cancel():
            asyncio.run(
                _until_stopped(
                    server.run(
                        lambda at: print_line(f"serving {policy} at ws://{_in_address(host)}:{at}")
                    )
                )
            )
    finally:
        process.close()
    return 0


async def _until_stopped(serving: Awaitable[None]) -> None:
    """Serve until Ctrl+C or SIGTERM; either closes each client's connection.

    Raises:
        Stopped: after SIGTERM, which systemd and Docker send.
    """
    task = asyncio.current_task()
    assert task is not None
    with sigterm_cancels(task) as told:
        try:
            await serving
        except asyncio.CancelledError:
            if told.is_set():
                raise Stopped("the server is stopped") from None
            raise


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
