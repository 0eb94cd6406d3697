"""The frozen base itself: learns nothing, and is what every steering method is held against.

The same-start rule of the suite: "Steering Your Diffusion Policy with Latent Space Reinforcement
Learning" (arXiv 2506.15799) compares with the base policy sampled as it was trained.
"""

from __future__ import annotations

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.types import Batch, Metrics


class Frozen(Algorithm):
    """Judge ``base`` as it is.

    Args:
        setup: needs ``base``.
    """

    needs = Needs({"base"})
    learns = False
    unsaved = frozenset({"policy"})  # nothing changes
    pace = Pace(batch_size=1)

    def __init__(self, setup: Setup) -> None:
        assert setup.base is not None
        self.policy = setup.base.to(setup.device).requires_grad_(False).eval()

    def update(self, data: Batch) -> Metrics:
        """Learn nothing."""
        return {}
