"""``trimtab evaluate``: evaluate a policy on fixed seeds."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from trimtab.benchmarks.artefacts import video as films
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.cli.commands.evaluate_offline import evaluate_offline
from trimtab.benchmarks.cli.options import policy_inputs, task_options
from trimtab.benchmarks.cli.screen import print_json, progress_bar
from trimtab.benchmarks.cli.table import BACKEND, DISCOUNT, EPISODES, FILMED, UPDATES
from trimtab.benchmarks.core.numerals import number_text
from trimtab.benchmarks.training import base, shards
from trimtab.benchmarks.training.evaluate import Scores
from trimtab.benchmarks.training.judging import BundleJudge, task_of
from trimtab.errors import TrimtabError

__all__ = ["evaluate"]


def evaluate(
    policy: str,
    env: str,
    episodes: int,
    seed: int,
    backend: str,
    deterministic: str,
    env_options: str,
    video: str,
    video_episodes: int,
    format: str,
    out: str = "",
    shard: str = "",
    inputs: str = "",
    *,
    offline: str = "false",
    run: str = "",
    dataset: str = "",
    other_task: str = "false",
    estimator: str = "",
    updates: int = UPDATES,
    discount: str = DISCOUNT,
    overrides: Sequence[str] = (),
) -> int:
    """Evaluate a policy, print its scores with intervals, and write what is asked for."""
    options = [word for word in overrides if word.startswith("env_options.")]
    overrides = [word for word in overrides if word not in options]
    data = {"run": run, "dataset": dataset, "estimator": estimator}
    if offline == "true":
        unused = {"env": env, "video": video, "shard": shard, "deterministic": deterministic}
        unused |= {"inputs": inputs, "episodes": "" if episodes == EPISODES else str(episodes)}
        unused |= {"backend": "" if backend == BACKEND else backend}
        _refuse(
            {**unused, "env_options": env_options or "".join(options)},
            "offline=true plays no episode; leave it out",
        )
        return evaluate_offline(
            place=_one_of(policy, run),
            dataset=dataset,
            overrides=[*overrides, f"other_task={other_task}"],
            estimator=estimator,
            updates=updates,
            discount=discount,
            seed=seed,
            out=out,
            format=format,
        )
    _refuse(data, "it is of an evaluation by data; add offline=true")
    _refuse({word.split("=")[0]: word for word in overrides}, "add offline=true")
    if deterministic not in ("", "true", "false"):
        raise TrimtabError(f"evaluate: deterministic={deterministic}: must be true or false")
    chosen = task_options("evaluate", env_options, options) if env_options or options else None
    return _by_playing(
        _one_of(policy, ""), env=env, episodes=episodes, seed=seed, backend=backend,
        deterministic=deterministic, env_options=chosen, video=video,
        video_episodes=video_episodes, format=format, out=out, shard=shard, inputs=inputs,
    )  # fmt: skip


def _by_playing(
    policy: str,
    *,
    env: str,
    episodes: int,
    seed: int,
    backend: str,
    deterministic: str,
    env_options: Mapping[str, Any] | None,
    video: str,
    video_episodes: int,
    format: str,
    out: str,
    shard: str,
    inputs: str,
) -> int:
    """Evaluate a policy by episodes that it plays."""
    part = _part(shard, out, video)
    bundle = base.load_base(policy)
    task, options = task_of(bundle, env or None, env_options)
    film_at = films.film_path(video, policy, task)
    if film_at is None and video_episodes != FILMED:
        raise TrimtabError(f"evaluate: video_episodes={video_episodes}: add video=… for a film")
    if film_at is not None:
        films.prepare(film_at, task)  # before a simulator is imported
    judge = BundleJudge(bundle, task, options, policy_inputs("evaluate", inputs))
    zero_noise = bundle.config["evaluate_deterministic"]
    if deterministic:
        zero_noise = deterministic == "true"
    asked = {
        "episodes": episodes, "seed": seed, "backend": backend, "deterministic": zero_noise,
    }  # fmt: skip
    note = shards.note_of(judge, part, asked) if out else {}
    if out:
        shards.check_place(Path(out), part, note)
    with contextlib.ExitStack() as opened:
        film = None
        if film_at is not None:
            film = films.Film(task, episodes=video_episodes, options=options)
            opened.callback(film.close)
        scores = judge.judge(
            episodes=episodes, seed=seed, backend=backend, deterministic=zero_noise,
            watch=None if film is None else film.watch, part=(part.number, part.of),
        )  # fmt: skip
        facts = {
            "policy": str(policy), "env": task, "env_options": dict(options), "backend": backend,
            "fingerprint": judge.spec.fingerprint, "deterministic": zero_noise,
        } | ({"inputs": judge.inputs} if judge.inputs else {})  # fmt: skip
        if shard:
            facts |= {"shard": shard}
        if out:
            rows = shards.rows_of(judge, scores, deterministic=zero_noise)
            written = shards.write_rows(Path(out), rows, part, note)
        _print_scores(facts, scores, format)
        if out:
            Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
                f"rows: {written}"
            )
        if film is not None and film_at is not None:
            with progress_bar("video") as tell:
                film.write(film_at, scores, tell)
            Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(
                f"video: {film_at}"
            )
    return 0


def _refuse(words: Mapping[str, str], why: str) -> None:
    """Refuse words that have no effect on this evaluation.

    Raises:
        TrimtabError: naming the first that was given.
    """
    for name, value in words.items():
        if value:
            raise TrimtabError(f"evaluate: {name}= has no use here: {why}")


def _one_of(policy: str, run: str) -> str:
    """Return the place of what is judged.

    Raises:
        TrimtabError: if there is none, or two.
    """
    if bool(policy) == bool(run):
        what = "not given" if not policy else f"{policy}, and run={run}"
        raise TrimtabError(f"evaluate: policy is {what}: give one folder of a run or a bundle")
    return policy or run


def _part(shard: str, out: str, video: str) -> shards.Shard:
    """Return which part of the episodes is to be played.

    Raises:
        TrimtabError: if it is none, or what it needs or cannot have is missing or there.
    """
    if not shard:
        return shards.WHOLE
    part = shards.shard_of(shard)
    if not out:
        raise TrimtabError(f"evaluate: shard={shard}: add out=… for the rows of the part")
    if video:
        raise TrimtabError(f"evaluate: shard={shard}: a part has no video; leave video= out")
    return part


def _print_scores(facts: Mapping[str, Any], scores: Scores, format: str) -> None:
    """Print scores with their intervals; as JSON, print every episode too.

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
