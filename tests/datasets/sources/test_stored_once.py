"""Each observation is stored once, and batches are what they were with two of them a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Part, TrimtabError

Row = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


def play(
    buffer: ReplayBuffer, steps: int, generator: np.random.Generator, ends: float, jumps: float
) -> list[Row]:
    """Add rows; return their observations and next ones, each ``[N, 2]``, oldest first.

    Args:
        buffer: of flat observations of length 2.
        steps: rows.
        generator: decides everything.
        ends: how often an episode ends.
        jumps: how often a row begins elsewhere though the one before did not end.
    """
    columns = buffer.num_envs
    obs = generator.normal(size=(columns, 2)).astype(np.float32)
    rows = []
    for _ in range(steps):
        reached = generator.normal(size=(columns, 2)).astype(np.float32)
        ended = generator.random(columns) < ends
        buffer.add(
            obs, np.zeros((columns, 1, 1)), np.arange(columns), reached, ended, np.zeros(columns)
        )
        rows.append((obs, reached))
        elsewhere = ended | (generator.random(columns) < jumps)
        obs = np.where(elsewhere[:, None], generator.normal(size=(columns, 2)), reached)
        obs = obs.astype(np.float32)
    return rows


def assert_pairs(buffer: ReplayBuffer, rows: list[Row]) -> None:
    """Every stored row is drawn with the next observation that was given beside it."""
    stored = {
        obs[column].tobytes(): reached[column].tobytes()
        for obs, reached in rows[-buffer.rows :]
        for column in range(buffer.num_envs)
    }
    batch = buffer.sample(30 * len(buffer))
    pairs = zip(batch.obs.numpy(), batch.next_obs.numpy(), strict=True)  # type: ignore[union-attr]
    found = {obs.tobytes(): reached.tobytes() for obs, reached in pairs}
    assert found == stored


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(
    ("ends", "jumps"), [(0.0, 0.0), (0.3, 0.0), (1.0, 0.0), (0.2, 0.5), (0.0, 1.0)]
)
def test_what_follows_is_what_was_given(columns: int, rows: int, ends: float, jumps: float) -> None:
    generator = np.random.default_rng(rows * 10 + columns)
    buffer = ReplayBuffer(rows * columns, 2, (1, 1), num_envs=columns)
    seen: list[Row] = []
    for _ in range(12):  # each call begins elsewhere than the last one ended
        seen += play(buffer, int(generator.integers(1, 5)), generator, ends, jumps)
        assert_pairs(buffer, seen)
        again = ReplayBuffer.from_state(buffer.state_dict())
        assert_pairs(again, seen)
        again.add(*_row(columns))
    first = buffer.state_dict()
    second = ReplayBuffer.from_state(first).state_dict()
    for one, two in ((first["arrays"], second["arrays"]), (first["apart"], second["apart"])):
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one)


def _row(columns: int) -> tuple[Any, ...]:
    zeros, no = np.zeros((columns, 2)), np.zeros(columns, bool)
    return zeros, np.zeros((columns, 1, 1)), np.zeros(columns), zeros, no, no


def test_bits_are_compared_and_not_numbers() -> None:
    """Minus zero equals zero and no number equals itself: neither may change what comes back."""
    buffer = ReplayBuffer(4, 1, (1, 1))
    rest, no = (np.zeros((1, 1, 1)), np.zeros(1)), (np.zeros(1, bool), np.zeros(1, bool))
    for obs, reached in ((1.0, -0.0), (0.0, np.nan), (np.nan, 5.0)):
        buffer.add(np.full((1, 1), obs), *rest, np.full((1, 1), reached), *no)
    batch = buffer.sample(50)
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    after = batch.next_obs[batch.obs == 1.0]
    assert len(after) and torch.signbit(after).all()
    assert int(np.sum(buffer.state_dict()["arrays"]["apart"])) == 2  # the first and the newest


def test_memory_of_observations_is_halved() -> None:
    pictures = {"picture": Part((16, 16, 3), "uint8")}
    for obs, size in ((100, 400), (pictures, 768)):
        buffer = ReplayBuffer(2000, obs, (1, 1), num_envs=2)
        generator = np.random.default_rng(0)

        def observed(obs: Any = obs, generator: np.random.Generator = generator) -> Any:
            if isinstance(obs, int):
                return generator.normal(size=(2, obs)).astype(np.float32)
            return {"picture": generator.integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)}

        now = observed()
        for step in range(5000):
            reached, ended = observed(), np.full(2, step % 100 == 99)
            buffer.add(now, np.zeros((2, 1, 1)), np.zeros(2), reached, ended, ended)
            now = observed() if ended[0] else reached
        others = 2000 * (4 + 4 + 1 + 2 + 4)  # action, reward, flags, taken, slot
        assert others + 2000 * size <= buffer.nbytes < others + 1.1 * 2000 * size


def test_a_datasets_observations_are_stored_once(make_dataset: Any) -> None:
    dataset = make_dataset((200, 300))
    buffer = ReplayBuffer.from_dataset(dataset)
    others = 500 * (2 * 4 + 4 + 1 + 2 + 4 + 4)  # the return, too
    assert buffer.nbytes - others == (502 + 2) * 3 * 4  # a slot to spare, and slot 0


def test_a_state_of_both_observations_is_read() -> None:
    """Checkpoints once held what was observed after each row; they can be gone on from."""
    for steps in (5, 9, 30):
        generator = np.random.default_rng(steps)
        buffer = ReplayBuffer(18, 2, (1, 1), num_envs=2)
        rows = play(buffer, steps, generator, 0.2, 0.2)
        state = buffer.state_dict()
        order = np.arange(steps) % 9 if steps > 9 else np.arange(steps)
        reached = np.zeros((min(steps, 9), 2, 2), np.float32)
        for place, (_, following) in zip(order, rows, strict=True):
            reached[place] = following
        del state["apart"]
        arrays = {name: array for name, array in state["arrays"].items() if name != "apart"}
        old = {**state, "arrays": {**arrays, "next_obs": reached}}
        again = ReplayBuffer.from_state(old)
        assert_pairs(again, rows)
        again.add(*_row(2))
        for name in ("apart", "obs"):
            one = ReplayBuffer.from_state(old).state_dict()["arrays"][name]
            np.testing.assert_array_equal(one, buffer.state_dict()["arrays"][name])
        with pytest.raises(TrimtabError, match="'next_obs' has shape"):
            ReplayBuffer.from_state({**old, "arrays": {**arrays, "next_obs": reached[:-1]}})


def test_a_state_without_its_ends_is_refused() -> None:
    buffer = ReplayBuffer(18, 2, (1, 1), num_envs=2)
    play(buffer, 7, np.random.default_rng(0), 0.3, 0.0)
    state = buffer.state_dict()
    none_apart = np.zeros_like(state["arrays"]["apart"])
    broken = [
        {**state, "apart": {}},
        {**state, "apart": {"obs": state["apart"]["obs"][:-1]}},
        {**state, "apart": {"obs": state["apart"]["obs"].astype(np.float64)}},
        {**state, "arrays": {**state["arrays"], "apart": none_apart}},
        {**state, "arrays": {k: v for k, v in state["arrays"].items() if k != "apart"}},
    ]
    other = ReplayBuffer(18, 2, (1, 1), num_envs=2)
    rows = play(other, 3, np.random.default_rng(1), 0.3, 0.0)
    for damaged in broken:
        with pytest.raises(TrimtabError, match="saved state is damaged"):
            other.load_state_dict(damaged)
        assert_pairs(other, rows)
