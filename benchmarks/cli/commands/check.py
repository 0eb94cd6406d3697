"""``trimtab check``: contract tests of one task, here and in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from trimtab.benchmarks.cli.options import task_options
from trimtab.benchmarks.cli.screen import print_json, print_line
from trimtab.benchmarks.contracts.own import outcomes
from trimtab.benchmarks.core.pools import call_elsewhere
from trimtab.envs.check import (
    Episode,
    difference,
    episode_in_process,
    faults_of,
    is_unseeded,
)
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

__all__ = ["check"]

_STOPPED = "check: stopped; run the same command again"


def check(
    env: str,
    algorithm: str,
    policy: str,
    dataset: str,
    env_options: str,
    skip: str,
    format: str,
    overrides: Sequence[str],
) -> int:
    """Print what is wrong with a task, or what each check of a method, policy or data finds.

    Returns:
        0 if nothing is wrong; otherwise 2 of a task, and 1 of the others.
    """
    named = {"algorithm": algorithm, "policy": policy, "dataset": dataset}
    named = {group: choice for group, choice in named.items() if choice}
    if named:
        options = task_options("check", env_options)
        chosen = [f"{group}={choice}" for group, choice in named.items()]
        chosen += [f"env={env}"] if env else []
        chosen += [f"env_options.{name}={value}" for name, value in options.items()]
        return _check_own(next(iter(named.values())), [*chosen, *overrides], skip, format)
    if skip or not env:
        what = "skip= is of a method, a policy or data" if skip else "nothing is named"
        raise TrimtabError(f"check: {what}; give env=…, algorithm=…, policy=… or dataset=…")
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
    for line in lines:
        print_line(f"{env}: {line}")
    return 2 if faults else 0


def _check_own(name: str, words: Sequence[str], skip: str, format: str) -> int:
    """Print what each check of a method, a policy or data finds, in one line."""
    found = []
    for outcome in outcomes(words, [one for one in skip.split(",") if one]):
        found.append(asdict(outcome))
        if format != "json":
            mark = "" if outcome.passed else "FAULT: "
            print_line(f"{name}: {outcome.check}: {mark}{outcome.text}")
    faults = [one for one in found if not one["passed"]]
    if format == "json":
        print_json({"name": name, "checks": found, "faults": len(faults)})
    else:
        words_of = (
            f"{len(faults)} of {len(found)} checks found a fault" if faults else "no fault found"
        )
        print_line(f"{name}: {words_of}")
    return 1 if faults else 0


def _faults(env: str, options: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a task, here and in another process."""
    faults, episode = faults_of(env, options, playing=False)
    if episode is None:
        return faults
    # It is played elsewhere first: there, what never returns can be stopped, and what ends its
    # process is seen.
    there, elsewhere = _play_elsewhere(env, options)
    if there is None:
        return [*faults, *elsewhere]
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
    try:
        played, why = call_elsewhere(episode_in_process, env, dict(options), stopped=_STOPPED)
    except TrimtabError as error:
        if error.exit_code != TrimtabError.exit_code:  # told to stop
            raise
        return None, [
            "it ends the process that plays it, without a word: see what reset() and step() do"
        ]
    episode = Episode(**played)
    episode.obs, episode.rewards = np.array(episode.obs), np.array(episode.rewards)
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
