"""A task whose plans are of three actions, of which a run executes two, and small networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.policies.networks.dynamics import DynamicsEnsemble
from trimtab.types import Batch, PolicySpec

PLAN = PolicySpec(3, 3, 2, (-1.0, -2.0), (1.0, 2.0))
RUN = replace(PLAN, horizon=2)
SIZE = torch.tensor([1.0, 2.0])  # half width of the limits, which scales actions
SMALL: dict[str, Any] = {"hidden": (16, 16), "learning_rate": 3e-3}


def follows(
    slow: torch.nn.Module, before: torch.nn.Module, fast: torch.nn.Module, rate: float
) -> None:
    """Check that weights moved from where they were by a share ``rate`` of the way to others."""
    for now, was, ahead in zip(
        slow.parameters(), before.parameters(), fast.parameters(), strict=True
    ):
        torch.testing.assert_close(now, (1 - rate) * was + rate * ahead)


def bandit(obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor) -> Batch:
    """Return decisions of one action ``[B, 1, A]`` after which nothing comes."""
    rows = len(obs)
    whole = torch.ones(rows, 1, dtype=torch.bool)
    return Batch(obs, action, reward, obs, torch.zeros(rows), whole)


class Known(nn.Module):
    """A model of what comes next that adds the action, and ends a fifth of the episodes."""

    members = 2
    rollout = DynamicsEnsemble.rollout

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return obs + action[:, 0], torch.full_like(obs[:, 0], 0.2)
