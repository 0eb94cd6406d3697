"""ReinFlow: a flow policy tuned by PPO through learned noise.

Zhang et al., "ReinFlow: Fine-tuning Flow Matching Policy with Online Reinforcement Learning" (arXiv
2505.22094). Noise of a learned width makes each Euler step of a flow Gaussian, and the whole path a
chain with a density:

- step:    x_{k+1} ~ N(clip(x_k + v(x_k, t_k, s) / K, -1, 1), sigma(s, t_k)^2), with t_k = k / K and
           the noise cut at 3 sigma; sigma is a network's, for each entry, within bounds. The upper
           bound stays for ``noise_hold`` of the run and then falls by a cosine to 0.7 of itself and
           0.3 of the lower one
- density: log p of the path, from N(x_0; 0, I) on, its mean over all entries of executed actions
           and K + 1 points, cut to [-1, 1]: one ratio for a path, near 1, hence the small clip
- policy:  L = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A) - c_H mean entropy of a path, which
           is the sum of its steps' over K + 1
- value:   1/2 mean (V(s) - R)^2

The noise is learned with the velocity and dropped in what is judged: a flow from a random x_0.

Published settings: K = 4; gym: 40 environments x 500 decisions, each ten times an epoch with the
same loss, in minibatches of 50000, 5 epochs, so 20 steps a rollout (here as many with minibatches
of 5000); learning rates 4.5e-5 to 2e-5 and 6.5e-4 to 3e-4 by cosines; sigma from 0.10 to 0.24; c_H
0.03.

Deviations from the public code: times are k / K both when it acts and in the ratio (there: a grid
up to 1 when it acts, so that the ratio is not 1 before the first step); the density is that of the
last point before it is clipped (there: after it); what is judged is the flow as it samples, whose
points are not clipped on the way, as means are while it learns; learning rates stay; no weight
decay, no stop of an epoch by its KL, and no optional regulariser to the old flow; advantages end at
time limits, where V of the last observation counts (there: at terminations alone); returns are
scaled with the variance of all so far (there: a sample's, from a count of 1e-4 on); the noise's
network reads sines of the time (there: the policy's learned embedding); V has SiLU in place of Mish
and no residual blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from trimtab.algorithms.common.schedules import UpdateCount
from trimtab.algorithms.common.starts import make_trainable_start
from trimtab.observations import count
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.chains import FlowChain, NoiseNetwork, chain_noise, log_density
from trimtab.policies.networks.samplers import euler_steps
from trimtab.settings import Bounds, Count, NonNegative, Size
from trimtab.types import Metrics, Obs, Rollout

LIMIT = 1.0
"""Bound on the size of a path's mean log-density."""


