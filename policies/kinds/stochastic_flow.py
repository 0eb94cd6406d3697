"""A flow policy that is carried along with noise in every step."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.policies.base import ComposedPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.chains import NOISE_LIMIT, FlowChain, walk
from trimtab.policies.networks.samplers import euler_steps
from trimtab.types import Obs, Statistics


class StochasticFlowPolicy(ComposedPolicy):
    """A flow as a stochastic process with the same marginals, as OGPO acts (arXiv 2605.03065).

    The marginals are the same up to the clip of each step's mean to [-1, 1], which is the paper's.
    Its noise is a whole path: where it starts, then that of each step, which is cut at 3 sigma.

    Args:
        base: a flow policy, whose Euler steps get the noise.
        noise: how it goes with time, a name of ``chains.FLOW_NOISE``.
        level: how large it is.
    """

    adjustable_inside = False  # what was learned belongs to these steps
    frozen = ()
    base: FlowPolicy

    def __init__(self, base: FlowPolicy, *, noise: str = "tapered", level: float = 0.05) -> None:
        steps = euler_steps(base.sampler)
        shape = (steps + 1, base.spec.horizon, base.spec.action_dim)
        super().__init__(base.spec, shape)
        self.base = base
        self.normalizer = base.normalizer
        self.chain = FlowChain(steps, noise=noise, level=level)

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the base's normaliser."""
        self.base.fit_normalizer(statistics)

    def points(self, obs: Obs, noise: Tensor) -> list[Tensor]:
        """Return the points of the path ``[B, H, A]``, normalised; the last one is not clipped."""
        network, chain = self.base.network, self.chain
        condition = network.condition(self.normalizer.obs(obs))
        steps = noise[:, 1:].clamp(-NOISE_LIMIT, NOISE_LIMIT)
        noise = torch.cat([noise[:, :1], steps], dim=1)
        return walk(chain, lambda x, i: network(x, chain.time(i), condition), noise)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.normalizer.raw_action(self.points(obs, noise)[-1])
