"""The ring on a device against the one in memory: the same rows, and for given starts the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from waiting import NoWaiting

from trimtab.benchmarks.training.checkpoint import as_read_back
from trimtab.datasets.sources.device_replay import DeviceReplayBuffer, fits_device
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch, BatchSpec, TrimtabError

COLUMNS, ROWS, HORIZON = 3, 8, 5
AUX = {"weight": (), "pair": (2,)}


def ring(chunk: int = 1, seed: int = 0, **settings: Any) -> DeviceReplayBuffer:
    return DeviceReplayBuffer(
        ROWS * COLUMNS, 2, (chunk, 2), num_envs=COLUMNS, discount=0.9, seed=seed, aux=AUX,
        device="cpu", **settings,
    )  # fmt: skip


def fill(
    buffer: DeviceReplayBuffer, plain: ReplayBuffer | None, steps: int, chunk: int, seed: int
) -> None:
    """Add the same rows to both: some terminate, and all are cut together by a time limit."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    for step in range(steps):
        obs, action, reward = drawn(COLUMNS, 2), drawn(COLUMNS, chunk, 2), drawn(COLUMNS)
        after, terminated = drawn(COLUMNS, 2), drawn(COLUMNS) > 1
        row = (obs, action, reward, after, terminated)
        aux = {"weight": drawn(COLUMNS), "pair": drawn(COLUMNS, 2)}
        up = step % HORIZON == HORIZON - 1
        taken = max(chunk - 1, 1) if up else chunk
        with NoWaiting():  # type: ignore[no-untyped-call]
            buffer.add(*row, aux, truncated=up, steps=taken)
        if plain is not None:
            plain.add(*row, np.full(COLUMNS, up), aux, np.full(COLUMNS, taken))


