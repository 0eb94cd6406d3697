"""``trimtab evaluate``: evaluate a policy on fixed seeds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from trimtab.benchmarks.artefacts import video as films
from trimtab.benchmarks.artefacts.export import check_beside
from trimtab.benchmarks.artefacts.vla_eval import VLA_EVAL, vla_eval_result
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.cli.commands.evaluate_offline import evaluate_offline
from trimtab.benchmarks.cli.options import policy_inputs, task_options
from trimtab.benchmarks.cli.screen import print_json, print_line, progress_bar
from trimtab.benchmarks.cli.table import FILMED
from trimtab.benchmarks.core.numerals import number_text
from trimtab.benchmarks.training import base
from trimtab.benchmarks.training.evaluate import Scores
from trimtab.benchmarks.training.judging import BundleJudge, task_of
from trimtab.benchmarks.training.rows import FILE_NAME, write_episodes
from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory, atomic_write_json, unwritable
from trimtab.policies.serving.protocol import is_server

__all__ = ["evaluate"]


def evaluate(*, offline: str, overrides: Sequence[str], **asked: Any) -> int:
    """Evaluate a policy, print its scores with intervals, and write what is asked for."""
    within = "dataset." if offline == "true" else "env_options."
    for word in overrides:
        if not word.startswith(within):
            raise TrimtabError(f"evaluate: {word}: has no use with offline={offline}")
    policy, run = asked["policy"], asked["run"]
    if bool(policy) == bool(run):
        what = "not given" if not policy else f"{policy}, and run={run}"
        raise TrimtabError(f"evaluate: policy is {what}: give one folder of a run or a bundle")
    if offline == "true":
        names = ("dataset", "estimator", "updates", "discount", "seed", "out", "format")
        return evaluate_offline(
            place=policy or run,
            overrides=[*overrides, f"other_task={asked['other_task']}"],
            **{name: asked[name] for name in names},
        )
    text = asked["env_options"]
    options = task_options("evaluate", text, overrides) if text or overrides else None
    return _by_playing(policy, options, asked)


def _by_playing(policy: str, options: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> int:
    """Evaluate a policy by episodes that it plays."""
    out, seed = asked["out"], asked["seed"]
    episodes, backend, filmed = asked["episodes"], asked["backend"], asked["video_episodes"]
    if out and os.path.lexists(out) and not (os.path.isdir(out) and not os.listdir(out)):
        raise TrimtabError(f"evaluate: out={out}: is there already; name a new folder")
    if out and (reason := unwritable(Path(out).parent)):  # before hours of episodes
        raise TrimtabError(
            f"evaluate: out={out}: cannot be written ({reason}); name another folder"
        )
    bundle = base.load_base(policy)
    if out and isinstance(bundle.folder, Path):
        check_beside("evaluate", bundle.folder, Path(out))
    task, options = task_of(bundle, asked["env"] or None, options)
    film_at = films.film_path(asked["video"], policy, task)
    if film_at is None and filmed != FILMED:
        raise TrimtabError(f"evaluate: video_episodes={filmed}: add video=… for a film")
    if film_at is not None:
        films.prepare(film_at, task)  # before a simulator is imported
    judge = BundleJudge(bundle, task, options, policy_inputs("evaluate", asked["inputs"]))
    played = ("mode", "interval", "delay_ms", "jitter", "drop")
    timed = judge.timed(backend, **{name: asked[name] for name in played})
    zero_noise = bundle.config["evaluate_deterministic"]
    if asked["deterministic"]:
        zero_noise = asked["deterministic"] == "true"
    how: dict[str, Any] = {
        "episodes": episodes,
        "seed": seed,
        "backend": backend,
        "deterministic": zero_noise,
        "timing": judge.timing(**timed) if timed else None,
    }
    with contextlib.ExitStack() as opened:
        film = None
        if film_at is not None:
            film = films.Film(task, episodes=filmed, options=options)
            opened.callback(film.close)
        scores = judge.judge(**how, watch=None if film is None else film.watch)
        facts = {
            "policy": str(policy), "env": task, "env_options": dict(options),
            "backend": "server" if is_server(policy) else backend,
            "fingerprint": judge.spec.fingerprint, "deterministic": zero_noise,
        } | ({"inputs": judge.inputs} if judge.inputs else {}) | timed  # fmt: skip
        if out:
            with atomic_directory(out) as beside:
                rows = judge.rows(scores, deterministic=zero_noise, timed=timed)
                write_episodes(beside / FILE_NAME, rows)
                atomic_write_json(beside / VLA_EVAL, vla_eval_result(scores, facts, seed, timed))
        _print_scores(facts, scores, timed, asked["format"])
        if out:
            print_line(f"rows: {out}", error=True)
        if film is not None and film_at is not None:
            with progress_bar("video") as tell:
                film.write(film_at, scores, tell)
            print_line(f"video: {film_at}", error=True)
    return 0


def _print_scores(
    facts: Mapping[str, Any], scores: Scores, timed: Mapping[str, Any], format: str
) -> None:
    """Print scores with their intervals; as JSON, print every episode too.

    Above the table stands how the policy was played in simulated time, if it was.
    If all returns are equal, or there is only one episode, the return has no interval.
    """
    returns = [episode.return_ for episode in scores.episodes]
    interval = mean_interval([np.asarray(returns)])
    ends = [interval.low, interval.high] if interval.is_given else None
    answer: dict[str, Any] = {**facts, "return": interval.value, "return_interval": ends}
    rate = scores.success_rate
    if rate is not None:
        wilson = wilson_interval(round(rate * len(returns)), len(returns))
        answer |= {"success": rate, "success_interval": [wilson.low, wilson.high]}
    answer["episodes"] = [
        {
            "eval_episode": e.eval_episode, "eval_seed": e.eval_seed, "return": e.return_,
            "success": e.success, "length": e.length,
        }
        for e in scores.episodes
    ]  # fmt: skip
    if format == "json":
        print_json(answer)
        return
    title = f"{facts['env']}, {len(returns)} episodes, {facts['backend']}"
    if timed:
        told = {**timed, "delay_ms": f"{timed['delay_ms']:.3g}"}
        title += "\n" + ", ".join(f"{name}={value}" for name, value in told.items())
    table = Table(title=title, title_justify="left")
    for heading in ("score", "mean", "95% interval"):
        table.add_column(heading)
    if rate is not None:
        table.add_row("success", *_cells(Interval(rate, *answer["success_interval"])))
    table.add_row("return", *_cells(interval))
    Console(markup=False).print(table)


def _cells(found: Interval) -> tuple[str, str]:
    """Return what the table shows of an estimate: itself, and its interval if it has one."""
    decimals = found.decimals()
    value, low, high = (number_text(x, decimals, thousands="") for x in found)
    return value, f"{low} to {high}" if found.is_given else "–"
