"""A last observation that was not recorded serves cloning, and no value is bootstrapped from it."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.registry import get_format, list_formats
from trimtab.datasets.lint import check
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.streamed_buffer import StreamedBuffer
from trimtab.datasets.sources.streaming import load
from trimtab.types import Batch, TrimtabError

GAMMA = 0.99
WRITTEN = [format.name for format in list_formats() if format.save is not None]


def chain(lengths: tuple[int, ...], observed: tuple[bool, ...], reward: float = 1.0) -> Dataset:
    """Episodes of states that are numbered over all of them, the last reward being ``reward``."""
    episodes, state = [], 0
    for steps, is_observed in zip(lengths, observed, strict=True):
        states = np.arange(state, state + steps + 1, dtype=np.float32)
        if not is_observed:
            states[-1] = states[-2]  # as the readers of such files have it
        last = np.arange(steps) == steps - 1
        episodes.append(
            Episode(
                observations=np.stack([states, states * 0 + 7], axis=1),
                actions=np.linspace(-0.5, 0.5, steps)[:, None],
                rewards=last * reward,
                terminations=np.zeros(steps, bool),
                truncations=last,
                seed=3,
                last_observed=is_observed,
            )
        )
        state += steps + 1
    return Dataset("test/chain-v0", "test/env", {}, episodes, (-1.0,), (1.0,), 20.0, {"a": 1})


def tabular_values(batch: Batch, states: int, sweeps: int = 3000) -> torch.Tensor:
    """Return the fixed point of TD(0) over the batch's transitions, one value a state."""
    here, there = batch.obs[:, 0].long(), batch.next_obs[:, 0].long()
    value = torch.zeros(states, dtype=torch.float64)
    for _ in range(sweeps):
        target = batch.reward.double() + batch.discount.double() * value[there]
        counts = torch.zeros_like(value).index_add(0, here, torch.ones_like(target))
        sums = torch.zeros_like(value).index_add(0, here, target)
        value = torch.where(counts > 0, sums / counts.clamp(min=1), value)
    return value


def windows_by_hand(dataset: Dataset, window: int, chunked: bool) -> dict[int, tuple[Any, ...]]:
    """Return reward, next state, discount and number of actions of the window from each state.

    An episode whose last observation lacks is one that is a step shorter.
    """
    found = {}
    for episode in dataset.episodes:
        steps = len(episode) - (not episode.last_observed)
        for start in range(steps):
            stop = min(start + window, steps)
            powers = np.arange(stop - start) * (not chunked)
            reward = float((GAMMA**powers * episode.rewards[start:stop]).sum())
            discount = GAMMA if chunked else GAMMA ** (stop - start)
            following = int(episode.observations[stop, 0])
            found[int(episode.observations[start, 0])] = (
                reward, following, discount, stop - start,
            )  # fmt: skip
    return found


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("window", "chunked"), [(1, False), (1, True), (3, False), (4, True)])
def test_no_window_looks_past_what_was_recorded(
    window: int, chunked: bool, streamed: bool, tmp_path: Path
) -> None:
    dataset = chain((5, 1, 4, 6, 2), (False, False, True, False, True))
    settings: Any = {"window": window, "chunked": chunked, "discount": GAMMA, "seed": 5}
    buffer = ReplayBuffer.from_dataset(dataset, **settings)
    if streamed:
        save = get_format("minari").save
        assert save is not None
        save(dataset, tmp_path / "x")
        on_disk = load(tmp_path / "x", tmp_path / "streams")
        assert on_disk.content_hash == dataset.content_hash
        buffer, in_memory = StreamedBuffer(on_disk, **settings), buffer
        batches = buffer.sample(500), in_memory.sample(500)
        for field in dataclasses.fields(Batch):
            one, other = (getattr(batch, field.name) for batch in batches)
            same = torch.equal(one, other) if torch.is_tensor(one) else one == other
            assert same, field.name
        assert buffer.state_dict() == in_memory.state_dict()
    batch = buffer.sample(3000)
    wanted = windows_by_hand(dataset, window, chunked)
    starts = batch.obs[:, 0].int().tolist()
    assert set(starts) == set(wanted)  # every transition, and nothing else
    counts = np.unique(starts, return_counts=True)[1]
    assert counts.min() > 0.7 * counts.mean() and counts.max() < 1.3 * counts.mean()
    for row, start in enumerate(starts):
        reward, following, discount, used = wanted[start]
        assert float(batch.reward[row]) == pytest.approx(reward, abs=1e-6)
        assert int(batch.next_obs[row, 0]) == following != start
        assert float(batch.discount[row]) == pytest.approx(discount, abs=1e-6)
        assert int(batch.valid[row].sum()) == used


