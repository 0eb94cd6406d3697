"""Observations with parts: each keeps its type, and the rest is as for flat ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.sources.mixture import Mixture
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.datasets.sources.streamed_buffer import StreamedBuffer
from trimtab.datasets.sources.streaming import load
from trimtab.types import Part, TrimtabError

PARTS = {"place": Part((2,)), "picture": Part((4, 3), "uint8"), "weight": Part((1,), given=1.0)}
ENTRIES = {"here": (2, 0), "goal": (1,), "again": (0, 1, 2)}


def seen(flat: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Parts that are known by the flat observation ``[..., 2]`` that they stand for."""
    grid = (flat[..., :1, None] * 7 + np.arange(12).reshape(4, 3)) % 256
    return {"place": flat.astype(np.float32), "picture": grid.astype(np.uint8)}


def both(rows: int, steps: int, seed: int = 3) -> tuple[ReplayBuffer, ReplayBuffer]:
    """A flat ring and one with parts that were told the same."""
    generator = np.random.default_rng(seed)
    settings: Any = {"num_envs": 2, "window": 2, "seed": 5}
    flat = ReplayBuffer(2 * rows, 2, (1, 1), **settings)
    parts = ReplayBuffer(2 * rows, PARTS, (1, 1), **settings)
    obs = generator.integers(0, 500, (2, 2)).astype(np.float32)
    for _ in range(steps):
        reached = generator.integers(0, 500, (2, 2)).astype(np.float32)
        ends = generator.random((2, 2)) < 0.2
        action, reward = generator.normal(size=(2, 1, 1)), generator.normal(size=2)
        flat.add(obs, action, reward, reached, *ends)
        parts.add(seen(obs), action, reward, seen(reached), *ends)
        obs = np.where(ends.any(axis=0)[:, None], reached + 1, reached)
    return flat, parts


def assert_parts(found: Any, flat: Any) -> None:
    wanted = seen(flat.numpy())
    assert found.keys() == wanted.keys()
    for name, part in found.items():
        assert part.numpy().dtype == wanted[name].dtype
        np.testing.assert_array_equal(part.numpy(), wanted[name])


@pytest.mark.parametrize("steps", [1, 6, 7, 40])
def test_a_ring_of_parts_draws_what_a_flat_one_draws(steps: int) -> None:
    flat, parts = both(7, steps)
    one, other = flat.sample(100), parts.sample(100)
    assert_parts(other.obs, one.obs)
    assert_parts(other.next_obs, one.next_obs)
    assert torch.equal(one.action, other.action) and torch.equal(one.reward, other.reward)
    assert torch.equal(parts.sample(9).reward, flat.sample(9).reward)
    with pytest.raises(TrimtabError, match="its observations have parts"):
        parts.episodes()


def test_a_ring_of_parts_goes_on_from_its_state() -> None:
    _, first = both(7, 12)
    second = ReplayBuffer.from_state(first.state_dict())
    third = ReplayBuffer(14, PARTS, (1, 1), num_envs=2, window=2, seed=9)
    third.load_state_dict(first.state_dict())
    wanted = first.sample(50)
    for other in (second, third):
        batch = other.sample(50)
        for name in ("place", "picture"):
            assert torch.equal(batch.obs[name], wanted.obs[name])
            one, two = batch.next_obs[name], wanted.next_obs[name]
            assert torch.equal(one, two)
    with pytest.raises(TrimtabError, match="another layout"):
        both(7, 1)[0].load_state_dict(first.state_dict())


