"""Fixed shares of several sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trimtab.datasets.sources.mixture import Mixture
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch, TrimtabError


class Constant:
    """A source whose observations are one number and which may carry optional fields."""

    def __init__(self, value: float, *, horizon: int = 1, full: bool = False) -> None:
        self.value, self.horizon, self.full = value, horizon, full

    def sample(self, batch_size: int) -> Batch:
        vector = torch.full((batch_size,), self.value)
        return Batch(
            obs=vector[:, None],
            action=torch.zeros(batch_size, self.horizon, 2),
            reward=vector,
            next_obs=vector[:, None],
            discount=vector,
            valid=torch.ones(batch_size, self.horizon, dtype=torch.bool),
            mc_return=vector if self.full else None,
            aux={"weight": vector, "extra": vector} if self.full else {"weight": vector},
        )


@pytest.mark.parametrize(
    ("weights", "batch_size", "expected"),
    [
        ((1, 1), 256, (128, 128)),
        ((0.5, 0.5), 5, (3, 2)),
        ((0.25, 0.75), 256, (64, 192)),
        ((1, 1, 1), 256, (86, 85, 85)),
        ((0.1, 0.2, 0.7), 7, (1, 1, 5)),
        ((0, 3), 4, (0, 4)),
    ],
)
def test_shares_are_fixed(
    weights: tuple[float, ...], batch_size: int, expected: tuple[int, ...]
) -> None:
    sources = [Constant(float(index)) for index in range(len(weights))]
    mixture = Mixture(sources, weights)
    assert mixture.shares(batch_size) == expected
    batch = mixture.sample(batch_size)
    assert tuple(int((batch.reward == i).sum()) for i in range(len(weights))) == expected
    assert len(batch) == batch_size


def test_fields_that_a_source_lacks_are_left_out() -> None:
    both = Mixture([Constant(1, full=True), Constant(2, full=True)], [1, 1]).sample(4)
    assert both.mc_return is not None
    assert both.mc_return.tolist() == [1, 1, 2, 2]
    assert set(both.aux) == {"weight", "extra"}
    one = Mixture([Constant(1, full=True), Constant(2)], [1, 1]).sample(4)
    assert one.mc_return is None
    assert set(one.aux) == {"weight"}
    assert one.aux["weight"].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("weights", [(), (1,), (-1, 2), (0, 0), (float("nan"), 1)])
def test_unusable_weights_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(TrimtabError, match=r"^mixture: .*weight"):
        Mixture([Constant(1), Constant(2)], weights)


def test_sources_of_different_shapes_are_refused() -> None:
    mixture = Mixture([Constant(1), Constant(2, horizon=3)], [1, 1])
    with pytest.raises(TrimtabError, match="'action' has shapes"):
        mixture.sample(4)
    with pytest.raises(TrimtabError, match="cannot draw 0"):
        mixture.sample(0)


def test_state_restores_every_source(make_dataset: Any) -> None:
    def make(seed: int) -> Mixture:
        first = ReplayBuffer.from_dataset(make_dataset(seed=1), seed=seed)
        second = ReplayBuffer.from_dataset(make_dataset(seed=2), seed=seed + 1)
        return Mixture([first, second], [1, 3])

    mixture, other = make(0), make(10)
    mixture.sample(9)
    other.load_state_dict(mixture.state_dict())
    assert torch.equal(mixture.sample(16).obs, other.sample(16).obs)
    with pytest.raises(TrimtabError, match="has sources"):
        mixture.load_state_dict({"0": {}})
