"""The squashed Gaussian policy of XQC."""

from __future__ import annotations

from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy
from trimtab.policies.networks.unit import UnitPerceptron
from trimtab.settings import Size
from trimtab.types import PolicySpec


class UnitPerceptronGaussianPolicy(SquashedGaussianPolicy):
    """``action = tanh(mean(obs) + std(obs) * noise)``, of a perceptron with batch normalisation.

    Palenicek et al., "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning"
    (arXiv 2509.25174), in its code ``xqc/networks/{mlp,policies}.py``. It acts with the running
    statistics, so an action does not depend on the other rows. Judged at its mode, ``noise = 0``.

    Args:
        spec: shapes and limits.
        width: of the layers.
        layers: how many there are before mean and width.
    """

    built_by_method = True
    log_std_range = (-10.0, 2.0)

    def __init__(self, spec: PolicySpec, *, width: Size = 256, layers: Size = 4) -> None:
        super().__init__(spec)
        outputs = 2 * spec.horizon * spec.action_dim
        self.network = UnitPerceptron(spec.obs_dim, width, outputs, layers=layers)
