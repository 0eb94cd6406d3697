"""RO2O: many critics, and actor and critics that hardly change where the state hardly does.

Wen et al., "Towards Robust Offline-to-Online Reinforcement Learning via Uncertainty and Smoothness"
(arXiv 2309.16973), for N Q functions, on observations of mean 0 and standard deviation 1. As SAC-N
(:mod:`trimtab.algorithms.offline.edac`), and beside its losses:

- actor:   + beta_P mean max_e [KL(pi(.|s) || pi(.|s + e)) + KL(pi(.|s + e) || pi(.|s))]
- critic:  + beta_Q mean max_e mean_i [(1 - w) max(d_i, 0)^2 + w min(d_i, 0)^2]
             with d_i = Q_i(s + e, a) - Q_i(s, a)
           + beta_O mean_i mean (Q_i(s + e, b) - (Q_i(s + e, b) - u std_j Q_j(s + e, b)))^2
             with b ~ pi(.|s + e), where the target, in brackets, has no gradient

Each max and mean over e is over ``samples`` vectors, uniform within eps_P, eps_Q and eps_O of 0,
drawn anew for each loss and the same for all rows. w is 0.2. The divergences are those of the
Gaussians before the tanh, and both sides get gradients. u falls in a line over the offline updates
from ``uncertainty`` to ``least_uncertainty``, and stays there online.

Online it goes on with the same losses. The authors' buffer is then empty at first (their 2500 steps
before the first update are ``warmup_steps`` here); ``offline_share`` keeps the data.

Deviations: one sample of the actor serves temperature and actor (there: a sample each, from the
same weights); the cloning term and other settings of their ant mazes are left out; u stays at its
least online, as their notes say (their script lets it fall once more).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.schedules import UpdateCount
from trimtab.algorithms.offline.edac import EDAC
from trimtab.algorithms.phases import Budget, Phase, default_phases
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.settings import Bounds, Count, NonNegative, Size
from trimtab.types import Batch, Metrics, Obs

_LOWER = 0.2
"""Weight w of values that are lower at perturbed states; higher ones weigh the rest."""


class RO2O(EDAC):
    """SAC-N with smoothness, and with caution about what the actor does at perturbed states.

    Args:
        setup: needs ``dataset``.
        policy_smoothness: beta_P.
        value_smoothness: beta_Q.
        caution: beta_O.
        policy_radius: eps_P, in standard deviations of observations.
        value_radius: eps_Q.
        caution_radius: eps_O.
        samples: how many vectors e.
        uncertainty: u at first.
        least_uncertainty: u at last, and online.
        decay_updates: offline updates until then.
        critics: as in EDAC, and two at least, as their deviation is asked for.
        edac: further settings of EDAC, without its diversity.
    """

    unused_settings = EDAC.unused_settings | {"diversity"}
    needs = Needs({"dataset"}, transitions_only=True)  # as loaders of transitions have them
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        policy_smoothness: NonNegative = 1.0,
        value_smoothness: NonNegative = 1e-4,
        caution: NonNegative = 0.1,
        policy_radius: NonNegative = 0.01,
        value_radius: NonNegative = 0.01,
        caution_radius: NonNegative = 0.01,
        samples: Size = 20,
        uncertainty: NonNegative = 1.0,
        least_uncertainty: Annotated[float, Bounds(least=0, most_of="uncertainty")] = 0.1,
        decay_updates: Count = 1_800_000,
        critics: Annotated[int, Bounds(least=2)] = 10,
        **edac: Any,
    ) -> None:
        super().__init__(setup, diversity=0.0, critics=critics, **edac)
        assert setup.statistics is not None
        self.actor.normalizer.standardize(setup.statistics)
        self.policy_smoothness, self.policy_radius = policy_smoothness, policy_radius
        self.value_smoothness, self.value_radius = value_smoothness, value_radius
        self.caution, self.caution_radius = caution, caution_radius
        self.samples, self.decay_updates = samples, decay_updates
        self.uncertainty, self.least_uncertainty = uncertainty, least_uncertainty
        self.present_uncertainty: float | Tensor = uncertainty  # u
        self.count = UpdateCount(setup.device)

    def critic_losses(
        self, obs: Tensor, action: Tensor, backup: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Return values, the critics' loss with smoothness and caution, and its parts."""
        value = self.critic(obs, action)
        td_loss = (value - backup).square().mean(1).sum()
        # Values hardly change where the state hardly does, least of all upwards.
        near = self.perturbed(obs, self.value_radius)
        moved = self.critic(near, action.repeat(self.samples, 1, 1))
        change = moved.unflatten(1, (self.samples, -1)) - value[:, None]
        weight = torch.where(change > 0, 1.0 - _LOWER, _LOWER)
        rough = (weight * change.square()).mean(0).amax(0).mean()
        # What the actor does near the data is worth less, the less the critics agree.
        with torch.no_grad():
            near = self.perturbed(obs, self.caution_radius)
            noise = self.actor.sample_noise(len(near))
            drawn, _ = squashed_sample(*self.actor.head(near), noise)
        reached = self.critic(near, drawn)
        with torch.no_grad():
            target = reached - self.present_uncertainty * reached.std(0)
        doubt = (reached - target).square().mean()
        loss = td_loss + self.value_smoothness * rough + self.caution * doubt
        parts = {"td_loss": td_loss, "value_roughness": rough, "doubt": doubt}
        return value, loss, {name: part.detach() for name, part in parts.items()}

    def actor_losses(
        self, obs: Tensor, own: Tensor, log_prob: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Return the actor's loss with its smoothness."""
        loss, _ = super().actor_losses(obs, own, log_prob, alpha)
        mean, log_std = self.actor.head(obs)
        others = self.actor.head(self.perturbed(obs, self.policy_radius))
        far, far_log_std = (part.unflatten(0, (self.samples, -1)) for part in others)
        rough = symmetric_divergence(mean, log_std, far, far_log_std).amax(0).mean()
        return loss + self.policy_smoothness * rough, {"policy_roughness": rough.detach()}

    def update(self, data: Batch) -> Metrics:
        """Take one step of everything, with u as far down as it is."""
        left = (1.0 - self.count() / self.decay_updates).clamp(min=0.0)
        self.count.increase()
        fall = self.uncertainty - self.least_uncertainty
        self.present_uncertainty = self.least_uncertainty + fall * left
        return super().update(data)

    def update_online(self, data: Batch) -> Metrics:
        """Take one step of everything, with the least u."""
        self.present_uncertainty = self.least_uncertainty
        self.count.increase()
        return super().update(data)

    def perturbed(self, obs: Tensor, radius: float) -> Tensor:
        """Return observations ``[B, O]`` beside themselves, ``[samples * B, O]``."""
        shift = radius * (2.0 * torch.rand(self.samples, 1, obs.shape[1], device=obs.device) - 1.0)
        return (obs + shift).flatten(0, 1)

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions, also before the first update."""
        return self.actor.act(obs), {}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Let u fall offline, and keep it at its least online."""
        return default_phases(budget, self.update, self.update_online)


def symmetric_divergence(
    mean: Tensor, log_std: Tensor, other_mean: Tensor, other_log_std: Tensor
) -> Tensor:
    """Return KL(p || q) + KL(q || p) ``[..., B]`` of diagonal Gaussians ``[..., B, H, A]``."""
    # The log-ratios of both widths cancel.
    apart = (mean - other_mean).square()
    one = (2 * (log_std - other_log_std)).exp() + apart * (-2 * other_log_std).exp()
    two = (2 * (other_log_std - log_std)).exp() + apart * (-2 * log_std).exp()
    return (0.5 * (one + two) - 1.0).sum((-2, -1))
