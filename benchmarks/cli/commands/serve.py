"""``trimtab serve``: a policy behind a websocket."""

from __future__ import annotations

import asyncio

from trimtab.benchmarks.cli.screen import print_line
from trimtab.benchmarks.core.signals import interrupts_cancel
from trimtab.errors import TrimtabError

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
                server.run(
                    lambda at: print_line(f"serving {policy} at ws://{_in_address(host)}:{at}")
                )
            )
    finally:
        process.close()
    return 0


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
