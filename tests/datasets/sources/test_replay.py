"""The ring buffer's windows against a slow, obvious implementation."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch, RowLog, TrimtabError

GAMMA = 0.9


@dataclass
class Row:
    """One stored transition; ``number`` is unique and sits in the first observation."""

    number: int
    action: npt.NDArray[np.float32]  # [h, A]
    reward: float
    next_obs: npt.NDArray[np.float32]
    terminated: bool
    truncated: bool


def fill(buffer: ReplayBuffer, steps: int, chunk: int, seed: int) -> list[list[Row]]:
    """Add ``steps`` random rows; return what is still stored, column by column, oldest first."""
    generator = np.random.default_rng(seed)
    columns: list[list[Row]] = [[] for _ in range(buffer.num_envs)]
    for step in range(steps):
        rows = []
        for column in range(buffer.num_envs):
            kind = generator.choice(
                ["none", "terminated", "truncated", "both"], p=[0.7, 0.1, 0.1, 0.1]
            )
            rows.append(
                Row(
                    number=step * buffer.num_envs + column,
                    action=generator.normal(size=(chunk, 2)).astype(np.float32),
                    reward=float(np.float32(generator.normal())),
                    next_obs=generator.normal(size=2).astype(np.float32),
                    terminated=kind in ("terminated", "both"),
                    truncated=kind in ("truncated", "both"),
                )
            )
            columns[column].append(rows[-1])
        numbers = np.array([row.number for row in rows], dtype=np.float32)
        buffer.add(
            np.stack([numbers, -numbers], axis=1),
            np.stack([row.action for row in rows]),
            [row.reward for row in rows],
            np.stack([row.next_obs for row in rows]),
            [row.terminated for row in rows],
            [row.truncated for row in rows],
            aux={"weight": 10 * numbers, "pair": np.stack([numbers, numbers + 0.5], axis=1)},
        )
    return [column[-buffer.rows :] for column in columns]


def expected_window(column: list[Row], start: int, window: int) -> dict[str, Any]:
    """Walk one window row by row."""
    actions: list[npt.NDArray[np.float32]] = []
    reward, power = 0.0, 1.0
    row = column[start]
    for row in column[start : start + window]:
        actions.extend(row.action)
        reward += power * row.reward
        power *= GAMMA
        if row.terminated or row.truncated:
            break
    valid = len(actions)
    total = window * len(row.action)
    actions.extend([actions[-1]] * (total - valid))
    return {
        "action": np.stack(actions),
        "valid": np.arange(total) < valid,
        "reward": reward,
        "discount": 0.0 if row.terminated else power,
        "next_obs": row.next_obs,
    }


def make_buffer(rows: int, envs: int, chunk: int, window: int, seed: int = 0) -> ReplayBuffer:
    return ReplayBuffer(
        rows * envs,
        2,
        (chunk, 2),
        num_envs=envs,
        window=window,
        discount=GAMMA,
        seed=seed,
        aux={"weight": (), "pair": (2,)},
    )


def assert_batch_matches(batch: Batch, columns: list[list[Row]], window: int) -> set[int]:
    """Check every row of a batch; return the numbers of the starts that were drawn."""
    places = {row.number: (column, start) for column in columns for start, row in enumerate(column)}
    for i in range(len(batch)):
        number = int(batch.obs[i, 0])
        column, start = places[number]  # a KeyError here is a row that was overwritten
        wanted = expected_window(column, start, window)
        np.testing.assert_array_equal(batch.obs[i], [number, -number])
        np.testing.assert_array_equal(batch.action[i], wanted["action"])
        np.testing.assert_array_equal(batch.valid[i], wanted["valid"])
        np.testing.assert_array_equal(batch.next_obs[i], wanted["next_obs"])
        assert float(batch.reward[i]) == pytest.approx(wanted["reward"], abs=1e-5)
        assert float(batch.discount[i]) == pytest.approx(wanted["discount"], abs=1e-6)
        assert float(batch.aux["weight"][i]) == 10 * number
        np.testing.assert_array_equal(batch.aux["pair"][i], [number, number + 0.5])
    return {int(number) for number in batch.obs[:, 0]}


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("steps", [1, 7, 12, 17, 41])  # part full, just full, wrapped over
def test_windows_equal_brute_force(window: int, envs: int, steps: int) -> None:
    rows = 12
    buffer = make_buffer(rows, envs, chunk=1, window=window)
    columns = fill(buffer, steps, chunk=1, seed=window * 100 + envs * 10 + steps)
    assert len(buffer) == sum(len(column) for column in columns)
    batch = buffer.sample(600)
    assert batch.action.shape == (600, window, 2)
    assert {t.dtype for t in (batch.obs, batch.action, batch.reward, batch.discount)} == {
        torch.float32
    }
    assert batch.valid.dtype == torch.bool
    drawn = assert_batch_matches(batch, columns, window)
    assert drawn == {row.number for column in columns for row in column}  # every row is a start


@pytest.mark.parametrize("window", [1, 3])
def test_rows_that_are_chunks(window: int) -> None:
    buffer = make_buffer(9, 2, chunk=4, window=window)
    columns = fill(buffer, 15, chunk=4, seed=5)
    batch = buffer.sample(300)
    assert batch.action.shape == (300, window * 4, 2)
    assert_batch_matches(batch, columns, window)


def test_a_window_longer_than_the_buffer() -> None:
    buffer = make_buffer(3, 1, chunk=1, window=10)
    columns = fill(buffer, 5, chunk=1, seed=1)
    assert_batch_matches(buffer.sample(50), columns, 10)


def test_starts_are_uniform() -> None:
    buffer = make_buffer(10, 2, chunk=1, window=3)
    fill(buffer, 14, chunk=1, seed=2)
    numbers = buffer.sample(20_000).obs[:, 0].numpy().astype(int)
    counts = np.bincount(numbers)[8:]
    assert len(counts) == 20
    # 1000 expected each, standard deviation 31: five of them
    assert counts.min() > 845
    assert counts.max() < 1155


def test_samples_do_not_alias_the_ring() -> None:
    buffer = make_buffer(4, 1, chunk=1, window=2)
    columns = fill(buffer, 4, chunk=1, seed=3)
    buffer.sample(32).obs.zero_()
    assert_batch_matches(buffer.sample(32), columns, 2)


@pytest.mark.bits
@pytest.mark.parametrize("steps", [0, 5, 12, 19])
def test_state_restores_the_next_samples_exactly(steps: int) -> None:
    buffer = make_buffer(12, 2, chunk=1, window=3)
    fill(buffer, steps, chunk=1, seed=4)
    if steps:
        buffer.sample(7)
    state = buffer.state_dict()
    assert all(len(array) == min(steps, 12) for array in state["arrays"].values())
    scalars = {key: value for key, value in state.items() if key != "arrays"}
    state.update(json.loads(json.dumps(scalars)))
    other = make_buffer(12, 2, chunk=1, window=3, seed=99)
    fill(other, 3, chunk=1, seed=8)
    other.load_state_dict(state)
    fill(buffer, 4, chunk=1, seed=6)
    fill(other, 4, chunk=1, seed=6)
    for _ in range(3):
        one, two = buffer.sample(64), other.sample(64)
        for name in ("obs", "action", "reward", "next_obs", "discount", "valid"):
            assert torch.equal(getattr(one, name), getattr(two, name))
        assert torch.equal(one.aux["pair"], two.aux["pair"])


@pytest.mark.parametrize("steps", [0, 3, 4, 10])
def test_rows_in_a_state_stay_where_they_lie_and_are_numbered(steps: int) -> None:
    buffer = make_buffer(4, 1, chunk=1, window=1)
    columns = fill(buffer, steps, chunk=1, seed=0)
    log = buffer.state_dict()["arrays"]
    assert isinstance(log, RowLog)
    assert (log.written, log.size, log.settled) == (steps, min(steps, 4), steps)
    again = buffer.state_dict()["arrays"]
    assert all(len(array) == log.size for array in again.values())
    assert not steps or all(np.shares_memory(again[name], log[name]) for name in ("obs", "action"))
    rewards = [row.reward for row in columns[0]]
    np.testing.assert_array_equal(log.part(log.oldest, steps)["reward"][:, 0], rewards)


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    buffer = make_buffer(6, 1, chunk=1, window=2)
    fill(buffer, 4, chunk=1, seed=0)
    good = buffer.state_dict()
    broken: list[dict[str, Any]] = [
        {**good, "size": 7},
        {**good, "position": 6},
        {**good, "position": 2},
        {**good, "arrays": {}},
        {**good, "arrays": {**good["arrays"], "obs": good["arrays"]["obs"][:-1]}},
        {**good, "arrays": {**good["arrays"], "obs": good["arrays"]["obs"].astype(np.float64)}},
        {**good, "generator": {"state": "x"}},
        {**good, "layout": {**good["layout"], "discount": 0.5}},
        {key: value for key, value in good.items() if key != "size"},
    ]
    other = make_buffer(6, 1, chunk=1, window=2)
    fill(other, 2, chunk=1, seed=1)
    untouched = other.state_dict()
    for state in broken:
        with pytest.raises(TrimtabError, match="saved state"):
            other.load_state_dict(state)
        assert other.state_dict()["generator"] == untouched["generator"]
        np.testing.assert_array_equal(
            other.state_dict()["arrays"]["obs"], untouched["arrays"]["obs"]
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("obs", np.zeros((2, 3))),
        ("action", np.zeros((2, 2))),
        ("reward", np.zeros((2, 1))),
        ("next_obs", np.zeros(2)),
        ("terminated", True),
        ("truncated", np.zeros(3, dtype=bool)),
        ("aux", {}),
        ("aux", {"weight": np.zeros((2, 1))}),
        ("aux", {"weight": np.zeros(2), "other": np.zeros(2)}),
    ],
)
def test_a_wrong_row_is_refused_and_not_half_stored(name: str, value: Any) -> None:
    buffer = ReplayBuffer(8, 2, (1, 2), num_envs=2, aux={"weight": ()})
    row: dict[str, Any] = {
        "obs": torch.zeros(2, 2),
        "action": np.zeros((2, 1, 2)),
        "reward": np.zeros(2),
        "next_obs": np.zeros((2, 2)),
        "terminated": np.zeros(2, dtype=bool),
        "truncated": np.zeros(2, dtype=bool),
        "aux": {"weight": torch.zeros(2)},
    }
    buffer.add(**row)
    with pytest.raises(TrimtabError, match=f"replay buffer: .*{name}"):
        buffer.add(**{**row, name: value})
    assert len(buffer) == 2


def test_bad_sizes_and_empty_sampling_are_refused() -> None:
    for arguments in ((0, 1, (1, 1)), (5, 0, (1, 1)), (5, 1, (0, 1)), (5, 1, (1, 0))):
        with pytest.raises(TrimtabError, match="at least 1"):
            ReplayBuffer(*arguments)
    with pytest.raises(TrimtabError, match="discount"):
        ReplayBuffer(5, 1, (1, 1), discount=1.5)
    buffer = ReplayBuffer(5, 1, (1, 1))
    with pytest.raises(TrimtabError, match="cannot draw"):
        buffer.sample(1)


def test_a_million_transitions_fit_in_250_megabytes() -> None:
    buffer = ReplayBuffer(1_000_000, 17, (1, 6), num_envs=4)
    assert buffer.capacity == 1_000_000
    assert buffer.nbytes < 250e6


def test_sampling_is_fast() -> None:
    buffer = ReplayBuffer(20_000, 17, (1, 6), window=8)
    for step in range(2_000):
        end = [step % 50 == 49]
        buffer.add(np.zeros((1, 17)), np.zeros((1, 1, 6)), [1.0], np.zeros((1, 17)), end, [False])
    seconds = []
    for _ in range(300):
        begin = time.perf_counter()
        buffer.sample(256)
        seconds.append(time.perf_counter() - begin)
    # About 0.1 ms alone; the best of many bounds it even on a busy machine.
    assert min(seconds) < 0.001


def test_actions_that_an_episode_cut_off_are_not_valid() -> None:
    buffer = ReplayBuffer(4, 2, (3, 1), num_envs=2)
    zeros, ends = np.zeros((2, 2)), np.array([True, False])
    buffer.add(zeros, np.ones((2, 3, 1)), np.zeros(2), zeros, ends, ~ends, steps=np.array([2, 3]))
    batch = buffer.sample(50)
    rows = {tuple(row) for row in batch.valid.tolist()}
    assert rows == {(True, True, False), (True, True, True)}
    assert ((batch.discount == 0) == ~batch.valid[:, 2]).all()


@pytest.mark.parametrize("steps", [7, 40])
def test_rows_come_back_as_episodes(steps: int) -> None:
    rows = 20
    buffer = make_buffer(rows, envs=2, chunk=1, window=3)
    columns = fill(buffer, steps, 1, seed=5)
    again = ReplayBuffer.from_state(buffer.state_dict())
    for episodes in (buffer.episodes(), again.episodes()):
        found = iter(episodes)
        for column in columns:
            ends = [row.terminated or row.truncated for row in column]
            ends[-1] = True
            first = 0
            for stop in np.flatnonzero(ends) + 1:
                expected, episode = column[first:stop], next(found)
                numbers = [row.number for row in expected]
                np.testing.assert_array_equal(episode.observations[:-1, 0], numbers)
                np.testing.assert_array_equal(episode.observations[-1], expected[-1].next_obs)
                np.testing.assert_array_equal(episode.rewards, [row.reward for row in expected])
                np.testing.assert_array_equal(episode.actions, [row.action[0] for row in expected])
                terminated = expected[-1].terminated
                assert bool(episode.terminations[-1]) == terminated
                assert bool(episode.truncations[-1]) != terminated
                assert not (episode.terminations | episode.truncations)[:-1].any()
                first = stop
        assert next(found, None) is None


def test_chunks_are_no_episodes_of_steps() -> None:
    buffer = make_buffer(5, envs=1, chunk=2, window=1)
    with pytest.raises(TrimtabError, match="chunks of 2 actions"):
        buffer.episodes()
