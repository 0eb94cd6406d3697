"""DSRL-SAC: soft actor-critic whose action is the noise of a frozen policy.

Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement Learning" (arXiv
2506.15799). A generative policy with a deterministic sampler maps (s, w) to an action; its weights
are frozen and the random w ~ N(0, I) is replaced by a learned actor pi(w|s), w in the box [-b, b].
A transition is (s, w, r, s'), r what the whole chunk collected:

- critic:       y = r + gamma (1 - d) [min_i Q'_i(s', w') - alpha log pi(w'|s')],  w' ~ pi(.|s')
                L_Q = 1/2 sum_i mean (Q_i(s, w) - y)^2
- actor:        L_pi = mean [alpha log pi(w|s) - min_i Q_i(s, w)],  w ~ pi(.|s) reparameterised
- temperature:  L_alpha = -mean log(alpha) (log pi(w|s) + H_target)
- target:       Q' <- (1 - tau) Q' + tau Q

Deviations from the public code, each a known defect or a choice of this suite:

- a chunk ends with its episode, and a time limit bootstraps (there: a wrapper steps on after the
  end, and the limit counts as a termination);
- during warm-up the base acts once on w ~ N(0, I) clipped to the box, and the w that acted is the
  one stored (there: the warm-up action is denoised twice, so stored and executed w differ);
- alpha starts at 0.1 (there: 1.0), small beside a success of 1;
- Stable-Baselines3's networks are replaced by ReLU with layer normalisation before the activation
  (there: tanh);
- smaller and fewer: two layers of 256 (there: three of 128 to 2048), two updates for each decision
  (2.5 to 7.5), a warm-up of 4000 steps (24000 and more); log standard deviations above -5 (-20);
- ``noise_chunk`` chooses between a latent for each action of a chunk, as there, and one that is
  repeated over it, as in the authors' code for pi0;
- rewards are the task's own (there: robomimic's, of 0 and 1, are lowered by 1 in every environment
  step, those of Gym's tasks are not); ``reward_offset=1`` lowers them as there, by 1 for each
  action that was executed;
- the target counts no entropy of later actions unless ``backup_entropy`` is set (there: it does): a
  latent has many dimensions, so entropy pays for staying alive. With rewards of 0 and 1, a task
  that ends at its sparse success is then best left unsolved (seen: success fell to 0 while values
  rose to 11); with rewards lowered by 1 staying alive costs more than its entropy is worth. Set
  both, ``backup_entropy=true`` and ``reward_offset=1``, for the published target;
- the steered policy is judged at the actor's mode (there: its latent is sampled).
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
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share
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
        backup_entropy: whether y counts the entropy of later latents, which pays for staying alive.
        warmup_steps: environment steps of the base itself before learning.
        updates_per_decision: updates for each executed action chunk.
        log_std_min: lower bound of the actor's log standard deviation before squashing.
        reward_offset: what is taken from the reward of every executed environment step, a chunk's
            k steps losing k times as much. Its sign is that of the official code's setting of this
            name: 1, as published for robomimic's tasks, makes a reward of 0 into -1. It makes every
            step before the success cost something, which ``backup_entropy`` needs.
        noise_chunk: ``each`` action of a chunk has a latent of its own, or one is ``repeated``.
    """

    needs = Needs({"base"})
    neutral = MappingProxyType({"noise_chunk": "each"})
    unsaved = frozenset({"policy"})  # the actor, which is saved, and the frozen base
    policy: LatentPolicy

    def __init__(
        self,
        setup: Setup,
        *,
        magnitude: Annotated[float, Bounds(least=1e-3)] = 1.5,
        hidden: Sequence[int] = (256, 256),
        layer_norm: bool = True,
        learning_rate: float = 3e-4,
        batch_size: Count = 256,
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
        self.act_steps = setup.spec.horizon  # the base may plan further than is executed
        base = copy.deepcopy(setup.base).to(setup.device)
        base = RepeatedNoisePolicy(base) if noise_chunk == "repeated" else base
        spec = latent_spec(base, magnitude)
        size = spec.horizon * spec.action_dim
        self.target_entropy = -float(size) if target_entropy is None else float(target_entropy)
        self.actor = TanhGaussianPolicy(
            spec, hidden=hidden, layer_norm=layer_norm, log_std_min=log_std_min
        ).to(setup.device)
        self.critic = EnsembleCritic(spec.obs_dim, size, hidden=hidden, layer_norm=layer_norm).to(
            setup.device
        )
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.temperature = Temperature(initial_temperature).to(setup.device)
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.temperature_optimizer = Adam(self.temperature.parameters(), learning_rate)
        # The actor reads observations in the base's normalised units.
        self.actor.read_observations_as(base.normalizer)
        self.policy = LatentPolicy(self.actor, base)

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, actor and temperature, and move the target critics."""
        normalizer = self.actor.normalizer
        latent = normalizer.normalize_action(data.aux["latent"])
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        alpha = self.temperature().detach()

        # Critic: regress every Q to the soft value of the next state under the target critics.
        with torch.no_grad():
            next_latent, next_log_prob = self.sample(data.next_obs)
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
        # Actor: entropy-regularised ascent on the critics, whose weights get no gradients.
        latent, log_prob = self.sample(raw_obs)
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

    def sample(self, raw_obs: Obs) -> tuple[Tensor, Tensor]:
        """Return sampled latents scaled to [-1, 1] ``[B, H, A]``, and log-densities ``[B]``."""
        noise = self.actor.sample_noise(count(raw_obs))
        return self.actor.sample_with_log_prob(raw_obs, noise)

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The latent that acted is stored with the transition."""
        return {"latent": (self.actor.spec.horizon, self.actor.spec.action_dim)}

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the base does during warm-up, steered after it; return the latent too."""
        latent = self.base_latent(obs) if warmup else self.actor.act(obs)
        return self.policy.decode(obs, latent)[:, : self.act_steps], {"latent": latent}

    def base_latent(self, obs: Obs) -> Tensor:
        """Return latents of the frozen base ``[N, H, A]``: standard normal, clipped to the box."""
        shape = (count(obs), *self.actor.noise_shape)
        latent = torch.randn(shape, device=first_leaf(obs).device)
        return latent.clamp(-self.magnitude, self.magnitude)
