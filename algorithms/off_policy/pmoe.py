"""SAC with several experts, of which the one that the critics like best learns.

Ren et al., "Probabilistic Mixture-of-Experts for Efficient Deep Reinforcement Learning" (arXiv
2104.09122), with the code of one of its authors (quantumiracle/Popular-RL-Algorithms:
``pmoe_sac.py``). The policy is a mixture of K squashed Gaussians pi_k with a router w(s):

- acting:  k ~ w(s),  a ~ pi_k(.|s)
- target:  as in SAC, with an action of a drawn expert and its own density
- actor:   a_k ~ pi_k(.|s) reparameterised,  j = argmax_k min_i Q_i(s, a_k)
           L_pi = mean [alpha log pi_j(a_j|s) - min_i Q_i(s, a_j)] + mean |w(s) - onehot(j)|^2
- temperature:  as in SAC, with log pi_j(a_j|s)

The index j passes no gradient; the router learns to foresee it. The squared error is a mean over
experts, too. With ``experts=1`` it is SAC. Everything else is SAC's.

Deviations from that code: rewards are not standardised in each batch; networks have SAC's widths
here and not four layers of 512.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.policies.kinds.mixture_tanh_gaussian import MixtureTanhGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.settings import Size
from trimtab.types import Obs, PolicySpec


class PMOE(SAC):
    """SAC with a probabilistic mixture of experts.

    Args:
        setup: as in SAC.
        experts: K.
        sac: settings of SAC.
    """

    capturable = True
    actor: MixtureTanhGaussianPolicy

    def __init__(self, setup: Setup, *, experts: Size = 2, **sac: Any) -> None:
        self.experts = experts
        super().__init__(setup, **sac)

    def make_actor(
        self, spec: PolicySpec, hidden: Sequence[int], layer_norm: bool, log_std_min: float
    ) -> MixtureTanhGaussianPolicy:
        """Return the mixture with fresh weights."""
        return MixtureTanhGaussianPolicy(
            spec,
            experts=self.experts,
            hidden=hidden,
            layer_norm=layer_norm,
            log_std_min=log_std_min,
        )

    def update_actor(self, raw_obs: Obs, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of actor and temperature; return the actor's loss and log-densities."""
        mean, log_std = self.actor.all_experts(obs)
        noise = torch.randn(mean.shape, device=mean.device)
        action, log_prob = squashed_sample(mean, log_std, noise)
        value = self.critic(obs.repeat(self.experts, 1), action.flatten(0, 1))
        value = value.amin(0) if self.pessimistic_actor else value.mean(0)
        value = value.view(self.experts, -1)

        # The expert whose action is best climbs; the router learns which one that is.
        best = value.argmax(0)
        log_prob = log_prob.take_along_dim(best[None], 0)[0]
        actor_loss = (alpha * log_prob - value.take_along_dim(best[None], 0)[0]).mean()
        share = self.actor.route(obs).softmax(1)
        wanted = best[:, None] == torch.arange(self.experts, device=best.device)
        routing_loss = (share - wanted.to(share.dtype)).square().mean()
        self.actor_optimizer.step(actor_loss + routing_loss)

        # Temperature: raise alpha while the entropy is below its target.
        log_prob = log_prob.detach()
        temperature_loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(temperature_loss)
        return actor_loss, log_prob
