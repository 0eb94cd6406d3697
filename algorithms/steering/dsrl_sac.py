"""DSRL-SAC: soft actor-critic whose action is the noise of a frozen policy.

Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (arXiv
2506.15799). A generative policy with a deterministic sampler maps (s, w) to an action chunk. Its
weights are frozen; its noise w ~ N(0, I) is replaced by a learned actor pi(w|s) in the box [-b, b].
A transition is (s, w, r, s'), where r is the sum of the chunk's rewards, less ``reward_offset`` for
each executed action. There are two critics, which read w / b:

- critic:       y = r + gamma (1 - d) [min_i Q'_i(s', w') - alpha log pi(w'|s')],  w' ~ pi(.|s'),
                the entropy term only with ``backup_entropy``
                L_Q = 1/2 sum_i mean (Q_i(s, w) - y)^2
- actor:        L_pi = mean [alpha log pi(w|s) - min_i Q_i(s, w)],  w ~ pi(.|s) reparameterised
- temperature:  L_alpha = -mean log(alpha) (log pi(w|s) + H_target)
- target:       Q' <- (1 - tau) Q' + tau Q

Deviations from the public code:

- a chunk ends with its episode, and a time limit bootstraps (there: a wrapper steps on after the
  end, and the limit counts as a termination);
- during warm-up w ~ N(0, I), clipped to the box, is decoded once and stored (there: the warm-up
  action is denoised twice, so the stored w is not the one that was executed);
- alpha starts at 0.1 (there: 1.0), small beside a success of 1;
- Stable-Baselines3's networks are replaced by ReLU with layer normalisation before the activation
  (there: tanh);
- smaller networks and fewer updates: two layers of 256 (there: three of 128 to 2048), two updates
  for each decision (there: 2.5 to 7.5), 4000 warm-up steps (there: 24000 and more), log standard
  deviations above -5 (there: -20);
- ``noise_chunk`` is ``each`` (one latent for each action of a chunk, as there) or ``repeated`` (one
  latent for the whole chunk, as in the authors' code for pi0);
- rewards are the task's own (there: robomimic's rewards of 0 and 1 are lowered by 1 in every step,
  those of Gym are not); ``reward_offset=1`` lowers them by 1 for each executed action, as there;
- y contains no entropy by default (there: it does), because the entropy of later latents, which
  have many dimensions, outweighs a success of 1: not ending the episode is then worth more. The
  published target is ``backup_entropy=true`` with ``reward_offset=1``, which makes each step cost
  more than its entropy is worth;
- evaluation uses the actor's mode (there: a sampled latent).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.off_policy.sac import Temperature
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.repeated_noise import RepeatedNoisePolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs


class DSRLSAC(Algorithm):
    """Soft actor-critic in the noise space of a frozen base policy.

    Args:
        setup: needs ``base``.
        magnitude: half width b of the box of latents.
        hidden: widths of the hidden layers of actor and critics.
        layer_norm: normalise after each hidden layer of actor and critics.
        learning_rate: Adam's, for actor, critics and temperature.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        initial_temperature: alpha at the start.
        target_entropy: H_target, 0 in the published settings; None: -1 for each dimension of w.
        backup_entropy: whether y includes the entropy of the actor at s'.
        warmup_steps: environment steps in which the base acts, before the first update.
        updates_per_decision: updates for each executed action chunk.
        log_std_min: lower bound of the actor's log standard deviation before squashing.
        reward_offset: is subtracted from the reward of every executed environment step, so k times
            for a chunk of k steps; same sign as in the official code. The published value for
            robomimic is 1, which turns rewards of 0 into -1. Use it with ``backup_entropy``, or
            longer episodes earn more.
        noise_chunk: ``each`` action of a chunk has a latent of its own, or one is ``repeated``.
    """

    needs = Needs({"base"})
    neutral = MappingProxyType({"noise_chunk": "each"})
    unsaved = frozenset({"policy"})  # made of the actor, which is saved, and the frozen base
    policy: LatentPolicy
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        magnitude: Annotated[float, Bounds(least=1e-3)] = 1.5,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = True,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        initial_temperature: Positive = 0.1,
        target_entropy: float | None = 0.0,
        backup_entropy: bool = False,
        warmup_steps: Natural = 4_000,
        updates_per_decision: NonNegative = 2.0,
        log_std_min: Annotated[float, Bounds(most=2)] = -5.0,
        reward_offset: Annotated[float, Bounds(least=-1e6, most=1e6)] = 0.0,
        noise_chunk: Literal["each", "repeated"] = "each",
    ) -> None:
        assert setup.base is not None
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.magnitude, self.tau = magnitude, tau
        self.backup_entropy, self.reward_offset = backup_entropy, reward_offset
        self.act_steps = setup.spec.horizon  # executed actions; the base may plan more
        base = copy.deepcopy(setup.base).to(setup.device)
        base = RepeatedNoisePolicy(base) if noise_chunk == "repeated" else base
        spec = latent_spec(base, magnitude)
        latent_size = spec.horizon * spec.action_dim
        self.target_entropy = (
            -float(latent_size) if target_entropy is None else float(target_entropy)
        )
        self.actor = TanhGaussianPolicy(
            spec, hidden=hidden, layer_norm=layer_norm, log_std_min=log_std_min
        ).to(setup.device)
        self.critic = EnsembleCritic(
            spec.obs_dim, latent_size, hidden=hidden, layer_norm=layer_norm
        ).to(setup.device)
        # The actor normalises observations as the base does.
        self.actor.read_observations_as(base.normalizer)
        self.policy = LatentPolicy(self.actor, base)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(setup.device)
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature, and move the target critics."""
        normalizer = self.actor.normalizer
        latent = normalizer.normalize_action(data.aux["latent"])
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        alpha = self.temperature().detach()

        # Critics: regress each Q to the soft Bellman target; discount is gamma (1 - d).
        with torch.no_grad():
            next_latent, next_log_prob = self.sample_latent(data.next_obs)
            next_value = self.target(next_obs, next_latent).amin(0)
            if self.backup_entropy:
                next_value = next_value - alpha * next_log_prob
            backup = self.target_reward(data) + data.discount * next_value
        value = self.critic(obs, latent)
        critic_loss = 0.5 * (value - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)

        actor_loss, log_prob = self.update_actor(data.obs, obs, alpha)
        polyak(self.target, self.critic, self.tau)
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            "actor_loss": actor_loss.detach(),
            "entropy": -log_prob.mean(),
            "temperature": alpha,
        }

    def update_actor(self, raw_obs: Obs, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of actor and temperature; return the actor's loss and log-densities."""
        # Actor: follow the gradient of the critics, whose own weights stay fixed.
        latent, log_prob = self.sample_latent(raw_obs)
        actor_loss = (alpha * log_prob - self.critic(obs, latent).amin(0)).mean()
        self.actor_optimizer.step(actor_loss)

        # Temperature: raise alpha while the entropy is below its target.
        log_prob = log_prob.detach()
        temperature_loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(temperature_loss)
        return actor_loss, log_prob

    def target_reward(self, data: Batch) -> Tensor:
        """Return the chunks' rewards ``[B]``, lowered for each action that was executed."""
        return data.reward - self.reward_offset * data.valid.sum(1)

    def sample_latent(self, raw_obs: Obs) -> tuple[Tensor, Tensor]:
        """Return latents divided by b ``[B, H, A]``, and their log-densities ``[B]``."""
        noise = self.actor.sample_noise(count(raw_obs))
        return self.actor.sample_with_log_prob(raw_obs, noise)

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The executed latent, which is stored with its transition."""
        return {"latent": (self.actor.spec.horizon, self.actor.spec.action_dim)}

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Let the base act during warm-up, and the steered base afterwards; store the latent."""
        latent = self.sample_base_latent(obs) if warmup else self.actor.act(obs)
        return self.policy.decode(obs, latent)[:, : self.act_steps], {"latent": latent}

    def sample_base_latent(self, obs: Obs) -> Tensor:
        """Return latents as the base would draw them ``[N, H, A]``: N(0, I), clipped to the box."""
        shape = (count(obs), *self.actor.noise_shape)
        latent = torch.randn(shape, device=first_leaf(obs).device)
        return latent.clamp(-self.magnitude, self.magnitude)
