"""DPPO: policy gradients through the denoising steps of a diffusion policy.

Ren et al., "Diffusion Policy Policy Optimization" (arXiv 2409.00588). Each denoising step is a
Gaussian action of its own, ``p(x_{i+1} | x_i, s) = N(mu(x_i, i, s), sigma_i^2)``, in a decision
process of environment steps t and denoising steps i. The last K' steps are tuned, on a copy:

- advantage:  A_t by generalised advantage estimation over chunks, from V(s_t); a denoising step has
              A_{t,i} = gamma_den^(K' - 1 - i) A_t, so that noisier steps count less
- policy:     L = -mean_{t,i} min(rho A, clip(rho, 1 - eps_i, 1 + eps_i) A), where log rho is the
              difference of log-densities, of which each entry is cut to [-5, 2] and the mean is
              taken over the executed actions; hence the small eps. eps_i grows from ``first_clip``
              at the noisiest tuned step to ``clip`` at the last one, by an exponential of rate 3
- value:      L_V = 1/2 mean (V(s) - R)^2
- noise:      sigma_i is that of the sampler (ancestral, or implicit with eta 1), but at least
              ``sampling_floor`` when it acts, and ``likelihood_floor`` in the densities; steps'
              noise is cut at 3 sigma. What is judged has no floors, and eta 0

Minibatches are drawn from all pairs (t, i). Rewards are divided by the running scale of returns.

``guard`` replaces the ratio by GRPO-Guard's (Wang et al., arXiv 2510.22319): its logarithm has
expectation 0 and the same spread at every step, and each step's loss is divided by how far its mean
moves with the network, so that no noise level dominates; it then needs a smaller ``clip``.

Published settings (gym): 40 environments of 500 decisions, minibatches of 50000 pairs, 5 epochs,
10 of 20 ancestral steps tuned, learning rates 1e-4 and 1e-3, gamma 0.99 a chunk; robomimic: 50 x
300-400, 7500-10000 pairs, 10 epochs, first_clip 0.001, 2 rollouts for V alone, gamma 0.999.

Deviations from the public code: a time limit ends the sum of advantages (there: only a true end
does); the scale of returns has the run's discount (there: 0.99); no early stop at a KL of 1, which
hardly ever happens; V has SiLU in place of Mish, and no residual blocks; evaluation does not reset
the environments that gather.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.common.rollouts import (
    Decisions,
    RolloutActorCritic,
    clipped_surrogate,
    mean_metrics,
    minibatch_rows,
    surrogate_metrics,
)
from trimtab.algorithms.common.starts import start_of
from trimtab.errors import TrimtabError
from trimtab.observations import count
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.tuned_diffusion import TunedDiffusionPolicy
from trimtab.policies.networks.chains import (
    DiffusionChain,
    chain_noise,
    guarded_log_ratio,
    log_density,
    walk,
)
from trimtab.policies.networks.samplers import with_steps
from trimtab.settings import Bounds, Count, Share
from trimtab.types import Metrics, Obs, Rollout

LOWEST, HIGHEST = -5.0, 2.0
"""Limits of each entry's log-density."""


