"""Returns and advantages along a rollout, and their running scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.policies.normalizer import absorb


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, cut: Tensor, decay: float
) -> Tensor:
    """Return advantages ``[T, N]`` (Schulman et al., arXiv 1506.02438, equation 16).

    delta_t = r_t + discount_t V(s_{t+1}) - V(s_t),   A_t = delta_t + gamma lambda A_{t+1},
    where the sum stops at the end of an episode. A time limit ends the sum but keeps its
    ``V(s_{t+1})``, because it is no failure; a termination has ``discount`` 0.

    Args:
        reward: ``[T, N]``.
        value: V of each observation, ``[T, N]``.
        next_value: V of each true next observation, ``[T, N]``.
        discount: gamma, or 0 after a termination, ``[T, N]``.
        cut: where an episode ended for any reason, ``[T, N]`` bool.
        decay: lambda.
    """
    delta = torch.addcmul(reward, discount, next_value).sub_(value)
    weight = (discount * ~cut).mul_(decay)
    following = torch.zeros_like(delta[0])
    rows, weights = delta.unbind(0), weight.unbind(0)
    for row, factor in zip(reversed(rows), reversed(weights), strict=True):
        following = row.addcmul_(factor, following)
    return delta


def normalized(advantage: Tensor) -> Tensor:
    """Return advantages ``[..., M]`` with mean 0 and standard deviation 1.

    A single one has no deviation and stays as it is, as in Stable-Baselines3.
    """
    if advantage.shape[-1] == 1:
        return advantage
    centred = advantage - advantage.mean(-1, keepdim=True)
    return centred / (advantage.std(-1, keepdim=True) + 1e-8)


def next_values(value: Tensor, cuts: Tensor, last: Tensor, at_cuts: Tensor) -> Tensor:
    """Return V of each true next observation ``[T, N]`` without computing most of them again.

    Inside an episode the next observation is the next row's.

    Args:
        value: V of each observation, ``[T, N]``.
        cuts: rows where an episode ended, ``[K]`` indices of ``value.flatten()``.
        last: V after the last row, ``[N]``.
        at_cuts: ``[K]`` V of the true next observations of those rows.
    """
    following = torch.cat([value[1:], last[None]])
    following.view(-1).index_copy_(0, cuts, at_cuts)
    return following


class ReturnScale(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return.

    The usual reward normalisation of on-policy learning (Engstrom et al., arXiv 2005.12729, section
    3): ``G_t = gamma G_{t-1} + r_t``, afresh in each episode; rewards are not centred.

    Args:
        num_envs: number N of columns.
        discount: gamma.
        limit: scaled rewards are clipped to ``[-limit, limit]``.
    """

    carried: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, num_envs: int, discount: float, limit: float = 10.0) -> None:
        super().__init__()
        self.discount, self.limit = discount, limit
        self.register_buffer("carried", torch.zeros(num_envs))
        self.register_buffer("mean", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(1, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def forward(self, reward: Tensor, cut: Tensor) -> Tensor:
        """Take account of rewards ``[T, N]`` with their ``cut`` and return them scaled."""
        going_on = (~cut).to(reward.dtype)
        returns = torch.empty_like(reward)
        carried = self.carried
        for step in range(len(reward)):
            carried = reward[step] + self.discount * carried
            returns[step] = carried
            carried = carried * going_on[step]
        self.carried.copy_(carried)
        absorb(returns.reshape(-1, 1), self.mean, self.variance, self.count)
        return self.scale(reward)

    def scale(self, reward: Tensor) -> Tensor:
        """Return rewards of any shape scaled, without taking account of them."""
        scaled = reward / (self.variance + 1e-8).sqrt().to(reward.dtype)
        return scaled.clamp(-self.limit, self.limit)


class BoundedReturnScale(nn.Module):
    """Divides rewards so that discounted returns vary by about 1 and stay within a bound.

    For critics whose values have a fixed range (SimbaV2, arXiv 2502.15280; FlashSAC, arXiv
    2604.04539): rewards are divided by ``max(std(G), max |G| / bound)``, where ``G_t = gamma
    G_{t-1} + r_t`` starts afresh in each episode. Returns are counted in the order of acting; the
    largest one is never forgotten.

    Args:
        num_envs: number N of environments.
        discount: gamma.
        bound: largest scaled return.
    """

    carried: Tensor
    largest: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, num_envs: int, discount: float, bound: float = 5.0) -> None:
        super().__init__()
        self.discount, self.bound = discount, bound
        self.register_buffer("carried", torch.zeros(num_envs))
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(1, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def see(self, reward: Tensor, ended: Tensor) -> None:
        """Take account of one reward ``[N]`` of each environment, and of ended episodes ``[N]``."""
        returns = reward.to(self.carried.dtype) + self.discount * self.carried
        absorb(returns[:, None], self.mean, self.variance, self.count)
        torch.maximum(self.largest, returns.abs().amax(), out=self.largest)
        self.carried.copy_(returns * ~ended)

    def forward(self, reward: Tensor) -> Tensor:
        """Return rewards of any shape, scaled."""
        deviation = (self.variance + 1e-8).sqrt().to(reward.dtype)
        return reward / torch.maximum(deviation, self.largest / self.bound)
