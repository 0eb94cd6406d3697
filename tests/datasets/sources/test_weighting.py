"""Steps drawn by what their episodes returned, against the closed form."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.weighting import (
    WeightedEpisodes,
    advantage_scores,
    episode_weights,
    return_scores,
)
from trimtab.types import TrimtabError

LENGTHS = (4, 1, 7, 5)


def returning(dataset: Dataset, returns: tuple[float, ...]) -> Dataset:
    """Let each episode have its return in its last step, and say which it is in every action."""
    episodes = [
        dataclasses.replace(
            episode,
            rewards=np.where(np.arange(len(episode)) == len(episode) - 1, total, 0.0),
            actions=np.full_like(episode.actions, index),
        )
        for index, (episode, total) in enumerate(zip(dataset.episodes, returns, strict=True))
    ]
    return dataclasses.replace(dataset, episodes=tuple(episodes))


def test_sampled_shares_are_those_of_the_closed_form(make_dataset: Any) -> None:
    dataset = returning(make_dataset(LENGTHS), (0.0, 10.0, 5.0, -10.0))
    weights = episode_weights(dataset, "return", 0.5)
    # Scores 0.5, 1, 0.75 and 0, each step with exp(score / 0.5).
    np.testing.assert_allclose(weights, np.exp([-1.0, 0.0, -0.5, -2.0]))
    buffer = ReplayBuffer.from_dataset(dataset, weights=weights, seed=3)
    drawn = np.concatenate([buffer.sample(1000).action[:, 0, 0].numpy() for _ in range(60)])
    shares = np.array([(drawn == index).mean() for index in range(4)])
    mass = weights * LENGTHS
    expected = mass / mass.sum()
    error = np.sqrt(expected * (1 - expected) / len(drawn))
    assert (np.abs(shares - expected) < 4 * error).all(), (shares, expected)


def test_every_step_of_an_episode_is_as_likely() -> None:
    drawn = WeightedEpisodes(LENGTHS, [0.0, 1.0, 3.0, 0.0]).draw(np.random.default_rng(0), 66_000)
    counts = np.bincount(drawn, minlength=17)
    assert counts[:4].sum() == counts[12:].sum() == 0  # episodes without weight
    expected = np.array([1, *[3] * 7]) * 3000
    assert (np.abs(counts[4:12] - expected) < 4 * np.sqrt(expected)).all(), counts


def test_an_infinite_temperature_is_uniform(make_dataset: Any) -> None:
    dataset = make_dataset(LENGTHS)
    for by in ("return", "advantage"):
        weights = episode_weights(dataset, by, math.inf)
        np.testing.assert_array_equal(weights, 1.0)
        # Uniform over steps: a long episode is drawn more often, as without weights.
        drawn = WeightedEpisodes(LENGTHS, weights).draw(np.random.default_rng(1), 51_000)
        counts = np.bincount(drawn, minlength=17)
        assert (np.abs(counts - 3000) < 4 * np.sqrt(3000)).all()


def test_a_low_temperature_keeps_the_best_only(make_dataset: Any) -> None:
    dataset = returning(make_dataset(LENGTHS), (1e6, 1.0, -1e6, 9e5))
    weights = episode_weights(dataset, "return", 1e-5)
    np.testing.assert_array_equal(weights, [1.0, 0.0, 0.0, 0.0])


def test_equal_returns_are_equal_weights(make_dataset: Any) -> None:
    dataset = returning(make_dataset(LENGTHS), (3.3,) * 4)
    np.testing.assert_array_equal(return_scores(dataset), 0.0)
    np.testing.assert_array_equal(episode_weights(dataset, "return", 0.1), 1.0)


def test_advantages_take_out_what_the_start_promises(make_dataset: Any) -> None:
    """Returns are linear in the start but for one episode that did better than its start."""
    dataset = make_dataset((2,) * 400, seed=4)
    first = np.array([e.observations[0] for e in dataset.episodes], dtype=np.float64)
    returns = first[:, 0].copy()
    returns[7] += 1.0
    scores = advantage_scores(returning(dataset, tuple(returns)))
    assert scores[7] == 1.0
    assert np.delete(scores, 7).max() < 0.1
    assert np.argmax(returns) != 7
    # Against the library's own solution of the same regression.
    inputs = (first - first.mean(0)) / first.std(0)
    rows = np.concatenate([inputs, np.eye(3)])
    totals = returns.astype(np.float32).astype(np.float64)
    centred = totals - totals.mean()
    slope = np.linalg.lstsq(rows, np.concatenate([centred, np.zeros(3)]), rcond=None)[0]
    left = centred - inputs @ slope
    np.testing.assert_allclose(scores, (left - left.min()) / np.ptp(left), atol=1e-12)


def test_a_state_goes_on_and_knows_its_weights(make_dataset: Any) -> None:
    dataset = make_dataset(LENGTHS)

    def source(temperature: float, seed: int) -> ReplayBuffer:
        weights = episode_weights(dataset, "return", temperature)
        return ReplayBuffer.from_dataset(dataset, window=2, weights=weights, seed=seed)

    one, other = source(0.3, 0), source(0.3, 1)
    one.sample(5)
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.sample(50).obs, other.sample(50).obs)
    for stranger in (source(0.4, 0), ReplayBuffer.from_dataset(dataset, window=2)):
        with pytest.raises(TrimtabError, match="another layout, window, discount or dataset"):
            stranger.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("lengths", "weights", "message"),
    [
        ((3, 4), (1.0,), "1 weights for 2 episodes"),
        ((3, 4), (1.0, -1.0), "at least 0"),
        ((3, 4), (0.0, 0.0), "positive"),
        ((3, 4), (1.0, np.nan), "positive"),
        ((3, 4), (1.0, np.inf), "finite"),
    ],
)
def test_wrong_weights(lengths: Any, weights: Any, message: str) -> None:
    with pytest.raises(TrimtabError, match=message):
        WeightedEpisodes(lengths, weights)


@pytest.mark.parametrize(
    ("by", "temperature", "message"),
    [
        ("luck", 1.0, "there are: return, advantage"),
        ("return", 0.0, "greater than 0"),
        ("return", math.nan, "greater than 0"),
    ],
)
def test_wrong_weightings(by: str, temperature: float, message: str, make_dataset: Any) -> None:
    with pytest.raises(TrimtabError, match=message):
        episode_weights(make_dataset(LENGTHS), by, temperature)
