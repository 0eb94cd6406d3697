"""A small run that is killed and goes on, beside one that is not; each in a process of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.phases import Budget, Trials
from trimtab.benchmarks.contracts.base import Broken, require
from trimtab.benchmarks.contracts.made_up import learns_from_trials
from trimtab.benchmarks.core.own_code import in_a_line
from trimtab.benchmarks.core.pools import call_elsewhere
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.plan import method_of
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.train import train
from trimtab.envs.registry import get_spec
from trimtab.files import sha256_file

__all__ = ["STOPPED", "TASK", "check_resuming", "small_run"]

TASK = "gymnasium:Pendulum-v1"
"""Task of a run for which none is given: Gymnasium's own."""
_OFFLINE, _ONLINE = 40, 60
"""Updates on a dataset, and environment steps after a warm-up."""
STOPPED = "check: stopped; run the same command again"
_SMALL = ("policy.hidden=[16,16]", "policy.sampling_steps=2")


class _Killed(BaseException):
    """Ends a run without a word to it."""


class _Kill(Callback):
    def __init__(self, at: float) -> None:
        self.at = at

    def on_step(self, now: RunProgress) -> None:
        if now.position >= self.at * now.end:
            raise _Killed


def small_run(words: Sequence[str], out: str) -> list[str]:
    """Return the words of a small run with a method, with what the method uses.

    Args:
        words: what is given; the other settings are chosen.
        out: folder of the run, and of data that are recorded for it.

    Raises:
        TrimtabError: if something that is given is unknown or wrong.
    """
    given = {word.partition("=")[0] for word in words}
    chosen = [f"env={TASK}"] if "env" not in given else []
    chosen += ["eval_episodes=2", "seed=1", f"out={out}"]
    config = compose_run([*words, *chosen])
    method = method_of(config)
    budgets = {"offline_steps", "online_steps"}
    if method.learns and not given & budgets and not any(config[name] for name in budgets):
        online = method.explore is not Algorithm.explore  # its file names no budget
        chosen.append(f"online_steps={_ONLINE}" if online else f"offline_steps={_OFFLINE}")
        config = compose_run([*words, *chosen])
    learned = method.needs.required & {"start", "policy"}
    if learned and not given & {"policy", "base"}:
        chosen += [f"policy={method.needs.base_kind or 'flow'}", *_SMALL]
    needs_data = method.needs.required & {"dataset", "start"} or config["offline_steps"]
    if needs_data and "dataset" not in given:
        chosen += _random_data(config)
    if {"base", "oracles"} & method.needs.required and not given & {"base", "oracles"}:
        base = _base(config, chosen, out)
        chosen += [f"base={base}"] if "base" in method.needs.required else [f"oracles=[{base}]"]
    steps = {"offline_steps": _OFFLINE if config["offline_steps"] else 0}
    if config["online_steps"]:
        made = checked_plan(compose_run([*words, *chosen])).algorithm
        steps["online_steps"] = _online(config, made)
    chosen = [word for word in chosen if word.partition("=")[0] not in steps]
    chosen += [f"{name}={value}" for name, value in steps.items() if name not in given]
    ends = compose_run([*words, *chosen])
    end = ends["offline_steps"] + ends["online_steps"]
    return [*words, *chosen, f"checkpoint_every={max(end // 3, 1)}"]


def _online(config: RunConfig, made: Algorithm) -> int:
    """Return environment steps that hold a warm-up and updates, or a few rollouts or trials."""
    if learns_from_trials(made):
        phases = made.phases(Budget(offline_steps=0, online_steps=1))
        trials = [one.feed.propose() for one in phases if isinstance(one.feed, Trials)]
        horizon = get_spec(config["env"], **(config["env_options"] or {})).horizon
        return 3 * horizon * max(trial.episodes for trial in trials if trial is not None)
    decision: int = config["num_envs"] * (config["act_steps"] or 1)
    return 3 * made.pace.rollout_steps * decision or made.pace.warmup_steps + _ONLINE * decision


def _random_data(config: RunConfig) -> list[str]:
    """Return the words of a dataset of a few episodes under random actions."""
    env = get_spec(config["env"], **(config["env_options"] or {}))
    return [
        "dataset=halfcheetah_random",
        f"dataset.env={env.id}",
        "dataset.id=check/random-v0",
        f"dataset.steps={3 * env.horizon}",
        f"dataset.controller.low=[{','.join(map(str, env.action_low))}]",
        f"dataset.controller.high=[{','.join(map(str, env.action_high))}]",
        "other_task=true",
    ]


def _base(config: RunConfig, chosen: Sequence[str], out: str) -> str:
    """Train a small base by behaviour cloning; return its folder."""
    kept = [word for word in chosen if word.startswith(("seed", "out", "eval_episodes"))]
    method = method_of(config)
    words = ["algorithm=bc", f"env={config['env']}", f"offline_steps={_OFFLINE}", *kept]
    words += [f"policy={method.needs.base_kind or 'flow'}", *_SMALL, *_random_data(config)]
    words += [f"act_steps={config['act_steps'] or 1}"]
    return str(train(compose_run(words)).folder)


def carry_out(words: Sequence[str], kill_at: float | None) -> dict[str, Any] | None:
    """Carry out a run; return all that must be equal, or None where it was killed."""
    try:
        with in_a_line():
            done = train(compose_run(words), callbacks=[] if kill_at is None else [_Kill(kill_at)])
    except _Killed:
        return None
    lines = (done.folder / "metrics.jsonl").read_text().splitlines()
    rows = read_episodes(done.folder / "episodes.parquet").to_pylist()
    return {
        "metrics.jsonl": [_timeless(json.loads(line)) for line in lines],
        "episodes.parquet": [_timeless(row) for row in rows],
        "policy": sha256_file(done.folder / "policy" / "model.safetensors"),
    }


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {column: value for column, value in row.items() if column != "seconds"}


def check_resuming(words: Sequence[str]) -> str:
    """A run that is killed and goes on in another process ends with the bits of one that is not.

    Args:
        words: of the run, without ``out``.
    """
    with tempfile.TemporaryDirectory() as folder:
        ended = {}
        for name, kills in (("whole", (None,)), ("killed", (0.6, None))):
            run = small_run(words, str(Path(folder) / name))
            for kill_at in kills:
                ended[name] = call_elsewhere(carry_out, run, kill_at, stopped=STOPPED)
        whole, killed = ended["whole"], ended["killed"]
    require(whole is not None and killed is not None, "the run was ended before its end")
    for part in whole:
        if whole[part] != killed[part]:
            raise Broken(
                f"a run that is killed and goes on ends with another {part} than one that is not: "
                "something that it needs is not saved, or is of the process: a global variable, an "
                "attribute of a class, a generator of a module's own"
            )
    config = compose_run(run)
    return (
        f"killed and gone on with in another process, a run of {config['env']} with "
        f"{config['offline_steps']} updates and {config['online_steps']} steps ends with equal bits"
    )
