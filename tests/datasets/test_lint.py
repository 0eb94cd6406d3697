"""Every check finds its fault, and a healthy dataset has none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.lint import check

Change = Callable[[Episode], dict[str, Any]]


def changed(dataset: Dataset, change: Change) -> Dataset:
    episodes = tuple(dataclasses.replace(e, **change(e)) for e in dataset.episodes)
    return dataclasses.replace(dataset, episodes=episodes)


def flags(episode: Episode, *steps: int) -> npt.NDArray[np.bool_]:
    array = np.zeros(len(episode), dtype=bool)
    array[list(steps)] = True
    return array


def test_a_healthy_dataset_has_no_findings(make_dataset: Any) -> None:
    assert check(make_dataset((5, 3, 6))) == []


FAULTS: list[tuple[str, str, str, Change]] = [
    ("not-finite", "error", "episode 1, key 'rewards'", lambda e: {"rewards": e.rewards * np.nan}),
    (
        "constant-observation",
        "warning",
        "observation 1",
        lambda e: {"observations": e.observations * [1, 0, 1]},
    ),
    ("constant-action", "warning", "action 0", lambda e: {"actions": e.actions * [0, 1]}),
    ("action-out-of-range", "error", "action 1", lambda e: {"actions": e.actions * [1, 50]}),
    ("saturated-action", "warning", "action 0", lambda e: {"actions": np.sign(e.actions)}),
    ("constant-reward", "warning", "key 'rewards'", lambda e: {"rewards": e.rewards * 0}),
    (
        "flag-inside-episode",
        "warning",
        "episode 2",
        lambda e: {"terminations": flags(e, 0), "truncations": flags(e, -1)},
    ),
    (
        "no-end-flag",
        "warning",
        "episode 0",
        lambda e: {"terminations": flags(e), "truncations": flags(e)},
    ),
    (
        "timeout-as-terminal",
        "error",
        "key 'terminations'",
        lambda e: {"terminations": flags(e, -1), "truncations": flags(e)},
    ),
]


@pytest.mark.parametrize(("code", "level", "where", "change"), FAULTS, ids=[f[0] for f in FAULTS])
def test_each_fault_is_found(
    make_dataset: Any, code: str, level: str, where: str, change: Change
) -> None:
    findings = check(changed(make_dataset((6, 6, 6)), change))
    assert (code, level, where) in [(f.code, f.level, f.where) for f in findings]
    assert all(f.message for f in findings)


def test_duplicates_name_the_earlier_episode(make_dataset: Any) -> None:
    dataset = make_dataset((3, 4, 5))
    twice = dataclasses.replace(dataset, episodes=(*dataset.episodes, dataset.episodes[1]))
    (finding,) = check(twice)
    assert (finding.code, finding.where) == ("duplicate-episode", "episode 3")
    assert "episode 1" in finding.message


def test_limits_within_rounding_are_no_violation(make_dataset: Any) -> None:
    dataset = changed(
        make_dataset((8, 9)), lambda e: {"actions": np.clip(e.actions * 1.0, -1, 1) * (1 + 1e-6)}
    )
    assert "action-out-of-range" not in [f.code for f in check(dataset)]


def test_terminations_of_different_lengths_are_real(make_dataset: Any) -> None:
    dataset = changed(
        make_dataset((3, 4)), lambda e: {"terminations": flags(e, -1), "truncations": flags(e)}
    )
    assert check(dataset) == []


def test_no_episodes_is_one_finding(make_dataset: Any) -> None:
    (finding,) = check(dataclasses.replace(make_dataset(), episodes=()))
    assert (finding.code, finding.level) == ("no-episodes", "error")
