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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.expectiles import expectile_loss
from trimtab.algorithms.common.gate import Gate
from trimtab.algorithms.common.one_step import same_chunk_loss, student_of
from trimtab.algorithms.common.plans import as_plans
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.common.rollouts import (
    RolloutActorCritic,
    clipped_surrogate,
    mean_metrics,
    minibatch_rows,
    surrogate_metrics,
)
from trimtab.algorithms.common.starts import make_trainable_start
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.policies.base import Policy
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.networks.chains import DiffusionChain, chain_noise, log_density, walk
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.settings import Bounds, Count, NonNegative, Positive, Share
from trimtab.types import Batch, Metrics, Obs, Rollout


class RL100(RolloutActorCritic):
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
        common: settings of ``RolloutActorCritic``; ``batch_size`` counts decisions, ``clip`` is eps
            online.

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
        **common: Any,
    ) -> None:
        self.shares = (0.0 if setup.base is not None else clone_share, value_share)
        self.expectile, self.tau = expectile, tau
        self.offline_clip, self.clip_decay_updates = offline_clip, clip_decay_updates
        self.gate_every = gate_every
        self.actor = make_trainable_start(self, setup, DiffusionPolicy)
        self.student: ConsistencyPolicy | None = None
        if one_step:
            self.student = student_of(self.actor, hidden=student_hidden, time_dim=16, levels=40)
        self.policy: Policy = self.actor if self.student is None else self.student
        self.denoising = Denoising(self.actor, floor=floor, act_steps=setup.spec.horizon)
        points = len(self.denoising.steps) + 1
        learned = list(self.actor.network.parameters())
        super().__init__(setup, learned, points, normalize_rewards=False, **common)
        obs_dim, size = self.actor.spec.obs_dim, self.act_steps * self.actor.spec.action_dim
        self.values = EnsembleCritic(obs_dim, size, hidden=self.hidden).to(setup.device)
        self.target = copy.deepcopy(self.values).requires_grad_(False)
        self.gate = Gate(obs_dim, size, decisions=gate_decisions).to(setup.device)
        self.candidate = copy.deepcopy(self.actor.network)
        rate = self.critic_learning_rate
        self.values_optimizer = Adam(self.values.parameters(), rate)
        self.dynamics_optimizer = Adam(self.gate.dynamics.parameters(), rate)
        self.clone_optimizer = Adam(self.actor.parameters(), rate)
        self.candidate_optimizer = Adam(
            self.candidate.parameters(), offline_learning_rate,
            max_gradient_norm=self.max_gradient_norm,
        )  # fmt: skip
        if self.student is not None:
            self.student_optimizer = Adam(self.student.parameters(), rate)

    def clone(self, data: Batch) -> Metrics:
        """Take one step on the policy's imitation loss."""
        loss = self.actor.bc_loss(as_plans(data, self.actor.spec.horizon))
        self.clone_optimizer.step(loss)
        return {"bc_loss": loss.detach(), **self.teach(self.actor.normalizer.obs(data.obs))}

    def learn_values(self, data: Batch) -> Metrics:
        """Take one step of V, Q and the models on the dataset, and let the student follow."""
        normalizer = self.actor.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continued_action(data))
        # V: the expectile of the data's actions stands for the best of them.
        with torch.no_grad():
            backup = self.target(obs, action).amin(0)
        value_loss = expectile_loss(self.critic(obs).squeeze(-1)[None], backup, self.expectile)
        self.critic_optimizer.step(value_loss)
        # Q: one decision, then V.
        with torch.no_grad():
            backup = data.reward + data.discount * self.critic(next_obs).squeeze(-1)
        q = self.values(obs, action)
        q_loss = (q - backup).square().mean(1).sum()
        self.values_optimizer.step(q_loss)
        polyak(self.target, self.values, self.tau)
        model_loss = self.gate.dynamics.loss(obs, action, next_obs, data.discount == 0)
        self.dynamics_optimizer.step(model_loss)
        return {
            "value_loss": value_loss.detach(), "critic_loss": q_loss.detach(),
            "q_mean": q.detach().mean(), "dynamics_loss": model_loss.detach(),
            **self.teach(obs),
        }  # fmt: skip

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

    def update(self, data: Rollout) -> Metrics:
        """Improve policy and V on one rollout, then let the student follow."""
        samples = self.decisions(data, self.old_densities)
        samples = replace(samples, advantage=normalized(samples.advantage))
        steps = []
        for rows in minibatch_rows(
            len(samples), self.pace.batch_size, self.epochs, samples.obs.device
        ):
            part = samples[rows]
            for step, before in zip(self.denoising.steps, part.old.unbind(1), strict=True):
                value_loss = 0.5 * (self.critic(part.obs).squeeze(-1) - part.target).square().mean()
                self.critic_optimizer.step(value_loss)
                nothing = torch.zeros_like(part.target)
                loss, log_ratio = nothing.sum(), nothing
                if self.updates >= self.critic_warmup:
                    density = self.denoising.density(self.actor.network, part.obs, part.chain, step)
                    log_ratio = density - before
                    loss = clipped_surrogate(log_ratio, part.advantage, self.clip).mean()
                    self.actor_optimizer.step(loss)
                steps.append(surrogate_metrics(loss, value_loss, log_ratio, self.clip))
        self.updates += 1
        obs, taught = self.actor.normalizer.obs(data.obs).flatten(0, 1), {}
        for _ in range(self.epochs):
            for rows in torch.randperm(len(obs), device=obs.device).split(self.pace.batch_size):
                taught = self.teach(obs[rows])
        return {**mean_metrics(steps), **taught}

    def old_densities(self, obs: Tensor, chain: Tensor) -> Tensor:
        """Return the log-densities of all steps of the accepted policy's chains, ``[M, K]``."""
        network, of = self.actor.network, self.denoising
        return torch.stack([of.density(network, obs, chain, step) for step in of.steps], 1)

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


