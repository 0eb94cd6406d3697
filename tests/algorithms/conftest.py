"""Small set-ups and batches that the tests of this folder share."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import pytest
import torch

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.phases import Budget, Outcome, Trials
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Batch, PolicySpec, Rollout, Sequences, Statistics, TrimtabError

SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
NUM_ENVS = 3
BASES: dict[str, type[FlowPolicy] | type[DiffusionPolicy]] = {
    "": FlowPolicy,
    "flow": FlowPolicy,
    "diffusion": DiffusionPolicy,
}


@pytest.fixture(scope="session")
def statistics() -> Statistics:
    zero = torch.zeros(5)
    limits = torch.tensor(SPEC.action_low) * 0.9, torch.tensor(SPEC.action_high) * 0.8
    return Statistics(zero, zero + 1, zero - 2, zero + 3, *limits)


@pytest.fixture
def setup_of(statistics: Statistics) -> Callable[..., Setup]:
    """Give an algorithm what it says that it uses, and nothing else.

    The base plans four actions where the run executes two, unless ``plan`` says otherwise. It is a
    flow policy unless ``start`` names another kind.
    """

    def make(uses: frozenset[str] | set[str], *, plan: int = 4, start: str = "") -> Setup:
        known = {"policy", "dataset", "base", "start", "oracles"}
        assert uses <= known, f"say in {__file__} how to supply {uses}"
        with torch.random.fork_rng():
            torch.manual_seed(11)
            kind = BASES[start]
            base = kind(
                PolicySpec(5, plan, 2, SPEC.action_low, SPEC.action_high),
                hidden=(16, 16),
                sampling_steps=2,
            )
            base.fit_normalizer(statistics)
        return Setup(
            spec=SPEC,
            policy=functools.partial(FlowPolicy, hidden=(16, 16), sampling_steps=2)
            if "policy" in uses
            else None,
            base=base if uses & {"base", "start"} else None,
            oracles=(base, copy.deepcopy(base)) if "oracles" in uses else (),
            statistics=statistics if "dataset" in uses else None,
            num_envs=NUM_ENVS,
        )

    return make


def rollout_for(algorithm: Algorithm, seed: int) -> Rollout:
    """Draw a rollout of the fixture's number of environments, with both kinds of ends in it."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(algorithm.rollout_steps, NUM_ENVS, *shape, generator=generator)

    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    obs = 4 * uniform(SPEC.obs_dim) - 2
    terminated, truncated = uniform() < 0.1, uniform() < 0.1
    return Rollout(
        obs=obs,
        action=low + (high - low) * uniform(SPEC.horizon, SPEC.action_dim),
        reward=uniform(),
        next_obs=torch.cat([obs[1:], 4 * uniform(SPEC.obs_dim)[:1] - 2]),
        discount=0.99 * (~terminated).float(),
        cut=terminated | truncated,
        # Near 0, as what a narrow policy may really have done: densities of the rest are cut off.
        aux={k: 0.2 * (2 * uniform(*v) - 1) for k, v in algorithm.aux_shapes.items()},
    )


def learns_from_trials(algorithm: Algorithm) -> bool:
    """Whether a phase of a run that only interacts is fed by trials."""
    try:
        phases = algorithm.phases(Budget(offline_steps=0, online_steps=1))
    except TrimtabError:  # it learns offline first
        return False
    return any(isinstance(phase.feed, Trials) for phase in phases)


@pytest.fixture
def data_of(batch_of: Callable[..., Batch]) -> Callable[..., Batch | Rollout | Outcome]:
    """Draw what the harness would give to an algorithm's update."""

    def draw(algorithm: Algorithm, seed: int = 0) -> Batch | Rollout | Outcome:
        if algorithm.rollout_steps:
            return rollout_for(algorithm, seed)
        if learns_from_trials(algorithm):
            uniform = torch.rand(2, 4, generator=torch.Generator().manual_seed(seed))
            success = (uniform[0] < 0.5).float()
            return Outcome(success, uniform[1], steps=torch.full((4,), 7))
        return batch_of(algorithm, seed=seed)

    return draw


@pytest.fixture
def batch_of() -> Callable[..., Batch]:
    """Draw a batch as the harness would give it to an algorithm that replays."""

    def draw(algorithm: Algorithm, count: int = 16, seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int) -> torch.Tensor:
            return torch.rand(*shape, generator=generator)

        low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
        valid = torch.ones(count, SPEC.horizon, dtype=torch.bool)
        valid[: count // 4, 1:] = False
        return Batch(
            obs=4 * uniform(count, SPEC.obs_dim) - 2,
            action=low + (high - low) * uniform(count, SPEC.horizon, SPEC.action_dim),
            reward=uniform(count),
            next_obs=4 * uniform(count, SPEC.obs_dim) - 2,
            discount=0.99 * (uniform(count) < 0.8).float(),
            valid=valid,
            mc_return=(
                uniform(count) if algorithm.wants.mc_return or "dataset" in algorithm.uses else None
            ),
            next_action=(
                low + (high - low) * uniform(count, SPEC.horizon, SPEC.action_dim)
                if algorithm.wants.next_action
                else None
            ),
            goal=uniform(count, 2) if algorithm.wants.goal is not None else None,
            goal_steps=(torch.arange(count) if algorithm.wants.goal is not None else None),
            cost=uniform(count) if algorithm.wants.cost else None,
            aux={k: 2 * uniform(count, *v) - 1 for k, v in algorithm.aux_shapes.items()},
            sequence=sequences(uniform, count, algorithm.wants.sequence),
        )

    return draw


def sequences(uniform: Callable[..., torch.Tensor], count: int, length: int) -> Sequences | None:
    """Draw stretches of decisions, of which some end before their length; none of length 0."""
    if not length:
        return None
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    left = (uniform(count) * (length + 2)).long() + 1
    return Sequences(
        obs=4 * uniform(count, length, SPEC.obs_dim) - 2,
        action=low + (high - low) * uniform(count, length, SPEC.horizon, SPEC.action_dim),
        reward=uniform(count, length),
        valid=torch.arange(length) < left[:, None],
        step=(uniform(count) * 50).long(),
        mc_return=10 * uniform(count, length),
    )
