"""Advantage-weighted regression of a diffusion or flow policy.

Peng et al., "Advantage-Weighted Regression: Simple and Scalable Off-Policy Reinforcement Learning"
(arXiv 1910.00177), with the imitation loss of a generative policy as in DPPO's baseline DAWR (Ren
et al., "Diffusion Policy Policy Optimization", arXiv 2409.00588):

- value:      L_V = 1/2 mean (V(s) - y)^2,  y = lambda R + (1 - lambda) (r + gamma (1 - d) V(s')),
              with R what was really collected to the episode's end
- advantage:  A = y - V(s), after V's step, with mean 0 and deviation 1 in each batch
- policy:     L = mean [min(exp(beta A), w_max) |eps_theta(x_k, k, s) - eps|^2]

Decisions are replayed, its own and where ``offline_share`` says so demonstrations. It acts by
chains with noise of at least ``sampling_floor`` in each step (a flow: as it samples).

Published settings (gym): beta 10, w_max 100, learning rates 1e-4 and 1e-3, a buffer of 5000 steps
of 40 environments, batches of 1000, each decision replayed 64 times, by V 16 times (here by both as
often as a batch is large, for one update a decision).

Deviations: y mixes the two ends of TD(lambda) (there: all between), because decisions are replayed
one by one; a time limit counts as an end in R; V learns in every update of the policy (there: in
each fourth, all of them first); rewards are the task's own (there: a hundredth of them in gym); the
public code draws the decisions that train V from the oldest part of its buffer only, which is not
followed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import as_plans
from trimtab.algorithms.common.starts import any_start_of
from trimtab.algorithms.common.weighting import NoisyPlans, advantage_weight, weighted_bc_loss
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, Natural, NonNegative, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics, Obs


class DiffusionAWR(Algorithm):
    """Advantage-weighted regression on replayed decisions.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; a policy that can be cloned.
        beta: how much a better advantage counts.
        most_weight: w_max.
        return_decay: lambda.
        sampling_floor: least standard deviation of a denoising step when it acts.
        hidden: widths of V's hidden layers.
        learning_rate: Adam's, for the policy.
        critic_learning_rate: Adam's, for V.
        batch_size: decisions in one update.
        warmup_steps: environment steps before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"start"})
    batch_spec = BatchSpec(mc_return=True)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        beta: NonNegative = 10.0,
        most_weight: Annotated[float, Bounds(least=1)] = 100.0,
        return_decay: Share = 0.95,
        sampling_floor: NonNegative = 0.1,
        hidden: Sequence[Size] = (256, 256, 256),
        learning_rate: NonNegative = 1e-4,
        critic_learning_rate: NonNegative = 1e-3,
        batch_size: Annotated[int, Bounds(least=2)] = 256,
        warmup_steps: Natural = 4_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.beta, self.most_weight, self.return_decay = beta, most_weight, return_decay
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.act_steps = setup.spec.horizon
        self.policy = any_start_of(setup)
        self.plans = NoisyPlans(self.policy, sampling_floor)
        self.critic = mlp(self.policy.spec.obs_dim, hidden, 1, activation="silu").to(setup.device)
        self.optimizer = Adam(self.policy.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), critic_learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of V, then of the policy."""
        normalize = self.policy.normalizer.obs
        obs = normalize(data.obs)
        target = self.target(data, normalize(data.next_obs))
        value = self.critic(obs).squeeze(-1)
        value_loss = 0.5 * (value - target).square().mean()
        self.critic_optimizer.step(value_loss)

        with torch.no_grad():
            advantage = self.target(data, normalize(data.next_obs)) - self.critic(obs).squeeze(-1)
            weight = self.weights(advantage)
        plans = as_plans(data, self.policy.spec.horizon)
        loss = weighted_bc_loss(self.policy, plans, weight)
        self.optimizer.step(loss)
        return {
            "value_loss": value_loss.detach(),
            "value": value.detach().mean(),
            "bc_loss": loss.detach(),
            "weight": weight.mean(),
        }

    @torch.no_grad()
    def target(self, data: Batch, next_obs: Tensor) -> Tensor:
        """Return y ``[B]``."""
        assert data.mc_return is not None
        following = data.reward + data.discount * self.critic(next_obs).squeeze(-1)
        return torch.lerp(following, data.mc_return, self.return_decay)

    def weights(self, advantage: Tensor) -> Tensor:
        """Return the weights ``[B]`` of decisions by their advantages ``[B]``."""
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        return advantage_weight(scaled, self.beta, self.most_weight)

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return noisy plans' first actions, during warm-up as after it."""
        return self.plans.draw(obs)[:, : self.act_steps], {}