def assert_equal(found: Batch, expected: Batch) -> None:
    for name in ("obs", "action", "next_obs", "valid"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype and torch.equal(one, other), name
    for name in ("reward", "discount"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    for name in AUX:
        assert torch.equal(found.aux[name], expected.aux[name])
    assert not found.whole or expected.whole


@pytest.mark.parametrize("steps", [1, 6, 8, 21])  # part full, with an episode's end, full, over
@pytest.mark.parametrize(
    ("chunk", "settings"),
    [
        (1, {}),
        (1, {"window": 3}),
        (3, {"window": 2}),
        (1, {"window": 3, "chunked": True}),
        (1, {"chunked": True, "batch_spec": BatchSpec(n_step=4)}),
        (2, {"chunked": True, "window": 2, "batch_spec": BatchSpec(n_step=2)}),
        (2, {"chunked": True, "batch_spec": BatchSpec(history=3)}),
        (1, {"chunked": True, "window": 2, "batch_spec": BatchSpec(history=3, n_step=2)}),
        (1, {"window": 20}),
    ],
)
def test_every_window_is_that_of_the_ring_in_memory(
    chunk: int, settings: dict[str, Any], steps: int
) -> None:
    plain = ReplayBuffer(
        ROWS * COLUMNS, 2, (chunk, 2), num_envs=COLUMNS, discount=0.9, aux=AUX, **settings
    )
    buffer = ring(chunk, **settings)
    fill(buffer, plain, steps, chunk, seed=steps)
    assert len(buffer) == len(plain)
    starts = torch.arange(len(buffer))
    with NoWaiting():  # type: ignore[no-untyped-call]
        found = buffer.batch(starts)
    assert_equal(found, plain.whole())
    assert found.whole == (settings.get("window", 1) == 1 and (chunk == 1 or steps < HORIZON))
    if steps == 21:
        assert (found.discount == 0).any() and (found.discount > 0).any()


@pytest.mark.parametrize("before", [0, 3, 8, 21])
def test_an_emptied_ring_is_a_new_one(before: int) -> None:
    """Also one that is saved then, and one whose old rows lie in the places of the new ones."""
    settings: dict[str, Any] = {"chunked": True, "batch_spec": BatchSpec(history=3, n_step=2)}
    memory = {"num_envs": COLUMNS, "discount": 0.9, "aux": AUX, **settings}
    new = ReplayBuffer(ROWS * COLUMNS, 2, (2, 2), **memory)
    plain, buffer = ReplayBuffer(ROWS * COLUMNS, 2, (2, 2), **memory), ring(2, **settings)
    fill(buffer, plain, before, 2, seed=1)
    with NoWaiting():  # type: ignore[no-untyped-call]
        buffer.clear()
    plain.clear()
    assert len(buffer) == len(plain) == 0 and not buffer.ready and not plain.ready
    with pytest.raises(TrimtabError, match="cannot draw"):
        buffer.sample(1)
    fill(buffer, plain, 6, 2, seed=2)
    fill(ring(2, **settings), new, 6, 2, seed=2)
    again = ring(2, **settings)
    again.load_state_dict(as_read_back(buffer.state_dict()))
    for one in (buffer, again):
        assert len(one) == len(new)
        assert_equal(one.batch(torch.arange(len(one))), new.whole())
    assert_equal(plain.whole(), new.whole())


def test_starts_are_uniform_and_drawn_without_a_look() -> None:
    buffer = ring()
    fill(buffer, None, 11, 1, seed=0)
    with NoWaiting():  # type: ignore[no-untyped-call]
        batch = buffer.sample(24_000)
    known = buffer.batch(torch.arange(len(buffer))).aux["weight"]
    counts = (batch.aux["weight"][:, None] == known).sum(0)
    # 1000 expected of each of the 24, standard deviation 31: five of them
    assert int(counts.sum()) == 24_000 and counts.min() > 845 and counts.max() < 1155
    assert batch.obs.device == buffer.device
    batch.obs.zero_()  # a batch is a copy
    assert (buffer.batch(torch.arange(len(buffer))).obs != 0).all()


@pytest.mark.bits
@pytest.mark.parametrize("steps", [0, 5, 8, 19])
def test_a_state_restores_the_next_batches_exactly(steps: int) -> None:
    settings: dict[str, Any] = {"chunked": True, "batch_spec": BatchSpec(n_step=2, history=2)}
    buffer, other = ring(2, **settings), ring(2, seed=9, **settings)
    fill(buffer, None, steps, 2, seed=1)
    if steps:
        buffer.sample(7)
    fill(other, None, 3, 2, seed=2)
    other.load_state_dict(as_read_back(buffer.state_dict()))
    for one in (buffer, other):
        fill(one, None, 4, 2, seed=3)
    for _ in range(3):
        found, expected = other.sample(64), buffer.sample(64)
        assert_equal(found, expected)
        assert torch.equal(found.reward, expected.reward) and found.whole == expected.whole


def test_a_ring_of_a_device_gives_its_episodes_as_one_in_memory() -> None:
    plain = ReplayBuffer(ROWS * COLUMNS, 2, (1, 2), num_envs=COLUMNS, discount=0.9, aux=AUX)
    buffer = ring()
    fill(buffer, plain, 13, 1, seed=0)
    found = ReplayBuffer.from_state(as_read_back(buffer.state_dict())).episodes()
    for one, other in zip(found, plain.episodes(), strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.truncations, other.truncations)


def test_a_ring_in_memory_and_one_on_a_device_do_not_take_each_other_s_state() -> None:
    plain = ReplayBuffer(ROWS * COLUMNS, 2, (1, 2), num_envs=COLUMNS, discount=0.9, aux=AUX)
    buffer = ring()
    with pytest.raises(TrimtabError, match="kept in this process's memory"):
        buffer.load_state_dict(plain.state_dict())
    with pytest.raises(TrimtabError, match="gathered with simulations on a GPU"):
        plain.load_state_dict(buffer.state_dict())


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    buffer, other = ring(), ring(seed=5)
    fill(buffer, None, 4, 1, seed=0)
    fill(other, None, 2, 1, seed=1)
    good, untouched = buffer.state_dict(), other.state_dict()
    for broken in (
        {**good, "size": 7},
        {**good, "arrays": {}},
        {**good, "arrays": {**good["arrays"], "obs": good["arrays"]["obs"][:-1]}},
        {**good, "device_generator": torch.zeros(3, dtype=torch.uint8)},
        {**good, "layout": {**good["layout"], "discount": 0.5}},
        {name: value for name, value in good.items() if name != "whole"},
    ):
        with pytest.raises(TrimtabError, match="saved state"):
            other.load_state_dict(broken)
        assert torch.equal(other.state_dict()["device_generator"], untouched["device_generator"])
        assert len(other) == 2 * COLUMNS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("obs", torch.zeros(COLUMNS, 3)),
        ("reward", torch.zeros(COLUMNS, 1)),
        ("aux", {}),
        ("aux", {"weight": torch.zeros(()), "pair": torch.zeros(COLUMNS, 2)}),
    ],
)
def test_a_wrong_row_is_refused_and_not_half_stored(name: str, value: Any) -> None:
    buffer = ring()
    row: dict[str, Any] = {
        "obs": torch.ones(COLUMNS, 2),
        "action": torch.ones(COLUMNS, 1, 2),
        "reward": torch.ones(COLUMNS),
        "next_obs": torch.ones(COLUMNS, 2),
        "terminated": torch.zeros(COLUMNS, dtype=torch.bool),
        "aux": {"weight": torch.ones(COLUMNS), "pair": torch.ones(COLUMNS, 2)},
        "truncated": False,
        "steps": 1,
    }
    buffer.add(**row)
    with pytest.raises(TrimtabError, match=f"replay buffer: .*{name}"):
        buffer.add(**{**row, name: value})
    assert len(buffer) == COLUMNS


def test_what_it_cannot_do_is_refused() -> None:
    for spec in (
        BatchSpec(mc_return=True), BatchSpec(next_action=True), BatchSpec(sequence=2),
        BatchSpec(goal=0.0), BatchSpec(cost=True),
    ):  # fmt: skip
        assert not fits_device(spec)
        with pytest.raises(TrimtabError, match="n_step and history alone"):
            ring(batch_spec=spec)
    with pytest.raises(TrimtabError, match="at least 1"):
        ring(window=0)
    with pytest.raises(TrimtabError, match="discount"):
        DeviceReplayBuffer(5, 1, (1, 1), device="cpu", discount=1.5)
    with pytest.raises(TrimtabError, match="has no room for .* use a smaller buffer_size"):
        DeviceReplayBuffer(10**15, 100, (1, 1), device="cpu")
    with pytest.raises(TrimtabError, match="cannot draw"):
        ring().sample(1)
