"""A mixture of squashed Gaussians, one of which a router chooses for each decision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab.policies.base import Policy
from trimtab.policies.kinds.best_of import gumbel
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy, squashed_sample
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Size
from trimtab.types import Obs, PolicySpec


class MixtureTanhGaussianPolicy(TanhGaussianPolicy):
    """``action = tanh(mean_k(obs) + std_k(obs) * noise)``, with k drawn by a router.

    Ren et al., "Probabilistic Mixture-of-Experts for Efficient Deep Reinforcement Learning" (arXiv
    2104.09122). The router is a softmax of one linear layer; means and widths of all experts are
    outputs of one network. The last numbers of the noise choose: each is made the quantile of a
    Gumbel variable, and the largest sum with the router's logits wins, which draws k from the
    softmax. So zero noise is the mode of the likeliest expert, at which it is judged.

    Args:
        spec: shapes and limits.
        experts: number K of experts; of one there is no router.
        hidden: widths of the hidden layers.
        layer_norm: normalise after each hidden layer.
        log_std_min: lower bound of the log standard deviations (a clamp).
        log_std_max: upper bound of the log standard deviations (a clamp).
    """

    built_by_method = True
    log_density = Policy.log_density  # actions of a chunk share their expert

    def __init__(
        self,
        spec: PolicySpec,
        *,
        experts: Size = 2,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = False,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
    ) -> None:
        Policy.__init__(self, spec, noise_shape_of(spec, experts))
        self.experts, self.log_std_range = experts, (log_std_min, log_std_max)
        self.chunk = (spec.horizon, spec.action_dim)
        outputs = 2 * experts * math.prod(self.chunk)
        self.network = mlp(spec.obs_dim, hidden, outputs, layer_norm=layer_norm)
        self.router = nn.Linear(spec.obs_dim, experts) if experts > 1 else None

    def all_experts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations before squashing, each ``[K, B, H, A]``.

        Args:
            features: normalised observations ``[B, O]``.
        """
        mean, log_std = self.network(features).chunk(2, dim=-1)
        log_std = log_std.clamp(*self.log_std_range)
        shape = (-1, self.experts, *self.chunk)
        return mean.reshape(shape).transpose(0, 1), log_std.reshape(shape).transpose(0, 1)

    def route(self, features: Tensor) -> Tensor:
        """Return logits of the experts ``[B, K]`` at normalised observations ``[B, O]``."""
        if self.router is None:
            return features.new_zeros(len(features), 1)
        logits: Tensor = self.router(features)
        return logits

    def choose(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and log standard deviation of the chosen experts, and the action's noise.

        Args:
            features: normalised observations ``[B, O]``.
            noise: standard normal, ``[B, *noise_shape]``.

        Returns:
            Three times ``[B, H, A]``.
        """
        mean, log_std = self.all_experts(features)
        if self.router is None:
            return mean[0], log_std[0], noise
        own, choosing = noise[:, : -self.experts], noise[:, -self.experts :]
        index = (self.route(features) + gumbel(choosing)).argmax(1)
        # A sum with a weight of 1 for the chosen one, which is a graph for any number of rows.
        chosen = index == torch.arange(self.experts, device=index.device)[:, None]
        weight = chosen.to(mean.dtype)[:, :, None, None]
        own = own.reshape(-1, *self.chunk)
        return (weight * mean).sum(0), (weight * log_std).sum(0), own

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        mean, log_std, own = self.choose(self.normalizer.obs(obs), noise)
        return self.normalizer.raw_action(torch.tanh(mean + log_std.exp() * own))

    def sample_with_log_prob(self, obs: Obs, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions scaled to [-1, 1] ``[B, H, A]``, and the chosen experts' log-densities.

        The density is that of the scaled action under its own expert, ``[B]``.
        """
        return squashed_sample(*self.choose(self.normalizer.obs(obs), noise))


def noise_shape_of(spec: PolicySpec, experts: int) -> tuple[int, ...]:
    """Return the shape of the noise of one row: of one expert, a chunk's."""
    if experts == 1:
        return (spec.horizon, spec.action_dim)
    return (spec.horizon * spec.action_dim + experts,)
