"""What methods have in common that improve an actor on groups of its own samples by a critic.

The critic is learned off-policy from replay. At replayed observations a slow copy of the actor
draws a group of fresh chunks; how the critic ranks them is all that the actor learns from, so that
nothing of what it once did has to be stored but actions (Patil et al., "OGPO", arXiv 2605.03065):

- critic:     y = r + gamma (1 - d) mean_m Q'_m(s', a'), with a' one sample of the slow actor
              L_Q = sum_m mean (Q_m(s, a) - y)^2
- advantage:  A_i = mean_m Q'_m(s, a_i) - its mean over the group; or, conservative: the least of
              the heads' own advantages where all are above 0, the largest where all are below, else
              0
- acting:     the best of several samples of the slow actor by the mean of the slow heads Q'
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import continued
from trimtab.algorithms.common.starts import make_trainable_start
from trimtab.algorithms.common.targets import polyak
from trimtab.observations import tree_map
from trimtab.policies.base import Policy
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.settings import Bounds, Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class GroupActorCritic(Algorithm):
    """A flow policy that learns from how a critic ranks groups of its samples.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; a flow policy.
        states: replayed observations of one update of the actor.
        group: samples at each of them.
        candidates: samples among which the critic chooses when acting.
        conservative: whether advantages are the conservative ones.
        hidden: widths of the critics' hidden layers.
        layer_norm: normalise after each hidden layer of the critics.
        critics: number of Q functions.
        learning_rate: Adam's, for the actor.
        critic_learning_rate: Adam's, for the critics.
        batch_size: transitions in one update of the critics.
        tau: Polyak rate of the slow critics.
        actor_tau: Polyak rate of the slow actor.
        warmup_steps: environment steps of the start itself before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"start"}, base_kind="flow")
    unsaved = frozenset({"slow"})  # a part of the policy

    def __init__(
        self,
        setup: Setup,
        *,
        states: Size = 32,
        group: Annotated[int, Bounds(least=2)] = 8,
        candidates: Size = 8,
        conservative: bool = False,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = True,
        critics: Size = 10,
        learning_rate: NonNegative = 4.5e-5,
        critic_learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.05,
        actor_tau: Share = 0.005,
        warmup_steps: Natural = 4_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.states, self.group, self.conservative = states, group, conservative
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau, self.actor_tau = tau, actor_tau
        self.act_steps = setup.spec.horizon  # the start may plan further than is executed
        self.actor = make_trainable_start(self, setup, FlowPolicy)
        self.slow = copy.deepcopy(self.actor).requires_grad_(False).eval()
        # What is judged holds all that is slow: actor and critics.
        self.policy: BestOfPolicy = BestOfPolicy(
            self.proposer(self.slow), candidates=candidates, hidden=hidden, members=critics,
            act_steps=self.act_steps, layer_norm=layer_norm, pessimistic=False,
        ).to(setup.device)  # fmt: skip
        self.critic = copy.deepcopy(self.policy.critic)
        self.policy.critic.requires_grad_(False)
        self.actor_optimizer = Adam(self.actor.network.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), critic_learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of the actor, then of the critics, and let the slow ones follow."""
        rows = self.grouped(data.obs)
        noise = self.policy.base.sample_noise(min(self.states, len(data)) * self.group)
        found = self.actor_loss(data, rows, noise)
        self.actor_optimizer.step(found["actor_loss"])

        with torch.no_grad():
            following = self.policy.base.act(data.next_obs)
            next_value = self.policy.value(data.next_obs, following).mean(0)
            backup = data.reward + data.discount * next_value
        value = self.policy.value(data.obs, continued(data, self.policy.base), self.critic)
        critic_loss = (value - backup).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)
        polyak(self.policy.critic, self.critic, self.tau)
        polyak(self.slow.network, self.actor.network, self.actor_tau)
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": value.detach().mean(),
            **{name: one.detach() for name, one in found.items()},
        }

    @abstractmethod
    def actor_loss(self, data: Batch, rows: Obs, noise: Tensor) -> dict[str, Tensor]:
        """Return the actor's loss as ``actor_loss``, and what else is to be logged.

        Args:
            data: the whole batch.
            rows: observations, each ``group`` times, one group after another.
            noise: of the proposer, one for each row.
        """

    def grouped(self, obs: Obs) -> Obs:
        """Return some of a batch's observations, each ``group`` times."""
        # Which ones is drawn: a mixture puts a dataset's rows before those gathered online.
        order: Tensor | None = None

        def taken(part: Tensor) -> Tensor:
            nonlocal order
            if order is None:
                order = torch.randperm(len(part), device=part.device)[: self.states]
            return part[order].repeat_interleave(self.group, dim=0)

        chosen: Obs = tree_map(taken, obs)
        return chosen

    @torch.no_grad()
    def advantage(self, rows: Obs, chunk: Tensor) -> Tensor:
        """Return the advantages ``[states * group]`` of raw chunks within their groups."""
        value = self.policy.value(rows, chunk).unflatten(1, (-1, self.group))
        own = value - value.mean(2, keepdim=True)
        found: Tensor = own.mean(0)
        if self.conservative:
            found = own.amin(0).clamp_min(0.0) + own.amax(0).clamp_max(0.0)
        return found.flatten()

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Play any sample during warm-up, and the best of several after it."""
        acting = self.policy.base if warmup else self.policy
        return acting.act(obs)[:, : self.act_steps], {}

    def proposer(self, slow: FlowPolicy) -> Policy:
        """Return what draws samples of the slow actor."""
        return slow
