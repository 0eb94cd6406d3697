"""CrossQ: soft actor-critic with batch renormalisation and without target networks.

Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity" (arXiv 1902.05605), by the published code (adityab/CrossQ, ``train.py``
and ``sbx/sac/{sac,policies}.py``). What differs from SAC (``sac.py``):

- critic:  (s, a) and (s', a') go through the critics as one batch, whose statistics normalise both:
           [Q_i(s, a), Q_i(s', a')] = Q_i([s, s'], [a, a']),  a' ~ pi(.|s')
           y = r + gamma (1 - d) [min_i Q_i(s', a') - alpha log pi(a'|s')], without gradients
           L_Q = 1/2 sum_i mean (Q_i(s, a) - y)^2
- target:  none
- actor:   its network has batch renormalisation, too; in its own step by the statistics of the
           batch. Acting, the draw of a' and the critics that the actor climbs use the running
           statistics.

Adam has b1 = 0.5 for actor and critics, and a learning rate of 1e-3. The paper's critics are 2048
wide, its actor 256, and the actor learns every third time; ``critic_hidden=[256,256]`` is for a
processor.

With ``renormalize=false`` and ``target_network=true`` it is SAC, to the last bit.

Deviations from the published code: those of ``sac.py``; weights begin as torch's, not Flax's, do;
the small epsilon of the normalisation is added once (``policies/networks/batch_norm.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.observations import count
from trimtab.policies.kinds.renormed_gaussian import RenormedGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy, squashed_sample
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.renormed import RenormedCritic
from trimtab.settings import Bounds, NonNegative, Size
from trimtab.types import Batch, Metrics, Obs, PolicySpec


class CrossQ(SAC):
    """SAC with batch renormalisation, one pass for both states, and no target networks.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        critic_hidden: widths of the critics' hidden layers; None: as the actor's.
        renormalize: whether actor and critics have batch renormalisation.
        target_network: whether y comes from target critics, in a pass of their own.
        learning_rate: Adam's, for actor, critics and temperature.
        first_decay: b1, the decay rate of Adam's first moment, of actor and critics.
        batch_size: transitions in one update.
        keywords: those of :class:`SAC`; ``tau`` counts with ``target_network`` alone.
    """

    capturable = True
    unused_settings = frozenset({"layer_norm", "actor_layer_norm", "target_critics"})

    def __init__(
        self,
        setup: Setup,
        *,
        critic_hidden: Sequence[Size] | None = None,
        renormalize: bool = True,
        target_network: bool = False,
        learning_rate: NonNegative = 1e-3,
        first_decay: Annotated[float, Bounds(least=0, below=1)] = 0.5,
        batch_size: Annotated[int, Bounds(least=2, most=1 << 20)] = 256,
        **keywords: Any,
    ) -> None:
        self.critic_hidden, self.renormalize = critic_hidden, renormalize
        self.target_network = target_network
        super().__init__(setup, learning_rate=learning_rate, batch_size=batch_size, **keywords)
        if not target_network:
            self.target = self.critic
        betas = (first_decay, 0.999)
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate, betas=betas)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate, betas=betas)

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature."""
        action = self.actor.normalizer.normalize_action(self.continue_chunks(data))
        obs = self.actor.normalizer.obs(data.obs)
        next_obs = self.actor.normalizer.obs(data.next_obs)
        alpha = self.temperature().detach()

        # Critic: regress every Q to y; both states are one batch.
        with torch.no_grad():
            noise = self.actor.sample_noise(len(obs))
            next_action, log_prob = squashed_sample(*self.actor.head(next_obs), noise)
        if self.target_network:
            value = self.by_batch(obs, action)
            with torch.no_grad():
                next_value = self.target(next_obs, next_action)
        else:
            both = self.by_batch(torch.cat([obs, next_obs]), torch.cat([action, next_action]))
            value, next_value = both[:, : len(obs)], both[:, len(obs) :].detach()
        next_value = next_value.amin(0)
        if self.backup_entropy:
            next_value = next_value - alpha * log_prob
        critic_loss = self.critic_loss(value, data.reward + data.discount * next_value)
        self.critic_optimizer.step(critic_loss)

        if self.actor_due:
            actor_loss, actor_log_prob = self.update_actor(data.obs, obs, alpha)
            self.last_metrics = {
                "actor_loss": actor_loss.detach(),
                "entropy": -actor_log_prob.mean(),
            }
        self.updates += 1
        if self.target_network:
            polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            **self.last_metrics,
            "temperature": alpha,
        }

    def by_batch(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values ``[E, B]``, normalised by the statistics of the batch."""
        if not isinstance(self.critic, RenormedCritic):
            values: Tensor = self.critic(obs, action)
            return values
        rows = torch.cat([obs, action.flatten(1)], dim=1)
        return self.critic.of_rows(rows.expand(self.critic.members, -1, -1), learning=True)

    def sample(self, raw_obs: Obs) -> tuple[Tensor, Tensor]:
        """Return actions and log-densities as the actor's own step needs them, by the batch."""
        if not isinstance(self.actor, RenormedGaussianPolicy):
            return super().sample(raw_obs)
        noise = self.actor.sample_noise(count(raw_obs))
        obs = self.actor.normalizer.obs(raw_obs)
        return squashed_sample(*self.actor.head(obs, learning=True), noise)

    def make_actor(
        self, spec: PolicySpec, hidden: Sequence[int], layer_norm: bool, log_std_min: float
    ) -> SquashedGaussianPolicy:
        """Return the actor with fresh weights."""
        if not self.renormalize:
            return super().make_actor(spec, hidden, layer_norm, log_std_min)
        return RenormedGaussianPolicy(spec, hidden=hidden, log_std_min=log_std_min)

    def make_critic(
        self, obs_dim: int, size: int, hidden: Sequence[int], critics: int, layer_norm: bool
    ) -> EnsembleCritic:
        """Return the Q functions with fresh weights."""
        widths = hidden if self.critic_hidden is None else self.critic_hidden
        if not self.renormalize:
            return super().make_critic(obs_dim, size, widths, critics, layer_norm)
        return RenormedCritic(obs_dim, size, hidden=widths, members=critics)
