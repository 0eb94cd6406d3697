"""``trimtab evaluate``: evaluate a policy on fixed seeds."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from trimtab.benchmarks.artefacts import video as films
from trimtab.benchmarks.board.intervals.means import mean_interval
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.benchmarks.cli.screen import print_json, progress_bar
from trimtab.benchmarks.cli.table import FILMED
from trimtab.benchmarks.runs import base
from trimtab.benchmarks.runs.evaluate import Evaluator, Scores, torch_act
from trimtab.benchmarks.runs.shapes import spec_of, way_of
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import TrimtabError
from trimtab.policies.agent import Decide
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.runtime import load_policy

__all__ = ["evaluate"]

logger = logging.getLogger(__name__)


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
) -> int:
    """Evaluate a policy, print its scores with intervals, and write a video if ``video`` is set."""
    if deterministic not in ("", "true", "false"):
        raise TrimtabError(f"evaluate: deterministic={deterministic}: must be true or false")
    bundle = base.load_base(policy)
    trained = bundle.config["env"]
    task = env or trained["id"]
    if env_options:
        options = _options(env_options)
    else:
        options = checked_names(trained["options"]) if task == trained["id"] else {}
    film_at = films.film_path(video, policy, task)
    if film_at is None and video_episodes != FILMED:
        raise TrimtabError(f"evaluate: video_episodes={video_episodes}: add video=… for a film")
    if film_at is not None:
        films.prepare(film_at, task)  # before a simulator is imported
    spec = get_spec(task, **options)
    act_steps = int(bundle.config["chunking"]["act_steps"])
    observations = way_of(bundle.policy.reading)
    asked = spec_of(spec, act_steps, observations).with_history(bundle.policy.spec.history)
    base.check_base_fits(bundle, asked, spec, called="policy")
    if spec.fingerprint != trained.get("fingerprint") and task == trained["id"]:
        logger.warning(
            "%s has another physics fingerprint (%s) here than where the policy was trained (%s)",
            task, spec.fingerprint, trained.get("fingerprint"),
        )  # fmt: skip
    zero_noise = bundle.config["evaluate_deterministic"]
    if deterministic:
        zero_noise = deterministic == "true"
    act: Decide = BACKENDS[backend](bundle)
    with contextlib.ExitStack() as opened:
        evaluator = Evaluator(
            task,
            episodes=episodes,
            seed=seed,
            act_steps=act_steps,
            options=options,
            observations=observations,
        )
        opened.callback(evaluator.close)
        film = None
        if film_at is not None:
            film = films.Film(task, episodes=video_episodes, act_steps=act_steps, options=options)
            opened.callback(film.close)
        scores = evaluator.judge(
            act, bundle.policy.reading, deterministic=zero_noise,
            watch=None if film is None else film.watch,
        )  # fmt: skip
        facts = {
            "policy": str(policy), "env": task, "env_options": dict(options), "backend": backend,
            "fingerprint": spec.fingerprint, "deterministic": zero_noise,
        }  # fmt: skip
        _print_scores(facts, scores, format)
        if film is not None and film_at is not None:
            with progress_bar("video") as tell:
                film.write(film_at, scores, tell)
            Console(stderr=True, soft_wrap=True, highlight=False).print(f"video: {film_at}")
    return 0


def _options(text: str) -> dict[str, Any]:
    """Return what the task is to be made with, from the words of the command line."""
    try:
        options = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TrimtabError(f"evaluate: env_options={text}: not YAML") from error
    if not isinstance(options, dict):
        raise TrimtabError("evaluate: env_options must be like {reward: sparse, horizon: 150}")
    return dict(checked_names(options))


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
        low, high = answer["success_interval"]
        table.add_row("success", f"{rate:.2f}", f"{low:.2f} to {high:.2f}")
    shown = f"{interval.low:.2f} to {interval.high:.2f}" if interval.is_given else "–"
    table.add_row("return", f"{interval.value:.2f}", shown)
    Console().print(table)


def _on_torch(bundle: Bundle) -> Decide:
    return torch_act(bundle.policy)


def _on_onnx(bundle: Bundle) -> Decide:
    runner = load_policy(bundle.folder)
    return lambda obs, noise: runner.predict(obs, noise)


BACKENDS: dict[str, Callable[[Bundle], Decide]] = {"torch": _on_torch, "onnx": _on_onnx}
"""What can run a bundle's policy."""
