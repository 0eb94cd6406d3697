"""A Gaussian policy that is told how bold to be, and a smaller one that tells it in each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.policies.base import Policy
from trimtab.policies.kinds.regression_gaussian import RegressionGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, Size
from trimtab.types import Obs, PolicySpec

_WAVES = 10_000.0
"""How much slower the last pair of the encoding would be than the first, if it went on."""

_LOG_STD = (-10.0, 2.0)
"""Range of the log standard deviation of the balance, before squashing."""


class BalancedGaussianPolicy(RegressionGaussianPolicy):
    """``action = mean(obs, b(obs)) + std * noise``, clipped, with b the most likely balance.

    Wang et al., "Train Once, Get a Family: State-Adaptive Balances for Offline-to-Online
    Reinforcement Learning" (arXiv 2310.17966). A universal policy reads beside the observation how
    much improvement counts against imitation, as three sines and cosines of b. The balance policy
    is a squashed Gaussian of one number, of one width in all states, spread over a range. While it
    acts, b is the balance policy's mode, so that the noise is that of the action alone.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers of both networks.
        log_std_min: lower bound of the action's log standard deviation, which is 0 at the start.
        log_std_max: upper bound of it.
        least_balance: lower end of the range of b.
        most_balance: upper end of it.

    Raises:
        TrimtabError: if the range is empty, or the bounds leave 0 out.
    """

    built_by_method = True
    told = 6
    steps: Tensor
    bc_loss = Policy.bc_loss  # to clone it would leave the balance policy as it is
    bc_errors = Policy.bc_errors

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256),
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
        least_balance: float = 1.0,
        most_balance: Annotated[float, Bounds(above_of="least_balance")] = 5.0,
    ) -> None:
        super().__init__(spec, hidden=hidden, log_std_min=log_std_min, log_std_max=log_std_max)
        self.balances = (least_balance, most_balance)
        self.balance_network = mlp(spec.obs_dim, hidden, 1)
        self.balance_log_std = nn.Parameter(torch.zeros(1))
        steps = _WAVES ** (-2.0 * torch.arange(self.told // 2) / self.told)
        self.register_buffer("steps", steps, persistent=False)

    def universal(self) -> list[nn.Parameter]:
        """Return the weights of the universal policy."""
        return [*self.network.parameters(), self.free_log_std]

    def adaptive(self) -> list[nn.Parameter]:
        """Return the weights of the balance policy."""
        return [*self.balance_network.parameters(), self.balance_log_std]

    def spread(self, squashed: Tensor) -> Tensor:
        """Return balances of numbers from -1 to 1, each ``[B]``."""
        least, most = self.balances
        return least + (most - least) * (squashed + 1.0) / 2.0

    def usual_balance(self, features: Tensor) -> Tensor:
        """Return the balance policy's mode ``[B]`` at normalised observations ``[B, O]``."""
        return self.spread(torch.tanh(self.balance_network(features)).squeeze(-1))

    def sampled_balance(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return balances ``[B]`` and log-densities ``[B]``, those of the numbers from -1 to 1.

        Args:
            features: normalised observations ``[B, O]``.
            noise: standard normal ``[B]``.
        """
        mean = self.balance_network(features)[..., None]
        log_std = self.balance_log_std.clamp(*_LOG_STD)[..., None].expand_as(mean)
        squashed, log_prob = squashed_sample(mean, log_std, noise[:, None, None])
        return self.spread(squashed[:, 0, 0]), log_prob

    def mean_at(self, features: Tensor, balance: Tensor) -> Tensor:
        """Return normalised means ``[B, H, A]``.

        Args:
            features: normalised observations ``[B, O]``.
            balance: b, ``[B]``.
        """
        angle = balance[:, None] * self.steps
        waves = torch.stack([angle.sin(), angle.cos()], 2).flatten(1)
        return self.head(torch.cat([features, waves], 1))

    def mean(self, obs: Obs) -> Tensor:
        """Return normalised means ``[B, H, A]`` for raw ``obs`` ``[B, O]``, at the usual b."""
        features = self.normalizer.obs(obs)
        return self.mean_at(features, self.usual_balance(features))
