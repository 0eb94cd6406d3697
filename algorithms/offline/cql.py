"""CQL: soft actor-critic whose critics are pressed down where the data is not.

Kumar et al., "Conservative Q-Learning for Offline Reinforcement Learning" (arXiv 2006.04779), in
the form CQL(H) of their code and of CORL's, on observations of mean 0 and standard deviation 1:

- gap:          D_i = log sum_j exp(Q_i(s, a_j) - log p(a_j)) - Q_i(s, a), of n uniform actions,
                n of pi(.|s) and n of pi(.|s'), all of them valued at s
- critic:       L_Q = sum_i mean (Q_i(s, a) - y)^2 + alpha sum_i mean D_i
                y = r + gamma (1 - d) min_i Q'_i(s', a'),  a' ~ pi(.|s')
- Lagrange:     with ``lagrange_gap`` t, the second term is alpha l sum_i (mean D_i - t), where
                l = exp(x) ascends it at half its size, and begins at e
- actor and temperature: those of SAC

As in CORL's file, actor, temperature and critics take one step each from the same weights; nothing
that is sampled gets gradients of D. With ``max_backup``, y takes the best of n next actions.

Online it goes on with the same losses, on what the run gathers by sampling pi and, by
``offline_share``, on the data.

Deviations: CORL scales and shifts the log standard deviation by two learned numbers, 1 and -1; here
the bias of that output begins at -1. Rewards are the task's own (there: 10 r - 5 in mazes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.conservative import importance_gap
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import SAC, Temperature
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.policies.networks.initial import orthogonal_members_
from trimtab.settings import NonNegative, Size
from trimtab.types import Batch, Metrics

Moments = tuple[Tensor, Tensor]
"""Mean and log standard deviation before squashing, each ``[B, H, A]``."""


class CQL(SAC):
    """Conservative Q-learning.

    Args:
        setup: needs ``dataset``.
        conservative_weight: alpha; 10 for locomotion, 5 for mazes, 1 for hands in CORL.
        candidates: samples n of each of three kinds.
        lagrange_gap: t, to whose gap alpha is tuned; None: alpha stays as it is.
        least_gap: lower bound of each D; None: there is none.
        max_backup: whether the target takes the best of n next actions.
        hidden: widths of the hidden layers of actor and critics.
        actor_learning_rate: Adam's, for actor and temperature.
        backup_entropy: whether the target counts the entropy of later actions.
        log_std_min: lower bound of the actor's log standard deviation before squashing.
        warmup_steps: environment steps with uniform random actions before online learning.
        sac: further settings of SAC; ``learning_rate`` is that of the critics and of l.
    """

    needs = Needs({"dataset"}, transitions_only=True)  # as loaders of transitions have them
    unused_settings = frozenset({"target_critics", "pessimistic_actor", "actor_every"})
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        conservative_weight: NonNegative = 10.0,
        candidates: Size = 10,
        lagrange_gap: NonNegative | None = None,
        least_gap: float | None = None,
        max_backup: bool = False,
        hidden: Sequence[Size] = (256, 256, 256),
        actor_learning_rate: NonNegative = 3e-5,
        backup_entropy: bool = False,
        log_std_min: float = -20.0,
        warmup_steps: int = 0,
        **sac: Any,
    ) -> None:
        super().__init__(
            setup, hidden=hidden, backup_entropy=backup_entropy,
            log_std_min=log_std_min, warmup_steps=warmup_steps, **sac,
        )  # fmt: skip
        assert setup.statistics is not None
        self.actor.normalizer.standardize(setup.statistics)
        self.conservative_weight, self.candidates = conservative_weight, candidates
        self.lagrange_gap, self.least_gap = lagrange_gap, least_gap
        self.max_backup = max_backup
        self.actor_optimizer = Adam(self.actor.parameters(), actor_learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), actor_learning_rate)
        self.multiplier = Temperature(math.e).to(setup.device)
        self.multiplier_optimizer = Adam(
            self.multiplier.parameters(), self.critic_optimizer.learning_rate
        )
        self.last_metrics = {}

    def update(self, data: Batch) -> Metrics:
        """Take one step of actor, temperature and critics, all from the same weights."""
        normalizer = self.actor.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
        alpha = self.temperature().detach()

        # All samples come of one pass of the actor in each state.
        here = self.actor.distribution(data.obs)
        with torch.no_grad():
            there = self.actor.distribution(data.next_obs)
        own, log_prob = squashed_sample(*here, self.noise(1, len(obs))[0])
        sampled, log_density = self.candidate_actions(here, there)
        backup = data.reward + data.discount * self.backup(next_obs, there, alpha)

        # Actor and temperature, on critics whose weights get no gradients.
        actor_loss = (alpha * log_prob - self.critic(obs, own).amin(0)).mean()
        self.actor_optimizer.step(actor_loss)
        log_prob = log_prob.detach()
        temperature_loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(temperature_loss)

        # Critics: the data's actions and all others at once.
        values = self.critic.of_actions(obs, torch.cat([action[None], sampled]))
        taken, least = values[:, 0], self.least_values(data, len(sampled))
        gap = importance_gap(values[:, 1:], log_density, taken, least)
        if self.least_gap is not None:
            gap = gap.clamp(min=self.least_gap)
        td_loss = (taken - backup).square().mean(1).sum()
        critic_loss = td_loss + self.conservative_loss(gap.mean(1))
        self.critic_optimizer.step(critic_loss)
        self.updates += 1
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "td_loss": td_loss.detach(),
            "conservative_gap": gap.detach().mean(),
            "q_mean": taken.detach().mean(),
            "actor_loss": actor_loss.detach(),
            "entropy": -log_prob.mean(),
            "temperature": alpha,
        }

    @torch.no_grad()
    def candidate_actions(self, here: Moments, there: Moments) -> tuple[Tensor, Tensor]:
        """Return the actions of the gap ``[3 n, B, H, A]``, and their log-densities ``[3 n, B]``.

        Args:
            here: mean and log standard deviation of the actor at s.
            there: those at s'.
        """
        many, rows = self.candidates, len(here[0])
        current, current_density = squashed_sample(*here, self.noise(many, rows))
        following, following_density = squashed_sample(*there, self.noise(many, rows))
        uniform = 2 * torch.rand_like(current) - 1
        size = here[0][0].numel()
        uniform_density = torch.full_like(current_density, -size * math.log(2.0))
        return (
            torch.cat([uniform, following, current]),
            torch.cat([uniform_density, following_density, current_density]),
        )

    @torch.no_grad()
    def backup(self, next_obs: Tensor, there: Moments, alpha: Tensor) -> Tensor:
        """Return the value ``[B]`` of the next observations under the target critics.

        Args:
            next_obs: normalised.
            there: mean and log standard deviation of the actor at them.
            alpha: the temperature.
        """
        many = self.candidates if self.max_backup else 1
        action, log_prob = squashed_sample(*there, self.noise(many, len(next_obs)))
        values = self.target(next_obs.repeat(many, 1), action.flatten(0, 1)).amin(0)
        value: Tensor
        value, best = values.reshape(many, -1).max(0)
        if self.backup_entropy:
            value = value - alpha * log_prob.gather(0, best[None])[0]
        return value

    def least_values(self, data: Batch, many: int) -> Tensor | None:
        """Return lower bounds of the values of ``many`` sampled actions; here there are none."""
        return None

    def conservative_loss(self, gap: Tensor) -> Tensor:
        """Return the weighted gaps ``[E]``, summed, and let the multiplier take a step."""
        if self.lagrange_gap is None:
            plain: Tensor = self.conservative_weight * gap.sum()
            return plain
        multiplier: Tensor = self.multiplier().clamp(max=1e6)
        terms = self.conservative_weight * (gap - self.lagrange_gap).sum()
        weighed = multiplier.detach() * terms
        self.multiplier_optimizer.step(-0.5 * multiplier * terms.detach())
        return weighed

    def noise(self, many: int, rows: int) -> Tensor:
        """Return standard normal noise for ``many`` samples of each row, ``[many, B, H, A]``."""
        noise: Tensor = self.actor.sample_noise(many * rows)
        return noise.reshape(many, rows, *noise.shape[1:])

    def initialize_weights(self) -> None:
        """Begin with outputs near 0, orthogonal critics, and a narrow actor."""
        last = self.actor.network[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            nn.init.xavier_uniform_(last.weight, gain=1e-2)
            last.bias.zero_()
            last.bias[len(last.bias) // 2 :] = -1.0
        orthogonal_members_(self.critic.network, last_gain=1e-2)
