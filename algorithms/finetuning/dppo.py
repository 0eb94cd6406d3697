"""DPPO: policy gradients through the denoising steps of a diffusion policy.

Ren et al., "Diffusion Policy Policy Optimization" (arXiv 2409.00588). Each denoising step is a
Gaussian action of its own, ``p(x_{i+1} | x_i, s) = N(mu(x_i, i, s), sigma_i^2)``, in a decision
process of environment steps t and denoising steps i. A copy of the network is tuned in the last K'
steps; below, i = 0 is the first of these, the noisiest, and i = K' - 1 the last:

- advantage:  A_t by generalised advantage estimation over chunks, from V(s_t), normalised in each
              minibatch; A_{t,i} = gamma_den^(K' - 1 - i) A_t, so that noisier steps count less
- policy:     L = -mean_{t,i} min(rho A, clip(rho, 1 - eps_i, 1 + eps_i) A). The log-densities in
              log rho are cut to [-5, 2] entry by entry and averaged, not summed, over the executed
              actions; hence the small eps. eps_i rises from ``first_clip`` at i = 0 to ``clip`` at
              i = K' - 1, by an exponential of rate 3
- value:      L_V = 1/2 mean (V(s) - R)^2,  R = A_t + V(s_t) as computed before the update
- noise:      sigma_i is that of the sampler (ancestral, or implicit with eta 1), at least
              ``sampling_floor`` when it acts and ``likelihood_floor`` in the densities; the noise
              of a step is cut at 3 sigma. Evaluation has no floors, and an implicit sampler has
              eta 0 there

Minibatches are drawn from all pairs (t, i); in each, V takes its step first. Rewards are divided by
the running scale of returns.

``guard`` uses the ratio of GRPO-Guard (Wang et al., arXiv 2510.22319), whose logarithm has
expectation 0 and the same spread at every step. Each step's loss is divided by the sensitivity of
its mean to the network's output, so that no noise level dominates. ``clip`` must then be smaller.

It also learns from nothing: ``policy=diffusion`` without a base and without a dataset.
All steps are then tuned, and observations are normalised by running statistics of all that were
gathered, which change between rollouts only; actions have the task's limits.

Published settings (gym): 40 environments of 500 decisions, minibatches of 50000 pairs, 5 epochs,
10 of 20 ancestral steps tuned, learning rates 1e-4 and 1e-3, gamma 0.99 a chunk; robomimic: 50
environments of 300 to 400 decisions, minibatches of 7500 to 10000 pairs, 10 epochs, first_clip
0.001, V alone in the first 2 rollouts, gamma 0.999.

Deviations from the public code: a time limit ends the sum of advantages (there: only a true end
does); the scale of returns has the run's discount (there: 0.99) and the variance of all returns so
far (there: a sample's, from a count of 1e-4 on); no early stop at a KL of 1, which
hardly ever happens; V has SiLU in place of Mish, and no residual blocks; evaluation does not reset
the training environments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from trimtab.algorithms.common.starts import make_trainable_start
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
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Bounds, Count, Share
from trimtab.types import Metrics, Obs, Rollout

LOG_DENSITY_MIN, LOG_DENSITY_MAX = -5.0, 2.0
"""Each entry of a log-density is clamped to this range."""


@dataclass(frozen=True)
class Pairs:
    """M pairs (t, i) of a decision and one of its denoising steps."""

    decisions: Decisions
    step: Tensor  # [M] index i among the tuned steps, 0 for the noisiest

    def __len__(self) -> int:
        return len(self.step)


class DPPO(RolloutActorCritic):
    """Diffusion policy policy optimisation.

    Args:
        setup: needs ``base``, or ``policy`` with or without ``dataset``; a diffusion policy.
        tuned_steps: K', how many of the last steps are tuned; None: 10, or all if there are fewer,
            or if it learns from nothing.
        denoising_discount: gamma_den.
        first_clip: eps of the noisiest tuned step.
        sampling_floor: least standard deviation of a step when it acts.
        likelihood_floor: least standard deviation of a step in the densities.
        guard: whether ratios and gradients are normalised as in GRPO-Guard.
        common: settings of ``RolloutActorCritic``. ``batch_size`` counts pairs (t, i); ``clip`` is
            eps at the last step.
    """

    needs = Needs({"start"}, base_kind="diffusion", from_nothing=True)
    unsaved = frozenset({"sampling_chain", "likelihood_chain"})  # tables of constants
    capturable = True

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
        policy = make_trainable_start(self, setup, DiffusionPolicy)
        steps = len(with_steps(policy.sampler).timesteps)
        most = steps if setup.from_nothing else min(steps, 10)
        tuned = most if tuned_steps is None else tuned_steps
        if tuned > steps:
            raise TrimtabError(
                f"algorithm.tuned_steps={tuned}: must be at most {steps}, the policy's own steps"
            )
        # The parent's constructor reads self.policy.
        self.policy: TunedDiffusionPolicy = TunedDiffusionPolicy(
            policy, tuned_steps=tuned, normalize_observations=setup.from_nothing
        )
        self.policy.to(setup.device)
        learned = list(self.policy.tuned.parameters())
        super().__init__(setup, learned, points=tuned + 1, **common)
        sampler, device = policy.sampler, setup.device
        self.sampling_chain = DiffusionChain(sampler, floor=sampling_floor).to(device)
        self.likelihood_chain = DiffusionChain(sampler, floor=likelihood_floor).to(device)
        self.frozen_steps, self.guard, self.tuned_steps = self.policy.early, guard, tuned
        progress = torch.linspace(0, 1, tuned) if tuned > 1 else torch.ones(1)
        growth = (torch.exp(3.0 * progress) - 1) / (math.exp(3.0) - 1)
        self.step_clip = (first_clip + (self.clip - first_clip) * growth).to(device)
        self.step_discount = (denoising_discount ** torch.arange(tuned - 1, -1, -1.0)).to(device)
        weight = 1 / self.likelihood_chain.sensitivity[self.frozen_steps :]
        self.guard_weight = weight / weight.mean()

    def update(self, data: Rollout) -> Metrics:
        """Take gradient steps on policy and V over one rollout, in minibatches of pairs (t, i)."""
        # Advantages, targets of V, and the means under the policy that acted.
        samples = self.decisions(data, self.means_of_all_steps)
        pairs, device = len(samples) * self.tuned_steps, samples.obs.device
        metrics = []
        for rows in minibatch_rows(pairs, self.pace.batch_size, self.epochs, device):
            decision = torch.div(rows, self.tuned_steps, rounding_mode="floor")
            metrics.append(self.learn(Pairs(samples[decision], rows % self.tuned_steps)))
        if isinstance(self.policy.normalizer, RunningNormalizer):
            self.policy.normalizer.see(data.obs)
        self.updates += 1
        return mean_metrics(metrics)

    def learn(self, pairs: Pairs) -> dict[str, Tensor]:
        """Take one step of V and, after the warm-up, of the policy."""
        batch, index = pairs.decisions, pairs.step
        # V depends on s alone, so all pairs of a chain share one value.
        value_loss = 0.5 * (self.critic(batch.obs).squeeze(-1) - batch.target).square().mean()
        self.critic_optimizer.step(value_loss)
        log_ratio = torch.zeros_like(batch.target)  # while V alone learns
        loss = log_ratio.sum()
        if self.branch:
            batch = replace(batch, advantage=normalized(batch.advantage))
            loss, log_ratio = self.surrogate_loss(batch, index)
            self.actor_optimizer.step(loss)
        return surrogate_metrics(loss, value_loss, log_ratio, self.step_clip[index])

    def surrogate_loss(self, batch: Decisions, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clipped surrogate of pairs (t, i), a scalar, and the log-ratios ``[M]``.

        Args:
            batch: M decisions, their advantages normalised.
            index: index of each row's step among the tuned ones, 0 for the noisiest, ``[M]``.
        """
        rows, executed = torch.arange(len(index), device=index.device), slice(self.act_steps)
        reached = batch.chain[rows, index + 1][:, executed]
        old_mean = batch.old[rows, index][:, executed]
        mean = self.means(batch.obs, batch.chain[rows, index], index)[:, executed]
        std = self.likelihood_chain.std(index + self.frozen_steps)
        if self.guard:
            log_ratio = guarded_log_ratio(reached, mean, old_mean, std)
        else:
            new = (
                log_density(reached, mean, std).clamp(LOG_DENSITY_MIN, LOG_DENSITY_MAX).mean((1, 2))
            )
            old = (
                log_density(reached, old_mean, std)
                .clamp(LOG_DENSITY_MIN, LOG_DENSITY_MAX)
                .mean((1, 2))
            )
            log_ratio = new - old
        advantage, clip = batch.advantage * self.step_discount[index], self.step_clip[index]
        loss = clipped_surrogate(log_ratio, advantage, clip)
        if self.guard:
            loss = loss * self.guard_weight[index]
        return loss.mean(), log_ratio

    def means(self, obs: Tensor, point: Tensor, index: Tensor) -> Tensor:
        """Return the mean of the next point ``[M, H, A]`` under the tuned network.

        Args:
            obs: normalised ``[M, O]``.
            point: current point of each chain, ``[M, H, A]``.
            index: index of each row's step among the tuned ones, ``[M]``.
        """
        network, step = self.policy.tuned, index + self.frozen_steps
        prediction = network(point, self.likelihood_chain.time(step), network.condition(obs))
        return self.likelihood_chain.mean(point, prediction, step)

    def means_of_all_steps(self, obs: Tensor, chain: Tensor) -> Tensor:
        """Return the means of all tuned steps under the current network, ``[M, K', H, A]``."""
        steps = torch.arange(self.tuned_steps, device=obs.device)
        means = [
            self.means(obs, chain[:, i], step.expand(len(obs))) for i, step in enumerate(steps)
        ]
        return torch.stack(means, dim=1)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions, and the points of the tuned steps; there is no warm-up."""
        spec, normalizer = self.policy.spec, self.policy.normalizer
        shape = (count(obs), self.sampling_chain.steps + 1, spec.horizon, spec.action_dim)
        noise = chain_noise(shape, normalizer.obs_shift.device)
        points = walk(self.sampling_chain, self.policy.predictor(obs, self.sampling_chain), noise)
        action = normalizer.raw_action(points[-1])[:, : self.act_steps]
        return action, {"chain": torch.stack(points[self.frozen_steps :], dim=1)}
