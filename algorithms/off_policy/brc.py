"""BRC: soft actor-critic with large residual critics that give distributions over returns.

Nauman et al., "Bigger, Regularized, Categorical: High-Capacity Value Functions are Efficient
Multi-Task Learners" (arXiv 2505.23150), for one task, by the published code
(naumix/BiggerRegularizedCategorical, ``jaxrl/{normalizer,networks}.py`` and ``jaxrl/agent/``). The
networks are in ``policies/networks/bro.py``. Each critic gives a distribution p_i over K fixed
atoms z; p is their mean, and Q its expectation. An update, in this order:

- critic:       y = projection on z of  r / divisor + gamma (1 - d) (z - alpha log pi(a'|s')), each
                atom with its probability under p'(s', a'),  a' ~ pi(.|s')
                L_p = -sum_i mean sum_z y log p_i(z|s, a)
- target:       p'_i <- (1 - tau) p'_i + tau p_i
- actor:        L_pi = mean [alpha log pi(a|s) - Q(s, a)],  a ~ pi(.|s), with the new critics
- temperature:  L_alpha = alpha (H - H_target),  H = -mean log pi(a|s),  H_target = -|A| / 2
- divisor:      (max |G| - alpha H_target / (2 (1 - gamma))) / bound, with all returns G of all
                finished episodes: G_t = r_t + gamma G_{t+1}, and after the last reward 0, or after
                a time limit mean(r) / (1 - gamma). Before an episode has finished, rewards count 0.

So there is no pessimism and no batch normalisation, and a method of its own: of FlashSAC it has the
projection alone. Steps are those of AdamW; alpha's Adam has b1 = 0.5.

The code's training script has critics 4096 wide, for many tasks at once, and 512 is the default of
its class; the batch of a single task is 256 there. Left out are many tasks and their embeddings.

Deviations from the published code: ``gamma (1 - d)`` is the batch's ``discount``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.categorical import Atoms, cross_entropy, project
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.errors import TrimtabError
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.bro_gaussian import BroGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.policies.networks.atoms import AtomCritic
from trimtab.policies.networks.bro import BroNet
from trimtab.settings import Bounds, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class BRC(Algorithm):
    """Soft actor-critic with large, regularised, categorical critics.

    Args:
        setup: shapes, limits, number of environments, discount and device; nothing else is needed.
        critic_width: width of the critics' layers.
        critic_blocks: residual blocks of each critic.
        actor_width: width of the actor's layers.
        actor_blocks: residual blocks of the actor.
        critics: number of critics.
        atoms: number K of atoms.
        bound: the atoms lie from ``-bound`` to ``bound``, and scaled returns do, too.
        learning_rate: of actor, critics and temperature.
        weight_decay: AdamW's, of actor and critics.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        entropy_per_dimension: H_target for each action dimension, below 0, as it is a part of what
            rewards are divided by.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.

    Raises:
        TrimtabError: if the discount is 1.
    """

    needs = Needs(own_statistics=True)
    capturable = True
    revision = 2  # 1 began the weights of the actor's log deviation with gain sqrt(2), too

    def __init__(
        self,
        setup: Setup,
        *,
        critic_width: Size = 512,
        critic_blocks: Natural = 2,
        actor_width: Size = 256,
        actor_blocks: Natural = 1,
        critics: Size = 2,
        atoms: Atoms = 101,
        bound: Positive = 10.0,
        learning_rate: NonNegative = 3e-4,
        weight_decay: NonNegative = 1e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        initial_temperature: Positive = 0.1,
        entropy_per_dimension: Annotated[float, Bounds(below=0)] = -0.5,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 2.0,
    ) -> None:
        if setup.discount >= 1:
            raise TrimtabError(
                f"discount={setup.discount}: BRC divides rewards by a number that grows without "
                "bound as the discount comes to 1; use one below it, such as 0.99"
            )
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        spec, device = setup.spec, setup.device
        size = spec.horizon * spec.action_dim
        self.target_entropy = entropy_per_dimension * size
        self.horizon = 1.0 / (1.0 - setup.discount)

        self.actor = BroGaussianPolicy(spec, width=actor_width, blocks=actor_blocks).to(device)

        def make() -> BroNet:
            return BroNet(spec.obs_dim + size, critic_width, atoms, blocks=critic_blocks)

        self.critic = AtomCritic(make, critics, bound, atoms).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(device)
        self.actor_optimizer = Adam(
            self.actor.parameters(), learning_rate, weight_decay=weight_decay
        )
        self.critic_optimizer = Adam(
            self.critic.parameters(), learning_rate, weight_decay=weight_decay
        )
        self.temperature_optimizer = Adam(
            self.temperature.parameters(), learning_rate, betas=(0.5, 0.999)
        )
        self.returns = LargestReturn(setup.num_envs, setup.discount, device)
        self.policy = self.actor

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature, and move the target critics."""
        normalizer = self.actor.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
        alpha = self.temperature().detach()

        # Critic: the target is the mean of what all critics say of s', moved by reward, discount
        # and entropy, and split between the atoms.
        support = self.critic.support
        with torch.no_grad():
            noise = self.actor.sample_noise(len(next_obs))
            next_action, log_prob = squashed_sample(*self.actor.head(next_obs), noise)
            mass = self.target(next_obs, next_action).softmax(-1).mean(0)
            later = support - (alpha * log_prob)[:, None]
            reward = data.reward / self.divisor(alpha)
            target = project(reward[:, None] + data.discount[:, None] * later, mass, support)
        critic_loss = cross_entropy(self.critic(obs, action), target).mean(1).sum()
        self.critic_optimizer.step(critic_loss)
        polyak(self.target, self.critic, self.tau)

        # Actor: entropy-regularised ascent on the mean distribution's expectation.
        noise = self.actor.sample_noise(len(obs))
        tried, log_prob = squashed_sample(*self.actor.head(obs), noise)
        value = (self.critic(obs, tried).softmax(-1).mean(0) * support).sum(-1)
        actor_loss = (alpha * log_prob - value).mean()
        self.actor_optimizer.step(actor_loss)

        # Temperature: raise alpha while the entropy is below its target.
        entropy = -log_prob.detach().mean()
        self.temperature_optimizer.step(self.temperature() * (entropy - self.target_entropy))
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": (target * support).sum(-1).mean(),
            "actor_loss": actor_loss.detach(),
            "entropy": entropy,
            "temperature": alpha,
        }

    def divisor(self, alpha: Tensor) -> Tensor:
        """Return what rewards are divided by, a scalar."""
        of_entropy = -alpha * self.target_entropy * self.horizon / 2
        return (self.returns.largest + of_entropy) / self.critic.support[-1]

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, sampled ones after it."""
        if not warmup:
            return self.actor.act(obs), {}
        uniform = torch.rand(count(obs), *self.actor.noise_shape, device=first_leaf(obs).device)
        return self.actor.normalizer.raw_action(2 * uniform - 1), {}

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Count rewards in the order of acting, and the returns of ended episodes."""
        self.returns.see(reward.tolist(), terminated.tolist(), ended.tolist())


