"""A steered policy: an actor over the noise of a frozen base is again a policy."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.types import Obs, PolicySpec


def latent_spec(base: Policy, magnitude: float) -> PolicySpec:
    """Return the spec of an actor over latents of ``base``, in ``[-magnitude, magnitude]``.

    Raises:
        TrimtabError: if the noise of ``base`` is not one latent chunk ``(H, A)``.
    """
    if len(base.noise_shape) != 2:
        raise TrimtabError(
            f"steering: the base's noise has shape {base.noise_shape}, not one latent (H, A); "
            "give a base whose sampler is deterministic, such as flow, or diffusion with "
            "policy.sampler=ddim"
        )
    horizon, dim = base.noise_shape
    limit = (float(magnitude),) * dim
    return replace(
        base.spec, horizon=horizon, action_dim=dim, action_low=tuple(-x for x in limit),
        action_high=limit,
    )  # fmt: skip


class LatentPolicy(ComposedPolicy):
    """``action = base(obs, actor(obs, noise))`` with the base frozen (DSRL, arXiv 2506.15799).

    Args:
        actor: a policy whose action chunk has the shape of the base's noise.
        base: any policy whose noise is one latent chunk; its weights get no gradients.
    """

    evaluate_deterministic = True

    def __init__(self, actor: Policy, base: Policy) -> None:
        shape = (actor.spec.horizon, actor.spec.action_dim)
        if shape != base.noise_shape or actor.spec.obs_dim != base.spec.obs_dim:
            raise TrimtabError(
                f"steering: the actor maps {actor.spec.obs_dim} observations to latents {shape}; "
                f"the base takes {base.spec.obs_dim} observations and noise {base.noise_shape}"
            )
        super().__init__(base.spec, actor.noise_shape)
        self.normalizer = base.normalizer
        self.actor = actor
        self.base = base.requires_grad_(False).eval()

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        action: Tensor = self.base(obs, self.actor(obs, noise))
        return action

    def decode(self, obs: Obs, latent: Tensor) -> Tensor:
        """Return the base's raw actions ``[B, H, A]`` for given latents, without gradients."""
        with torch.no_grad():
            action: Tensor = self.base(obs, latent)
        return action