def test_a_datasets_observations_are_split_into_parts(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset((4, 1, 7))
    save_minari(dataset, tmp_path / "dataset")
    streamed = load(tmp_path / "dataset", tmp_path / "streams")
    flat = ReplayBuffer.from_dataset(dataset, window=2).sample(60)
    for source in (
        ReplayBuffer.from_dataset(dataset, window=2, parts=ENTRIES),
        StreamedBuffer(streamed, window=2, parts=ENTRIES),
    ):
        batch = source.sample(60)
        for name in ("obs", "next_obs"):
            found, whole = getattr(batch, name), getattr(flat, name)
            assert found.keys() == ENTRIES.keys()
            for part, entries in ENTRIES.items():
                assert found[part].dtype == torch.float32 and found[part].is_contiguous()
                assert torch.equal(found[part], whole[:, list(entries)])
        assert torch.equal(batch.reward, flat.reward)
        assert [len(episode) for episode in source.episodes()] == [4, 1, 7]
    for entries in ((), (3,), (-1, 0)):
        with pytest.raises(TrimtabError, match="part 'here': entries .* of an observation of 3"):
            ReplayBuffer.from_dataset(dataset, parts={"here": entries})


def test_parts_are_mixed() -> None:
    flat, parts = both(7, 9)
    batch = Mixture([parts, both(7, 9, seed=4)[1]], [1, 2]).sample(9)
    assert batch.obs["picture"].shape == (9, 4, 3)
    assert batch.next_obs["picture"].dtype == torch.uint8
    with pytest.raises(TrimtabError, match="mixture: 'obs' has shapes"):
        Mixture([parts, flat], [1, 1]).sample(4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("obs", np.zeros((2, 2)), r"'obs' has no parts, expected parts \['picture', 'place'\]"),
        ("next_obs", {"place": np.zeros((2, 2))}, r"'next_obs' has \['place'\], expected"),
        ("obs", {**seen(np.zeros((2, 2))), "more": 0}, "'obs' has .*'more'"),
        ("obs", {**seen(np.zeros((2, 2))), "picture": np.zeros((2, 4, 3))}, "'obs/picture' is of"),
        ("next_obs", seen(np.zeros((3, 2))), r"'next_obs/place' has shape \(3, 2\)"),
        ("obs", {**seen(np.zeros((2, 2))), "place": np.zeros((2, 2), complex)}, "is of type compl"),
    ],
)
def test_wrong_parts_are_refused(name: str, value: Any, message: str) -> None:
    zeros = np.zeros((2, 2))
    row: dict[str, Any] = {
        "obs": seen(zeros), "action": np.zeros((2, 1, 1)), "reward": np.zeros(2),
        "next_obs": seen(zeros), "terminated": np.zeros(2, bool), "truncated": np.zeros(2, bool),
    }  # fmt: skip
    buffers: tuple[Any, ...] = (
        ReplayBuffer(8, PARTS, (1, 1), num_envs=2), RolloutBuffer(4, 2, PARTS, (1, 1)),
    )  # fmt: skip
    for buffer in buffers:
        buffer.add(**row)
        before = len(buffer)
        with pytest.raises(TrimtabError, match=message):
            buffer.add(**{**row, name: value})
        assert len(buffer) == before
    with pytest.raises(TrimtabError, match="'obs' has parts .*, expected one flat vector"):
        ReplayBuffer(8, 2, (1, 1), num_envs=2).add(**row)
    with pytest.raises(TrimtabError, match="no part of its observations is observed"):
        ReplayBuffer(8, {"weight": PARTS["weight"]}, (1, 1))


def test_rollouts_have_parts_and_histories() -> None:
    generator = np.random.default_rng(0)
    stacked = {"place": Part((3, 2)), "picture": Part((3, 4, 3), "uint8")}
    buffers = [RolloutBuffer(5, 2, obs, (1, 1)) for obs in ((3, 2), stacked)]
    rows = generator.integers(0, 500, (2, 5, 2, 3, 2)).astype(np.float32)  # obs and next: [T, N, K]
    no = np.zeros(2, bool)
    for obs, reached in zip(*rows, strict=True):
        rest = np.zeros((2, 1, 1)), np.zeros(2)
        buffers[0].add(obs, *rest, reached, no, no)
        buffers[1].add(seen(obs), *rest, seen(reached), no, no)
    other = RolloutBuffer(5, 2, stacked, (1, 1))
    other.load_state_dict(buffers[1].state_dict())
    flat = buffers[0].take()
    np.testing.assert_array_equal(flat.obs, rows[0])
    for rollout in (buffers[1].take(), other.take()):
        assert_parts(rollout.obs, flat.obs)
        assert_parts(rollout.next_obs, flat.next_obs)
