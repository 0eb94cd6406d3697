"""Projections on fixed atoms against loops, and the scale of rewards against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.categorical import (
    cross_entropy,
    expectation,
    hl_gauss,
    project,
    two_hot,
)
from trimtab.algorithms.common.returns import BoundedReturnScale
from trimtab.algorithms.off_policy.fast_td3 import FastTD3
from trimtab.types import PolicySpec, TrimtabError

SUPPORT = torch.linspace(-5, 5, 101, dtype=torch.float64)


def split(atoms: list[float], mass: list[float]) -> np.ndarray:
    """Return C51's projection on the support, one atom after another."""
    found = np.zeros(101)
    for atom, part in zip(atoms, mass, strict=True):
        place = (min(max(atom, -5.0), 5.0) + 5.0) * 10.0
        if abs(place - round(place)) < 1e-9:
            found[round(place)] += part
        else:
            found[math.floor(place)] += part * (math.ceil(place) - place)
            found[math.ceil(place)] += part * (place - math.floor(place))
    return found


@pytest.mark.parametrize(
    ("reward", "discount"), [(0.3, 0.99), (4.0, 0.99), (-7.0, 0.99), (1.23, 0.0), (0.5, 1.0)]
)
def test_a_projection_is_that_of_a_loop(reward: float, discount: float) -> None:
    mass = torch.rand(4, 101, dtype=torch.float64).softmax(-1)
    atoms = reward + discount * SUPPORT.expand(4, 101)
    found = project(atoms, mass, SUPPORT)
    for row in range(4):
        loop = split(atoms[row].tolist(), mass[row].tolist())
        np.testing.assert_allclose(found[row].numpy(), loop, atol=1e-9)


def test_an_atom_on_a_point_keeps_its_mass_and_a_mean_within_the_support_stays() -> None:
    value = torch.tensor([-5.0, 5.0, 0.1, 1.234, -9.0], dtype=torch.float64)
    found = two_hot(value, SUPPORT)
    assert found[0, 0] == 1 and found[1, 100] == 1 and found[4, 0] == 1
    torch.testing.assert_close(found.sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close((found * SUPPORT).sum(-1), value.clamp(-5, 5))


@pytest.mark.parametrize("bound", [5.0, 10.0, 250.0])
def test_means_stay_in_32_bits_with_as_many_atoms_as_there_may_be(bound: float) -> None:
    spec = PolicySpec(2, 1, 1, (-1.0,), (1.0,))
    with pytest.raises(TrimtabError, match="atoms=4097: must be from 2 to 4096"):
        FastTD3(Setup(spec), atoms=4097)
    support = torch.linspace(-bound, bound, 4096)
    value = torch.linspace(-0.99 * bound, 0.99 * bound, 201)
    mean = (two_hot(value, support).double() * support.double()).sum(-1)
    assert float((mean - value.double()).abs().max()) < 1e-4 * bound


def test_what_is_no_number_comes_out_as_none() -> None:
    value = torch.tensor([float("nan"), 1.0], dtype=torch.float64)
    found = two_hot(value, SUPPORT)
    assert found[0].isnan().any() and found[1].sum() == 1.0


def test_hl_gauss_sums_to_one_and_keeps_a_mean_inside() -> None:
    value = torch.linspace(-4, 4, 33, dtype=torch.float64)
    found = hl_gauss(value, SUPPORT, 0.75)
    torch.testing.assert_close(found.sum(-1), torch.ones(33, dtype=torch.float64))
    torch.testing.assert_close((found * SUPPORT).sum(-1), value, atol=1e-3, rtol=0)
    middle = hl_gauss(torch.zeros((), dtype=torch.float64), SUPPORT, 0.75)
    bin_mass = math.erf(0.5 / (math.sqrt(2) * 0.75))
    assert middle[50].item() == pytest.approx(bin_mass)


def test_the_loss_is_least_at_the_target() -> None:
    target = two_hot(torch.tensor([1.04]), SUPPORT.float())
    logits = target.clamp(min=1e-12).log()
    entropy = -(target * target.clamp(min=1e-12).log()).sum(-1)
    torch.testing.assert_close(cross_entropy(logits, target), entropy)
    torch.testing.assert_close(expectation(logits, SUPPORT.float()), torch.tensor([1.04]))
    assert cross_entropy(logits + torch.randn(101), target) > entropy


def test_rewards_are_scaled_by_the_deviation_of_returns_or_by_the_largest_one() -> None:
    scale = BoundedReturnScale(2, 0.9, bound=5.0)
    rewards = torch.randn(50, 2)
    ends = torch.rand(50, 2) < 0.1
    returns, carried = [], np.zeros(2)
    for reward, ended in zip(rewards, ends, strict=True):
        scale.see(reward, ended)
        now = reward.numpy() + 0.9 * carried
        returns.append(now)
        carried = now * ~ended.numpy()
    seen = np.concatenate(returns)
    deviation = math.sqrt(seen.var() + 1e-8)
    expected = 1.0 / max(deviation, np.abs(seen).max() / 5.0)
    assert scale(torch.ones(())).item() == pytest.approx(expected, rel=1e-5)


def test_constant_rewards_give_returns_within_the_bound() -> None:
    scale = BoundedReturnScale(1, 0.99)
    for _ in range(2_000):
        scale.see(torch.ones(1), torch.zeros(1, dtype=torch.bool))
    assert scale.largest.item() == pytest.approx(100.0, abs=1e-2)
    assert scale(torch.ones(1)).item() * 100.0 == pytest.approx(5.0, abs=1e-2)
