"""XQC: soft actor-critic whose critic's problem is well conditioned.

Palenicek et al., "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning"
(arXiv 2509.25174), by the published code (danielpalenicek/xqc, ``xqc/agents/xqc/`` and
``train_parallel.py``). Actor and critics are perceptrons of four layers with batch normalisation
and rows of length 1 (``policies/networks/unit.py``). Q is a distribution p over M fixed atoms z,
Q(s, a) its mean. An update, in this order:

- critic:       y = projection on z of  r / std(G) + gamma (1 - d) (z - alpha log pi(a'|s')), each
                atom with its probability under p'_k(s', a'),  a' ~ pi(.|s'),
                k = argmin_i Q'_i(s', a')
                L_p = -sum_i mean sum_z y log p_i(z|s, a)
- target:       p' <- (1 - tau) p' + tau p of the weights
- actor:        every third time, from the first update on, with the new critics
                L_pi = mean [alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s) reparameterised
- temperature:  with the actor,  L_alpha = alpha (H - H_target),  H = -mean log pi(a|s),
                H_target = -|A| / 2
- weights:      after each step of actor and critic, the rows get the length 1 again

Critic and target critic see (s, a) and (s', a') as one batch and normalise by its statistics; the
actor in its own step by those of s. Acting, the draw of a' and the critics that the actor climbs
use running statistics. Those of the actor follow every batch, also where it takes no step.

G is the discounted return so far, counted in the order of acting. All learning rates fall in a line
over the run, each by the steps of its own optimiser: with an actor that learns every third time,
its rate and alpha's come a third of the way, as in the code.

The paper's discount is ``clip((L / 5 - 1) / (L / 5), 0.95, 0.995)`` for episodes of L decisions:
0.995 for 1000, 0.99 for 500. Here it is the run's ``discount``.

Deviations from the published code: a return that ends is counted whole (there, its last reward
alone, which then leaks into the next episode's); running variances are the unbiased ones, as
torch's are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.categorical import Atoms, cross_entropy, expectation, project
from trimtab.algorithms.common.returns import BoundedReturnScale
from trimtab.algorithms.common.schedules import UpdateCount
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.policies.kinds.unit_perceptron_gaussian import UnitPerceptronGaussianPolicy
from trimtab.policies.networks.atoms import AtomCritic
from trimtab.policies.networks.unit import UnitPerceptron
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class XQC(Algorithm):
    """Soft actor-critic with batch normalisation, rows of length 1 and a cross-entropy loss.

    Args:
        setup: shapes, limits, number of environments, discount and device; nothing else is needed.
        actor_width: of the actor's layers.
        critic_width: of each critic's layers.
        layers: of each network, before its output.
        atoms: M, values of which Q is a mean.
        bound: they lie from ``-bound`` to ``bound``.
        learning_rate: Adam's first one, for actor, critics and temperature.
        final_learning_rate: the last one.
        decay_steps: environment steps over which the rates fall, where a chunk that an episode cut
            counts as a whole one; None: they stay.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        entropy_per_dimension: H_target for each action dimension.
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
        actor_width: Size = 256,
        critic_width: Size = 512,
        layers: Size = 4,
        atoms: Atoms = 101,
        bound: Positive = 5.0,
        learning_rate: NonNegative = 3e-4,
        final_learning_rate: NonNegative = 3e-5,
        decay_steps: Count | None = None,
        batch_size: Annotated[int, Bounds(least=2, most=1 << 20)] = 256,
        tau: Share = 0.005,
        initial_temperature: Positive = 0.01,
        entropy_per_dimension: float = -0.5,
        actor_every: Count = 3,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 2.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau, self.actor_every = tau, actor_every
        self.learning_rates = (learning_rate, final_learning_rate)
        spec, device = setup.spec, setup.device
        size = spec.horizon * spec.action_dim
        self.target_entropy = entropy_per_dimension * size
        self.decay_updates = (
            None if decay_steps is None else decay_steps / spec.horizon * updates_per_decision
        )
        self.actor = UnitPerceptronGaussianPolicy(spec, width=actor_width, layers=layers)
        self.actor.to(device)

        def make() -> UnitPerceptron:
            return UnitPerceptron(spec.obs_dim + size, critic_width, atoms, layers=layers)

        self.critic = AtomCritic(make, 2, bound, atoms).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(device)
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)
        # Without a bound, rewards are divided by the deviation of the return alone.
        self.reward_scale = BoundedReturnScale(setup.num_envs, setup.discount, math.inf).to(device)
        self.count = UpdateCount(device)
        self.policy = self.actor
        self.last_metrics = {"actor_loss": 0.0, "entropy": 0.0}

    @property
    def actor_due(self) -> bool:
        """Whether the next update has a step of the actor; the first one has."""
        return self.updates % self.actor_every == 0

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature, and move the target critics."""
        normalizer, support = self.actor.normalizer, self.critic.support
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
        alpha, rows = self.temperature().detach(), len(obs)

        # Critic: one batch of (s, a) and (s', a'); the target is what the critic with the smaller
        # mean says of s', moved by reward, discount and entropy, and split between the atoms.
        both = torch.cat([obs, next_obs])
        with torch.no_grad():
            noise = self.actor.sample_noise(rows)
            next_action, log_prob = squashed_sample(*self.actor.head(next_obs), noise)
            acted = torch.cat([action, next_action])
            next_logits = self.target(both, acted, learning=True)[:, rows:]
            least = expectation(next_logits, support).argmin(0)
            mass = next_logits.take_along_dim(least[None, :, None], 0)[0].softmax(-1)
            later = support - (alpha * log_prob)[:, None]
            atoms = self.reward_scale(data.reward)[:, None] + data.discount[:, None] * later
            backup = project(atoms, mass, support)
        logits = self.critic(both, acted, learning=True)[:, :rows]
        critic_loss = cross_entropy(logits, backup).mean(1).sum()
        self.critic_optimizer.learning_rate = self.rate(1)
        self.critic_optimizer.step(critic_loss)
        project_rows(self.critic)
        polyak(self.target, self.critic, self.tau, buffers=False)

        if self.actor_due:
            self.update_actor(obs, alpha)
        else:
            with torch.no_grad():
                self.actor.head(obs, learning=True)  # its running statistics follow every batch
        self.count.increase()
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": expectation(logits.detach(), support).mean(),
            **self.last_metrics,
            "temperature": alpha,
        }

    def update_actor(self, obs: Tensor, alpha: Tensor) -> None:
        """Take one step of actor and temperature on normalised observations ``[B, O]``."""
        noise = self.actor.sample_noise(len(obs))
        action, log_prob = squashed_sample(*self.actor.head(obs, learning=True), noise)
        # The critics, whose weights get no gradients, judge by their running statistics.
        value = expectation(self.critic(obs, action), self.critic.support).amin(0)
        actor_loss = (alpha * log_prob - value).mean()
        rate = self.rate(self.actor_every)
        self.actor_optimizer.learning_rate = rate
        self.actor_optimizer.step(actor_loss)
        project_rows(self.actor)

        # Temperature: raise alpha while the entropy is below its target.
        entropy = -log_prob.detach().mean()
        self.temperature_optimizer.learning_rate = rate
        self.temperature_optimizer.step(self.temperature() * (entropy - self.target_entropy))
        self.last_metrics = {"actor_loss": actor_loss.detach(), "entropy": entropy}

    def rate(self, every: int) -> float | Tensor:
        """Return the learning rate of an optimiser that steps once in ``every`` updates."""
        first, last = self.learning_rates
        if self.decay_updates is None:
            return first
        progress: Tensor = self.count() / every / max(self.decay_updates, 1.0)
        return first + (last - first) * progress.clamp(max=1.0)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, sampled ones after it."""
        if not warmup:
            return self.actor.act(obs), {}
        uniform = torch.rand(count(obs), *self.actor.noise_shape, device=first_leaf(obs).device)
        return self.actor.normalizer.raw_action(2 * uniform - 1), {}

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Count returns in the order of acting."""
        self.reward_scale.see(reward, ended)


def project_rows(part: nn.Module) -> None:
    """Give the rows of all networks within ``part`` the length 1 again."""
    for network in part.modules():
        if isinstance(network, UnitPerceptron):
            network.project()