@pytest.mark.parametrize(("window", "chunked"), [(1, False), (3, True)])
def test_cloning_has_every_step(window: int, chunked: bool) -> None:
    dataset = chain((5, 1, 4), (False, False, True))
    whole = chain((5, 1, 4), (True, True, True))
    settings: Any = {"window": window, "chunked": chunked, "successors": False, "seed": 2}
    ours = ReplayBuffer.from_dataset(dataset, **settings).sample(400)
    theirs = ReplayBuffer.from_dataset(whole, **settings).sample(400)
    for name in ("obs", "action", "valid"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert len(set(ours.obs[:, 0].tolist())) == 10


def test_the_last_state_is_not_worth_a_hundred() -> None:
    """A reward of 1 in an episode that is closed on itself is worth 1 / (1 - gamma)."""
    dataset = chain((4,), (False,))
    closed = dataclasses.replace(dataset.episodes[0], last_observed=True)
    old = ReplayBuffer.from_dataset(dataclasses.replace(dataset, episodes=[closed]), discount=GAMMA)
    assert float(tabular_values(old.sample(200), 5)[3]) == pytest.approx(100, rel=1e-3)
    batch = ReplayBuffer.from_dataset(dataset, discount=GAMMA).sample(200)
    np.testing.assert_array_equal(tabular_values(batch, 5), np.zeros(5))  # its reward is unknown
    # With the observation on record the reward counts, and what follows it is worth 0.
    whole = ReplayBuffer.from_dataset(chain((4,), (True,)), discount=GAMMA).sample(200)
    wanted = [GAMMA**3, GAMMA**2, GAMMA, 1.0, 0.0]
    np.testing.assert_allclose(tabular_values(whole, 5), wanted, rtol=1e-6)


def test_weights_are_those_of_the_episodes() -> None:
    dataset = chain((3, 2, 4), (False, True, False))
    buffer = ReplayBuffer.from_dataset(dataset, weights=[1.0, 2.0, 0.0], seed=1)
    drawn = buffer.sample(6000).obs[:, 0].int().numpy()
    numbers, counts = np.unique(drawn, return_counts=True)
    assert numbers.tolist() == [0, 1, 4, 5]  # state 2 has no successor; the third weighs nothing
    np.testing.assert_allclose(counts / 6000, [1 / 6, 1 / 6, 1 / 3, 1 / 3], atol=0.02)


def test_nothing_to_bootstrap_from_is_one_line() -> None:
    dataset = chain((1, 1), (False, False))
    with pytest.raises(TrimtabError, match="none of its steps has a recorded next observation"):
        ReplayBuffer.from_dataset(dataset)
    assert len(ReplayBuffer.from_dataset(dataset, successors=False)) == 2


def test_the_return_keeps_the_last_reward() -> None:
    """A Monte-Carlo return looks at no observation."""
    batch = ReplayBuffer.from_dataset(chain((3,), (False,)), discount=0.5).sample(50)
    assert batch.mc_return is not None
    wanted = {0: 0.25, 1: 0.5}
    for state, value in zip(batch.obs[:, 0].int().tolist(), batch.mc_return.tolist(), strict=True):
        assert value == wanted[state]


def test_a_state_of_one_use_is_not_resumed_by_the_other() -> None:
    dataset = chain((3, 2), (False, True))
    clone = ReplayBuffer.from_dataset(dataset, successors=False).state_dict()
    with pytest.raises(TrimtabError, match="another layout"):
        ReplayBuffer.from_dataset(dataset).load_state_dict(clone)
    buffer = ReplayBuffer.from_dataset(dataset, seed=4)
    again = ReplayBuffer.from_dataset(dataset, seed=9)
    again.load_state_dict(buffer.state_dict())
    assert torch.equal(again.sample(50).obs, buffer.sample(50).obs)


def test_statistics_count_no_observation_twice() -> None:
    dataset = chain((3,), (False,))
    assert float(dataset.statistics().obs_mean[0]) == 1.0  # of 0, 1, 2
    assert float(dataset.statistics(transitions_only=True).obs_mean[0]) == 0.5  # 2 has no successor
    whole = chain((3,), (True,))
    assert float(whole.statistics().obs_mean[0]) == 1.5
    assert float(whole.statistics(transitions_only=True).obs_mean[0]) == 1.0
    short = chain((1, 2), (False, True))
    assert short.statistics(transitions_only=True).obs_min.tolist() == [2, 7]
    with pytest.raises(TrimtabError, match="none of its steps has a recorded next observation"):
        chain((1, 1), (False, False)).statistics(transitions_only=True)


def test_the_content_hash_tells_them_apart() -> None:
    dataset = chain((3, 2), (False, False))
    closed = [dataclasses.replace(e, last_observed=True) for e in dataset.episodes]
    assert dataclasses.replace(dataset, episodes=closed).content_hash != dataset.content_hash


@pytest.mark.parametrize("name", WRITTEN)
def test_every_written_format_keeps_it(name: str, tmp_path: Path) -> None:
    dataset = chain((3, 1, 4), (False, True, False))
    format = get_format(name)
    assert format.save is not None
    path = tmp_path / f"x{format.suffixes[0]}"
    format.save(dataset, path)
    read = format.load(path)
    assert [episode.last_observed for episode in read.episodes] == [False, True, False]
    assert read.content_hash == dataset.content_hash
    if format.open is not None:
        streamed = load(path, tmp_path / "streams")
        assert [episode.last_observed for episode in streamed.episodes] == [False, True, False]
        assert streamed.content_hash == dataset.content_hash


@pytest.mark.parametrize("name", ["dppo", "diffusion_policy", "lerobot", "robomimic"])
def test_strangers_files(
    name: str, foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an episode of three rows and one of two, not terminated, two and one have a successor."""
    path = tmp_path / foreign.WRITERS[name][0]
    more: dict[str, Any] = {
        "dppo": {"rewards": np.ones(5, np.float32)},
        "lerobot": {"next.success": None, "next.reward": np.ones(5, np.float32)},
        "robomimic": {"following": False},
    }.get(name, {})
    getattr(foreign, name)(path, **more)
    with caplog.at_level(logging.WARNING):
        dataset = get_format(name).load(path)
    # robomimic's first demonstration ends with success: nothing is bootstrapped at its end.
    first = name == "robomimic"
    assert [episode.last_observed for episode in dataset.episodes] == [first, False]
    assert len(ReplayBuffer.from_dataset(dataset, successors=False)) == 5
    batch = ReplayBuffer.from_dataset(dataset, seed=1).sample(400)
    assert len(torch.unique(batch.obs, dim=0)) == 3 + first
    goes_on = batch.discount > 0
    closed = (batch.next_obs == batch.obs).all(dim=1)
    assert not (closed & goes_on).any()
    format = get_format(name)
    if format.open is not None:
        streamed = StreamedBuffer(load(path, tmp_path / "streams"), seed=1)
        assert torch.equal(streamed.sample(400).obs, batch.obs)
    (finding,) = [f for f in check(dataset) if f.code in ("missing-end", "repeated-end")]
    assert finding.code == "missing-end"
    assert finding.message.startswith(f"the last observation of {2 - first} of 2 episodes")