class Denoising:
    """Chains of a diffusion policy, under its own network or a candidate for it.

    Observations are normalised ones. A density is that of the executed part of a chunk, summed.

    Args:
        policy: says shapes, units and sampler.
        floor: least standard deviation of a step.
        act_steps: actions of a chunk that are executed.
    """

    def __init__(self, policy: DiffusionPolicy, *, floor: float, act_steps: int) -> None:
        self.policy, self.act_steps = policy, act_steps
        device = policy.normalizer.obs_shift.device
        self.chain = DiffusionChain(policy.sampler, floor=floor).to(device)
        self.steps = torch.arange(self.chain.steps, device=device).split(1)

    def chains(self, network: DenoisingNetwork, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return chains ``[B, K + 1, H, A]`` and the log-densities of their steps ``[B, K]``."""
        spec, condition = self.policy.spec, network.condition(obs)
        shape = (len(obs), self.chain.steps + 1, spec.horizon, spec.action_dim)
        noise = chain_noise(shape, obs.device)
        points = walk(self.chain, lambda x, k: network(x, self.chain.time(k), condition), noise)
        # What a step's density is of is its noise, so nothing has to be computed again.
        drawn = noise[:, 1:, : self.act_steps]
        one = torch.ones((), device=obs.device)
        std = self.chain.deviations[:, None, None]
        density = (log_density(drawn, 0 * one, one) - std.log()).sum((2, 3))
        return torch.stack(points, 1), density

    def density(
        self, network: DenoisingNetwork, obs: Tensor, chain: Tensor, step: Tensor
    ) -> Tensor:
        """Return the log-density of one step ``[1]`` of each chain under ``network``, ``[B]``."""
        point, reached = chain.index_select(1, torch.cat([step, step + 1])).unbind(1)
        prediction = network(point, self.chain.time(step), network.condition(obs))
        mean = self.chain.mean(point, prediction, step)
        each = log_density(reached, mean, self.chain.std(step))
        return each[:, : self.act_steps].sum((1, 2))

    def executed(self, chunk: Tensor) -> Tensor:
        """Return what is executed of normalised chunks ``[B, H, A]``, normalised again."""
        normalizer = self.policy.normalizer
        return normalizer.normalize_action(normalizer.raw_action(chunk[:, : self.act_steps]))

    def plan(self, network: DenoisingNetwork, obs: Tensor, noise: Tensor) -> Tensor:
        """Return what the policy's sampler makes of ``noise``: normalised chunks ``[B, H, A]``."""
        condition = network.condition(obs)
        return self.policy.sampler(lambda x, time: network(x, time, condition), noise)

    def mode(self, network: DenoisingNetwork, obs: Tensor) -> Tensor:
        """Return what is executed of noise 0, normalised."""
        noise = torch.zeros(len(obs), *self.policy.noise_shape, device=obs.device)
        return self.executed(self.plan(network, obs, noise))
