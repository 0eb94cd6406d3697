"""Clones of a known mixture of actions have its moments, in every state."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.policies.base import Policy
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.types import Batch, PolicySpec, Statistics

SPEC = PolicySpec(1, 1, 1, (-1.0,), (1.0,))
SPREAD = 0.05  # of each of the two groups of actions


def demonstrated(obs: Tensor, generator: torch.Generator) -> Tensor:
    """Two groups of actions: up with a chance of 0.7 right of 0 and 0.4 left of it."""
    up = torch.rand(len(obs), generator=generator) < chance(obs)
    action = torch.where(up, 0.5, -0.5) + SPREAD * torch.randn(len(obs), generator=generator)
    return action[:, None, None]


def chance(obs: Tensor) -> Tensor:
    """Chance of going up ``[B]``."""
    return torch.where(obs[:, 0] > 0, 0.7, 0.4)


def cloned(kind: type[Policy], **settings: Any) -> Policy:
    """Clone the demonstrations above, seen at -1 and 1."""
    torch.manual_seed(0)
    one = torch.ones(1)
    statistics = Statistics(0 * one, one, -one, one, -one, one)
    policy = functools.partial(kind, hidden=(128, 128), **settings)
    learner = BehaviorCloning(
        Setup(SPEC, policy=policy, statistics=statistics), decay_updates=500, learning_rate=3e-3
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(500):
        obs = torch.randint(2, (256, 1), generator=generator) * 2.0 - 1.0
        learner.update(
            Batch(
                obs=obs,
                action=demonstrated(obs, generator),
                reward=torch.zeros(256),
                next_obs=obs,
                discount=torch.zeros(256),
                valid=torch.ones(256, 1, dtype=torch.bool),
            )
        )
    return learner.policy


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("kind", [FlowPolicy, DiffusionPolicy])
def test_generative_clones_have_the_mixtures_moments(
    kind: type[Policy], side: float, trained: dict[type[Policy], Policy]
) -> None:
    obs = torch.full((4000, 1), side)
    torch.manual_seed(2)
    action = trained[kind].act(obs)[:, 0, 0]
    up = float(chance(obs[:1]))
    mean = up - 0.5  # of +-0.5
    variance = 0.25 - mean**2 + SPREAD**2
    assert float(action.mean()) == pytest.approx(mean, abs=0.07)
    assert float(action.std()) == pytest.approx(variance**0.5, abs=0.07)
    assert float((action > 0).float().mean()) == pytest.approx(up, abs=0.07)
    # A Gaussian of these moments would have at least 0.37 of its actions between the groups.
    assert float((action.abs() < 0.25).float().mean()) < 0.3


@pytest.fixture(scope="module")
def trained() -> dict[type[Policy], Policy]:
    # As many steps as it takes for the sampler's own error to be small beside the tolerance.
    return {
        FlowPolicy: cloned(FlowPolicy, sampling_steps=40),
        DiffusionPolicy: cloned(DiffusionPolicy, train_steps=50, sampling_steps=50),
    }


@pytest.mark.parametrize("kind", [GaussianPolicy, DeterministicPolicy])
def test_unimodal_clones_have_the_conditional_mean(kind: type[Policy]) -> None:
    policy = cloned(kind)
    for side in (-1.0, 1.0):
        obs = torch.full((1, 1), side)
        found = policy.act(obs, deterministic=True).item()
        assert found == pytest.approx(float(chance(obs)) - 0.5, abs=0.04)


def test_a_gaussian_clone_spreads_by_its_own_width() -> None:
    policy = cloned(GaussianPolicy, std=0.2)
    torch.manual_seed(3)
    action = policy.act(torch.ones(4000, 1))[:, 0, 0]
    assert float(action.std()) == pytest.approx(0.2, abs=0.01)
    assert float(action.mean()) == pytest.approx(0.2, abs=0.05)
