"""A squashed Gaussian policy with running statistics of observations: REPPO's."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.networks.mlp import mlp
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Size
from trimtab.types import PolicySpec


class RunningTanhGaussianPolicy(TanhGaussianPolicy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, scaled to the action limits.

    Voelcker et al., "Relative Entropy Pathwise Policy Optimization" (arXiv 2507.11019), in their
    code: each hidden layer is normalised by the root of its mean square and activated by SiLU.
    Observations are normalised by running statistics. Judged at its mode.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        normalize_observations: keep a running mean and standard deviation of observations.
        log_std_min: lower bound of the log standard deviation (a clamp).
        log_std_max: upper bound of the log standard deviation (a clamp).
    """

    built_by_method = True

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (512, 512),
        normalize_observations: bool = True,
        log_std_min: float = -5.0,
        log_std_max: float = 2.0,
    ) -> None:
        super().__init__(spec, hidden=(), log_std_min=log_std_min, log_std_max=log_std_max)
        if normalize_observations:
            self.normalizer = RunningNormalizer(spec)
        outputs = 2 * spec.horizon * spec.action_dim
        self.network = mlp(spec.obs_dim, hidden, outputs, rms_norm=True, activation="silu")
