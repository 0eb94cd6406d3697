"""DIME: maximum entropy reinforcement learning with a diffusion policy.

Celik et al., "DIME: Diffusion-Based Maximum Entropy Reinforcement Learning" (arXiv 2502.02316), by
the published code (ALRhub/DIME, ``diffusion/``). An action is the end of a path of K noisy steps
(``policies/kinds/controlled_diffusion.py``). The density of actions is not known, but a bound is:

- cost:         c = log p_0(x_0) + sum_k log [pi(x_{k+1}|x_k, s) / q(x_k|x_{k+1})]
                    - sum log (1 - a^2),   a = tanh(x_K)
                with the uncontrolled process q backwards; E[c | a, s] >= log pi(a|s)

It takes the place of log pi in soft actor-critic. Q_i is a distribution p_i over M fixed atoms z,
Q_i(s, a) its mean. An update, in this order:

- critic:       (s, a) and (s', a') go through the critics as one batch, as in ``crossq.py``
                y = mean_i of the projections on z of  r / scale + gamma (1 - d) (z - alpha c'),
                each atom with its probability under p_i(s', a'),  a', c' ~ pi(.|s'); no target
                L_p = sum_i mean [-sum_z y log p_i(z|s, a) - 0.005 H(p_i)]
- actor:        every third time,  L_pi = mean [alpha c - mean_i Q_i(s, a)],  a, c ~ pi(.|s), by
                backpropagation through all K steps; each number of its gradient within 1
- temperature:  with the actor,  L_alpha = alpha (4 |A| - mean (c - log p_0(x_0)))

**What it costs.** Every update runs K = 16 steps of the network to draw a'; every third one runs 16
more and goes back through all of them, and keeps their activations; acting takes 16 passes a
decision. On one core of a processor, with HalfCheetah's sizes, an update takes six times SAC's time
with critics 256 wide, and thirty-five times with 2048, where CrossQ takes thirty.

**It begins slowly**, as published. alpha begins at 1, where entropy outweighs scaled rewards, and
its logarithm falls by about 0.001 at most in a step: after 3,000 updates alpha is still about 0.4.
The encoders of point and observation begin at almost 0. So 5,000 environment steps of Pendulum are
not enough. (They were with torch's start of the encoders, an alpha of 0.05 and a rate of 1e-3.)

Rewards are divided by ``BoundedReturnScale``, so that one range of atoms fits all tasks; in the
code, ``value_bound`` is set for each task (``normalize_rewards=false``).

Deviations from the published code: its stored widths are those of a smoke test, so critics and
actor have those of CrossQ here, the actor with a third layer; linear layers of which the code says
nothing begin as torch's, not Flax's, do; log p is that of a log-softmax (there, of p + 1e-15);
gradients that are no numbers end the run (there, they count as 0); and those of CrossQ in
``policies/networks/batch_norm.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.categorical import Atoms, cross_entropy, expectation, project
from trimtab.algorithms.common.returns import BoundedReturnScale
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.controlled_diffusion import ControlledDiffusionPolicy
from trimtab.policies.networks.atoms import AtomCritic
from trimtab.policies.networks.renormed import RenormedPerceptron
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Size, Steps
from trimtab.types import Batch, Metrics, Obs


class DIME(Algorithm):
    """Soft actor-critic with a diffusion policy and a bound of its entropy.

    Args:
        setup: shapes, limits, number of environments, discount and device; nothing else is needed.
        hidden: widths of the hidden layers of the actor's network.
        critic_hidden: widths of the critics' hidden layers.
        diffusion_steps: K.
        initial_std: standard deviation of p_0.
        step_size: of the diffusion at the start; it is learned.
        atoms: M, values of which Q is a mean.
        value_bound: they lie evenly from ``-value_bound`` to it.
        normalize_rewards: whether rewards are scaled so that returns stay within that bound.
        critic_entropy: 0.005 of the critics' loss.
        learning_rate: Adam's, of actor and critics.
        temperature_learning_rate: Adam's, of alpha.
        first_decay: b1, the decay rate of Adam's first moment, of actor and critics.
        max_gradient: bound on each number of the actor's gradient.
        batch_size: transitions in one update.
        initial_temperature: alpha at the start.
        cost_per_dimension: of each action dimension, what paths shall cost after their start.
        actor_every: critic updates for one of actor and temperature.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs(own_statistics=True)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (256, 256, 256),
        critic_hidden: Sequence[Size] = (2048, 2048),
        diffusion_steps: Steps = 16,
        initial_std: Positive = 2.5,
        step_size: Positive = 0.1,
        atoms: Atoms = 101,
        value_bound: Positive = 10.0,
        normalize_rewards: bool = True,
        critic_entropy: NonNegative = 0.005,
        learning_rate: NonNegative = 3e-4,
        temperature_learning_rate: NonNegative = 1e-3,
        first_decay: Annotated[float, Bounds(least=0, below=1)] = 0.5,
        max_gradient: Positive = 1.0,
        batch_size: Annotated[int, Bounds(least=2, most=1 << 20)] = 256,
        initial_temperature: Positive = 1.0,
        cost_per_dimension: float = 4.0,
        actor_every: Count = 3,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 2.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.critic_entropy, self.actor_every = critic_entropy, actor_every
        spec, device = setup.spec, setup.device
        size = spec.horizon * spec.action_dim
        self.target_cost = cost_per_dimension * size
        self.actor = ControlledDiffusionPolicy(
            spec, steps=diffusion_steps, hidden=hidden, initial_std=initial_std,
            step_size=step_size,
        ).to(device)  # fmt: skip

        def make() -> RenormedPerceptron:
            return RenormedPerceptron(spec.obs_dim + size, critic_hidden, atoms)

        self.critic = AtomCritic(make, 2, value_bound, atoms).to(device)
        self.temperature = Temperature(initial_temperature).to(device)
        betas = (first_decay, 0.999)
        self.actor_optimizer = Adam(
            self.actor.parameters(), learning_rate, betas=betas, max_gradient=max_gradient
        )
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate, betas=betas)
        self.temperature_optimizer = Adam(self.temperature.parameters(), temperature_learning_rate)
        scale = BoundedReturnScale(setup.num_envs, setup.discount, value_bound).to(device)
        self.reward_scale = scale if normalize_rewards else None
        self.policy = self.actor
        self.last_metrics = {"actor_loss": 0.0, "entropy_bound": 0.0}

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critics and, every few times, of actor and temperature."""
        normalizer, support = self.actor.normalizer, self.critic.support
        action = normalizer.normalize_action(self.continue_chunks(data))
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        reward = data.reward if self.reward_scale is None else self.reward_scale(data.reward)
        alpha = self.temperature().detach()

        # Critics: both states are one batch; the target is the mean of what both say of s'.
        with torch.no_grad():
            noise = self.actor.sample_noise(len(obs))
            next_action, next_cost, _ = self.actor.sample_with_cost(next_obs, noise)
            atoms = support - (alpha * next_cost)[:, None]
            atoms = reward[:, None] + data.discount[:, None] * atoms
        both = self.critic(
            torch.cat([obs, next_obs]), torch.cat([action, next_action]), learning=True
        )
        logits, next_mass = both[:, : len(obs)], both[:, len(obs) :].detach().softmax(-1)
        backup = project(atoms.expand_as(next_mass), next_mass, support).mean(0)
        log_mass = logits.log_softmax(-1)
        entropy = -(log_mass.exp() * log_mass).sum(-1)
        loss = cross_entropy(logits, backup) - self.critic_entropy * entropy
        critic_loss = loss.mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        if self.actor_due:
            self.update_actor(obs, alpha)
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": expectation(logits.detach(), support).mean(),
            **self.last_metrics,
            "temperature": alpha,
        }

    def update_actor(self, obs: Tensor, alpha: Tensor) -> None:
        """Take one step of actor and temperature on normalised observations ``[B, O]``."""
        # The critics, whose weights get no gradients, judge by their running statistics.
        action, cost, prior = self.actor.sample_with_cost(obs, self.actor.sample_noise(len(obs)))
        value = expectation(self.critic(obs, action), self.critic.support).mean(0)
        actor_loss = (alpha * cost - value).mean()
        self.actor_optimizer.step(actor_loss)

        # Temperature: raise alpha while paths cost more than they shall after their start.
        later = (cost - prior).detach().mean()
        self.temperature_optimizer.step(self.temperature() * (self.target_cost - later))
        self.last_metrics = {
            "actor_loss": actor_loss.detach(),
            "entropy_bound": -cost.detach().mean(),
        }

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, drawn ones after it."""
        if not warmup:
            return self.actor.act(obs), {}
        spec, device = self.actor.spec, first_leaf(obs).device
        uniform = 2 * torch.rand(count(obs), spec.horizon, spec.action_dim, device=device) - 1
        return self.actor.normalizer.raw_action(uniform), {}

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Count returns, if rewards are scaled by them."""
        if self.reward_scale is not None:
            self.reward_scale.see(reward, ended)
