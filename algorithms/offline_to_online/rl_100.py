"""RL-100: cloning, offline improvement behind a gate, online improvement, a student of one step.

Lei et al., "RL-100: Performant Robotic Manipulation with Real-World Reinforcement Learning" (arXiv
2510.14830), with the gate of Uni-O4 (arXiv 2311.03351). A denoising step k is a Gaussian action,
its density p_k that of the executed part of the chunk, and one surrogate serves offline and online:

    L_k = -mean min(rho_k A, clip(rho_k, 1 - eps, 1 + eps) A),  rho_k = p_k / p_k,old

with the same A for all k, a ratio and an optimiser step for each k of a minibatch.

- clone:    the diffusion policy's own loss; left out where a base is given
- values:   IQL (arXiv 2110.06169): V by the expectile of min Q'(s, a), Q by
            r + gamma (1 - d) V(s'); and an ensemble of models of what comes next
- improve:  chains of the accepted policy at the data's observations, A = min Q(s, a_0) - V(s),
            normalised in the batch; eps falls in a line. Every ``gate_every`` updates the candidate
            is scored (AM-Q): the mean of min Q over decisions of its mode in the models. A score
            above that of the accepted policy makes it the accepted one
- online:   A by generalised advantage estimation over chunks from V, normalised in the rollout
- student:  mean |f(z) - policy(s, z)|^2 on the same noise, after each update of the others; with
            ``one_step`` it is what is judged, otherwise there is none

Published: 100 training and 10 sampling steps, critics 512x2, batches of 512, models 400x4 with 7
members of which 5 elites, floor 0.0067, online learning rate 3e-6 adapted to a KL of 0.02, 2048
decisions a rollout. An adaptation (``faithful`` is False), because:

- rollouts are not added to the data and cloned again before another offline round;
- the clone and the student learn at ``critic_learning_rate`` (there: the clone at 1.4e-4);
- learning rates are fixed: to adapt one to a divergence would wait for the device;
- all models are used, by their means, without elites or early stop; ends are learned and weigh rows
  (there: known, and they drop rows); candidate and accepted policy are scored from the same
  observations (there: a candidate against the best of all earlier scores);
- networks are perceptrons on states: no encoder of pictures, no reconstruction, no bottleneck;
- critics are about the executed actions, and V takes a step with each denoising step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup, Stateful
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.chain_ppo import Decisions, Judged, clipped_surrogate
from trimtab.algorithms.common.denoising import Denoising, DenoisingNetwork
from trimtab.algorithms.common.modelled import ModelledPPO
from trimtab.algorithms.common.one_step import same_chunk_loss, student_of
from trimtab.algorithms.common.plans import as_plans
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.common.starts import start_of
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.policies.base import Policy
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.settings import Bounds, Count, NonNegative, Positive, Share
from trimtab.types import Batch, Metrics, Obs, Rollout


class RL100(ModelledPPO):
    """Clone, improve offline behind a gate, then online.

    Args:
        setup: needs ``dataset``, and ``base`` or ``policy``; a diffusion policy.
        one_step: whether a student of one step is distilled and judged.
        student_hidden: widths of the student's hidden layers.
        clone_share: share of the offline updates that clone, where there is no base.
        value_share: share of the other offline updates that learn values and models.
        expectile: of V.
        tau: Polyak rate of the target critics.
        floor: least standard deviation of a denoising step.
        offline_learning_rate: Adam's, of the candidate.
        offline_clip: eps at the start of offline improvement.
        clip_decay_updates: updates after which the offline eps is a tenth of that.
        gate_every: updates between two scores.
        gate_decisions: decisions in the models.
        ppo: settings of ``ChainPPO``; ``batch_size`` counts decisions.

    Raises:
        TrimtabError: if what it starts from is no diffusion policy, or cannot teach a student.
    """

    needs = Needs({"start", "dataset"}, base_kind="diffusion")
    without = frozenset({"normalize_rewards"})  # V is learned offline in rewards as they are
    faithful = False

    def __init__(
        self,
        setup: Setup,
        *,
        one_step: bool = True,
        student_hidden: Sequence[int] = (256, 256, 256),
        clone_share: Share = 0.5,
        value_share: Share = 0.5,
        expectile: Share = 0.7,
        tau: Share = 0.005,
        floor: Annotated[float, Bounds(least=1e-6)] = 0.05,
        offline_learning_rate: NonNegative = 1e-5,
        offline_clip: Positive = 0.25,
        clip_decay_updates: Count = 8_000,
        gate_every: Count = 50,
        gate_decisions: Count = 20,
        **ppo: Any,
    ) -> None:
        self.shares = (0.0 if setup.base is not None else clone_share, value_share)
        self.expectile, self.tau = expectile, tau
        self.offline_clip, self.clip_decay_updates = offline_clip, clip_decay_updates
        self.gate_every = gate_every
        self.actor = start_of(self, setup, DiffusionPolicy)
        self.student: ConsistencyPolicy | None = None
        if one_step:
            self.student = student_of(self.actor, hidden=student_hidden, time_dim=16, levels=40)
        self.policy: Policy = self.actor if self.student is None else self.student
        self.denoising = Denoising(self.actor, floor=floor, act_steps=setup.spec.horizon)
        steps = len(self.denoising.steps)
        learned = list(self.actor.network.parameters())
        super().__init__(
            setup, learned, points=steps + 1, items=steps, normalize_rewards=False, **ppo
        )
        self.make_values(
            setup, self.actor.normalizer,
            hidden=ppo.get("hidden", (256, 256, 256)), decisions=gate_decisions,
        )  # fmt: skip
        self.candidate = copy.deepcopy(self.actor.network)
        rate = self.critic_optimizer.learning_rate
        self.clone_optimizer = Adam(self.actor.parameters(), rate)
        norm = self.actor_optimizer.max_gradient_norm
        self.candidate_optimizer = Adam(
            self.candidate.parameters(), offline_learning_rate, max_gradient_norm=norm
        )
        if self.student is not None:
            self.student_optimizer = Adam(self.student.parameters(), rate)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Clone, learn values, improve behind the gate, then interact."""
        cloned = int(self.shares[0] * budget.offline_steps)
        valued = int(self.shares[1] * (budget.offline_steps - cloned))
        improved = budget.offline_steps - cloned - valued
        known = (
            Phase("clone", cloned, "updates", Feed.DATASET, self.clone),
            Phase("values", valued, "updates", Feed.DATASET, self.learn_values),
            Phase("improve", improved, "updates", Feed.DATASET, self.improve),
            Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, self.update),
        )
        return tuple(phase for phase in known if phase.length)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return actions of noisy chains of the accepted policy, and the chains."""
        chain, _ = self.denoising.chains(self.actor.network, self.actor.normalizer.obs(obs))
        action = self.actor.normalizer.raw_action(chain[:, -1])[:, : self.act_steps]
        return action, {"chain": chain}

    def clone(self, data: Batch) -> Metrics:
        """Take one step on the policy's imitation loss."""
        loss = self.actor.bc_loss(as_plans(data, self.actor.spec.horizon))
        self.clone_optimizer.step(loss)
        return {"bc_loss": loss.detach(), **self.teach(self.actor.normalizer.obs(data.obs))}

    def learn_values(self, data: Batch) -> Metrics:
        """Take one step of V, Q and the models on the dataset, and let the student follow."""
        learned = super().learn_values(data)
        return {**learned, **self.teach(self.actor.normalizer.obs(data.obs))}

    def improve(self, data: Batch) -> Metrics:
        """Take one step of the candidate for each denoising step; score it when that is due."""
        obs = self.actor.normalizer.obs(data.obs)
        if self.gate.updates == 0:
            self.candidate.load_state_dict(self.actor.network.state_dict())
        with torch.no_grad():
            chain, old = self.denoising.chains(self.actor.network, obs)
            value = self.values(obs, self.denoising.executed(chain[:, -1])).amin(0)
            advantage = normalized(value - self.critic(obs).squeeze(-1))
        left = 1.0 - 0.9 * min(self.gate.updates / self.clip_decay_updates, 1.0)
        losses = []
        for step, before in zip(self.denoising.steps, old.unbind(1), strict=True):
            log_ratio = self.denoising.density(self.candidate, obs, chain, step) - before
            loss = clipped_surrogate(log_ratio, advantage, left * self.offline_clip).mean()
            self.candidate_optimizer.step(loss)
            losses.append(loss.detach())
        self.gate.updates += 1
        if self.gate.updates % self.gate_every == 0:
            self.gate.begin(self.score(self.actor.network, obs))  # from the same states
            self.gate.judge(self.score(self.candidate, obs), self.actor.network, self.candidate)
        return {
            "policy_loss": torch.stack(losses).mean(),
            "best_score": self.gate.best.clone(),
            "accepted": self.gate.accepted.clone(),
            **self.teach(obs),
        }

    def score(self, network: DenoisingNetwork, obs: Tensor) -> Tensor:
        """Return AM-Q: the mean value that a policy's mode meets in the models."""
        return self.gate.score(obs, lambda seen: self.denoising.mode(network, seen), self.values)

    def teach(self, obs: Tensor) -> Metrics:
        """Take one step of the student, if there is one, towards the accepted policy."""
        if self.student is None:
            return {}
        loss = same_chunk_loss(
            self.student, obs, lambda z: self.denoising.plan(self.actor.network, obs, z)
        )
        self.student_optimizer.step(loss)
        return {"distillation_loss": loss.detach()}

    def update(self, data: Rollout) -> Metrics:
        """Improve policy and V on one rollout, then let the student follow."""
        metrics = super().update(data)
        obs = self.actor.normalizer.obs(data.obs).flatten(0, 1)
        taught: Metrics = {}
        for _ in range(self.epochs):
            order = torch.randperm(len(obs), device=obs.device)
            for rows in order.split(self.batch_size):
                taught = self.teach(obs[rows])
        return {**metrics, **taught}

    def old_statistics(self, obs: Tensor, chain: Tensor) -> Tensor:
        """Return the log-densities of all steps, ``[M, K]``."""
        network = self.actor.network
        of = self.denoising
        return torch.stack([of.density(network, obs, chain, step) for step in of.steps], 1)

    def minibatches(self, samples: Decisions) -> Iterator[tuple[Decisions, Tensor]]:
        """Yield each minibatch once for each denoising step ``[1]``, several epochs.

        Advantages are normalised in the whole rollout.
        """
        size = min(self.batch_size, len(samples))
        samples = replace(samples, advantage=normalized(samples.advantage))
        for _ in range(self.epochs):
            order = torch.randperm(len(samples), device=samples.obs.device)
            for first in range(0, len(samples) - size + 1, size):
                part = samples[order[first : first + size]]
                for step in self.denoising.steps:
                    yield part, step

    def surrogate_loss(self, part: Decisions, item: Tensor) -> Judged:
        """Return the clipped surrogate of one denoising step."""
        density = self.denoising.density(self.actor.network, part.obs, part.chain, item)
        log_ratio = density - part.old.index_select(1, item).squeeze(1)
        loss = clipped_surrogate(log_ratio, part.advantage, self.clip).mean()
        return Judged(loss, log_ratio, (log_ratio.exp() - 1).abs() > self.clip)

    def state(self) -> Mapping[str, Stateful]:
        """Return networks, models and optimisers."""
        parts: dict[str, Stateful] = {
            **super().state(),
            "policy": self.actor,
            "candidate": self.candidate,
            "clone_optimizer": self.clone_optimizer,
            "candidate_optimizer": self.candidate_optimizer,
        }
        if self.student is not None:
            parts |= {"student": self.student, "student_optimizer": self.student_optimizer}
        return parts
