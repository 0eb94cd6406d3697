"""Noise PPO: the distribution of a frozen policy's noise, improved by proximal policy optimisation.

An adaptation (``faithful`` is False) of Chen et al., "FIND: Fine-tuning Initial Noise Distribution
with Policy Optimization for Diffusion Models" (arXiv 2407.19453), which is about pictures: the
denoiser is frozen, and the distribution of the noise that it starts from is learned by a clipped
policy gradient.

- actor:   w ~ N(mu(s), sigma^2), one latent chunk for each decision; a = base(s, w)
- policy:  L_pi = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A)
                  + c_0 mean KL(N(mu, sigma^2) || N(0, I)),  rho = N(w; mu, sigma) / N_old(w)
- the rest is that of PPO (``trimtab.algorithms.on_policy.ppo``)

It begins as the base does, with mu near 0 and sigma at 1, and the divergence from N(0, I) keeps it
where the base was trained.

Deviations from the paper, of which only the abstract and its site were read; no code was looked at:

- a run of decisions in place of one prompt: advantages are estimated from V over time, which stands
  in for the paper's learned prediction of the reward (its dynamic calibration);
- no older samples are used again: each rollout is learned from once, in several epochs;
- the weight c_0 of the divergence, networks and counts are ours;
- latents are clipped to [-b, b] before the base sees them, the likelihood is that before the clip;
- ``noise_chunk=repeated`` has one latent vector for all actions of a chunk;
- the actor reads observations in the base's normalised units, which it does not clip;
- the steered policy is judged at the actor's mean.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.observations import count
from trimtab.policies.kinds.diagonal_gaussian import gaussian_kl
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.repeated_noise import RepeatedNoisePolicy
from trimtab.settings import Bounds, NonNegative
from trimtab.types import Metrics, Obs


class NoisePPO(PPO):
    """Proximal policy optimisation over the noise of a frozen base policy.

    Args:
        setup: needs ``base``.
        magnitude: half width b of the box that latents are clipped to.
        prior_weight: c_0.
        noise_chunk: ``each`` action of a chunk has a latent of its own, or one is ``repeated``.
        keywords: those of PPO.
    """

    needs = Needs({"base"})
    unused_settings = frozenset({"normalize_observations"})
    faithful = False
    unsaved = frozenset({"actor"})  # a part of the policy
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        magnitude: Annotated[float, Bounds(least=1e-3)] = 3.0,
        prior_weight: NonNegative = 0.01,
        noise_chunk: Literal["each", "repeated"] = "each",
        **keywords: Any,
    ) -> None:
        self.magnitude, self.prior_weight = magnitude, prior_weight
        self.act_steps = setup.spec.horizon  # the base may plan further than is executed
        assert setup.base is not None
        base = copy.deepcopy(setup.base).to(setup.device)
        base = RepeatedNoisePolicy(base) if noise_chunk == "repeated" else base
        latents = replace(setup, spec=latent_spec(base, magnitude))
        super().__init__(latents, normalize_observations=False, **keywords)
        self.steps_per_update = self.pace.rollout_steps * setup.num_envs * self.act_steps
        normalizer = self.actor.normalizer
        normalizer.obs_shift.copy_(base.normalizer.obs_shift)
        normalizer.obs_scale.copy_(base.normalizer.obs_scale)
        # The actor's own units are those of the latent, so that it begins at N(0, I).
        normalizer.action_scale.fill_(1.0)
        self.steered = LatentPolicy(self.actor, base)
        self.policy = self.steered  # type: ignore[assignment]

    def policy_loss(self, part: Samples, mean: Tensor, log_prob: Tensor) -> Tensor:
        """Return PPO's loss and the weighted divergence from the base's own noise."""
        return super().policy_loss(part, mean, log_prob) + self.prior_weight * self.prior_kl(mean)

    def prior_kl(self, mean: Tensor) -> Tensor:
        """Return the mean of KL(N(mu, sigma^2) || N(0, I)) for means ``[M, H, A]``, a scalar."""
        log_std = self.actor.log_std
        zero = torch.zeros_like(log_std)
        return gaussian_kl(mean, log_std, zero, zero).mean()

    def improve(self, samples: Samples) -> Metrics:
        """Go through the rollout in minibatches, and say how far the noise is from the base's."""
        metrics = super().improve(samples)
        with torch.no_grad():
            return {**metrics, "prior_kl": self.prior_kl(self.actor.head(samples.obs))}

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the base does on sampled latents; return them as they were before the clip."""
        unclipped = self.actor.unclipped(obs, self.actor.sample_noise(count(obs)))
        latent = self.actor.normalizer.raw_action(unclipped)
        return self.steered.decode(obs, latent)[:, : self.act_steps], {"unclipped": unclipped}
