"""A policy whose base is given one noise vector, repeated over the chunk."""

from __future__ import annotations

from torch import Tensor

from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.latent import latent_spec
from trimtab.types import Obs


class RepeatedNoisePolicy(ComposedPolicy):
    """``action = base(obs, (w, w, ..., w))``: noise of shape ``(1, A)`` in place of ``(H, A)``.

    Some steered policies have a latent for each action of a chunk, and some one for all of it, as
    the code of DSRL for pi0 (arXiv 2506.15799). With this kind as its base a steering method does
    the latter, whatever method it is.

    Args:
        base: any policy whose noise is one latent chunk; its weights get no gradients.

    Raises:
        TrimtabError: if the noise of ``base`` is no latent chunk.
    """

    def __init__(self, base: Policy) -> None:
        latent = latent_spec(base, 1.0)  # says what is wrong with a base that has no latent chunk
        super().__init__(base.spec, (1, latent.action_dim))
        self.repeats = latent.horizon
        self.evaluate_deterministic = base.evaluate_deterministic
        self.normalizer = base.normalizer
        self.base = base.requires_grad_(False).eval()

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]`` for ``noise`` ``[B, 1, A]``."""
        action: Tensor = self.base(obs, noise.expand(-1, self.repeats, -1))
        return action
