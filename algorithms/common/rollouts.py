"""Advantages of a rollout's decisions under a state-value network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.algorithms.common.returns import ReturnScale, generalized_advantage, next_values
from trimtab.observations import tree_map
from trimtab.types import Obs, Rollout

__all__ = ["Advantages", "estimate_advantages"]


@dataclass(frozen=True)
class Advantages:
    """T decisions of N environments, and what a critic says of them."""

    obs: Tensor  # [T, N, O] normalised
    value: Tensor  # [T, N] V
    advantage: Tensor  # [T, N]


@torch.no_grad()
def estimate_advantages(
    data: Rollout,
    normalize: Callable[[Obs], Tensor],
    critic: Callable[[Tensor], Tensor],
    reward_scale: ReturnScale | None,
    decay: float,
) -> Advantages:
    """Return a rollout's generalised advantages, each value computed once.

    Args:
        data: the rollout.
        normalize: from raw observations to what the critic reads.
        critic: ``[..., O]`` to ``[..., 1]``.
        reward_scale: takes account of the rewards and scales them; None: they stay.
        decay: lambda.
    """
    obs = normalize(data.obs)
    value = critic(obs).squeeze(-1)
    cuts = data.cuts
    last = normalize(tree_map(lambda part: part[-1], data.next_obs))
    at_cuts = normalize(tree_map(lambda part: part.flatten(0, 1)[cuts], data.next_obs))
    values = critic(torch.cat([last, at_cuts])).squeeze(-1)
    reward = data.reward
    if reward_scale is not None:
        reward = reward_scale(reward, data.cut)
    following = next_values(value, cuts, *values.split([len(last), len(at_cuts)]))
    advantage = generalized_advantage(reward, value, following, data.discount, data.cut, decay)
    return Advantages(obs, value, advantage)
