"""What a task asks of a policy: the shapes of its observations and actions."""

from __future__ import annotations

import torch

from trimtab.envs.core.spec import EnvSpec
from trimtab.observations import FLAT, Part
from trimtab.policies.agent import PolicyInputs
from trimtab.types import PolicySpec, Statistics

__all__ = ["OBSERVATIONS", "made_up_statistics", "read_by", "spec_of", "observation_mode"]

OBSERVATIONS = {
    "flat": "one vector",
    "dict": "the parts that the task names, such as goals, each for itself",
}
"""How a task's observations are given, by name."""


def spec_of(env: EnvSpec, act_steps: int, observations: str = "flat") -> PolicySpec:
    """Return the shapes and limits that a policy for a task has.

    Args:
        env: the task.
        act_steps: executed actions of a chunk.
        observations: a name of ``OBSERVATIONS``.
    """
    parts: dict[str, Part] = {}
    if observations == "dict":
        parts = {name: Part((len(entries),)) for name, entries in env.obs_parts.items()}
    size = sum(part.size for part in parts.values()) if parts else env.obs_dim
    return PolicySpec(size, act_steps, env.action_dim, env.action_low, env.action_high, parts=parts)


def observation_mode(policy_inputs: PolicyInputs) -> str:
    """Return the name of ``OBSERVATIONS`` that a policy has to be given."""
    return "dict" if policy_inputs.observed else "flat"


def read_by(spec: PolicySpec) -> str:
    """Return what a policy reads of an environment, in a few words for errors."""
    if list(spec.observed) == [FLAT]:
        return str(spec.observed[FLAT].size)
    return ", ".join(f"{name} {part.size}" for name, part in spec.observed.items())


def made_up_statistics(env: EnvSpec) -> Statistics:
    """Return statistics of no data, of the task's sizes."""
    zero = torch.zeros(env.obs_dim)
    low, high = torch.tensor(env.action_low), torch.tensor(env.action_high)
    return Statistics(zero, zero + 1, zero - 1, zero + 1, low, high)
