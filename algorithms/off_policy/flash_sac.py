"""FlashSAC: soft actor-critic with bounded weights, activations, rewards and values.

Kim et al., "FlashSAC: Fast and Stable Off-Policy Reinforcement Learning for High-Dimensional Robot
Control" (arXiv 2604.04539), by the published code (Holiday-Robot/FlashSAC,
``flash_rl/agents/flashSAC/{agent,update}.py``). The networks are in ``policies/networks/unit.py``:
residual ones with batch normalisation, whose weights keep their lengths. Q is a distribution p over
K fixed atoms z, Q(s, a) its mean. An update, in this order:

- actor:        every second time, from the first update on,
                L_pi = mean [alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(.|s) reparameterised
- temperature:  with the actor,  L_alpha = alpha (H - H_target),  H = -mean log pi(a|s),
                H_target = 1/2 |A| log(2 pi e sigma^2),  sigma = 0.15 for every robot
- critic:       y = projection on z of  r / scale + gamma (1 - d) (z - alpha log pi(a'|s')), each
                atom with its probability under p'_k(s', a'),  a' ~ pi(.|s'),
                k = argmin_i Q'_i(s', a'), with the new actor and the new alpha
                L_p = -mean_i mean sum_z y log p_i(z|s, a)
- weights:      after each step of actor and critic they are scaled back to their lengths
- target:       p' <- (1 - tau) p' + tau p of the weights, which are not scaled back

Which statistics normalise is a part of the method. Critic and target critic see (s, a) and (s', a')
as one batch and normalise by its statistics; so does the actor in its own step, which sees s and s'
and has the loss of s. Acting, the draw of a' and the critics that the actor climbs use the running
statistics. Those of the target are never used, so they are not averaged.

Rewards are divided by ``BoundedReturnScale``, so that values fit between the outer atoms. Acting
holds one noise vector for k decisions, with P(k) ~ k^-2 for k up to 16; all environments draw a new
one at the same time, as in the code. The learning rates fall by half a cosine over the run, each by
the steps of its own optimiser: with an actor that learns every second time, its rate and alpha's
come half the way, as in the code.

Deviations from the published code: float32 throughout; no warm-up of the learning rates, which
there is one update long; a return that ends is counted whole (there, its last reward alone, which
then leaks into the next episode's), and the variance of earlier returns counts for their number
(there, for a ten-thousandth more); no imitation term.

As the weights cannot grow, the width bounds how sharp a distribution can be: critics of 32 miss the
values of a small known process by a tenth where critics of 96 miss them by a hundredth.
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
from trimtab.algorithms.common.schedules import UpdateCount, cosine
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.policies.kinds.unit_gaussian import UnitGaussianPolicy
from trimtab.policies.networks.atoms import AtomCritic
from trimtab.policies.networks.unit import UnitNetwork
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class FlashSAC(Algorithm):
    """Soft actor-critic whose weights, activations, rewards and values are bounded.

    Args:
        setup: shapes, limits, number of environments, discount and device; nothing else is needed.
        actor_width: width of the actor's residual stream.
        critic_width: width of each critic's residual stream.
        blocks: residual blocks of each network.
        atoms: number K of atoms.
        bound: the atoms lie from ``-bound`` to ``bound``, and scaled returns do, too.
        learning_rate: Adam's first one, for actor, critics and temperature.
        final_learning_rate: the last one.
        decay_steps: environment steps over which the rates fall, where a chunk that an episode cut
            counts as a whole one; None: they stay.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        target_std: sigma, the standard deviation whose entropy is the target, per action dimension.
        actor_every: critic updates for one of actor and temperature.
        hold_exponent: a noise is held for k decisions with a probability ~ ``k**-hold_exponent``.
        longest_hold: largest k; 1: each decision has its own noise.
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
        critic_width: Size = 256,
        blocks: Size = 2,
        atoms: Atoms = 101,
        bound: Positive = 5.0,
        learning_rate: NonNegative = 3e-4,
        final_learning_rate: NonNegative = 1.5e-4,
        decay_steps: Count | None = None,
        batch_size: Size = 512,
        tau: Share = 0.01,
        initial_temperature: Positive = 0.01,
        target_std: Annotated[float, Bounds(least=1e-9)] = 0.15,
        actor_every: Count = 2,
        hold_exponent: NonNegative = 2.0,
        longest_hold: Size = 16,
        warmup_steps: Natural = 10_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau, self.actor_every = tau, actor_every
        self.learning_rates = (learning_rate, final_learning_rate)
        spec, device = setup.spec, setup.device
        size = spec.horizon * spec.action_dim
        self.target_entropy = 0.5 * size * math.log(2 * math.pi * math.e * target_std**2)
        self.decay_updates = (
            None
            if decay_steps is None
            else round(decay_steps * updates_per_decision / spec.horizon)
        )

        self.actor = UnitGaussianPolicy(spec, width=actor_width, blocks=blocks).to(device)

        def make() -> UnitNetwork:
            return UnitNetwork(spec.obs_dim + size, critic_width, atoms, blocks=blocks)

        self.critic = AtomCritic(make, 2, bound, atoms).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(device)
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)
        self.reward_scale = BoundedReturnScale(setup.num_envs, setup.discount, bound).to(device)
        shape = (setup.num_envs, *self.actor.noise_shape)
        self.held_noise = HeldNoise(shape, hold_exponent, longest_hold).to(device)
        self.count = UpdateCount(device)
        self.policy = self.actor
        self.last_metrics = {"actor_loss": 0.0, "entropy": 0.0}

    @property
    def actor_due(self) -> bool:
        """Whether the next update has a step of the actor; the first one has."""
        return self.updates % self.actor_every == 0

    def update(self, data: Batch) -> Metrics:
        """Take one step of actor, temperature and critics, and move the target critics."""
        normalizer = self.actor.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
        rows = len(obs)
        if self.actor_due:
            self.update_actor(obs, next_obs)
        alpha = self.temperature().detach()

        # Critic: one batch of (s, a) and (s', a'); the target is what the critic with the smaller
        # mean says of s', moved by reward, discount and entropy, and split between the atoms.
        support = self.critic.support
        both = torch.cat([obs, next_obs])
        with torch.no_grad():
            noise = self.actor.sample_noise(rows)
            next_action, log_prob = squashed_sample(*self.actor.head(next_obs), noise)
            acted = torch.cat([action, next_action])
            next_logits = self.target(both, acted, learning=True)[:, rows:]
            lesser = expectation(next_logits, support).argmin(0)
            index = lesser[None, :, None].expand(1, -1, len(support))
            mass = next_logits.softmax(-1).gather(0, index)[0]
            later = support - (alpha * log_prob)[:, None]
            atoms = self.reward_scale(data.reward)[:, None] + data.discount[:, None] * later
            target = project(atoms, mass, support)
        logits = self.critic(both, acted, learning=True)[:, :rows]
        critic_loss = cross_entropy(logits, target).mean()
        self.critic_optimizer.learning_rate = self.rate(1)
        self.critic_optimizer.step(critic_loss)
        self.scale_back(self.critic)

        polyak(self.target, self.critic, self.tau, buffers=False)
        self.count.increase()
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": expectation(logits.detach(), support).mean(),
            **self.last_metrics,
            "temperature": alpha,
        }

    def update_actor(self, obs: Tensor, next_obs: Tensor) -> None:
        """Take one step of actor and temperature on normalised observations ``[B, O]``."""
        rows = len(obs)
        noise = self.actor.sample_noise(2 * rows)
        mean, log_std = self.actor.head(torch.cat([obs, next_obs]), learning=True)
        action, log_prob = squashed_sample(mean, log_std, noise)
        action, log_prob = action[:rows], log_prob[:rows]
        # The critics, whose weights get no gradients, judge by their running statistics.
        value = expectation(self.critic(obs, action), self.critic.support).amin(0)
        actor_loss = (self.temperature().detach() * log_prob - value).mean()
        rate = self.rate(self.actor_every)
        self.actor_optimizer.learning_rate = rate
        self.actor_optimizer.step(actor_loss)
        self.scale_back(self.actor)

        # Temperature: raise alpha while the entropy is below its target.
        entropy = -log_prob.detach().mean()
        self.temperature_optimizer.learning_rate = rate
        self.temperature_optimizer.step(self.temperature() * (entropy - self.target_entropy))
        self.last_metrics = {"actor_loss": actor_loss.detach(), "entropy": entropy}

    def rate(self, every: int) -> float | Tensor:
        """Return the learning rate of an optimiser that steps once in ``every`` updates."""
        if self.decay_updates is None:
            return self.learning_rates[0]
        return cosine(*self.learning_rates, self.count() / every, self.decay_updates)

    def scale_back(self, part: nn.Module) -> None:
        """Give the weights of all networks within ``part`` their lengths back."""
        for network in part.modules():
            if isinstance(network, UnitNetwork):
                network.project()

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform random actions during warm-up, then sampled ones with held noise.

        Rows that are not as many as the environments have noise of their own, which is not held.
        """
        rows = count(obs)
        if warmup:
            uniform = torch.rand(rows, *self.actor.noise_shape, device=first_leaf(obs).device)
            return self.actor.normalizer.raw_action(2 * uniform - 1), {}
        held = rows == len(self.held_noise.noise)
        noise = self.held_noise() if held else self.actor.sample_noise(rows)
        return self.actor(obs, noise), {}

    @torch.no_grad()
    def continue_chunks(self, data: Batch) -> Tensor:
        """Return a batch's action chunks ``[B, H, A]``, completed with fresh noise."""
        if data.action.shape[1] == 1 or data.whole:
            return data.action
        return torch.where(data.valid[..., None], data.action, self.actor.act(data.obs))

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Count returns in the order of acting."""
        self.reward_scale.see(reward, ended)


class HeldNoise(nn.Module):
    """Noise that stays for some decisions, and then is drawn anew for all environments.

    Args:
        shape: of the noise, ``[N, H, A]``.
        exponent: it stays for k decisions with a probability ~ ``k**-exponent``.
        longest: largest k.
    """

    noise: Tensor
    left: Tensor
    cumulative: Tensor

    def __init__(self, shape: tuple[int, ...], exponent: float, longest: int) -> None:
        super().__init__()
        weight = torch.arange(1, longest + 1, dtype=torch.float64) ** -exponent
        share = (weight.cumsum(0) / weight.sum()).float()
        self.register_buffer("noise", torch.zeros(shape))
        self.register_buffer("left", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cumulative", share, persistent=False)

    def forward(self) -> Tensor:
        """Return the noise of the next decision ``[N, H, A]``."""
        fresh = torch.randn_like(self.noise)
        drawn = torch.rand((), device=self.noise.device)
        length = 1 + (drawn >= self.cumulative[:-1]).sum()
        over = self.left == 0
        self.noise.copy_(torch.where(over, fresh, self.noise))
        self.left.copy_(torch.where(over, length, self.left) - 1)
        return self.noise.clone()
