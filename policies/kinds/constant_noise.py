"""A policy whose base is always given the same noise."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.latent import latent_spec
from trimtab.types import Obs


class ConstantNoisePolicy(ComposedPolicy):
    """``action = base(obs, latent)`` with one latent chunk for every state (arXiv 2603.15757).

    It takes no noise of its own, and so it has shape ``(0,)``. The latent is a part of the state,
    not of the settings, so that a bundle holds it beside the weights.

    Args:
        base: any policy whose noise is one latent chunk; its weights get no gradients.

    Raises:
        TrimtabError: if the noise of ``base`` is no latent chunk.
    """

    evaluate_deterministic = True
    latent: Tensor

    def __init__(self, base: Policy) -> None:
        latent_spec(base, 1.0)  # says what is wrong with a base that has no latent chunk
        super().__init__(base.spec, (0,))
        self.normalizer = base.normalizer
        self.base = base.requires_grad_(False).eval()
        device = base.normalizer.obs_shift.device
        self.register_buffer("latent", torch.zeros(base.noise_shape, device=device))

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``; ``noise`` ``[B, 0]`` is empty."""
        # The sum over no noise is 0 in each row: it gives the latent its rows, and the graph an
        # input that is in use.
        action: Tensor = self.base(obs, self.latent + noise.sum(1)[:, None, None])
        return action
