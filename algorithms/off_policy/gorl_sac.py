"""GoRL with soft actor-critic: latents learned from replay, and a decoder refitted in stages.

The stages of "GoRL: An Algorithm-Agnostic Framework for Online Reinforcement Learning with
Generative Policies" (arXiv 2512.02581), with the learner of Haarnoja et al. (arXiv 1812.05905) for
its encoder. An adaptation (``faithful`` is False), by a design of ours: the paper's code names soft
actor-critic as a possibility, and has none of it. What happens in a stage is described in
``trimtab.algorithms.common.latent_stages``. The encoder N(mu(s), sigma(s)^2) learns by

- critic:       y = r + gamma (1 - d) [min_i Q'_i(s', z') - alpha log pi(z'|s')],  z' ~ pi(.|s')
                L_Q = 1/2 sum_i mean (Q_i(s, z) - y)^2
- actor:        L_pi = mean [alpha log pi(z|s) - min_i Q_i(s, z) + c KL(pi(.|s) || N(0, I))]
- temperature:  L_alpha = -mean log(alpha) (log pi(z|s) + H_target)

What was decided, and why:

- z is SAC's action, a Gaussian without a tanh and without a term of it in the density, because the
  tanh stands behind the decoder. H_target is the entropy of N(0, sigma^2 I) at ``latent_std``,
  d / 2 log(2 pi e sigma^2), in place of -d, which is about actions in [-1, 1];
- the decoder is a part of the environment in a stage, and a refit changes what every stored z
  means. So a stage begins with an empty buffer, and with fresh Q functions, temperature and
  optimisers as well as a fresh encoder;
- without the divergence from N(0, I) nothing would hold z where the decoder was trained, and in
  stage 0 nothing would hold it where the tanh is not flat;
- each stage begins with a warm-up of z ~ N(0, I), which decodes to what the last stage did. It is
  at most half of the stage;
- counting, choice of the best encoder, refit and units are those of
  ``trimtab.algorithms.on_policy.gorl``, with their deviations from the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.latent_stages import LatentStages
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.phases import Feed, Phase
from trimtab.observations import count, first_leaf
from trimtab.policies.kinds.unbounded_gaussian import UnboundedGaussianPolicy, gaussian_sample
from trimtab.settings import Natural, NonNegative, Positive
from trimtab.types import Batch, Metrics, Obs, PolicySpec


class GoRLSAC(LatentStages, SAC):
    """Soft actor-critic over the latents of a decoder that is refitted in stages.

    Args:
        setup: needs ``policy``, the kind of the decoder.
        latent_std: sigma of the Gaussian whose entropy is H_target.
        prior_weight: c.
        warmup_steps: environment steps at the beginning of each stage in which z ~ N(0, I).
        keywords: those of ``LatentStages`` and of SAC.
    """

    unused_settings = frozenset({"target_entropy", "entropy_per_dimension"})
    faithful = False
    capturable = True
    learner = SAC  # its fresh weights are those of the encoder, too, whose networks are the same

    def __init__(
        self,
        setup: Setup,
        *,
        latent_std: Positive = 0.3,
        prior_weight: NonNegative = 1e-2,
        warmup_steps: Natural = 2_000,
        **keywords: Any,
    ) -> None:
        entropy = 0.5 * math.log(2 * math.pi * math.e) + math.log(latent_std)
        super().__init__(setup, entropy_per_dimension=entropy, **keywords)
        self.prior_weight = prior_weight
        self.warmup_steps, self.warming = warmup_steps, False
        self.pace = replace(self.pace, warmup_steps=0)  # warm-ups are phases

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, encoder and temperature, and move the target critics."""
        return {**super().update(data), "stage": float(self.stage)}

    def make_actor(
        self, spec: PolicySpec, hidden: Sequence[int], layer_norm: bool, log_std_min: float
    ) -> UnboundedGaussianPolicy:
        """Return the encoder with fresh weights."""
        return UnboundedGaussianPolicy(
            spec, hidden=hidden, layer_norm=layer_norm, log_std_min=log_std_min
        )

    def continue_chunks(self, data: Batch) -> Tensor:
        """Return what the critics learn about: the latents ``[B, H, A]``, which nothing cuts."""
        return data.aux["latent"]

    def update_actor(self, raw_obs: Obs, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of encoder and temperature; return the loss and log-densities."""
        mean, log_std = self.actor.head(obs)
        latent, log_prob = gaussian_sample(mean, log_std, self.actor.sample_noise(len(obs)))
        value = self.critic(obs, latent)
        value = value.amin(0) if self.pessimistic_actor else value.mean(0)
        # Closed form of KL(N(mu, sigma^2) || N(0, 1)), summed over the latent's dimensions.
        each = 0.5 * (mean.square() + (2 * log_std).exp() - 1 - 2 * log_std)
        divergence = each.sum(dim=(-2, -1))
        actor_loss = (alpha * log_prob - value).mean() + self.prior_weight * divergence.mean()
        self.actor_optimizer.step(actor_loss)

        log_prob = log_prob.detach()
        temperature_loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(temperature_loss)
        return actor_loss, log_prob

    def encoder_phases(self, stage: int, steps: int) -> list[Phase]:
        """Return a warm-up and what follows it."""
        each = self.setup.num_envs * self.setup.spec.horizon
        warmup = min(self.warmup_steps, steps // 2) // each * each
        (learning,) = super().encoder_phases(stage, steps - warmup)
        if not warmup:
            return [learning]
        begin = partial(self.begin_warmup, stage)
        name, feed = f"warm-up {stage}", Feed.EXPERIENCE
        return [
            Phase(name, warmup, "steps", feed, None, begin=begin, fresh=stage > 0),
            replace(learning, begin=self.end_warmup, fresh=False),
        ]

    def begin_warmup(self, stage: int) -> None:
        """Begin a stage; latents are drawn from N(0, I)."""
        self.begin_stage(stage)
        self.warming = True

    def end_warmup(self) -> None:
        """Let the encoder act; episodes of the warm-up do not count for its score."""
        self.warming = False
        self.scores.begin()

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The latent, which is stored with its transition."""
        return {"latent": self.actor.noise_shape}

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Decode latents of N(0, I) in a warm-up, those of the encoder after it."""
        if warmup or self.warming:
            shape = (count(obs), *self.actor.noise_shape)
            latent = torch.randn(shape, device=first_leaf(obs).device)
        else:
            latent = self.actor.act(obs)
        return self.decode(obs, latent), {"latent": latent}

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly: nested tensors and numbers."""
        return {**super().state_dict(), "warming": self.warming}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``, so that learning continues exactly from it."""
        super().load_state_dict(state)
        self.warming = bool(state["warming"])
