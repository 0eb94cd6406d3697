"""The squashed Gaussian policy of BRC."""

from __future__ import annotations

import math

from torch import nn

from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy
from trimtab.policies.networks.bro import BroNet
from trimtab.settings import Natural, Size
from trimtab.types import PolicySpec


class BroGaussianPolicy(SquashedGaussianPolicy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, of a residual network with LayerNorm.

    Nauman et al., "Bigger, Regularized, Categorical: High-Capacity Value Functions are Efficient
    Multi-Task Learners" (arXiv 2505.23150), in its code ``jaxrl/networks.py``. The logarithm of the
    standard deviation is squashed to [-10, 2] by a tanh; the weights that it comes from begin
    orthogonal with gain 1, those of the mean with sqrt(2). Judged at its mode, ``noise = 0``.

    Args:
        spec: shapes and limits.
        width: of all layers.
        blocks: residual blocks.
    """

    built_by_method = True
    log_std_range = None

    def __init__(self, spec: PolicySpec, *, width: Size = 256, blocks: Natural = 1) -> None:
        super().__init__(spec)
        outputs = 2 * spec.horizon * spec.action_dim
        self.network = BroNet(spec.obs_dim, width, outputs, blocks=blocks)
        # The code has a layer for each of them.
        mean, log_std = self.network.output.weight.detach().chunk(2)
        nn.init.orthogonal_(mean, math.sqrt(2.0))
        nn.init.orthogonal_(log_std, 1.0)
