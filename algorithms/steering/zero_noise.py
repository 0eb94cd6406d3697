"""The frozen base at zero noise: learns nothing, and shows what steering owes to less noise alone.

"Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (arXiv 2506.15799)
replaces the base's random latent by a learned one. A steered policy is judged at its actor's mode,
so part of a gain over the sampled base can come from there being no noise; this row is the control.
"""

from __future__ import annotations

from trimtab.algorithms.base import Setup
from trimtab.algorithms.steering.frozen import Frozen


class ZeroNoise(Frozen):
    """Judge ``base`` as it is, its noise always zero.

    Args:
        setup: needs ``base``.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.policy.evaluate_deterministic = True
