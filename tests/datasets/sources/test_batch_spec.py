"""What a method wants of its batches, against a plain count: n-step sums, next actions, returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch, BatchSpec, TrimtabError

LENGTHS = (7, 1, 12, 5)
ENDS = (True, True, False, False)  # terminated, or cut by the clock
GAMMA = 0.9


def dataset() -> Dataset:
    """Episodes whose observations are their own addresses: (episode, step)."""
    generator = np.random.default_rng(0)
    episodes = []
    for number, (length, terminated) in enumerate(zip(LENGTHS, ENDS, strict=True)):
        last = np.zeros(length, np.bool_)
        last[-1] = True
        episodes.append(
            Episode(
                observations=np.stack([np.full(length + 1, number), np.arange(length + 1)], 1),
                actions=generator.uniform(-1, 1, (length, 1)),
                rewards=generator.normal(size=length),
                terminations=last & terminated,
                truncations=last & (not terminated),
            )
        )
    return Dataset(
        id="trimtab/wants-v0", env="x/y", env_options={}, episodes=tuple(episodes),
        action_low=(-1.0,), action_high=(1.0,),
    )  # fmt: skip


def expected(
    episodes: Any, number: int, step: int, rows: int, n_step: int
) -> dict[str, np.ndarray | float | None]:
    """One row of a batch, told from the episode itself."""
    episode = episodes[number]
    length = len(episode.rewards)
    reward, decisions, place = 0.0, 0, step
    while decisions < n_step and place < length:
        chunk = episode.rewards[place : place + rows]
        reward += GAMMA**decisions * float(chunk.sum())
        place, decisions = place + len(chunk), decisions + 1
    ended = place == length
    terminated = ended and bool(episode.terminations[-1])

    def actions(first: int) -> np.ndarray:
        return episode.actions[np.minimum(np.arange(first, first + rows), length - 1)]

    total, factor = 0.0, 1.0
    for first in range(step, length, rows):
        total += factor * float(episode.rewards[first : first + rows].sum())
        factor *= GAMMA
    return {
        "reward": reward,
        "discount": 0.0 if terminated else GAMMA**decisions,
        "next_obs": episode.observations[place],
        "action": actions(step),
        "next_action": None if ended else actions(place),
        "mc_return": total,
    }


def compare(batch: Batch, episodes: Any, rows: int, n_step: int, *, next_action: bool) -> None:
    for row, (number, step) in enumerate(batch.obs.long().tolist()):
        wanted = expected(episodes, number, step, rows, n_step)
        for name in ("reward", "discount", "next_obs", "action", "mc_return"):
            found = getattr(batch, name)
            if found is not None:
                np.testing.assert_allclose(found[row].numpy(), wanted[name], rtol=1e-5, atol=1e-6)
        if next_action:
            assert batch.next_action is not None
            if wanted["next_action"] is None:
                assert batch.discount[row] == 0  # nothing follows on a true end alone
            else:
                np.testing.assert_allclose(batch.next_action[row].numpy(), wanted["next_action"])


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("n_step", [1, 2, 4])
@pytest.mark.parametrize("next_action", [False, True])
def test_a_datasets_batches_have_what_is_wanted(rows: int, n_step: int, next_action: bool) -> None:
    data = dataset()
    buffer = ReplayBuffer.from_dataset(
        data, window=rows, discount=GAMMA, chunked=True,
        batch_spec=BatchSpec(n_step=n_step, next_action=next_action),
    )  # fmt: skip
    batch = buffer.sample(400)
    compare(batch, data.episodes, rows, n_step, next_action=next_action)
    drawn = {tuple(address) for address in batch.obs.long().tolist()}
    every = {(e, s) for e, length in enumerate(LENGTHS) for s in range(length)}
    without = {
        (e, s) for e, s in every if not ENDS[e] and next_action and s + rows * n_step >= LENGTHS[e]
    }
    assert drawn == every - without


def gathered(batch_spec: BatchSpec, capacity: int, *, chunk: int = 1) -> tuple[ReplayBuffer, Any]:
    """A ring of two environments that play the dataset's episodes in turn, and those episodes."""
    data = dataset()
    buffer = ReplayBuffer(
        capacity, 2, (chunk, 1), num_envs=2, discount=GAMMA, chunked=True, batch_spec=batch_spec
    )
    order = [[0, 2, 1, 3], [3, 1, 2, 0]]
    places = [[0, 0], [0, 0]]  # which episode, which step
    for _ in range(22):
        rows = []
        for column, (turn, step) in enumerate(places):
            episode = data.episodes[order[column][turn % 4]]
            last = step == len(episode.rewards) - 1
            rows.append(
                (
                    episode.observations[step], episode.actions[step][None], episode.rewards[step],
                    episode.observations[step + 1], episode.terminations[step],
                    episode.truncations[step],
                )
            )  # fmt: skip
            places[column] = [turn + 1, 0] if last else [turn, step + 1]
        buffer.add(*(np.array(values) for values in zip(*rows, strict=True)))
    return buffer, data.episodes