class ReinFlow(RolloutActorCritic):
    """PPO on a flow with learned noise.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; a flow policy.
        noise_hidden: widths of the noise network's hidden layers.
        least_noise: lower bound of sigma.
        most_noise: upper bound of sigma, at first.
        noise_hold: share of the run after which the upper bound falls.
        decay_steps: environment steps of the run, for that, where a decision counts as a whole
            chunk; None: it does not fall.
        entropy_weight: c_H.
        common: settings of ``RolloutActorCritic``; ``clip`` is eps.
    """

    needs = Needs({"start"}, base_kind="flow")
    unsaved = frozenset({"chain"})  # it never changes
    revision = 2  # 1 took the mean of the K steps' entropies
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        noise_hidden: Sequence[Size] = (64, 64),
        least_noise: Annotated[float, Bounds(least=1e-6)] = 0.1,
        most_noise: Annotated[float, Bounds(least_of="least_noise")] = 0.24,
        noise_hold: Annotated[float, Bounds(least=0, most=1 - 1e-6)] = 0.35,
        decay_steps: Count | None = None,
        entropy_weight: NonNegative = 0.03,
        **common: Any,
    ) -> None:
        self.least_noise, self.most_noise, self.noise_hold = least_noise, most_noise, noise_hold
        self.decay_steps, self.entropy_weight = decay_steps, entropy_weight
        self.policy: FlowPolicy = make_trainable_start(self, setup, FlowPolicy)
        spec, network = self.policy.spec, self.policy.network
        self.noise = NoiseNetwork(
            spec.obs_dim, (spec.horizon, spec.action_dim), network.frequencies, noise_hidden
        ).to(setup.device)
        self.count = UpdateCount(setup.device)
        self.chain = FlowChain(euler_steps(self.policy.sampler), drift=False).to(setup.device)
        learned = [*network.parameters(), *self.noise.parameters()]
        super().__init__(setup, learned, points=self.chain.steps + 1, **common)

    def update(self, data: Rollout) -> Metrics:
        """Improve flow, noise and V on one rollout, in minibatches of paths."""
        samples = self.decisions(data, lambda obs, chain: self.density(obs, chain)[0])
        minibatches = minibatch_rows(
            len(samples), self.pace.batch_size, self.epochs, samples.obs.device
        )
        steps = [self.learn(samples[rows]) for rows in minibatches]
        self.updates += 1
        self.count.increase()
        return mean_metrics(steps)

    def learn(self, part: Decisions) -> dict[str, Tensor]:
        """Take one step of V and, after the warm-up, of flow and noise."""
        value_loss = 0.5 * (self.critic(part.obs).squeeze(-1) - part.target).square().mean()
        self.critic_optimizer.step(value_loss)
        nothing = torch.zeros_like(part.target)
        loss, log_ratio = nothing.sum(), nothing
        if self.branch:
            advantage = normalized(part.advantage)
            loss, log_ratio = self.surrogate_loss(part.obs, part.chain, part.old, advantage)
            self.actor_optimizer.step(loss)
        return surrogate_metrics(loss, value_loss, log_ratio, self.clip)

    def surrogate_loss(
        self, obs: Tensor, chain: Tensor, old: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the clipped surrogate of whole paths, less their entropy, and the log-ratios.

        Args:
            obs: normalised ``[M, O]``.
            chain: points of the paths, ``[M, K + 1, H, A]``.
            old: log-densities under the policy that acted, ``[M]``.
            advantage: ``[M]``.
        """
        log_density_now, entropy = self.density(obs, chain)
        log_ratio = log_density_now - old
        loss = clipped_surrogate(log_ratio, advantage, self.clip).mean()
        return loss - self.entropy_weight * entropy.mean(), log_ratio

    def density(self, obs: Tensor, chain: Tensor) -> tuple[Tensor, Tensor]:
        """Return each path's mean log-density, cut, and its entropy over K + 1, each ``[M]``."""
        rows, steps, executed = len(obs), self.chain.steps, self.act_steps
        # All steps of all paths in one pass: row m of step k is row m K + k.
        index = torch.arange(steps, device=obs.device).repeat(rows)
        condition = self.policy.network.condition(obs).repeat_interleave(steps, dim=0)
        here, there = chain[:, :-1].flatten(0, 1), chain[:, 1:].flatten(0, 1)
        time = self.chain.time(index)
        mean = self.chain.mean(here, self.policy.network(here, time, condition), index)
        std = self.noise(
            obs.repeat_interleave(steps, dim=0), time, self.least_noise, self.upper_bound()
        )
        mean, std, there = mean[:, :executed], std[:, :executed], there[:, :executed]
        moved = log_density(there, mean, std).mean((1, 2)).reshape(rows, steps)
        first = chain[:, 0, :executed]
        origin = log_density(first, torch.zeros_like(first), torch.ones_like(first)).mean((1, 2))
        found = (origin + moved.sum(1)) / (steps + 1)
        entropy = 0.5 * math.log(2 * math.pi * math.e) + std.log().mean((1, 2))
        return found.clamp(-LIMIT, LIMIT), entropy.reshape(rows, steps).sum(1) / (steps + 1)

    def upper_bound(self) -> float | Tensor:
        """Return the upper bound of sigma now, a scalar."""
        if self.decay_steps is None:
            return self.most_noise
        progress = (self.count() * self.steps_per_update / self.decay_steps).clamp(max=1.0)
        past = (progress - self.noise_hold).clamp(min=0.0) / (1 - self.noise_hold)
        end = 0.7 * self.most_noise + 0.3 * self.least_noise
        return end + (self.most_noise - end) * 0.5 * (1 + torch.cos(math.pi * past))

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return actions of noisy paths, and all points of these; there is no warm-up."""
        spec, normalizer = self.policy.spec, self.policy.normalizer
        vector, bound = normalizer.obs(obs), self.upper_bound()
        shape = (count(obs), self.points, spec.horizon, spec.action_dim)
        noise = chain_noise(shape, vector.device)
        condition = self.policy.network.condition(vector)
        points = [noise[:, 0]]
        for index in range(self.chain.steps):
            time = self.chain.time(index)
            velocity = self.policy.network(points[-1], time, condition)
            mean = self.chain.mean(points[-1], velocity, index)
            std = self.noise(vector, time, self.least_noise, bound)
            points.append(mean + std * noise[:, index + 1])
        action = normalizer.raw_action(points[-1])[:, : self.act_steps]
        return action, {"chain": torch.stack(points, dim=1)}
