"""The frozen base with one noise vector for all actions of a chunk: learns nothing, a control.

The code of "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (arXiv
2506.15799) for pi0 repeats one latent vector along the chunk. A base was not trained on such noise,
so a part of what ``noise_chunk=repeated`` gains or loses is no steering; this row shows it.
"""

from __future__ import annotations

from dataclasses import replace

from trimtab.algorithms.base import Setup
from trimtab.algorithms.steering.frozen import Frozen
from trimtab.policies.kinds.repeated_noise import RepeatedNoisePolicy


class RepeatedNoise(Frozen):
    """Judge ``base`` as it is, its noise repeated over the chunk.

    Args:
        setup: needs ``base``.
    """

    def __init__(self, setup: Setup) -> None:
        assert setup.base is not None
        super().__init__(replace(setup, base=RepeatedNoisePolicy(setup.base)))