@pytest.mark.parametrize("capacity", [60, 30])
@pytest.mark.parametrize("n_step", [1, 3])
def test_what_is_gathered_has_returns_and_next_actions(capacity: int, n_step: int) -> None:
    batch_spec = BatchSpec(n_step=n_step, next_action=True, mc_return=True)
    buffer, episodes = gathered(batch_spec, capacity)
    batch = buffer.sample(500)
    assert batch.mc_return is not None and batch.mc_return.isfinite().all()
    compare(batch, episodes, 1, n_step, next_action=True)


def test_a_resumed_ring_goes_on_to_the_same_batches() -> None:
    batch_spec = BatchSpec(next_action=True, mc_return=True)
    buffer, _ = gathered(batch_spec, 30)
    other = ReplayBuffer(
        30, 2, (1, 1), num_envs=2, discount=GAMMA, chunked=True, batch_spec=batch_spec
    )
    other.load_state_dict(buffer.state_dict())
    for one in (buffer, other):
        row = np.zeros((2, 2), np.float32), np.zeros((2, 1, 1)), np.ones(2), np.ones((2, 2))
        one.add(*row, np.ones(2, np.bool_), np.zeros(2, np.bool_))
    first, second = buffer.sample(200), other.sample(200)
    for name in ("obs", "reward", "next_action", "mc_return"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    with pytest.raises(TrimtabError, match="another layout"):
        ReplayBuffer(30, 2, (1, 1), num_envs=2, discount=GAMMA, chunked=True).load_state_dict(
            buffer.state_dict()
        )


def test_nothing_is_drawn_before_it_is_known() -> None:
    buffer = ReplayBuffer(50, 2, (1, 1), batch_spec=BatchSpec(mc_return=True))
    row = np.zeros((1, 2)), np.zeros((1, 1, 1)), np.ones(1), np.ones((1, 2))
    for _ in range(5):
        buffer.add(*row, np.zeros(1, np.bool_), np.zeros(1, np.bool_))
        assert not buffer.ready
    with pytest.raises(TrimtabError, match="cannot draw"):
        buffer.sample(3)
    buffer.add(*row, np.zeros(1, np.bool_), np.ones(1, np.bool_))
    assert buffer.ready and len(buffer.sample(3)) == 3
    alone = ReplayBuffer(50, 2, (1, 1), batch_spec=BatchSpec(next_action=True))
    for _ in range(3):  # episodes of one step, which the clock ended: nothing ever follows
        alone.add(*row, np.zeros(1, np.bool_), np.ones(1, np.bool_))
    with pytest.raises(TrimtabError, match="hardly any of its 3 transitions has a next action"):
        alone.sample(2)
    for wrong, told in (
        ({"n_step": 0}, "n_step=0"),
        ({"history": 0}, "history=0"),
        ({"sequence": -1}, "sequence=-1"),
        ({"goal": 1.5}, "goal=1.5"),
        ({"goal": 0.5, "n_step": 2}, "n_step=2: goals"),
        ({"goal": 0.5, "sequence": 2}, "sequence=2: its goals"),
        ({"history": 2, "sequence": 2}, "sequence=2: its observations"),
    ):
        with pytest.raises(TrimtabError, match=told):
            BatchSpec(**wrong)


@pytest.mark.parametrize("window", [1, 3])
def test_a_young_ring_waits_until_next_actions_are_known(window: int) -> None:
    ring = ReplayBuffer(50, 2, (1, 1), window=window, batch_spec=BatchSpec(next_action=True))
    plain = ReplayBuffer(50, 2, (1, 1), window=window)
    for step in range(2 * window + 1):
        assert not ring.ready
        for buffer in (ring, plain):
            row = np.full((1, 2), step, np.float32)
            buffer.add(
                obs=row, action=row[:, None, :1], reward=row[:, 0], next_obs=row + 1,
                terminated=np.zeros(1, bool), truncated=np.zeros(1, bool),
            )  # fmt: skip
        assert plain.ready
    assert ring.ready
    for _ in range(20):
        batch = ring.sample(64)  # never refused from here on
        assert batch.next_action is not None and len(batch) == 64
