"""Mirror descent policy optimisation, off-policy: SAC that is held to its policy of some time ago.

Tomar et al., "Mirror Descent Policy Optimization" (arXiv 2005.09814), section 4.2:

- actor:  L_pi = mean [c log pi(a|s) - (c - alpha) log pi_old(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s)

which is c KL(pi || pi_old), entropy at the fixed temperature alpha as pi_old measures it, and the
value. pi_old is set to pi every ``old_policy_updates`` updates. Critics are SAC's.

An adaptation (``faithful`` is False), because it differs from the published code in what is
learned: there is no V network (the soft value of a sampled action takes its place), the actor
climbs the least of the critics where theirs climbs the first, and no penalty keeps means and widths
small. As there, c is the same all the time, and pi_old is a copy and not an average.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.errors import TrimtabError
from trimtab.settings import Count, NonNegative
from trimtab.types import Obs


class MDPOSAC(SAC):
    """Off-policy mirror descent.

    Args:
        setup: as in SAC.
        divergence_weight: c.
        old_policy_updates: updates between two settings of pi_old, a multiple of ``actor_every``.
        sac: settings of SAC but ``unused_settings``; ``initial_temperature`` is alpha and stays.
    """

    faithful: ClassVar[bool] = False
    unused_settings = frozenset({"target_entropy", "entropy_per_dimension"})
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        divergence_weight: NonNegative = 1.0,
        old_policy_updates: Count = 1_000,
        **sac: Any,
    ) -> None:
        super().__init__(setup, **sac)
        if old_policy_updates % self.actor_every:
            raise TrimtabError(
                f"algorithm.old_policy_updates={old_policy_updates}: must be a multiple of "
                f"actor_every={self.actor_every}, as pi_old is set when the actor moves"
            )
        self.divergence_weight = divergence_weight
        self.old_policy_updates = old_policy_updates
        self.old_actor = copy.deepcopy(self.actor).requires_grad_(False)

    @property
    def old_policy_due(self) -> bool:
        """Whether the next update takes the present actor as the old policy."""
        return (self.updates + 1) % self.old_policy_updates == 0

    @property
    def branch(self) -> tuple[bool, bool]:
        """Whether the next update has a step of the actor, and whether it has a new old policy."""
        return self.actor_due, self.old_policy_due

    def update_actor(self, raw_obs: Obs, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of the actor; return its loss and log-densities."""
        if self.old_policy_due:
            self.old_actor.load_state_dict(self.actor.state_dict())
        noise = self.actor.sample_noise(len(obs))
        mean, log_std = self.actor.distribution(raw_obs)
        old_mean, old_log_std = self.old_actor.distribution(raw_obs)
        unsquashed = mean + log_std.exp() * noise
        old_noise = (unsquashed - old_mean) * (-old_log_std).exp()
        # Both densities have the same squashing term, so their difference is a Gaussian one.
        difference = 0.5 * (old_noise.square() - noise.square()) + old_log_std - log_std
        action, log_prob = self.actor.sample_with_log_prob(raw_obs, noise)
        value = self.critic(obs, action)
        value = value.amin(0) if self.pessimistic_actor else value.mean(0)

        # Actor: ascend the least critic near the old policy, whose weights stay.
        weight = self.divergence_weight
        divergence = difference.sum((1, 2))
        old_log_prob = log_prob - divergence
        actor_loss = (weight * divergence + alpha * old_log_prob - value).mean()
        self.actor_optimizer.step(actor_loss)
        return actor_loss, log_prob.detach()
