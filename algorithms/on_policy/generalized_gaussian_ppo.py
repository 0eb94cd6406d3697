"""PPO whose value models the distribution of its errors as a generalised Gaussian.

Kim et al., "Generalized Gaussian Temporal Difference Error for Uncertainty-aware Reinforcement
Learning" (arXiv 2408.02295), with their code (ait-lab/ggtde: ``losses/mle.py``, ``algos/ppo``):

- value:  L_V = mean [|delta|^beta(s) - log beta(s) + lgamma(1 / beta(s))],  delta = V(s) - R

V gives a value and the shape beta of its error. The bracket is the error's negative log-density, up
to a constant, for a scale of 1, which rewards divided by the scale of returns suit. Where tails are
heavy (beta is small) a large error pulls little.

With ``shape=2`` it is PPO: with a given shape nothing but |delta|^beta is left of the bracket.
Everything else is PPO's.

An adaptation (``faithful`` is False): they have five values, weighted by their shapes, each with
its own advantage, and a term that weighs decisions by the variance between the five; here is one.
What else differs from their code is in ``off_policy/generalized_gaussian_sac.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.generalized_gaussian import negative_log_density, shape_of
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.policies.networks.mlp import Activation, mlp, orthogonal_
from trimtab.settings import Bounds


class GeneralizedGaussianPPO(PPO):
    """PPO with a generalised Gaussian error.

    Args:
        setup: as in PPO.
        shape: beta of all states, from 1 (absolute error) to 2 (squared error); None: it is
            learned in each state.
        ppo: settings of PPO.
    """

    faithful: ClassVar[bool] = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        shape: Annotated[float, Bounds(least=1, most=2)] | None = None,
        **ppo: Any,
    ) -> None:
        self.shape = shape
        super().__init__(setup, **ppo)

    def make_critic(self, obs_dim: int, hidden: Sequence[int], activation: Activation) -> nn.Module:
        """Return V with fresh weights."""
        if self.shape is not None:
            return super().make_critic(obs_dim, hidden, activation)
        return ShapedValue(obs_dim, hidden, activation)

    def value_loss(self, part: Samples) -> Tensor:
        """Return the loss of V's error, or the worse one of V and V kept near its old value."""
        if isinstance(self.critic, ShapedValue):
            value, output = self.critic.network(part.obs).unbind(-1)
            shape = shape_of(output)
        else:
            value, shape = self.critic(part.obs).squeeze(-1), None
        loss = self.error_loss(value - part.target, shape)
        if self.value_clip is not None:
            near = part.value + (value - part.value).clamp(-self.value_clip, self.value_clip)
            loss = torch.maximum(loss, self.error_loss(near - part.target, shape))
        return loss.mean()

    def error_loss(self, error: Tensor, shape: Tensor | None) -> Tensor:
        """Return the loss of each error ``[M]``; ``shape [M]`` where it is learned."""
        if shape is not None:
            return negative_log_density(error, shape)
        assert self.shape is not None
        return error.abs().pow(self.shape)


class ShapedValue(nn.Module):
    """V and the shape of its error.

    Args:
        obs_dim: length of a normalised observation.
        hidden: widths of the hidden layers.
        activation: of the hidden layers.
    """

    def __init__(self, obs_dim: int, hidden: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.network = orthogonal_(mlp(obs_dim, hidden, 2, activation=activation), last_gain=1.0)

    def forward(self, obs: Tensor) -> Tensor:
        """Return V ``[..., 1]``."""
        value: Tensor = self.network(obs)[..., :1]
        return value
