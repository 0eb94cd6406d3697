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
    (
        "repeated-end",
        "warning",
        "key 'observations'",
        lambda e: {"observations": np.concatenate([e.observations[:-1], e.observations[-2:-1]])},
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


def test_a_constant_reward_is_told_by_what_is_left_to_learn(make_dataset: Any) -> None:
    for reward, ended, told in (
        (1.0, False, "always 1: there is nothing to optimise"),
        (1.0, True, "always 1: only when an episode terminates tells a good action from a bad one"),
        (0.0, True, "always 0: there is nothing to optimise"),
    ):

        def change(episode: Episode, reward: float = reward, ended: bool = ended) -> dict[str, Any]:
            return {
                "rewards": np.full_like(episode.rewards, reward),
                "terminations": flags(episode, *[-1] * ended),
                "truncations": flags(episode, *[-1] * (not ended)),
            }

        (found,) = [
            one for one in check(changed(make_dataset((5, 3, 6)), change))
            if one.code == "constant-reward"
        ]  # fmt: skip
        assert found.message.startswith(told)


def test_a_sensor_at_its_limit_is_noticed(make_dataset: Any) -> None:
    for limit, few, expected in ((-0.5, False, True), (9.0, False, False), (-0.5, True, False)):

        def change(episode: Episode, limit: float = limit, few: bool = few) -> dict[str, Any]:
            column = np.minimum(episode.observations[:, 2], limit)
            if few:  # a flag is always at one of its extremes
                column = np.where(column == np.float32(limit), 1.0, 0.0)
            return {"observations": np.c_[episode.observations[:, :2], column]}

        codes = [(f.code, f.where) for f in check(changed(make_dataset((40, 30)), change))]
        assert codes == [("saturated-observation", "observation 2")] * expected


def test_normalised_data_is_noticed(make_dataset: Any) -> None:
    dataset = make_dataset((30, 30))
    seen = np.concatenate([episode.observations for episode in dataset.episodes])
    low, high, mean, std = seen.min(0), seen.max(0), seen.mean(0), seen.std(0)
    ways: list[Change] = [
        lambda e: {"observations": 2 * (e.observations - low) / (high - low + 1e-6) - 1},
        lambda e: {"observations": (e.observations - mean) / std},
    ]
    for way in ways:
        assert "normalised-observation" in [f.code for f in check(changed(dataset, way))]
    one_is_raw = changed(
        dataset, lambda e: {"observations": ways[0](e)["observations"] * [1, 1, 2]}
    )
    assert check(one_is_raw) == []


def ranked(dataset: Dataset, returns: list[float], successes: list[bool] | None = None) -> Dataset:
    """Return ``dataset``'s first episode once for each return, and success."""
    generator = np.random.default_rng(1)
    episodes = []
    for index, value in enumerate(returns):
        template = dataset.episodes[0]
        infos = {} if successes is None else {"success": np.full(len(template), successes[index])}
        noise = generator.normal(size=template.observations.shape)
        rewards = np.full(len(template), value)
        episodes.append(
            dataclasses.replace(template, observations=noise, rewards=rewards, infos=infos)
        )
    return dataclasses.replace(dataset, episodes=tuple(episodes))


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


def test_time_limits_among_real_ends_are_suspected(make_dataset: Any) -> None:
    ended = changed(
        make_dataset((9, 2, 9, 3, 9, 9)),
        lambda e: {"terminations": flags(e, -1), "truncations": flags(e)},
    )
    assert "timeout-as-terminal" in {finding.code for finding in check(ended)}
    once = changed(
        make_dataset((9, 2, 8, 3)),
        lambda e: {"terminations": flags(e, -1), "truncations": flags(e)},
    )
    assert "timeout-as-terminal" not in {finding.code for finding in check(once)}
