"""The squashed Gaussian policy of CrossQ."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy
from trimtab.policies.networks.renormed import RenormedPerceptron
from trimtab.settings import Size
from trimtab.types import PolicySpec


class RenormedGaussianPolicy(SquashedGaussianPolicy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, of a network with batch renormalisation.

    Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
    Efficiency and Simplicity" (arXiv 1902.05605). It acts with the running statistics, so an action
    does not depend on the other rows. Judged at its mode, ``noise = 0``.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        log_std_min: lower bound of the log standard deviation (a clamp).
        log_std_max: upper bound of the log standard deviation (a clamp).
    """

    built_by_method = True
    log_std_range: tuple[float, float] = (-20.0, 2.0)

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
    ) -> None:
        super().__init__(spec)
        self.log_std_range = (log_std_min, log_std_max)
        outputs = 2 * spec.horizon * spec.action_dim
        self.network = RenormedPerceptron(spec.obs_dim, hidden, outputs)
