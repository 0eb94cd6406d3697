"""A rollout buffer gives back what it was given, in its order, once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.types import TrimtabError


def filled(steps: int, buffer: RolloutBuffer, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    rows: dict[str, np.ndarray] = {
        "obs": generator.normal(size=(steps, 3, 4)),
        "action": generator.normal(size=(steps, 3, 2, 1)),
        "reward": generator.normal(size=(steps, 3)),
        "next_obs": generator.normal(size=(steps, 3, 4)),
        "terminated": generator.random((steps, 3)) < 0.3,
        "truncated": generator.random((steps, 3)) < 0.3,
        "value": generator.normal(size=(steps, 3)).astype(np.float32),
    }
    for step in range(steps):
        row = {name: value[step] for name, value in rows.items()}
        value = torch.from_numpy(row.pop("value"))
        buffer.add(**row, aux={"value": value})
    return rows


def made() -> RolloutBuffer:
    return RolloutBuffer(5, 3, 4, (2, 1), discount=0.9, aux={"value": ()})


def test_gives_back_what_it_was_given() -> None:
    buffer = made()
    for seed in range(2):
        rows = filled(5, buffer, seed)
        rollout = buffer.take()
        for name in ("obs", "action", "reward", "next_obs"):
            np.testing.assert_allclose(getattr(rollout, name), rows[name], rtol=1e-6)
        np.testing.assert_array_equal(rollout.cut, rows["terminated"] | rows["truncated"])
        np.testing.assert_allclose(rollout.discount, 0.9 * ~rows["terminated"], rtol=1e-6)
        np.testing.assert_array_equal(rollout.aux["value"], rows["value"])
        searched = dataclasses.replace(rollout, cut_rows=None, ended_rows=None)
        assert torch.equal(rollout.cuts, searched.cuts)
        assert torch.equal(rollout.ended, searched.ended)
        assert 0 < len(rollout.ended) < 15
        assert len(rollout) == 15 and len(buffer) == 0


def test_takes_tensors_as_well() -> None:
    arrays, tensors = made(), made()
    for step in range(5):
        generator = np.random.default_rng(step)
        row = [generator.normal(size=size) for size in ((3, 4), (3, 2, 1), (3,), (3, 4))]
        row += [generator.random(3) < 0.3, generator.random(3) < 0.3]
        value = generator.normal(size=3)
        arrays.add(*row, aux={"value": value})
        tensors.add(*map(torch.from_numpy, row), aux={"value": torch.from_numpy(value)})
    one, other = arrays.take(), tensors.take()
    names = ("obs", "action", "reward", "next_obs", "discount", "cut", "cut_rows", "ended_rows")
    for name in names:
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert torch.equal(one.aux["value"], other.aux["value"])


def test_a_rollout_does_not_change_when_the_next_one_is_gathered() -> None:
    buffer = made()
    filled(5, buffer, 0)
    rollout = buffer.take()
    before = rollout.obs.clone()
    filled(5, buffer, 1)
    assert torch.equal(rollout.obs, before)


def test_is_given_away_when_full_only() -> None:
    buffer = made()
    rows = filled(4, buffer)
    assert not buffer.full
    with pytest.raises(TrimtabError, match="4 of 5 rows"):
        buffer.take()
    filled(1, buffer)
    with pytest.raises(TrimtabError, match="it is full"):
        filled(1, buffer)
    del rows


def test_goes_on_from_its_state() -> None:
    first, second = made(), made()
    filled(3, first)
    second.load_state_dict(first.state_dict())
    for buffer in (first, second):
        filled(2, buffer, 7)
    one, other = first.take(), second.take()
    assert torch.equal(one.obs, other.obs) and torch.equal(one.cut, other.cut)
    with pytest.raises(TrimtabError, match="resume with the settings of the saved run"):
        RolloutBuffer(2, 3, 4, (2, 1), aux={"value": ()}).load_state_dict(first_state())


def first_state() -> dict[str, object]:
    buffer = made()
    filled(3, buffer)
    return buffer.state_dict()


def test_wrong_shapes_and_names_are_refused() -> None:
    buffer = made()
    zeros = np.zeros((3,), dtype=bool)
    row = (np.zeros((3, 4)), np.zeros((3, 2, 1)), np.zeros(3), np.zeros((3, 5)), zeros, zeros)
    with pytest.raises(TrimtabError, match=r"'next_obs' has shape \(3, 5\), expected \(3, 4\)"):
        buffer.add(*row, aux={"value": torch.zeros(3)})
    with pytest.raises(TrimtabError, match="declared were"):
        buffer.add(*row)
    with pytest.raises(TrimtabError, match="sizes must be at least 1"):
        RolloutBuffer(0, 3, 4, (2, 1))
    with pytest.raises(TrimtabError, match="outside"):
        RolloutBuffer(2, 3, 4, (2, 1), discount=1.5)