class LargestReturn:
    """The largest ``|G|`` of all finished episodes, where G is the return from any step on.

    Rewards of episodes that go on are kept on the processor, so acting waits for a GPU.

    Attributes:
        largest: the largest one, infinite before an episode has finished; a scalar.

    Args:
        num_envs: number N of environments.
        discount: gamma, below 1.
        device: of ``largest``.
    """

    def __init__(self, num_envs: int, discount: float, device: str) -> None:
        self.discount = discount
        self.largest = torch.full((), torch.inf, device=device)
        self._rewards: list[list[float]] = [[] for _ in range(num_envs)]

    def see(self, reward: list[float], terminated: list[bool], ended: list[bool]) -> None:
        """Take account of one reward of each environment, and of ended episodes.

        An episode that a time limit ended goes on with its mean reward for ever.
        """
        for row, rewards in enumerate(self._rewards):
            rewards.append(reward[row])
            if not ended[row]:
                continue
            mean = sum(rewards) / len(rewards)
            value = 0.0 if terminated[row] else mean / (1.0 - self.discount)
            found = 0.0
            for one in reversed(rewards):
                value = one + self.discount * value
                found = max(found, abs(value))
            known = torch.where(self.largest.isinf(), 0.0, self.largest)
            self.largest.copy_(known.clamp(min=found))
            rewards.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the largest return, and the rewards of the episodes that go on.

        These are one tensor: as lists, those of a thousand environments take seconds to write.
        """
        rewards = [reward for one in self._rewards for reward in one]
        return {
            "largest": self.largest,
            "rewards": torch.tensor(rewards, device=self.largest.device),
            "lengths": [len(one) for one in self._rewards],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.largest.copy_(state["largest"])
        self._rewards = [one.tolist() for one in state["rewards"].split(state["lengths"])]
