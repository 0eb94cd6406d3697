"""What a policy meets in a learned model of what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from trimtab.policies.networks.dynamics import DynamicsEnsemble

__all__ = ["model_rollout"]


def model_rollout(
    dynamics: DynamicsEnsemble, obs: Tensor, act: Callable[[Tensor], Tensor], decisions: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield, decision by decision, what is seen, what is executed, and which rows go on.

    The last is the chance that a row's episode still goes on. The caller decides whether
    gradients are kept.

    Args:
        dynamics: the model; row i is its member i modulo E's.
        obs: normalised observations to start from, ``[B, O]``, B a multiple of E.
        act: what the policy executes, from ``[B, O]`` to ``[B, H, A]``.
        decisions: how many.
    """
    alive = torch.ones_like(obs[:, 0])
    for _ in range(decisions):
        action = act(obs)
        yield obs, action, alive
        obs, end = dynamics(obs, action)
        alive = alive * (1.0 - end)
