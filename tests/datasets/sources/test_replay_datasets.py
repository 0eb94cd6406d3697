"""A dataset in the ring buffer: its episodes are never joined, and a chunk of it is one row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch, TrimtabError

GAMMA = 0.9


def test_a_dataset_becomes_rows_that_never_join_episodes(make_dataset: Any) -> None:
    dataset = make_dataset((4, 1, 7, 5))
    buffer = ReplayBuffer.from_dataset(dataset, window=3, discount=GAMMA, seed=1)
    assert len(buffer) == dataset.num_steps == 17
    starts = {
        episode.observations[t].tobytes(): (episode, t)
        for episode in dataset.episodes
        for t in range(len(episode))
    }
    batch = buffer.sample(400)
    assert batch.mc_return is not None
    seen = set()
    for i in range(400):
        key = batch.obs[i].numpy().tobytes()
        seen.add(key)
        episode, t = starts[key]
        stop = min(t + 3, len(episode))
        rewards = episode.rewards[t:].astype(float)
        powers = GAMMA ** np.arange(len(rewards))
        actions = list(episode.actions[t:stop])
        np.testing.assert_array_equal(
            batch.action[i], np.stack(actions + [actions[-1]] * (3 - len(actions)))
        )
        np.testing.assert_array_equal(batch.valid[i], np.arange(3) < stop - t)
        np.testing.assert_array_equal(batch.next_obs[i], episode.observations[stop])
        wanted = (powers * rewards)[: stop - t].sum()
        assert float(batch.reward[i]) == pytest.approx(wanted, abs=1e-5)
        assert float(batch.mc_return[i]) == pytest.approx((powers * rewards).sum(), abs=1e-5)
        ended = bool(episode.terminations[stop - 1])
        assert float(batch.discount[i]) == pytest.approx(0.0 if ended else GAMMA ** (stop - t))
    assert len(seen) == 17


def test_a_dataset_buffer_is_read_only_and_saves_only_its_generator(make_dataset: Any) -> None:
    dataset = make_dataset()
    buffer = ReplayBuffer.from_dataset(dataset, window=2, seed=1)
    buffer.sample(5)
    state = buffer.state_dict()
    assert state["arrays"] == {}
    other = ReplayBuffer.from_dataset(dataset, window=2, seed=2)
    other.load_state_dict(state)
    assert torch.equal(buffer.sample(20).action, other.sample(20).action)
    different = ReplayBuffer.from_dataset(make_dataset(seed=5), window=2)
    with pytest.raises(TrimtabError, match="another layout"):
        different.load_state_dict(state)
    with pytest.raises(TrimtabError, match="cannot grow"):
        buffer.add(np.zeros((1, 3)), np.zeros((1, 1, 2)), [0], np.zeros((1, 3)), [0], [0])


def test_a_window_of_a_chunked_dataset_is_one_decision(make_dataset: Any) -> None:
    """Rewards summed as they are, one discount, as a chunk that was gathered online."""
    dataset = make_dataset()
    window, discount = 3, 0.9
    buffer = ReplayBuffer.from_dataset(dataset, window=window, discount=discount, chunked=True)
    expected: dict[bytes, tuple[float, float, float]] = {}
    for episode in dataset.episodes:
        for start in range(len(episode)):
            rewards = episode.rewards[start:].astype(np.float64)
            chunks = [rewards[i : i + window].sum() for i in range(0, len(rewards), window)]
            total = sum(discount**i * chunk for i, chunk in enumerate(chunks))
            stop = min(start + window, len(episode))
            ended = bool(episode.terminations[stop - 1])
            key = episode.observations[start].astype(np.float32).tobytes()
            expected[key] = (float(chunks[0]), 0.0 if ended else discount, float(total))
    batch = buffer.sample(400)
    assert batch.mc_return is not None
    seen = set()
    for row in range(400):
        key = batch.obs[row].numpy().tobytes()
        seen.add(key)
        found = (batch.reward[row], batch.discount[row], batch.mc_return[row])
        assert [float(x) for x in found] == pytest.approx(expected[key], abs=1e-5)
    assert len(seen) > 0.8 * len(expected)


@pytest.mark.parametrize("length", [8, 9, 10, 11, 1])
@pytest.mark.parametrize("terminated", [True, False])
def test_a_chunk_is_one_row_whether_it_was_gathered_or_recorded(
    make_dataset: Any, length: int, terminated: bool
) -> None:
    """An episode gathered in chunks and the same one cut out of a dataset give equal decisions."""
    window, generator = 4, np.random.default_rng(length)
    (episode,) = make_dataset(lengths=[length]).episodes
    ends = np.arange(length) == length - 1
    episode = replace(episode, terminations=ends & terminated, truncations=ends & (not terminated))
    dataset = replace(make_dataset(lengths=[length]), episodes=[episode])
    starts = range(0, length, window)
    online = ReplayBuffer(
        len(starts), dataset.obs_dim, (window, dataset.action_dim), discount=GAMMA
    )
    for start in starts:
        stop = min(start + window, length)
        planned = generator.normal(size=(window, dataset.action_dim))
        planned[: stop - start] = episode.actions[start:stop]  # what was executed
        last = stop == length
        online.add(
            episode.observations[start][None],
            planned[None],
            [episode.rewards[start:stop].sum()],
            episode.observations[stop][None],
            [last and terminated],
            [last and not terminated],
            steps=[stop - start],
        )
    recorded = ReplayBuffer.from_dataset(dataset, window=window, discount=GAMMA, chunked=True)
    of_dataset = {row[0]: row[1:] for row in rows_by_start(recorded.sample(400))}
    of_run = {row[0]: row[1:] for row in rows_by_start(online.sample(100))}
    assert len(of_run) == len(starts) and len(of_dataset) == length
    for start, parts in of_run.items():
        for ours, theirs in zip(parts, of_dataset[start], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def rows_by_start(batch: Batch) -> list[tuple[Any, ...]]:
    """Each decision of a batch, by its first observation's bytes."""
    columns = (batch.action, batch.valid, batch.reward, batch.next_obs, batch.discount)
    return [
        (batch.obs[i].numpy().tobytes(), *(column[i].numpy() for column in columns))
        for i in range(len(batch))
    ]
