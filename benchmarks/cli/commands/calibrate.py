"""``trimtab calibrate``: a warning of what is unlike the data, calibrated by episodes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from trimtab.benchmarks.artefacts.export import check_beside
from trimtab.benchmarks.board.intervals.rates import wilson_interval
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.cli.screen import print_line, progress_bar
from trimtab.benchmarks.training.dataset import load_dataset
from trimtab.benchmarks.training.matching import check_dataset_fits
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.without_task import has_task
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.bundle.bundle import add_warning
from trimtab.policies.bundle.onnx_policy import PolicyFiles, read_policy
from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.policies.robot.runner import PolicyRunner
from trimtab.policies.robot.warning import Detector, episode_threshold

__all__ = ["calibrate"]

logger = logging.getLogger(__name__)

_MOST = 400  # episodes: a threshold of 200 is as good as is needed


def calibrate(
    bundle: str,
    dataset: str,
    out: str,
    delta: float,
    interval: int,
    seed: int,
    overrides: Sequence[str] = (),
) -> int:
    """Write a bundle with a warning, and print how often it is a false one.

    A quarter of the episodes is the reference, half of them calibrate, and a quarter, which has
    decided nothing, checks the share of false alarms. If the policy was trained on these very
    episodes, that is told, and stands in the bundle.

    Raises:
        TrimtabError: if the data does not fit the bundle, or has too few successful episodes, or
            ``out`` is there and not the bundle itself.
    """
    if not delta < 1:
        raise TrimtabError(f"calibrate: delta={delta:g}: give a share below 1, such as 0.05")
    if os.path.lexists(out) and not (os.path.exists(bundle) and os.path.samefile(out, bundle)):
        raise TrimtabError(f"calibrate: out={out}: is there already; name a new folder, or bundle=")
    check_beside("calibrate", Path(bundle), Path(out))
    files = read_policy(bundle)
    data = _data(files, bundle, [f"dataset={dataset}", *overrides])
    episodes = [episode for episode in data.episodes if episode.success is not False]
    if left_out := len(data) - len(episodes):
        logger.info("%s: %d episodes without success are left out", dataset, left_out)
    if seen := data.content_hash == (files.config["training"] or {}).get("dataset_hash"):
        logger.warning(
            "%s: the policy was trained on it, so its chunks may be steadier there than elsewhere, "
            "and false alarms more often than is said; calibrate with other episodes",
            dataset,
        )
    order = np.random.default_rng(seed).permutation(len(episodes))[:_MOST]
    quarter = len(order) // 4
    needed = math.ceil(1 / delta - 1 - 1e-9)
    if len(order) - 2 * quarter < needed or quarter < 2:
        raise TrimtabError(
            f"calibrate: {dataset} has {len(episodes)} successful episodes, half of which "
            f"calibrate: delta={delta:g} needs at least {max(2 * needed, 8)}"
        )
    with progress_bar("calibrate") as tell:
        where, shown = f"bundle {bundle}", [episodes[i] for i in order]
        interval = interval or files.contract.act_steps
        detector = _fit(files, where, shown[:quarter], interval)
        runner = _runner(files, where, detector)
        highest: list[float] = []
        for episode in shown[quarter:]:
            highest.append(max(score for score, _ in _played(runner, episode)))
            tell(len(highest) / len(shown), "")
    threshold = float(episode_threshold(highest[quarter:], delta))
    alarms = int(np.sum(np.array(highest[:quarter]) > threshold))
    rate = wilson_interval(alarms, quarter)
    entry = {
        **replace(detector, threshold=threshold).to_json(),
        "delta": delta,
        "episodes": len(order) - 2 * quarter,
        "dataset": data.id,
        **({"trained_on": True} if seen else {}),
        "checked": {"episodes": quarter, "alarms": alarms, "low": rate.low, "high": rate.high},
    }
    add_warning(bundle, out, entry, safetensors.numpy.save(detector.tensors()))
    print_line(
        f"bundle: {out}; warns above {threshold:.3g} (1 is the edge of {quarter} reference "
        f"episodes); false alarms in {alarms} of {quarter} other episodes, "
        f"{100 * rate.low:.1f} to {100 * rate.high:.1f} percent; {_verdict(rate, delta)}"
    )
    return 0


def _verdict(rate: Interval, delta: float) -> str:
    """Return how the share of false alarms lies to what was asked for."""
    asked = f"the {100 * delta:g} percent of delta={delta:g}"
    if rate.low > delta:
        return f"that is more than {asked}: calibrate with episodes that are like each other"
    return f"{asked} {'lie within' if rate.high >= delta else 'are not reached'}, as asked"


def _data(files: PolicyFiles, bundle: str, words: list[str]) -> Dataset:
    """Return the data, whose observations must be those of the bundle."""
    task, observed = files.config["env"], files.contract.observed
    words = ["algorithm=bc", "policy=gaussian", *words]
    env = None
    if has_task(task["id"]):
        options = checked_names(task["options"])
        env = get_spec(task["id"], **options)
        words += [f"env={env.id}", *(f"env_options.{key}={x}" for key, x in options.items())]
    data = load_dataset(compose_run(words), env)
    if env is not None:
        check_dataset_fits(data, env, other_task=True)
    shapes = [shape for shape, _ in observed.values()]
    if shapes != [(data.obs_dim,)]:
        parts = ", ".join(f"{name} {list(shape)}" for name, (shape, _) in observed.items())
        raise TrimtabError(
            f"calibrate: bundle {bundle} observes {parts}; a warning is calibrated for one vector, "
            f"and that of {data.id} has {data.obs_dim} entries"
        )
    return data


def _fit(files: PolicyFiles, where: str, episodes: Sequence[Episode], interval: int) -> Detector:
    """Return a detector without a threshold, whose reference are these episodes."""
    rows = [episode.observations[:-1] for episode in episodes]
    detector = Detector.fit(rows, files.contract.obs_names)
    detector = replace(detector, interval=interval)
    runner = _runner(files, where, detector)
    found = [d for episode in episodes for _, d in _played(runner, episode) if d is not None]
    edge = float(np.quantile(found, 0.999)) if found else 0.0
    return replace(detector, chunk_distance=edge) if edge > 0 else detector


def _runner(files: PolicyFiles, where: str, detector: Detector) -> PolicyRunner:
    mode = RecedingHorizon(detector.interval)
    free = replace(files.contract, limits=None)  # no robot moves
    return PolicyRunner(free, files.model, where, mode=mode, detector=detector)


def _played(runner: PolicyRunner, episode: Episode) -> Iterator[tuple[float, float | None]]:
    """Show a recorded episode to a policy, tick by tick, as a robot does.

    Yields:
        The score of each tick, and how far its chunk is from the plan before it.
    """
    runner.reset()
    (part,) = runner.contract.observed
    for row in episode.observations[:-1]:
        obs: Any = row if part == FLAT else {part: row}
        runner.step(obs)
        assert runner.score is not None
        yield runner.score, runner.chunk_distance
