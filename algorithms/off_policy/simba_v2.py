"""SimbaV2: soft actor-critic with weights and features of norm 1, and values as distributions.

Lee et al., "Hyperspherical Normalization for Scalable Deep Reinforcement Learning" (arXiv
2502.15280), by the published code (dojeon-ai/SimbaV2, ``scale_rl/agents/simbaV2/``). The networks
are in ``policies/networks/hyperspherical.py``. Q is a distribution p over M fixed atoms z, Q(s, a)
its mean. An update, in this order:

- actor:        L_pi = mean [alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s) reparameterised
- temperature:  L_alpha = alpha (H - H_target),  H = -mean log pi(a|s)
- critic:       y = projection on z of  r / scale + gamma (1 - d) (z - alpha log pi(a'|s')), each
                atom with its probability under p'_k(s', a'),  a' ~ pi(.|s'),
                k = argmin_i Q'_i(s', a'), with the new actor and the new alpha
                L_p = -sum_i mean sum_z y log p_i(z|s, a)
- weights:      after each step of actor and critic, those of each output unit get norm 1 again
- target:       p' <- (1 - tau) p' + tau p of the weights, which are not given norm 1

Observations are normalised by running statistics of all that was acted on, rewards divided by
``BoundedReturnScale``; both follow the order of acting and stay as they are within updates. All
learning rates fall in a line over the run. The paper has two critics where episodes terminate
(gym's MuJoCo, HumanoidBench) and one elsewhere (DM Control, MyoSuite).

The paper's discount is ``clip((L / 5 - 1) / (L / 5), 0.95, 0.995)`` for episodes of L decisions, as
in TD-MPC2: 0.995 for 1000, 0.99 for 500. Here it is the run's ``discount``, which
``Batch.discount`` contains. Its decisions of DM Control repeat an action in two frames and are
followed by two updates; those of gym's MuJoCo take one frame, and there is one update.

Deviations from the published code: a return that ends is counted whole (there, its last reward
alone, which then leaks into the next episode's), and before an update of its decision, not after
it; the first observation of a run is counted, too; running statistics begin with nothing, not with
mean 0 and variance 1 for a ten-thousandth of a row.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.categorical import Atoms, cross_entropy, expectation, project
from trimtab.algorithms.common.returns import BoundedReturnScale
from trimtab.algorithms.common.schedules import UpdateCount
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.hyperspherical_gaussian import HypersphericalGaussianPolicy
from trimtab.policies.networks.hyperspherical import HypersphericalCritic, project_weights_
from trimtab.settings import Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class SimbaV2(Algorithm):
    """Soft actor-critic on hyperspheres.

    Args:
        setup: shapes, limits, number of environments, discount and device; nothing else is needed.
        actor_width: features of the actor.
        actor_blocks: blocks of the actor after its embedding.
        critic_width: features of each critic.
        critic_blocks: blocks of each critic after its embedding.
        critics: Q functions of which the least counts; 1 where no episode terminates.
        atoms: M, values of which Q is a mean.
        value_bound: they lie evenly from ``-value_bound`` to it; rewards are scaled so that
            returns stay within.
        learning_rate: Adam's at the start, for actor, critics and temperature.
        final_learning_rate: at the end of ``decay_steps``.
        decay_steps: environment steps over which it falls in a line, where a decision counts as a
            whole chunk; None: it does not fall.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        entropy_per_dimension: H_target for each action dimension.
        warmup_steps: environment steps with uniform random actions before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs(own_statistics=True)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        actor_width: Size = 128,
        actor_blocks: Count = 1,
        critic_width: Size = 512,
        critic_blocks: Count = 2,
        critics: Size = 2,
        atoms: Atoms = 101,
        value_bound: Positive = 5.0,
        learning_rate: NonNegative = 1e-4,
        final_learning_rate: NonNegative = 5e-5,
        decay_steps: Count | None = None,
        batch_size: Size = 256,
        tau: Share = 0.005,
        initial_temperature: Positive = 0.01,
        entropy_per_dimension: float = -0.5,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 2.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        spec = setup.spec
        size = spec.horizon * spec.action_dim
        self.target_entropy = entropy_per_dimension * size
        self.learning_rates = (learning_rate, final_learning_rate)
        self.decay_updates = (
            None if decay_steps is None else decay_steps / spec.horizon * updates_per_decision
        )

        self.actor = HypersphericalGaussianPolicy(spec, width=actor_width, blocks=actor_blocks)
        self.actor.to(setup.device)
        self.critic = HypersphericalCritic(
            spec.obs_dim, size, width=critic_width, blocks=critic_blocks, members=critics,
            atoms=atoms, bound=value_bound,
        ).to(setup.device)  # fmt: skip
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(setup.device)
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)
        self.reward_scale = BoundedReturnScale(setup.num_envs, setup.discount, value_bound)
        self.reward_scale.to(setup.device)
        self.count = UpdateCount(setup.device)
        self.policy = self.actor

    def update(self, data: Batch) -> Metrics:
        """Take one step of actor, temperature and critics, and move the target critics."""
        self.schedule_rates()
        normalizer, support = self.actor.normalizer, self.critic.support
        action = normalizer.normalize_action(self.continue_chunks(data))
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        reward = self.reward_scale(data.reward)

        # Actor: entropy-regularised ascent on the least Q, whose weights get no gradients.
        proposed, log_prob = self.sample(data.obs)
        ascended = expectation(self.critic(obs, proposed), support).amin(0)
        actor_loss = (self.temperature().detach() * log_prob - ascended).mean()
        self.actor_optimizer.step(actor_loss)
        project_weights_(self.actor)

        # Temperature: raise alpha while the entropy is below its target.
        entropy = -log_prob.detach().mean()
        self.temperature_optimizer.step(self.temperature() * (entropy - self.target_entropy))

        # Critic: the moved atoms of the target critic with the least mean, projected back.
        with torch.no_grad():
            alpha = self.temperature()
            next_action, next_log_prob = self.sample(data.next_obs)
            logits = self.target(next_obs, next_action)
            least = expectation(logits, support).argmin(0)
            mass = logits.take_along_dim(least[None, :, None], 0)[0].softmax(-1)
            following = support - alpha * next_log_prob[:, None]
            atoms = reward[:, None] + data.discount[:, None] * following
            backup = project(atoms, mass, support)
        logits = self.critic(obs, action)
        critic_loss = cross_entropy(logits, backup).mean(1).sum()
        self.critic_optimizer.step(critic_loss)
        project_weights_(self.critic)

        polyak(self.target, self.critic, self.tau)
        self.updates += 1
        self.count.increase()
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": expectation(logits.detach(), support).mean(),
            "actor_loss": actor_loss.detach(),
            "entropy": entropy,
            "temperature": alpha,
        }

    def schedule_rates(self) -> None:
        """Set the learning rates of the next update, if they fall."""
        if self.decay_updates is None:
            return
        first, last = self.learning_rates
        rate = first + (last - first) * (self.count() / max(self.decay_updates, 1.0)).clamp(max=1.0)
        self.actor_optimizer.learning_rate = rate
        self.critic_optimizer.learning_rate = rate
        self.temperature_optimizer.learning_rate = rate

    def sample(self, raw_obs: Obs) -> tuple[Tensor, Tensor]:
        """Return sampled actions scaled to [-1, 1] ``[B, H, A]``, and log-densities ``[B]``."""
        return self.actor.sample_with_log_prob(raw_obs, self.actor.sample_noise(count(raw_obs)))

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Count observations; return uniform random actions during warm-up, then sampled ones."""
        self.actor.normalizer.see(obs)
        if not warmup:
            return self.actor.act(obs), {}
        noise = torch.rand(count(obs), *self.actor.noise_shape, device=first_leaf(obs).device)
        return self.actor.normalizer.raw_action(2 * noise - 1), {}

    @torch.no_grad()
    def continue_chunks(self, data: Batch) -> Tensor:
        """Return whole chunks as the base class does, without counting these observations."""
        if data.action.shape[1] == 1 or data.whole:
            return data.action
        return torch.where(data.valid[..., None], data.action, self.actor.act(data.obs))

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Count returns, by which rewards are scaled."""
        self.reward_scale.see(reward, ended)
