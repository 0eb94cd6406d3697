"""A small made-up task: its shapes, and what a run on it would give to a method or a policy."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import torch

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.phases import Budget, Outcome, Trials
from trimtab.benchmarks.training.graphs import map_tensors
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.registry import policy_kinds
from trimtab.types import Batch, PolicySpec, Rollout, Sequences, Statistics

__all__ = [
    "NUM_ENVS", "SPEC", "data_for", "fitted", "learns_from_trials", "made_batch", "make_setup",
    "on", "spec_with", "statistics",
]  # fmt: skip

Value = TypeVar("Value")
NUM_ENVS = 3
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
"""Five observations; two actions of two dimensions are executed of each chunk."""
SMALL: Mapping[str, Any] = {"hidden": (16, 16), "sampling_steps": 2}


def spec_with(horizon: int) -> PolicySpec:
    """Return the task's shapes where ``horizon`` actions are executed of each chunk."""
    return dataclasses.replace(SPEC, horizon=horizon)


def statistics() -> Statistics:
    """Return statistics of the task's data, which leave some of the actions' range unused."""
    zero = torch.zeros(SPEC.obs_dim)
    limits = torch.tensor(SPEC.action_low) * 0.9, torch.tensor(SPEC.action_high) * 0.8
    return Statistics(zero, zero + 1, zero - 2, zero + 3, *limits)


def fitted(policy: Policy) -> Policy:
    """Fit a policy's normaliser to the task; return it."""
    policy.fit_normalizer(statistics())
    return policy


def make_setup(
    uses: Collection[str],
    *,
    policy: Any = None,
    spec: PolicySpec = SPEC,
    plan: int = 4,
    start: str = "",
    device: str = "cpu",
) -> Setup:
    """Return what a run gives to a method, of what it uses and nothing else.

    Args:
        uses: as an ``Algorithm`` says it.
        policy: what builds the policy; None: a small flow policy.
        spec: shapes of the task.
        plan: actions in a chunk of the base, which may be more than are executed.
        start: kind of the base; empty: a flow policy.
        device: where tensors live.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        kind: Any = policy_kinds()[start] if start else FlowPolicy
        base = fitted(kind(dataclasses.replace(spec, horizon=plan), **SMALL))
    base.to(device)
    return Setup(
        spec=spec,
        policy=(policy or functools.partial(FlowPolicy, **SMALL)) if "policy" in uses else None,
        base=base if {"base", "start"} & set(uses) else None,
        oracles=(base, copy.deepcopy(base)) if "oracles" in uses else (),
        statistics=statistics() if "dataset" in uses else None,
        num_envs=NUM_ENVS,
        device=device,
    )


def data_for(algorithm: Algorithm, seed: int, spec: PolicySpec = SPEC) -> Any:
    """Return what the harness would give to a method's ``update``, on the processor."""
    if algorithm.pace.rollout_steps:
        return _made_rollout(algorithm, seed, spec)
    if learns_from_trials(algorithm):
        uniform = torch.rand(2, 4, generator=torch.Generator().manual_seed(seed))
        return Outcome((uniform[0] < 0.5).float(), uniform[1], steps=torch.full((4,), 7))
    return made_batch(algorithm, seed=seed, spec=spec)


def learns_from_trials(algorithm: Algorithm) -> bool:
    """Return whether a phase of a run that only interacts is fed by trials."""
    phases_of = copy.copy(algorithm).phases  # which may note their budget
    try:
        phases = phases_of(Budget(offline_steps=0, online_steps=1))
    except TrimtabError:  # it learns offline first
        return False
    return any(isinstance(phase.feed, Trials) for phase in phases)


def made_batch(
    algorithm: Algorithm, count: int = 16, seed: int = 0, spec: PolicySpec = SPEC
) -> Batch:
    """Return a batch as a method that replays is given it; some chunks were cut."""
    generator = torch.Generator().manual_seed(seed)
    batch_spec = algorithm.batch_spec

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    def actions(*rows: int) -> torch.Tensor:
        low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
        return low + (high - low) * uniform(*rows, spec.horizon, spec.action_dim)

    valid = torch.ones(count, spec.horizon, dtype=torch.bool)
    valid[: count // 4, 1:] = False
    mc_return = batch_spec.mc_return or "dataset" in algorithm.needs.required
    return Batch(
        obs=4 * uniform(count, spec.obs_dim) - 2,
        action=actions(count),
        reward=uniform(count),
        next_obs=4 * uniform(count, spec.obs_dim) - 2,
        discount=0.99 * (uniform(count) < 0.8).float(),
        valid=valid,
        mc_return=uniform(count) if mc_return else None,
        next_action=actions(count) if batch_spec.next_action else None,
        goal=uniform(count, 2) if batch_spec.goal is not None else None,
        goal_steps=torch.arange(count) if batch_spec.goal is not None else None,
        cost=uniform(count) if batch_spec.cost else None,
        aux={k: 2 * uniform(count, *v) - 1 for k, v in algorithm.aux_shapes.items()},
        sequence=_sequences(uniform, actions, count, batch_spec.sequence, spec),
    )


def _sequences(
    uniform: Any, actions: Any, count: int, length: int, spec: PolicySpec
) -> Sequences | None:
    """Return stretches of decisions, of which some end before their length; none of length 0."""
    if not length:
        return None
    left = (uniform(count) * (length + 2)).long() + 1
    return Sequences(
        obs=4 * uniform(count, length, spec.obs_dim) - 2,
        action=actions(count, length),
        reward=uniform(count, length),
        valid=torch.arange(length) < left[:, None],
        step=(uniform(count) * 50).long(),
        mc_return=10 * uniform(count, length),
    )


def _made_rollout(algorithm: Algorithm, seed: int, spec: PolicySpec) -> Rollout:
    """Return a rollout with both kinds of ends in it."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(algorithm.pace.rollout_steps, NUM_ENVS, *shape, generator=generator)

    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    obs = 4 * uniform(spec.obs_dim) - 2
    terminated, truncated = uniform() < 0.1, uniform() < 0.1
    return Rollout(
        obs=obs,
        action=low + (high - low) * uniform(spec.horizon, spec.action_dim),
        reward=uniform(),
        next_obs=torch.cat([obs[1:], 4 * uniform(spec.obs_dim)[:1] - 2]),
        discount=0.99 * (~terminated).float(),
        cut=terminated | truncated,
        # Near 0, as what a narrow policy may really have done: densities of the rest are cut off.
        aux={k: 0.2 * (2 * uniform(*v) - 1) for k, v in algorithm.aux_shapes.items()},
    )


def on(value: Value, device: str) -> Value:
    """Return a batch, a rollout or a mapping with all tensors on a device."""
    return map_tensors(value, lambda tensor: tensor.to(device))
