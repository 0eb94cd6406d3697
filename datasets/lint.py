"""Checks of a dataset for what is legal but probably a mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.findings import Finding, noted
from trimtab.datasets.formats.ogbench.rewards import REWARDS_OF
from trimtab.datasets.formats.own import missing_ends

__all__ = ["Finding", "check"]

_SATURATED_SHARE = 0.5  # of the rows lie exactly at a limit
_FEWEST_OF_A_MEASUREMENT = 10  # values that are not a flag, a count or a category
_NORMALISED_LIMITS = 1e-5  # DPPO's scaling stops short of 1 by less
_NORMALISED_MOMENTS = 0.01
_REPEATED_SHARE = 0.5  # of the episodes that move until then
_LIMIT_TOLERANCE = 1e-5  # of the action's range: float32 rounding is no violation


def check(dataset: Dataset) -> list[Finding]:
    """Return everything suspicious in ``dataset``; an empty list means nothing was found.

    Codes: ``no-episodes``, ``not-finite``, ``constant-observation``, ``saturated-observation``,
    ``normalised-observation``, ``repeated-end``, ``missing-end``, ``constant-action``,
    ``saturated-action``, ``action-out-of-range``, ``constant-reward``, ``duplicate-episode``,
    ``timeout-as-terminal``, ``flag-inside-episode``, ``no-end-flag``, and
    what the reader of a file noted: ``missing-frames``, ``control-rate``, ``stale-mask``,
    ``missing-chunk``, ``lost-precision``.
    """
    if not dataset.episodes:
        return [Finding("error", "no-episodes", dataset.id, "it has no episodes; make it again")]
    return [
        *noted(dataset.recipe),
        *_not_finite(dataset),
        *_observations(dataset),
        *_normalised(dataset),
        *_repeated_end(dataset),
        *_missing_end(dataset),
        *_actions(dataset),
        *_rewards(dataset),
        *_duplicates(dataset),
        *_ends(dataset),
    ]


def _not_finite(dataset: Dataset) -> Iterator[Finding]:
    for index, episode in enumerate(dataset.episodes):
        for name, array in episode.arrays().items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                count = int((~np.isfinite(array)).sum())
                yield Finding(
                    "error", "not-finite", f"episode {index}, key '{name}'",
                    f"{count} values are NaN or infinite; drop the episode or record it again",
                )  # fmt: skip


def _observations(dataset: Dataset) -> Iterator[Finding]:
    for dimension, column in enumerate(_columns(dataset, "observations")):
        where = f"observation {dimension}"
        low, high = column.min(), column.max()
        if low == high:
            yield Finding(
                "warning", "constant-observation", where,
                f"always {low:g}: it tells nothing; a normaliser has to expect it",
            )  # fmt: skip
        if not low < high:
            continue
        for limit in (low, high):
            share = float((column == limit).mean())
            if share > _SATURATED_SHARE and len(np.unique(column)) >= _FEWEST_OF_A_MEASUREMENT:
                yield Finding(
                    "warning", "saturated-observation", where,
                    f"{share:.0%} of the values are its extreme {limit:g}: clipped, or a sensor "
                    "at its limit",
                )  # fmt: skip


def _normalised(dataset: Dataset) -> Iterator[Finding]:
    """Raw units rarely fill [-1, 1] exactly, or have mean 0 and deviation 1, in every dimension."""
    limits = standard = 0.0
    moving = False
    for column in _columns(dataset, "observations"):
        if not np.isfinite(column).all():
            return
        low, high = column.min(), column.max()
        if low < high:
            moving = True
            limits = max(limits, abs(low + 1), abs(high - 1))
            mean, deviation = column.mean(dtype=np.float64), column.std(dtype=np.float64)
            standard = max(standard, abs(mean), abs(deviation - 1))
    if moving and (limits < _NORMALISED_LIMITS or standard < _NORMALISED_MOMENTS):
        shape = "fills [-1, 1]" if limits < _NORMALISED_LIMITS else "has mean 0 and deviation 1"
        yield Finding(
            "warning", "normalised-observation", "key 'observations'",
            f"every dimension {shape}: it looks normalised, and a policy trained on it would see "
            "other numbers on the robot; store raw units",
        )  # fmt: skip


def _repeated_end(dataset: Dataset) -> Iterator[Finding]:
    """A file of T observations, read as T+1, repeats its last one.

    It matters only where a value is bootstrapped from it: where it passes for observed, and the
    task went on.
    """
    moving = [
        episode
        for episode in dataset.episodes
        if episode.last_observed
        and not episode.terminations[-1]
        and (len(episode) == 1 or (episode.observations[-2] != episode.observations[-3]).any())
    ]
    repeated = sum(
        bool((episode.observations[-1] == episode.observations[-2]).all()) for episode in moving
    )
    if moving and repeated > _REPEATED_SHARE * len(moving):
        yield Finding(
            "warning", "repeated-end", "key 'observations'",
            f"the final observation repeats the one before in {repeated} of {len(dataset)} "
            "episodes: it was not recorded; imitation does not need it, but a value bootstrapped "
            "from it closes the episode on itself; drop the last step, or read the data in a "
            "format that says so",
        )  # fmt: skip


def _missing_end(dataset: Dataset) -> Iterator[Finding]:
    for line in missing_ends(dataset):
        yield Finding("warning", "missing-end", "key 'observations'", line)


def _actions(dataset: Dataset) -> Iterator[Finding]:
    lows = np.array(dataset.action_low, dtype=np.float64)
    highs = np.array(dataset.action_high, dtype=np.float64)
    for dimension, seen in enumerate(_columns(dataset, "actions")):
        column = seen.astype(np.float64)
        low, high = lows[dimension], highs[dimension]
        where = f"action {dimension}"
        if column.min() == column.max():
            yield Finding(
                "warning", "constant-action", where,
                f"always {column[0]:g}: nothing can be learnt about it",
            )  # fmt: skip
        if not np.isfinite(low) or not np.isfinite(high):
            continue
        slack = _LIMIT_TOLERANCE * max(high - low, 1e-12)
        outside = int(((column < low - slack) | (column > high + slack)).sum())
        if outside:
            yield Finding(
                "error", "action-out-of-range", where,
                f"{outside} of {len(column)} values lie outside [{low:g}, {high:g}] (seen "
                f"{column.min():g} to {column.max():g}); correct the limits or the units",
            )  # fmt: skip
        share = float(((column <= low + slack) | (column >= high - slack)).mean())
        if share > _SATURATED_SHARE and column.min() != column.max():
            yield Finding(
                "warning", "saturated-action", where,
                f"{share:.0%} of the values lie at a limit; check the units and the clipping",
            )  # fmt: skip


def _rewards(dataset: Dataset) -> Iterator[Finding]:
    rewards = np.concatenate([episode.rewards for episode in dataset.episodes])
    if len(rewards) > 1 and rewards.min() == rewards.max():
        ended = any(episode.terminations.any() for episode in dataset.episodes)
        what = "there is nothing to optimise; imitation still works"
        if ended and rewards[0]:
            what = "only when an episode terminates tells a good action from a bad one"
        yield Finding(
            "warning", "constant-reward", "key 'rewards'", f"always {rewards[0]:g}: {what}"
        )


def _duplicates(dataset: Dataset) -> Iterator[Finding]:
    first: dict[bytes, int] = {}
    for index, episode in enumerate(dataset.episodes):
        digest = hashlib.sha256()
        for array in (episode.observations, episode.actions, episode.rewards):
            digest.update(f"{array.shape}".encode() + array.tobytes())
        earlier = first.setdefault(digest.digest(), index)
        if earlier != index:
            yield Finding(
                "warning", "duplicate-episode", f"episode {index}",
                f"the same as episode {earlier}; drop it, or check the seeds",
            )  # fmt: skip


def _columns(dataset: Dataset, name: str) -> Iterator[npt.NDArray[Any]]:
    """Yield each dimension of all episodes' rows: one after another, for all may be too many."""
    for dimension in range(dataset.episodes[0].arrays()[name].shape[1]):
        yield np.concatenate([e.arrays()[name][:, dimension] for e in dataset.episodes])


