"""Reward-weighted regression of a diffusion or flow policy.

Peters and Schaal, "Reinforcement Learning by Reward-Weighted Regression for Operational Space
Control" (ICML 2007), as DPPO's baseline DRWR does it: Ren et al., "Diffusion Policy Policy
Optimization" (arXiv 2409.00588), appendix, and its public code's ``train_rwr_diffusion_agent``:

- return:  G_t = r_t + gamma G_{t+1}, over decisions whose episode ended within the rollout
- weight:  w = min(exp(beta z), w_max), z = (G - mean) / (std + 0.001) over these decisions
- policy:  L = mean [w |eps_theta(x_k, k, s) - eps|^2], the policy's own imitation loss of what it
           did, several passes of minibatches over each rollout

It acts by chains with noise of at least ``sampling_floor`` in each step (a flow: as it samples).

Published settings (gym): 40 environments of 500 decisions, minibatches of 1000, 16 epochs, beta 10,
w_max 100, learning rate 1e-4.

Deviations from the public code: an implicit sampler is tuned, too, with noise of eta 1 (there:
ancestral samplers alone); an episode that began in the rollout before counts from there on where it
goes on (there: it is left out). Rollouts should be longer than episodes: of a decision that is more
than ``rollout_steps`` before its episode's end, nothing is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.starts import any_start_of
from trimtab.algorithms.common.weighting import NoisyPlans, weighted_bc_loss
from trimtab.observations import tree_map
from trimtab.settings import Bounds, Count, NonNegative
from trimtab.types import Batch, Metrics, Obs, Rollout


class DiffusionRWR(Algorithm):
    """Reward-weighted regression on the policy's own rollouts.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; a policy that can be cloned.
        beta: how much a better return counts.
        most_weight: w_max.
        sampling_floor: least standard deviation of a denoising step when it acts.
        learning_rate: Adam's.
        rollout_steps: decisions of each environment between updates; more than an episode has.
        batch_size: decisions in a minibatch.
        epochs: passes over each rollout.
    """

    needs = Needs({"start"}, next_observations=False)
    revision = 2  # 1 drew decisions whose episode had not ended, too, and gave them no weight

    def __init__(
        self,
        setup: Setup,
        *,
        beta: NonNegative = 10.0,
        most_weight: Annotated[float, Bounds(least=1)] = 100.0,
        sampling_floor: NonNegative = 0.1,
        learning_rate: float = 1e-4,
        rollout_steps: Count = 64,
        batch_size: Count = 128,
        epochs: Count = 16,
    ) -> None:
        self.beta, self.most_weight = beta, most_weight
        self.pace = Pace(batch_size, rollout_steps=rollout_steps)
        self.epochs = epochs
        self.act_steps = setup.spec.horizon
        self.policy = any_start_of(setup)
        self.plans = NoisyPlans(self.policy, sampling_floor)
        self.optimizer = Adam(self.policy.parameters(), learning_rate)

    def update(self, data: Rollout) -> Metrics:
        """Clone the rollout's decisions by their returns."""
        self.updates += 1
        ended = data.ended
        if not len(ended):  # no episode ended, so nothing is known of any decision
            nothing = torch.zeros((), device=data.reward.device)
            return dict.fromkeys(("bc_loss", "weight", "return", "ended"), nothing)
        returns = returns_to_go(data).flatten()[ended]
        found, weight = self.batch(data, returns, ended), self.weights(returns)
        size = min(self.pace.batch_size, len(found))
        losses = []
        for _ in range(self.epochs):
            order = torch.randperm(len(found), device=returns.device)
            for first in range(0, len(found) - size + 1, size):
                rows = order[first : first + size]
                loss = weighted_bc_loss(self.policy, taken(found, rows), weight[rows])
                self.optimizer.step(loss)
                losses.append(loss.detach())
        return {
            "bc_loss": torch.stack(losses).mean(),
            "weight": weight.mean(),
            "return": returns.mean(),
            "ended": torch.full_like(losses[0], len(ended) / len(data)),
        }

    def weights(self, returns: Tensor) -> Tensor:
        """Return a weight for each return."""
        scaled = (returns - returns.mean()) / (returns.std(correction=0) + 1e-3)
        return (self.beta * scaled).exp().clamp(max=self.most_weight)

    def batch(self, data: Rollout, returns: Tensor, ended: Tensor) -> Batch:
        """Return the decisions with the given numbers, whose episodes ended, as one batch."""
        plan = data.aux["plan"].flatten(0, 1)[ended]
        flat = tree_map(lambda part: part.flatten(0, 1)[ended], data.obs)
        return Batch(
            obs=flat,
            action=plan,
            reward=returns,
            next_obs=flat,
            discount=torch.zeros_like(returns),
            valid=torch.ones(plan.shape[:2], dtype=torch.bool, device=plan.device),
        )

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return noisy plans' first actions; there is no warm-up."""
        plan = self.plans.draw(obs)
        return plan[:, : self.act_steps], {"plan": plan}

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The whole plan, of which a part was executed."""
        return {"plan": (self.policy.spec.horizon, self.policy.spec.action_dim)}


def returns_to_go(data: Rollout) -> Tensor:
    """Return discounted rewards to the end of each episode, or of the rollout, ``[T, N]``.

    Nothing is bootstrapped at a time limit.
    """
    going = ~data.cut
    total = torch.zeros_like(data.reward[0])
    returns = []
    for step in range(len(data.reward) - 1, -1, -1):
        total = data.reward[step] + data.discount[step] * going[step] * total
        returns.append(total)
    return torch.stack(returns[::-1])


def taken(batch: Batch, rows: Tensor) -> Batch:
    """Return some of a batch's rows."""
    obs = tree_map(lambda part: part[rows], batch.obs)
    return Batch(
        obs=obs,
        action=batch.action[rows],
        reward=batch.reward[rows],
        next_obs=obs,
        discount=batch.discount[rows],
        valid=batch.valid[rows],
    )
