"""OGPO: PPO inside the denoising chain, by an off-policy critic.

Patil et al., "OGPO: Sample Efficient Full-Finetuning of Generative Control Policies" (arXiv
2605.03065). A flow becomes a chain by noise in each of its K Euler steps, x_0 ~ N(0, I):

- chain:  mean_i = clip(x_i + v / K + sigma_i^2 s / 2, -1, 1) with the score s = (t v - x)/(1 - t),
          sigma_i = level sqrt(1 - t_i), noise cut at 3 sigma
- actor:  at replayed states, a group of chains of the slow actor (the old policy), whose advantages
          A are those of their ends under the critics, less the group's mean;
          L = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A), where log rho is the difference of
          the chains' log-densities divided by K + 1 and by the number of executed entries
- clone:  ``clone_weight`` times the flow-matching loss on decisions of successful episodes (OGPO+);
          on all of them before the first success
- critic: see ``group_actor_critic``; off-policy, one step after each of the actor

The paper's plain OGPO clones nothing: ``clone_weight=0``. With ``success=false`` the whole batch is
cloned. ``conservative`` is its conservative advantage. ``guard`` takes GRPO-Guard's ratio (arXiv
2510.22319) for each step of the chain, with the loss of each divided by how far its mean moves with
the network.

Published settings: 256 states in groups of 32, K = 10, ten critics of 512 x 4 with GELU, batches of
256, 10000 or more steps of warm-up, one update a step, learning rate 2e-5 to 4.5e-5 in cycles.

Deviations from the public code: a decision counts as successful if what it still collects, gathered
or recorded, is above ``success_return`` (there: a buffer of successful episodes, drawn from as much
as from all), which tells successes only where rewards are 0 and then positive; all is cloned until
the first one was seen; the drift is that which keeps the flow's marginals, but for the clip of the
means (there: K times less); the last point enters the density before it is clipped (there: after
it); candidates are ranked by the mean of the slow critics (there: the least of two random ones);
rewards inside a chunk are summed as they are, and the discount counts once a decision (there: both
by steps); learning rates stay; smaller networks and groups by default; no weight decay; windows do
not slide within chunks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.group_actor_critic import GroupActorCritic
from trimtab.algorithms.common.plans import as_plans
from trimtab.algorithms.common.rollouts import clipped_surrogate
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.stochastic_flow import StochasticFlowPolicy
from trimtab.policies.networks.chains import NOISE_LIMIT, guarded_log_ratio, log_density
from trimtab.settings import Bounds, NonNegative, Positive
from trimtab.types import Batch, BatchSpec, Obs


class OGPO(GroupActorCritic):
    """Off-policy generative policy optimisation.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; a flow policy.
        noise: how the chain's noise goes with time, as ``chains.FlowChain`` has it.
        noise_level: how large it is.
        clip: eps.
        clone_weight: weight of the clone's loss.
        success: whether successful decisions alone are cloned.
        success_return: what a successful decision still collects is above it.
        guard: whether ratios and gradients are normalised as in GRPO-Guard, step by step.
        common: settings of ``GroupActorCritic``.
    """

    unsaved = frozenset({"sampler"})  # a part of the policy
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        noise: Literal["tapered", "constant", "odds"] = "tapered",
        noise_level: Annotated[float, Bounds(least=1e-6)] = 0.05,
        clip: Positive = 0.01,
        clone_weight: NonNegative = 1.0,
        success: bool = True,
        success_return: Annotated[float, Bounds(least=-1e9, most=1e9)] = 0.0,
        guard: bool = False,
        **common: Any,
    ) -> None:
        self.noise, self.noise_level, self.clip = noise, noise_level, clip
        self.clone_weight, self.guard = clone_weight, guard
        self.success, self.success_return = success, success_return
        self.batch_spec = BatchSpec(mc_return=success and clone_weight > 0)
        super().__init__(setup, **common)
        self.seen = Seen().to(setup.device)

    def actor_loss(self, data: Batch, rows: Obs, noise: Tensor) -> dict[str, Tensor]:
        """Return PPO's loss over fresh chains of the slow actor, and the clone's."""
        with torch.no_grad():
            points = torch.stack(self.sampler.points(rows, noise), dim=1)
            chunk = self.policy.normalizer.raw_action(points[:, -1])
        advantage = self.advantage(rows, chunk)
        loss, log_ratio = self.surrogate(rows, points, noise, advantage)
        found = {
            "policy_loss": loss,
            "advantage": advantage.abs().mean(),
            "clip_share": ((log_ratio.exp() - 1).abs() > self.clip).float().mean(),
        }
        if not self.clone_weight:
            return {"actor_loss": loss, **found}
        clone_loss = self.actor.bc_loss(as_plans(self.cloned(data), self.actor.spec.horizon))
        total = loss + self.clone_weight * clone_loss
        return {"actor_loss": total, "clone_loss": clone_loss, **found}

    def surrogate(
        self, rows: Obs, points: Tensor, noise: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the clipped surrogate of chains, and their log-ratios ``[B]`` or ``[B, K]``.

        Args:
            rows: observations of B chains.
            points: all points, ``[B, K + 1, H, A]``.
            noise: of the proposer, which led there.
            advantage: ``[B]``.
        """
        chain, network, executed = self.sampler.chain, self.actor.network, slice(self.act_steps)
        steps, count = chain.steps, len(points)
        # All steps of all chains in one pass: row b of step k is row b K + k.
        index = torch.arange(steps, device=points.device).repeat(count)
        condition = network.condition(self.actor.normalizer.obs(rows))
        condition = condition.repeat_interleave(steps, dim=0)
        here, there = points[:, :-1].flatten(0, 1), points[:, 1:].flatten(0, 1)
        mean = chain.mean(here, network(here, chain.time(index), condition), index)[:, executed]
        value, std = there[:, executed], chain.std(index)
        drawn = noise[:, 1:].flatten(0, 1)[:, executed].clamp(-NOISE_LIMIT, NOISE_LIMIT)
        old_mean = value - std * drawn
        if self.guard:
            log_ratio = guarded_log_ratio(value, mean, old_mean, std).reshape(count, steps)
            weight = 1 / chain.sensitivity
            loss = clipped_surrogate(log_ratio, advantage[:, None], self.clip)
            return (loss * (weight / weight.mean())).mean(), log_ratio
        moved = log_density(value, mean, std) - log_density(value, old_mean, std)
        # The density of x_0 is the same under both and counts in the mean alone.
        log_ratio = moved.mean((1, 2)).reshape(count, steps).sum(1) / (steps + 1)
        return clipped_surrogate(log_ratio, advantage, self.clip).mean(), log_ratio

    def cloned(self, data: Batch) -> Batch:
        """Return the batch with what is not to be cloned marked as not valid."""
        if not self.success:
            return data
        assert data.mc_return is not None
        good = data.mc_return > self.success_return
        self.seen.success.logical_or_(good.any())
        kept = good | ~self.seen.success
        return replace(data, valid=data.valid & kept[:, None], whole=False)

    def proposer(self, slow: FlowPolicy) -> StochasticFlowPolicy:
        """Return the slow actor as a chain."""
        self.sampler = StochasticFlowPolicy(slow, noise=self.noise, level=self.noise_level)
        return self.sampler


class Seen(nn.Module):
    """Whether a batch has had a success."""

    success: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("success", torch.zeros((), dtype=torch.bool))
