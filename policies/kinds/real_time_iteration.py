"""A flow or diffusion policy that begins its sampling late, with the chunk that is being played."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.agent import PREVIOUS, RESTART
from trimtab.policies.base import Policy
from trimtab.policies.kinds.real_time_chunking import PlannedPolicy
from trimtab.policies.networks.samplers import DDIM, Euler
from trimtab.settings import Steps
from trimtab.types import Obs


class RealTimeIterationPolicy(PlannedPolicy):
    """Real-time iteration (RTI-DP, Duan et al., arXiv 2508.05396): few steps from the last chunk.

    Where ``restart`` is above 1/2, the sampler begins at its step K - ``late_steps`` with
    ``s previous_chunk + n noise``, s and n the shares of signal and noise there; otherwise it is
    the base. A graph does not carry out the steps before if no row of a batch needs them, so that
    its first decision is a whole one and those after it are quick.

    Args:
        base: a flow policy, or a diffusion policy with ``sampler=ddim``.
        late_steps: sampling steps of a decision that has a previous chunk.

    Raises:
        TrimtabError: if ``base`` is another policy or has no more steps than ``late_steps``.
    """

    adjustable = frozenset({"late_steps"})

    def __init__(self, base: Policy, *, late_steps: Steps = 2) -> None:
        rows = {RESTART: (0.0, (1,), 0.0, 1.0)}
        super().__init__(base, rows)
        sampler = self.base.sampler
        if not isinstance(sampler, Euler | DDIM):
            raise TrimtabError("policy.scheduler: its steps follow from one another; leave it out")
        self.sampler, steps = sampler, len(sampler.levels)
        self.first = steps - late_steps
        if self.first < 1:
            raise TrimtabError(
                f"policy.late_steps={late_steps}: the policy has {steps} sampling steps; give fewer"
            )

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        base, sampler, first = self.base, self.sampler, self.first
        if isinstance(obs, Tensor) or PREVIOUS not in obs:
            planned: Tensor = base(obs, noise)
            return planned
        signal, rest = sampler.levels[first]
        start = signal * base.normalizer.normalize_action(obs[PREVIOUS]) + rest * noise
        field = base.field(obs)
        whole = (obs[RESTART] <= 0.5)[..., None]

        def early(x: Tensor) -> Tensor:
            return sampler(field, x, 0, first)

        # In a graph the early steps are a branch; torch would have to wait for its device.
        exporting = torch.compiler.is_exporting()
        begun = torch.cond(whole.any(), early, torch.clone, (noise,)) if exporting else early(noise)
        return base.normalizer.raw_action(sampler(field, torch.where(whole, begun, start), first))