class DPPO(RolloutActorCritic):
    """Diffusion policy policy optimisation.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; a diffusion policy.
        tuned_steps: K', how many of the last denoising steps are tuned; None: all, but at most 10.
        denoising_discount: gamma_den.
        first_clip: eps of the noisiest tuned step.
        sampling_floor: least standard deviation of a step when it acts.
        likelihood_floor: least standard deviation of a step in the densities.
        guard: whether ratios and gradients are normalised as in GRPO-Guard.
        common: settings of ``RolloutActorCritic``; ``batch_size`` counts pairs, ``clip`` is eps of
            the last step.
    """

    needs = Needs({"start"}, base_kind="diffusion")
    unsaved = frozenset({"acting", "chain"})  # they never change

    def __init__(
        self,
        setup: Setup,
        *,
        tuned_steps: Count | None = None,
        denoising_discount: Share = 0.99,
        first_clip: Annotated[float, Bounds(above=0, most_of="clip")] = 0.01,
        sampling_floor: Annotated[float, Bounds(least=1e-6)] = 0.1,
        likelihood_floor: Annotated[float, Bounds(least=1e-6)] = 0.1,
        guard: bool = False,
        **common: Any,
    ) -> None:
        start = start_of(self, setup, DiffusionPolicy)
        steps = len(with_steps(start.sampler).timesteps)
        tuned = min(steps, 10) if tuned_steps is None else tuned_steps
        if tuned > steps:
            raise TrimtabError(
                f"algorithm.tuned_steps={tuned}: must be at most {steps}, the policy's own steps"
            )
        self.policy: TunedDiffusionPolicy = TunedDiffusionPolicy(start, tuned_steps=tuned)
        self.policy.to(setup.device)
        learned = list(self.policy.tuned.parameters())
        super().__init__(setup, learned, points=tuned + 1, **common)
        sampler, device = start.sampler, setup.device
        self.acting = DiffusionChain(sampler, floor=sampling_floor).to(device)
        self.chain = DiffusionChain(sampler, floor=likelihood_floor).to(device)
        self.early, self.guard, self.tuned_steps = self.policy.early, guard, tuned
        share = torch.linspace(0, 1, tuned) if tuned > 1 else torch.ones(1)
        growth = (torch.exp(3.0 * share) - 1) / (math.exp(3.0) - 1)
        self.clips = (first_clip + (self.clip - first_clip) * growth).to(device)
        self.shares = (denoising_discount ** torch.arange(tuned - 1, -1, -1.0)).to(device)
        weight = 1 / self.chain.sensitivity[self.early :]
        self.weights = weight / weight.mean()

    def update(self, data: Rollout) -> Metrics:
        """Improve chain and V on one rollout, in minibatches of all pairs (t, i)."""
        samples = self.decisions(data, self.old_means)
        pairs, device = len(samples) * self.tuned_steps, samples.obs.device
        steps = []
        for rows in minibatch_rows(pairs, self.pace.batch_size, self.epochs, device):
            decision = torch.div(rows, self.tuned_steps, rounding_mode="floor")
            part, item = samples[decision], rows % self.tuned_steps
            # V knows the environment's state alone, so one value counts for a whole chain.
            value_loss = 0.5 * (self.critic(part.obs).squeeze(-1) - part.target).square().mean()
            self.critic_optimizer.step(value_loss)
            nothing = torch.zeros_like(part.target)
            loss, log_ratio = nothing.sum(), nothing
            if self.updates >= self.critic_warmup:
                part = replace(part, advantage=normalized(part.advantage))
                loss, log_ratio = self.surrogate_loss(part, item)
                self.actor_optimizer.step(loss)
            steps.append(surrogate_metrics(loss, value_loss, log_ratio, self.clips[item]))
        self.updates += 1
        return mean_metrics(steps)

    def surrogate_loss(self, part: Decisions, item: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clipped surrogate of pairs (t, i), a scalar, and the log-ratios ``[M]``.

        Args:
            part: M decisions, their advantages normalised.
            item: number of each row's tuned step, 0 for the noisiest, ``[M]``.
        """
        rows, executed = torch.arange(len(item), device=item.device), slice(self.act_steps)
        value = part.chain[rows, item + 1][:, executed]
        old_mean = part.old[rows, item][:, executed]
        mean = self.means(part.obs, part.chain[rows, item], item)[:, executed]
        std = self.chain.std(item + self.early)
        if self.guard:
            log_ratio = guarded_log_ratio(value, mean, old_mean, std)
        else:
            new = log_density(value, mean, std).clamp(LOWEST, HIGHEST).mean((1, 2))
            old = log_density(value, old_mean, std).clamp(LOWEST, HIGHEST).mean((1, 2))
            log_ratio = new - old
        advantage, clip = part.advantage * self.shares[item], self.clips[item]
        loss = clipped_surrogate(log_ratio, advantage, clip)
        if self.guard:
            loss = loss * self.weights[item]
        return loss.mean(), log_ratio

    def means(self, obs: Tensor, point: Tensor, item: Tensor) -> Tensor:
        """Return the mean of the next point ``[M, H, A]`` under the tuned network.

        Args:
            obs: normalised ``[M, O]``.
            point: where each chain is, ``[M, H, A]``.
            item: number of each row's tuned step, ``[M]``.
        """
        network, index = self.policy.tuned, item + self.early
        prediction = network(point, self.chain.time(index), network.condition(obs))
        return self.chain.mean(point, prediction, index)

    def old_means(self, obs: Tensor, chain: Tensor) -> Tensor:
        """Return the means of all tuned steps, ``[M, K', H, A]``."""
        steps = torch.arange(self.tuned_steps, device=obs.device)
        found = [
            self.means(obs, chain[:, i], step.expand(len(obs))) for i, step in enumerate(steps)
        ]
        return torch.stack(found, dim=1)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return actions of noisy chains, and the tuned part of these; there is no warm-up."""
        spec, normalizer = self.policy.spec, self.policy.normalizer
        shape = (count(obs), self.acting.steps + 1, spec.horizon, spec.action_dim)
        noise = chain_noise(shape, normalizer.obs_shift.device)
        points = walk(self.acting, self.policy.predictor(obs, self.acting), noise)
        action = normalizer.raw_action(points[-1])[:, : self.act_steps]
        return action, {"chain": torch.stack(points[self.early :], dim=1)}
