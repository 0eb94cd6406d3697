"""``trimtab check``: contract tests of one task, here and in another process."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from trimtab.benchmarks.cli.options import task_options
from trimtab.benchmarks.cli.screen import print_json
from trimtab.benchmarks.core.pools import await_some, worker_pool
from trimtab.benchmarks.core.signals import end_with_parent, sigterm_as_event
from trimtab.envs.check import Episode, difference, episode_in_process, faults_of, is_unseeded
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

__all__ = ["check"]

_STOPPED = "check: stopped; run the same command again"


def check(env: str, env_options: str, format: str, overrides: Sequence[str]) -> int:
    """Print what is wrong with a task, each fault in one line; exit code 2 if anything is."""
    options = task_options("check", env_options, overrides)
    faults, episode = faults_of(env, options)
    if len(episode.obs):
        faults += _faults_elsewhere(env, options, None if is_unseeded(faults) else episode)
    spec = None if faults else get_spec(env, **options)
    if format == "json":
        physics = None if spec is None else spec.fingerprint
        print_json({"env": env, "env_options": options, "fingerprint": physics, "faults": faults})
        return 2 if faults else 0
    lines = faults
    if spec is not None:
        lines = [
            f"no fault found (observation {spec.obs_dim}, action {spec.action_dim}, horizon "
            f"{spec.horizon}, physics {spec.fingerprint})"
        ]
    screen = Console(soft_wrap=True, highlight=False, markup=False)
    for line in lines:
        screen.print(f"{env}: {line}", markup=False)
    return 2 if faults else 0


def _faults_elsewhere(env: str, options: Mapping[str, Any], here: Episode | None) -> list[str]:
    """Return what is wrong with a task in another process, as several runs side by side use it.

    Args:
        env: the task's id.
        options: its options.
        here: the episode that was played in this process; None where its seed does not decide it.
    """
    context = multiprocessing.get_context("spawn")
    try:
        with (
            sigterm_as_event() as told,
            worker_pool(1, context, _prepare_worker, told=told, stopped=_STOPPED) as pool,
        ):
            future = pool.submit(episode_in_process, env, dict(options))
            await_some([future], told, _STOPPED)
            there, why = future.result()
    except TrimtabError as error:
        if error.exit_code != TrimtabError.exit_code:  # told to stop
            raise
        return ["it ends a worker process without a word; see what it does when it is made"]
    if why:
        return [
            f"it cannot be made in a worker process ({why}); runs side by side need a task that "
            "any process finds by its id: register it in a package, and name the package"
        ]
    apart = "" if here is None else difference(here, there)
    if apart:
        return [
            f"reset(seed=…) in another process gives {apart}: something of the process decides it, "
            "such as hash() of a text, the time, or a generator of its own"
        ]
    return []


def _prepare_worker() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's
