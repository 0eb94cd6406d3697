"""A steered and edited policy: one actor gives the base's noise and a correction of its chunk."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.edited import read_as
from trimtab.policies.kinds.latent import latent_spec
from trimtab.types import Obs, PolicySpec, Statistics


def modulation_spec(base: Policy, act_steps: int, magnitude: float) -> PolicySpec:
    """Return the spec of an actor over latents and edits, both in one vector.

    The latent's numbers come first, in ``[-magnitude, magnitude]``; then those of the edit of the
    first ``act_steps`` actions, in ``[-1, 1]``.

    Raises:
        TrimtabError: if the noise of ``base`` is not one latent chunk, or ``act_steps`` is not
            within its chunk.
    """
    if not 1 <= act_steps <= base.spec.horizon:
        raise TrimtabError(f"editing: act_steps={act_steps}: must be from 1 to {base.spec.horizon}")
    latent = latent_spec(base, magnitude)
    edits = act_steps * base.spec.action_dim
    high = latent.action_high * latent.horizon + (1.0,) * edits
    return replace(
        base.spec, horizon=1, action_dim=len(high), action_low=tuple(-x for x in high),
        action_high=high,
    )  # fmt: skip


class EditedLatentPolicy(ComposedPolicy):
    """``action = base(obs, w) + scale * u`` with ``(w, u) = actor(obs, noise)``, the base frozen.

    Su et al., "RFS: Reinforcement Learning with Residual Flow Steering for Dexterous Manipulation"
    (arXiv 2602.01789). Edits are in the base's normalised units, the sum is clipped to the limits.

    Args:
        actor: a policy over what :func:`modulation_spec` says.
        base: any policy whose noise is one latent chunk; its weights get no gradients.
        scale: the most that an edit can change of a normalised action.
        act_steps: actions that are edited, those that are executed.

    Raises:
        TrimtabError: if the actor does not fit the base.
    """

    evaluate_deterministic = True

    def __init__(self, actor: Policy, base: Policy, *, scale: float, act_steps: int) -> None:
        super().__init__(base.spec, actor.noise_shape, scale=float(scale))
        magnitude = max(actor.spec.action_high)
        if actor.spec.action_dim != modulation_spec(base, act_steps, magnitude).action_dim:
            raise TrimtabError(
                f"editing: the actor gives {actor.spec.action_dim} numbers, which are no latent "
                f"{base.noise_shape} and edit of {act_steps} actions"
            )
        self.normalizer = base.normalizer
        self.actor = actor
        self.base = base.requires_grad_(False).eval()
        self.scale, self.act_steps = float(scale), act_steps
        self.latent_size = math.prod(base.noise_shape)

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the base's normaliser, and let the actor read as the base does."""
        self.base.fit_normalizer(statistics)
        read_as(self.actor, self.base)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.decoded(obs, self.actor(obs, noise))

    def decoded(self, obs: Obs, modulation: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]`` for what an actor gave, ``[B, 1, D]``."""
        latent = modulation[:, 0, : self.latent_size].reshape(-1, *self.base.noise_shape)
        edit = modulation[:, 0, self.latent_size :]
        plan: Tensor = self.base(obs, latent)
        first = self.normalizer.normalize_action(plan[:, : self.act_steps])
        edited = first + self.scale * edit.reshape(-1, self.act_steps, self.spec.action_dim)
        return torch.cat([self.normalizer.raw_action(edited), plan[:, self.act_steps :]], 1)
