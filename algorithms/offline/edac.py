"""EDAC: soft actor-critic on the least of many Q functions, whose slopes are kept apart.

An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble" (arXiv
2110.01548), for N Q functions; with ``diversity`` 0 it is the paper's SAC-N:

- temperature:  L_alpha = -mean log(alpha) (log pi(a|s) + H_target)
- actor:        L_pi = mean [alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s)
- critic:       y = r + gamma (1 - d) [min_i Q'_i(s', a') - alpha log pi(a'|s')],  a' ~ pi(.|s')
                L_Q = sum_i mean (Q_i(s, a) - y)^2
                      + eta / (N - 1) mean sum_{i != j} <g_i, g_j>,
                g_i = the gradient of Q_i(s, a) by a, of length 1
- target:       Q' <- (1 - tau) Q' + tau Q

eta is ``diversity``. The order is as above, each after the step before it. Hidden layers begin with
biases 0.1, outputs near 0. The sum over pairs is ``|sum_i g_i|^2 - sum_i |g_i|^2``, so that it
costs no more than the gradients do.

Online it goes on with the same losses, on what the run gathers by sampling pi and, by
``offline_share``, on the data.

Deviations: one pass of the actor serves temperature and actor (there: a sample each, from the same
weights); rewards are the task's own (there: standardised for hands); the density of a squashed
action is exact (there: 1e-6 is added within its logarithm).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.errors import TrimtabError
from trimtab.policies.networks.initial import near_zero_outputs_
from trimtab.settings import NonNegative, Size
from trimtab.types import Batch, Metrics


class EDAC(SAC):
    """Ensemble-diversified actor-critic.

    Args:
        setup: needs ``dataset``.
        diversity: eta; in the paper 1, and 5 where data is of experts; 0: SAC-N.
        critics: number N of Q functions; SAC-N needs up to 500, EDAC 10 to 50.
        hidden: widths of the hidden layers of actor and critics.
        warmup_steps: environment steps with uniform random actions before online learning.
        sac: further settings of SAC.

    Raises:
        TrimtabError: if there is one critic, with ``diversity``.
    """

    needs = Needs({"dataset"})
    unused_settings = frozenset({"target_critics", "pessimistic_actor", "actor_every"})
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        diversity: NonNegative = 1.0,
        critics: Size = 10,
        hidden: Sequence[Size] = (256, 256, 256),
        warmup_steps: int = 0,
        **sac: Any,
    ) -> None:
        if diversity and critics < 2:
            raise TrimtabError(
                f"algorithm.critics={critics}: diversity is between two at least; give more, or "
                "algorithm.diversity=0"
            )
        super().__init__(setup, critics=critics, hidden=hidden, warmup_steps=warmup_steps, **sac)
        self.diversity = diversity
        self.last_metrics = {}

    def update(self, data: Batch) -> Metrics:
        """Take one step of temperature, actor and critics, and move the target critics."""
        normalizer = self.actor.normalizer
        obs = normalizer.obs(data.obs)
        action = normalizer.normalize_action(self.continue_chunks(data))

        # Temperature first: the actor's step counts with the new one.
        own, log_prob = self.sample(data.obs)
        entropy_error = log_prob.detach() + self.target_entropy
        self.temperature_optimizer.step(-(self.temperature.log * entropy_error).mean())
        alpha = self.temperature().detach()

        actor_loss, held = self.actor_losses(obs, own, log_prob, alpha)
        self.actor_optimizer.step(actor_loss)

        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data, alpha)
        value, critic_loss, parts = self.critic_losses(obs, action, backup)
        self.critic_optimizer.step(critic_loss)
        self.updates += 1
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            **parts,
            "q_mean": value.detach().mean(),
            "actor_loss": actor_loss.detach(),
            **held,
            "entropy": -log_prob.detach().mean(),
            "temperature": alpha,
        }

    def actor_losses(
        self, obs: Tensor, own: Tensor, log_prob: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Metrics]:
        """Return the actor's loss, and by name what it is made of where that is several parts.

        Args:
            obs: normalised, ``[B, O]``.
            own: sampled actions of the actor ``[B, H, A]``.
            log_prob: their log-densities ``[B]``.
            alpha: the temperature.
        """
        return (alpha * log_prob - self.critic(obs, own).amin(0)).mean(), {}

    def critic_losses(
        self, obs: Tensor, action: Tensor, backup: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Return the critics' values ``[N, B]``, their loss, and by name what it is made of.

        Args:
            obs: normalised, ``[B, O]``.
            action: normalised chunks ``[B, H, A]``.
            backup: y, ``[B]``.
        """
        # Each critic has its own copy of the actions, so that its slope is its own.
        copies = action.flatten(1).repeat(self.critic.members, 1, 1)
        copies.requires_grad_(self.diversity > 0)
        value = self.critic.of_rows(torch.cat([obs.expand(len(copies), -1, -1), copies], 2))
        td_loss = (value - backup).square().mean(1).sum()
        alike = likeness(value, copies) if self.diversity > 0 else torch.zeros_like(td_loss)
        loss = td_loss + self.diversity * alike
        return value, loss, {"td_loss": td_loss.detach(), "likeness": alike.detach()}

    def initialize_weights(self) -> None:
        """Begin with biases 0.1 and outputs near 0."""
        near_zero_outputs_(self.actor.network, 1e-3)
        near_zero_outputs_(self.critic.network, 3e-3)


def likeness(value: Tensor, action: Tensor) -> Tensor:
    """Return how alike the slopes of N critics are: N if all are equal, at least -N / (N - 1).

    Args:
        value: of each critic at its own copy of the actions, ``[N, B]``.
        action: these copies, ``[N, B, H A]``.
    """
    (slope,) = torch.autograd.grad(value.sum(), action, create_graph=True)
    slope = slope / (torch.linalg.vector_norm(slope, dim=2, keepdim=True) + 1e-10)
    pairs = slope.sum(0).square().sum(1) - slope.square().sum((0, 2))
    alike: Tensor = pairs.mean() / (len(slope) - 1)
    return alike
