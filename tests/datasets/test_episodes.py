"""The schema of episodes: statistics, content hash and validation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.types import TrimtabError


def test_statistics_equal_numpy_over_all_rows(make_dataset: Any) -> None:
    dataset = make_dataset()
    observations = np.concatenate([episode.observations for episode in dataset.episodes])
    actions = np.concatenate([episode.actions for episode in dataset.episodes])
    statistics = dataset.statistics()
    np.testing.assert_allclose(statistics.obs_mean, observations.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(statistics.obs_std, observations.std(0), rtol=1e-5)
    np.testing.assert_array_equal(statistics.obs_min, observations.min(0))
    np.testing.assert_array_equal(statistics.obs_max, observations.max(0))
    np.testing.assert_array_equal(statistics.action_min, actions.min(0))
    np.testing.assert_array_equal(statistics.action_max, actions.max(0))
    assert str(statistics.obs_mean.dtype) == "torch.float32"


def test_statistics_survive_a_large_offset() -> None:
    alternating = 1000.0 + np.arange(100_001)[:, None] % 2
    observations = alternating.astype(np.float32)
    steps = len(observations) - 1
    flags = np.zeros(steps, dtype=bool)
    episode = Episode(observations, observations[1:], observations[1:, 0], flags, flags)
    statistics = Dataset("a-v0", "env", {}, (episode,), (-1,), (1,)).statistics()
    assert float(statistics.obs_mean) == pytest.approx(1000.5, abs=1e-3)
    assert float(statistics.obs_std) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.bits
def test_content_hash_is_of_the_content(make_dataset: Any) -> None:
    assert make_dataset(seed=3).content_hash == make_dataset(seed=3).content_hash
    original = make_dataset()
    variants = [
        make_dataset(seed=1),
        dataclasses.replace(original, id="test/other-v0"),
        dataclasses.replace(original, env_options={}),
        dataclasses.replace(original, episodes=original.episodes[::-1]),
        dataclasses.replace(original, episodes=original.episodes[:-1]),
        dataclasses.replace(
            original,
            episodes=(dataclasses.replace(original.episodes[0], seed=-1), *original.episodes[1:]),
        ),
    ]
    hashes = {original.content_hash, *(variant.content_hash for variant in variants)}
    assert len(hashes) == 1 + len(variants)


def test_arrays_are_converted_and_read_only() -> None:
    given = np.zeros((3, 1))
    episode = Episode(given, [[0], [1]], [1, 2], [0, 1], [False, False])  # type: ignore[arg-type]
    assert episode.observations.dtype == episode.actions.dtype == np.float32
    assert episode.terminations.dtype == np.bool_
    assert len(episode) == 2
    assert episode.total_reward == 3.0
    assert episode.success is None
    with pytest.raises(ValueError, match="read-only"):
        episode.rewards[0] = 5.0
    given[0] = 1.0  # the caller's own array stays writable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.zeros((4, 3))}, r"episode 1, key 'observations': shape \(4, 3\)"),
        ({"observations": np.zeros((3, 2))}, r"key 'observations': .* expected \(3, 3\)"),
        ({"observations": np.full((3, 3), np.nan)}, "key 'observations': NaN or infinity"),
        ({"actions": np.zeros((2, 5))}, "key 'actions'"),
        ({"actions": np.zeros(2)}, "key 'actions'"),
        ({"actions": np.full((2, 2), np.inf)}, "key 'actions': NaN or infinity"),
        ({"rewards": np.zeros((2, 1))}, "key 'rewards'"),
        ({"rewards": [0.0, np.nan]}, "key 'rewards': NaN or infinity"),
        ({"terminations": [True]}, "key 'terminations'"),
        ({"truncations": [True] * 3}, "key 'truncations'"),
        ({"infos": {"success": np.zeros(7)}}, "key 'infos/success'"),
        ({"infos": {"note": np.array(["a", "b"])}}, "key 'infos/note'.*not a number"),
    ],
)
def test_validate_names_the_episode_and_the_key(
    make_dataset: Any, change: dict[str, Any], message: str
) -> None:
    dataset = make_dataset((2, 2))
    validate(dataset, "here")
    broken = dataclasses.replace(dataset.episodes[1], **change)
    broken_dataset = dataclasses.replace(dataset, episodes=(dataset.episodes[0], broken))
    with pytest.raises(TrimtabError, match=r"^here: episode 1, key") as caught:
        validate(broken_dataset, "here")
    assert caught.match(message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"episodes": ()}, "no episodes"),
        ({"action_low": (-1,)}, "action limits have 1 and 2 entries"),
        ({"action_low": (2.0, -1.0)}, "low exceeds high"),
        ({"action_high": (float("nan"), 1.0)}, "NaN"),
    ],
)
def test_validate_checks_the_whole(make_dataset: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(TrimtabError, match=message):
        validate(dataclasses.replace(make_dataset(), **change), "here")


def test_values_that_are_no_array_raise() -> None:
    with pytest.raises(TrimtabError, match="key 'actions' is not an array of numbers"):
        Episode(np.zeros((3, 1)), [[0.0], [1.0, 2.0]], [1, 2], [0, 1], [0, 0])  # type: ignore[arg-type]
