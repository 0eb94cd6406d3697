"""Soft actor-critic with automatic temperature.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905):

- critic:       y = r + gamma (1 - d) [min_i Q'_i(s', a') - alpha log pi(a'|s')],  a' ~ pi(.|s')
                L_Q = 1/2 sum_i mean (Q_i(s, a) - y)^2
- actor:        L_pi = mean [alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s) reparameterised
- temperature:  L_alpha = -mean log(alpha) (log pi(a|s) + H_target)
- target:       Q' <- (1 - tau) Q' + tau Q

With ``algorithm=rlpd`` it is RLPD's learner (Ball et al., "Efficient Online Reinforcement Learning
with Offline Data", arXiv 2302.02948): y is the minimum over ``target_critics`` random members of
``critics`` Q functions; the actor ascends their mean, once for ``actor_every`` updates of the
critics; the critics have layer normalisation, and the target entropy is lower.

Deviations from the published code: the temperature loss uses ``log alpha`` in place of ``alpha``,
as Stable-Baselines3 does; critics see actions scaled to [-1, 1]; ``gamma (1 - d)`` is the batch's
``discount``, which a time limit does not cut; the actor's log standard deviation is held above -5,
as in CleanRL and DPPO's baselines. The paper, RLPD and Stable-Baselines3 have ``log_std_min=-20``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.tanh_gaussian import SquashedGaussianPolicy, TanhGaussianPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs, PolicySpec


class SAC(Algorithm):
    """Soft actor-critic on the task's own actions.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        hidden: widths of the hidden layers of actor and critics.
        layer_norm: normalise after each hidden layer of actor and critics.
        actor_layer_norm: the same for the actor alone; None: as the critics.
        critics: number of Q functions.
        target_critics: number of members, drawn anew in each update, whose minimum is y; None: all.
        pessimistic_actor: whether the actor ascends the least Q function; else their mean.
        actor_every: critic updates for one of actor and temperature.
        learning_rate: Adam's, for actor, critics and temperature.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        target_entropy: H_target; None for ``entropy_per_dimension`` of each action dimension.
        entropy_per_dimension: see ``target_entropy``; in RLPD's code it is -1/2.
        backup_entropy: whether the target y counts the entropy of later actions (RLPD's
            ``backup_entropy``, arXiv 2302.02948). Without it a longer episode earns no entropy.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
        log_std_min: lower bound of the actor's log standard deviation before squashing.
    """

    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = False,
        actor_layer_norm: bool | None = None,
        critics: Size = 2,
        target_critics: Annotated[int, Bounds(least=1, most_of="critics")] | None = None,
        pessimistic_actor: bool = True,
        actor_every: Count = 1,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        initial_temperature: Positive = 1.0,
        target_entropy: float | None = None,
        entropy_per_dimension: float = -1.0,
        backup_entropy: bool = True,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 1.0,
        log_std_min: Annotated[float, Bounds(most=2)] = -5.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.hidden, self.tau, self.backup_entropy = hidden, tau, backup_entropy
        self.target_critics, self.actor_every = target_critics, actor_every
        self.pessimistic_actor = pessimistic_actor
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        self.target_entropy = (
            entropy_per_dimension * size if target_entropy is None else float(target_entropy)
        )

        actor_norm = layer_norm if actor_layer_norm is None else actor_layer_norm
        self.actor = self.make_actor(spec, hidden, actor_norm, log_std_min)
        self.critic = self.make_critic(spec.obs_dim, size, hidden, critics, layer_norm)
        self.initialize_weights()
        self.actor.to(setup.device)
        self.critic.to(setup.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(setup.device)
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)
        self.policy = self.actor
        self.last_metrics = {"actor_loss": 0.0, "entropy": 0.0}

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature, and move the target critics."""
        action = self.actor.normalizer.normalize_action(self.continue_chunks(data))
        obs = self.actor.normalizer.obs(data.obs)
        alpha = self.temperature().detach()

        # Critic: regress every Q to y, the soft value of the next state under the target critics.
        with torch.no_grad():
            backup = data.reward + data.discount * self.next_value(data, alpha)
        value = self.critic(obs, action)
        critic_loss = self.critic_loss(value, backup)
        self.critic_optimizer.step(critic_loss)

        if self.actor_due:
            actor_loss, log_prob = self.update_actor(data.obs, obs, alpha)
            self.last_metrics = {
                "actor_loss": actor_loss.detach(),
                "entropy": -log_prob.mean(),
            }
        self.updates += 1
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            **self.last_metrics,
            "temperature": alpha,
        }

    def next_value(self, data: Batch, alpha: Tensor) -> Tensor:
        """Return the soft value ``[B]`` of the next observations under the target critics."""
        members = self.target.drawn(self.target_critics)
        action, log_prob = self.sample(data.next_obs)
        next_obs = self.actor.normalizer.obs(data.next_obs)
        value: Tensor = self.target(next_obs, action, members).amin(0)
        return value - alpha * log_prob if self.backup_entropy else value

    def critic_loss(self, value: Tensor, backup: Tensor) -> Tensor:
        """Return the loss of values ``[E, B]`` against their target ``[B]``."""
        return 0.5 * (value - backup).square().mean(1).sum()

    def update_actor(self, raw_obs: Obs, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of actor and temperature; return the actor's loss and log-densities."""
        actor_loss, log_prob = self.actor_loss(raw_obs, obs, alpha)
        self.actor_optimizer.step(actor_loss)

        # Temperature: raise alpha while the entropy is below its target.
        log_prob = log_prob.detach()
        temperature_loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(temperature_loss)
        return actor_loss, log_prob

    def actor_loss(self, raw_obs: Obs, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actor's loss, and log-densities ``[B]`` of the actions that it is made of."""
        # Entropy-regularised ascent on the critics, whose weights get no gradients.
        action, log_prob = self.sample(raw_obs)
        value = self.critic(obs, action)
        value = value.amin(0) if self.pessimistic_actor else value.mean(0)
        return (alpha * log_prob - value).mean(), log_prob

    def sample(self, raw_obs: Obs) -> tuple[Tensor, Tensor]:
        """Return sampled actions scaled to [-1, 1] ``[B, H, A]``, and log-densities ``[B]``."""
        noise = self.actor.sample_noise(count(raw_obs))
        return self.actor.sample_with_log_prob(raw_obs, noise)

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, sampled ones after it."""
        if not warmup:
            return self.actor.act(obs), {}
        spec, device = self.actor.spec, first_leaf(obs).device
        noise = torch.rand(count(obs), spec.horizon, spec.action_dim, device=device)
        return self.actor.normalizer.raw_action(2 * noise - 1), {}

    def make_actor(
        self, spec: PolicySpec, hidden: Sequence[int], layer_norm: bool, log_std_min: float
    ) -> SquashedGaussianPolicy:
        """Return the actor with fresh weights."""
        return TanhGaussianPolicy(
            spec, hidden=hidden, layer_norm=layer_norm, log_std_min=log_std_min
        )

    def make_critic(
        self, obs_dim: int, size: int, hidden: Sequence[int], critics: int, layer_norm: bool
    ) -> EnsembleCritic:
        """Return the Q functions with fresh weights."""
        return EnsembleCritic(obs_dim, size, hidden=hidden, members=critics, layer_norm=layer_norm)

    def initialize_weights(self) -> None:
        """Change the initial weights. A subclass may override this; by default nothing changes."""


class Temperature(nn.Module):
    """The entropy weight alpha, positive through its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(float(initial)).log())

    def forward(self) -> Tensor:
        """Return alpha, a scalar."""
        return self.log.exp()
