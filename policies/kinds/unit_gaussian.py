"""The squashed Gaussian policy of FlashSAC."""

from __future__ import annotations

from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy
from trimtab.policies.networks.unit import UnitNetwork
from trimtab.settings import Size
from trimtab.types import PolicySpec


class UnitGaussianPolicy(SquashedGaussianPolicy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, of a network with batch normalisation.

    Kim et al., "FlashSAC: Fast and Stable Off-Policy Reinforcement Learning for High-Dimensional
    Robot Control" (arXiv 2604.04539), in its code ``flash_rl/agents/flashSAC/network.py``. The
    logarithm of the standard deviation is squashed to [-10, 2] by a tanh. It acts with the running
    statistics, so an action does not depend on the other rows. Judged at its mode, ``noise = 0``.

    Args:
        spec: shapes and limits.
        width: of the residual stream.
        blocks: number of blocks.
    """

    built_by_method = True
    log_std_range = None

    def __init__(self, spec: PolicySpec, *, width: Size = 128, blocks: Size = 2) -> None:
        super().__init__(spec)
        outputs = 2 * spec.horizon * spec.action_dim
        self.network = UnitNetwork(spec.obs_dim, width, outputs, blocks=blocks)
