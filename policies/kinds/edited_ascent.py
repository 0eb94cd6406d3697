"""A policy that takes the best of several proposals and moves them up its critic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.best_of import picked, repeated
from trimtab.policies.networks.action_gradient import obs_share, value_and_gradient
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, NonNegative, Size
from trimtab.types import Obs, Statistics


class EditedAscentPolicy(ComposedPolicy):
    """The best of N proposals, after some steps up the gradient of the critics' mean.

    The action optimisation of Mark et al., "Policy Agnostic RL: Offline RL and Online RL
    Fine-Tuning of Any Class and Backbone" (arXiv 2412.06685). Of N proposals of the base those K
    with the highest values go on (global optimisation). Each takes T plain gradient steps, and the
    best action on its way is kept (local optimisation). The best of all is played. The gradient is
    written out, so that one graph holds base, critics, ascent and choice.

    Args:
        base: any policy; it proposes.
        act_steps: actions of a chunk that the critics value, those that are executed; None: all.
        candidates: number N of proposals.
        kept: number K of those that are moved.
        ascent_steps: number T of gradient steps.
        step_size: of a gradient step, in normalised units.
        hidden: widths of the critics' hidden layers.
        critics: number of Q functions.
        layer_norm: normalise after each hidden layer of the critics.

    Raises:
        TrimtabError: if a number is not in its range.
    """

    adjustable = frozenset({"ascent_steps", "candidates", "kept"})
    frozen = ()

    def __init__(
        self,
        base: Policy,
        *,
        act_steps: int | None = None,
        candidates: Size = 32,
        kept: Annotated[int, Bounds(least=1, most_of="candidates")] = 10,
        ascent_steps: Annotated[int, Bounds(least=0, most=10_000)] = 10,
        step_size: NonNegative = 3e-4,
        hidden: Sequence[Size] = (256, 256),
        critics: Size = 10,
        layer_norm: bool = True,
    ) -> None:
        horizon = base.spec.horizon
        valued = horizon if act_steps is None else act_steps
        if not 1 <= valued <= horizon:
            raise TrimtabError(f"policy.act_steps={valued}: must be from 1 to {horizon}")
        noise_shape = (candidates, *base.noise_shape)
        super().__init__(base.spec, noise_shape, act_steps=valued, step_size=float(step_size))
        self.base = base
        self.normalizer = base.normalizer
        self.act_steps, self.kept = valued, kept
        self.ascent_steps, self.step_size = ascent_steps, float(step_size)
        self.critic = EnsembleCritic(
            base.spec.obs_dim, valued * base.spec.action_dim,
            hidden=hidden, members=critics, layer_norm=layer_norm,
        )  # fmt: skip

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the base's normaliser, which the critics share."""
        self.base.fit_normalizer(statistics)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return the most valued raw chunk ``[B, H, A]``; ``noise`` is ``[B, N, ...]``."""
        plans, values = self.optimized(obs, noise)
        return picked(plans, values.argmax(1))

    def optimized(
        self, obs: Obs, noise: Tensor, proposer: Policy | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return optimised raw plans ``[B, K, H, A]``, and their mean values ``[B, K]``.

        Args:
            obs: raw observations ``[B, O]``, or parts.
            noise: of any number of proposals, ``[B, N, *base.noise_shape]``.
            proposer: what proposes, in place of the base; a policy of the same kind.
        """
        many = noise.shape[1]
        kept = min(self.kept, many)
        plans = (proposer or self.base)(repeated(obs, many), noise.flatten(0, 1))
        plans = plans.reshape(-1, many, *plans.shape[1:])
        share = obs_share(self.critic, self.normalizer.obs(obs))
        values, slopes = self._looked_at(share, self._executed(plans))

        # Global: the proposals with the highest values go on.
        value, best = values.topk(kept, dim=1)
        best = best[:, :, None, None]
        plans = plans.gather(1, best.expand(-1, -1, *plans.shape[2:]))
        slope = slopes.gather(1, best.expand(-1, -1, *slopes.shape[2:]))

        # Local: plain gradient steps, each proposal keeping the best action on its way.
        action = found = self._executed(plans)
        for _ in range(self.ascent_steps):
            action = self.clipped(action + self.step_size * slope)
            reached, slope = self._looked_at(share, action)
            found = torch.where((reached > value)[:, :, None, None], action, found)
            value = torch.maximum(value, reached)
        raw = self.normalizer.raw_action(found)
        return torch.cat([raw, plans[:, :, self.act_steps :]], 2), value

    def clipped(self, action: Tensor) -> Tensor:
        """Return normalised actions inside the limits."""
        return self.normalizer.normalize_action(self.normalizer.raw_action(action))

    def _executed(self, plans: Tensor) -> Tensor:
        return self.normalizer.normalize_action(plans[:, :, : self.act_steps])

    def _looked_at(self, share: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean values ``[B, C]`` and slopes of normalised actions ``[B, C, h, A]``."""
        many = action.shape[1]
        rows = share[:, :, None].expand(-1, -1, many, -1).flatten(1, 2)
        value, slope = value_and_gradient(self.critic, rows, action.flatten(2).flatten(0, 1))
        return value.reshape(-1, many), slope.reshape(-1, *action.shape[1:])
