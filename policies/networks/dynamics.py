"""A learned model of what comes next, as an ensemble computed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.networks.critic import EnsembleLinear
from trimtab.policies.networks.mlp import check_widths

_LOG_VARIANCE = (-10.0, 0.5)


class DynamicsEnsemble(nn.Module):
    """E Gaussian models of the next observation and of whether an episode ends.

    Chua et al., "Deep Reinforcement Learning in a Handful of Trials using Probabilistic Dynamics
    Models" (arXiv 1805.12114): each member says mean and variance of the change of the observation,
    and here also the chance that the decision ends its episode.

    Args:
        obs_dim: length of a normalised observation.
        action_size: length of a flattened action chunk.
        hidden: widths of the hidden layers.
        members: number E of models.
        limit: predicted observations are clipped to ``[-limit, limit]``.
    """

    def __init__(
        self,
        obs_dim: int,
        action_size: int,
        *,
        hidden: Sequence[int] = (200, 200),
        members: int = 5,
        limit: float = 5.0,
    ) -> None:
        super().__init__()
        check_widths(hidden)
        self.members, self.limit, self.obs_dim = members, limit, obs_dim
        layers: list[nn.Module] = []
        inputs = obs_dim + action_size
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), nn.SiLU(inplace=True)]
            inputs = width
        layers.append(EnsembleLinear(members, inputs, 2 * obs_dim + 1))
        self.network = nn.Sequential(*layers)

    def _outputs(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean change, log variance ``[E, B, O]`` and logit of an end ``[E, B]``."""
        x = self.network(rows)
        change, log_variance, end = x.split([self.obs_dim, self.obs_dim, 1], dim=-1)
        low, high = _LOG_VARIANCE  # a soft clamp, so that a bound passes gradients
        log_variance = high - functional.softplus(high - log_variance)
        log_variance = low + functional.softplus(log_variance - low)
        return change, log_variance, end.squeeze(-1)

    def loss(self, obs: Tensor, action: Tensor, next_obs: Tensor, ended: Tensor) -> Tensor:
        """Return Gaussian and Bernoulli log-likelihoods' negatives, summed over the members.

        Args:
            obs: normalised ``[B, O]``.
            action: normalised chunks ``[B, H, A]``.
            next_obs: normalised ``[B, O]``.
            ended: whether the episode truly ended ``[B]``.
        """
        rows = torch.cat([obs, action.flatten(1)], dim=1).expand(self.members, -1, -1)
        change, log_variance, end = self._outputs(rows)
        squared = (change - (next_obs - obs)).square() * (-log_variance).exp()
        gaussian = 0.5 * (squared + log_variance).sum(-1)
        target = ended.to(end.dtype).expand_as(end)
        bernoulli = functional.binary_cross_entropy_with_logits(end, target, reduction="none")
        return (gaussian + bernoulli).mean(1).sum()

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return what comes next on average ``[B, O]``, and chances of an end ``[B]``.

        Row i is predicted by member i modulo E. The number of rows is a multiple of E.

        Args:
            obs: normalised ``[B, O]``.
            action: normalised chunks ``[B, H, A]``.
        """
        rows = torch.cat([obs, action.flatten(1)], dim=1)
        own = rows.reshape(-1, self.members, rows.shape[1]).transpose(0, 1)
        change, _, end = self._outputs(own)
        moved = change.transpose(0, 1).reshape(obs.shape)
        reached = (obs + moved).clamp(-self.limit, self.limit)
        return reached, torch.sigmoid(end).transpose(0, 1).flatten()

    def rollout(
        self, obs: Tensor, act: Callable[[Tensor], Tensor], decisions: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield, decision by decision, what is seen, what is executed, and which rows go on.

        The last is the chance that a row's episode still goes on. The caller decides whether
        gradients are kept.

        Args:
            obs: normalised observations to start from, ``[B, O]``, B a multiple of E.
            act: what the policy executes, from ``[B, O]`` to ``[B, H, A]``.
            decisions: how many.
        """
        alive = torch.ones_like(obs[:, 0])
        for _ in range(decisions):
            action = act(obs)
            yield obs, action, alive
            obs, end = self(obs, action)
            alive = alive * (1.0 - end)