def _ends(dataset: Dataset) -> Iterator[Finding]:
    inside = REWARDS_OF in dataset.recipe  # trajectories that go on past a task's goal
    for index, episode in enumerate(dataset.episodes):
        flags = episode.terminations | episode.truncations
        if flags[:-1].any() and not inside:
            step = int(np.argmax(flags[:-1]))
            yield Finding(
                "warning", "flag-inside-episode", f"episode {index}",
                f"step {step} of {len(episode)} already ends it; split the episode there",
            )  # fmt: skip
        if not flags[-1]:
            yield Finding(
                "warning", "no-end-flag", f"episode {index}",
                "its last step is neither terminated nor truncated; it is treated as truncated",
            )  # fmt: skip
    lengths = {len(episode) for episode in dataset.episodes}
    longest = max(lengths)
    at_longest = [e for e in dataset.episodes if len(e) == longest]
    ended = sum(bool(e.terminations[-1]) for e in at_longest)
    if len(lengths) > 1 and ended == len(at_longest) > max(2, len(dataset) // 10):
        yield Finding(
            "warning", "timeout-as-terminal", "key 'terminations'",
            f"{ended} episodes end terminated after {longest} steps, and none is longer: if that "
            "is the time limit, move them to 'truncations'",
        )  # fmt: skip
    terminated = all(episode.terminations[-1] for episode in dataset.episodes)
    truncated = any(episode.truncations[-1] for episode in dataset.episodes)
    if len(dataset) > 1 and len(lengths) == 1 and terminated and not truncated:
        yield Finding(
            "error", "timeout-as-terminal", "key 'terminations'",
            f"every episode ends terminated after {lengths.pop()} steps: a time limit seems to be "
            "stored as a termination; move it to 'truncations'",
        )  # fmt: skip
