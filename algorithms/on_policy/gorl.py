"""GoRL: proximal policy optimisation of a latent, and a generative decoder refitted in stages.

"GoRL: An Algorithm-Agnostic Framework for Online Reinforcement Learning with Generative Policies"
(arXiv 2512.02581), later "Training Diffusion Policies via Prior-Mapping Co-Evolution", at ICML 2026
"Generative Online Reinforcement Learning", with the public code. Optimisation is kept apart from
generation: a tractable encoder pi(z|s) is learned while the decoder g is frozen, a = tanh(g(s, z)).
``trimtab.algorithms.common.latent_stages`` says what happens in a stage. The encoder learns by

- policy:  L_pi = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = pi(z|s) / pi_old(z|s)
                  + c (mean mu^2 + mean sigma^2) - c_H H(pi)
- value:   L_V = c_V mean (V(s) - R)^2

with A of generalised advantage estimation, normalised; H is the Gaussian's, without a term of the
tanh. The regulariser acts on the encoder's mean and width, not on samples. eps, c and the bound on
the gradient's norm are those of the paper: 0.15, 5e-4 and 0.5 in stage 0, later 0.3, 1e-3 and 1.

An adaptation (``faithful`` is False). Deviations from the public code:

- collected steps are steps of the run (there: not counted, 20 million in front of each refit);
- what collects is the encoder of the moment at which the last ``score_episodes`` training episodes
  of the stage had the highest mean return (there: the checkpoint with the best evaluation). This
  costs no steps, is of sampled latents and lags behind; the earliest score is of so many episodes;
- the encoder's width does not depend on the state, and it begins at 1, its mean near 0 (there: a
  softplus of a network); networks 64x2 tanh (there: 32x4 SiLU, V 256x5) and PPO's settings are
  those of this repository for a few environments on a processor (there: 2,048 on a GPU, learning
  rate 1e-3, 16 updates for each batch, rewards times 10: here divided by their running scale);
- a fresh encoder comes with a fresh V, optimiser and running statistics of observations and
  returns; episodes that are under way go on;
- the decoder is a policy of any kind with an imitation loss, and learns by that with one random
  draw for each action in each update (there: 8). For ``policy=flow``: x_t = (1 - t) eps + t x, so
  that t = 1 is the action (there: t = 0), uniform t, Euler steps. ``policy=diffusion``: DDIM. Its
  networks and steps are those of ``policy.*``;
- the decoder reads observations standardised by what was collected, and x in units of its range
  (there: x as it is), as the samplers of diffusion clip there;
- 2,000 updates on 256 rows for a refit (there: 50 epochs, 8,192 rows); z and x are clipped at 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.latent_stages import LatentStages
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.observations import count
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.settings import NonNegative, Positive
from trimtab.types import Metrics, Obs, Rollout


class GoRL(LatentStages, PPO):
    """Proximal policy optimisation over the latents of a decoder that is refitted in stages.

    Args:
        setup: needs ``policy``, the kind of the decoder.
        clip: eps of stage 0.
        later_clip: eps of later stages.
        prior_weight: c of stage 0.
        later_prior_weight: c of later stages.
        max_gradient_norm: bound on the norm of all gradients together, in stage 0.
        later_max_gradient_norm: the same in later stages.
        entropy_weight: c_H.
        value_weight: c_V.
        keywords: those of ``LatentStages`` and of PPO.
    """

    faithful = False
    capturable = True
    learner = PPO
    actor: DiagonalGaussianPolicy

    def __init__(
        self,
        setup: Setup,
        *,
        clip: Positive = 0.15,
        later_clip: Positive = 0.3,
        prior_weight: NonNegative = 5e-4,
        later_prior_weight: NonNegative = 1e-3,
        max_gradient_norm: Positive = 0.5,
        later_max_gradient_norm: Positive = 1.0,
        entropy_weight: NonNegative = 0.01,
        value_weight: NonNegative = 0.25,
        **keywords: Any,
    ) -> None:
        first = (clip, prior_weight, max_gradient_norm)
        self.by_stage = (first, (later_clip, later_prior_weight, later_max_gradient_norm))
        super().__init__(
            setup, clip=clip, max_gradient_norm=max_gradient_norm, entropy_weight=entropy_weight,
            value_weight=value_weight, **keywords,
        )  # fmt: skip
        self.apply_stage()

    def apply_stage(self) -> None:
        """Set eps, c and the bound on the gradient's norm."""
        self.clip, self.prior_weight, norm = self.by_stage[self.stage > 0]
        self.optimizer.max_gradient_norm = norm

    def update(self, data: Rollout) -> Metrics:
        """Improve encoder and V on one rollout, then let the encoder's normaliser see it."""
        return {**super().update(data), "stage": float(self.stage)}

    def policy_loss(self, part: Samples, mean: Tensor, log_prob: Tensor) -> Tensor:
        """Return the clipped surrogate and the pull of mean and width to 0."""
        variance = (2 * self.actor.log_std).exp()
        pull = mean.square().mean() + variance.mean()
        return super().policy_loss(part, mean, log_prob) + self.prior_weight * pull

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Decode sampled latents; return these as they were before the clip."""
        unclipped = self.actor.unclipped(obs, self.actor.sample_noise(count(obs)))
        latent = self.actor.normalizer.raw_action(unclipped)
        return self.decode(obs, latent), {"unclipped": unclipped}
