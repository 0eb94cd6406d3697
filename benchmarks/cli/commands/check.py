"""``trimtab check``: contract tests of one task, here and in another process."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from trimtab.benchmarks.cli.options import task_options
from trimtab.benchmarks.cli.screen import print_json
from trimtab.benchmarks.core.pools import await_some, worker_pool
from trimtab.benchmarks.core.signals import end_with_parent, sigterm_as_event
from trimtab.benchmarks.core.workers import worker_context
from trimtab.envs.check import (
    REPEATED,
    Episode,
    difference,
    episode_in_process,
    faults_of,
    is_unseeded,
)
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

__all__ = ["check"]

SILENCE = 15.0
"""Seconds after which one line says that a task is still being played, and again after as many."""
_STOPPED = "check: stopped; run the same command again"


def check(env: str, env_options: str, format: str, overrides: Sequence[str]) -> int:
    """Print what is wrong with a task, each fault in one line; exit code 2 if anything is."""
    options = task_options("check", env_options, overrides)
    faults = _faults(env, options)
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


def _faults(env: str, options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a task, here and in another process."""
    with _patience(env, "it is not made"):
        faults, episode = faults_of(env, options, playing=False)
    if episode is None:
        return faults
    # It is played elsewhere first: there, what never returns can be stopped, and what ends its
    # process is seen.
    with _patience(env, f"its first {REPEATED} steps are not over"):
        there, elsewhere = _play_elsewhere(env, options)
    if there is None:
        return [*faults, *elsewhere]
    with _patience(env, "its episodes here are not over"):
        faults, episode = faults_of(env, options)
    if episode is None or not len(episode.obs):
        return faults
    return [*faults, *(elsewhere or _apart(there, episode, faults))]


def _play_elsewhere(env: str, options: Mapping[str, Any]) -> tuple[Episode | None, list[str]]:
    """Play a task in another process, as several runs side by side use it.

    Args:
        env: the task's id.
        options: its options.

    Returns:
        The episode, None if the task ended its process; and what was wrong with the process.
    """
    context = worker_context()
    try:
        with (
            sigterm_as_event() as told,
            worker_pool(1, context, _prepare_worker, told=told, stopped=_STOPPED) as pool,
        ):
            future = pool.submit(episode_in_process, env, dict(options))
            await_some([future], told, _STOPPED)
            episode, why = future.result()
    except TrimtabError as error:
        if error.exit_code != TrimtabError.exit_code:  # told to stop
            raise
        return None, [
            "it ends the process that plays it, without a word: see what reset() and step() do"
        ]
    if why:
        return episode, [
            f"it cannot be made in a worker process ({why}); runs side by side need a task that "
            "any process finds by its id: register it in a package, and name the package"
        ]
    return episode, []


def _apart(there: Episode, here: Episode, faults: Sequence[str]) -> list[str]:
    """Return how an episode differs between two processes, if its seed decides it in one."""
    apart = "" if is_unseeded(faults) else difference(here, there)
    if not apart:
        return []
    return [
        f"reset(seed=…) in another process gives {apart}: something of the process decides it, "
        "such as hash() of a text, the time, or a generator of its own"
    ]


@contextlib.contextmanager
def _patience(env: str, what: str) -> Iterator[None]:
    """Say from time to time that a task still does something, so that a hang is understood.

    Args:
        env: the task's id.
        what: words for what is not over.
    """
    began, over = time.monotonic(), threading.Event()

    def say() -> None:
        screen = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        while not over.wait(SILENCE):
            seconds = time.monotonic() - began
            screen.print(
                f"{env}: {what} after {seconds:.0f} s; see whether its constructor, reset(), "
                "step() and close() return, or stop this with Ctrl+C"
            )

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _prepare_worker() -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's
