"""RL-100: imitation, gated offline improvement, online improvement, and a one-step student.

Lei et al., "RL-100: Performant Robotic Manipulation with Real-World Reinforcement Learning" (arXiv
2510.14830), with the gate of Uni-O4 (arXiv 2311.03351). A denoising step k is a Gaussian action;
p_k is its density over the executed part of the chunk. One surrogate serves offline and online:

    L_k = -mean min(rho_k A, clip(rho_k, 1 - eps, 1 + eps) A),  rho_k = p_k / p_k,old

A is the same for all k. Each minibatch takes one optimiser step for each k. The phases are:

- clone:    the diffusion policy's imitation loss; left out if a base is given
- values:   IQL (arXiv 2110.06169): V by expectile regression to min Q'(s, a); Q by
            L_Q = sum_i mean (Q_i(s, a) - r - gamma (1 - d) V(s'))^2; dynamics models by likelihood
- improve:  chains are sampled from the accepted policy at the data's observations;
            A = min Q(s, a) - V(s) for their final actions a, normalised in the batch; eps falls
            linearly. Every ``gate_every`` updates candidate and accepted policy are scored (AM-Q):
            the mean of min Q along rollouts of their modes in the models. A candidate with the
            higher score becomes the accepted policy
- online:   A by generalised advantage estimation over chunks from V, normalised in the rollout;
            L_V = 1/2 mean (V(s) - R)^2

With ``one_step`` a student learns mean |f(s, z) - policy(s, z)|^2 on the same noise z after each of
these updates, and the student is evaluated; otherwise the accepted policy is.

Published settings: 100 training and 10 sampling steps, critics 512x2, batches of 512, 7 models
400x4 of which 5 are elites, floor 0.0067, an online learning rate of 3e-6 adapted to a KL of 0.02,
2048 decisions in a rollout.

An adaptation (``faithful`` is False). Deviations from the paper:

- rollouts are not added to the data for another round of cloning and offline improvement;
- clone and student learn at ``critic_learning_rate`` (there: the clone at 1.4e-4);
- learning rates are fixed: adapting one to a divergence would make each update wait for the device;
- all models are used, by their means, without elites or early stopping; the models predict the end
  of an episode, which weighs rows by their chance to go on (there: ends are known, rows dropped);
  candidate and accepted policy are scored from the same observations (there: the candidate is
  compared with the best earlier score);
- networks are perceptrons on states: no image encoder, no reconstruction, no bottleneck;
- critics read the executed actions, and V takes a step with each denoising step.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
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
    Decisions,
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
from trimtab.settings import Bounds, Count, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs, Rollout


class RL100(RolloutActorCritic):
    """Imitation, then gated offline improvement, then online improvement.

    Args:
        setup: needs ``dataset``, and ``base`` or ``policy``, a diffusion policy.
        one_step: whether a one-step student is distilled and evaluated.
        student_hidden: widths of the student's hidden layers.
        clone_share: share of the offline updates that clone; no effect if a base is given.
        value_share: share of the remaining offline updates that train critics and models.
        expectile: expectile of V in the offline phase.
        tau: Polyak rate of the target critics.
        floor: least standard deviation of a denoising step.
        offline_learning_rate: Adam's, for the candidate.
        offline_clip: eps at the start of offline improvement.
        clip_decay_updates: updates after which eps is a tenth of ``offline_clip``.
        gate_every: updates between two scorings of the candidate; those after the last one are
            not scored, so offline improvement should be a multiple of it.
        gate_decisions: decisions of each rollout in the models.
        common: settings of ``RolloutActorCritic``. ``batch_size`` counts decisions; ``clip`` is eps
            online.

    Raises:
        TrimtabError: if the policy is no diffusion policy, or no student can learn from it.
    """

    needs = Needs({"start", "dataset"}, base_kind="diffusion")
    unused_settings = frozenset({"normalize_rewards"})  # offline, V learns from unscaled rewards
    faithful = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        one_step: bool = True,
        student_hidden: Sequence[Size] = (256, 256, 256),
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
        self.clone_share = 0.0 if setup.base is not None else clone_share
        self.value_share = value_share
        self.expectile, self.tau = expectile, tau
        self.offline_clip, self.clip_decay_updates = offline_clip, clip_decay_updates
        self.gate_every = gate_every
        self.actor = make_trainable_start(self, setup, DiffusionPolicy)
        self.student: ConsistencyPolicy | None = None
        if one_step:
            self.student = student_of(self.actor, hidden=student_hidden, time_dim=16, levels=40)
        self.policy: Policy = self.actor if self.student is None else self.student
        self.denoising = DenoisingSampler(self.actor, floor=floor, act_steps=setup.spec.horizon)
        points = len(self.denoising.steps) + 1
        learned = list(self.actor.network.parameters())
        # The parent's constructor reads self.policy.
        super().__init__(setup, learned, points, normalize_rewards=False, **common)
        obs_dim, action_size = self.actor.spec.obs_dim, self.act_steps * self.actor.spec.action_dim
        self.q_networks = EnsembleCritic(obs_dim, action_size, hidden=self.hidden).to(setup.device)
        self.target_q = copy.deepcopy(self.q_networks).requires_grad_(False)
        self.gate = Gate(obs_dim, action_size, decisions=gate_decisions).to(setup.device)
        self.candidate = copy.deepcopy(self.actor.network)
        rate = self.critic_learning_rate
        self.q_optimizer = Adam(self.q_networks.parameters(), rate)
        self.dynamics_optimizer = Adam(self.gate.dynamics.parameters(), rate)
        self.clone_optimizer = Adam(self.actor.parameters(), rate)
        self.candidate_optimizer = Adam(
            self.candidate.parameters(), offline_learning_rate,
            max_gradient_norm=self.max_gradient_norm,
        )  # fmt: skip
        if self.student is not None:
            self.student_optimizer = Adam(self.student.parameters(), rate)

    def clone(self, data: Batch) -> Metrics:
        """Take one step of imitation learning, and one of the student."""
        loss = self.actor.bc_loss(as_plans(data, self.actor.spec.horizon))
        self.clone_optimizer.step(loss)
        return {"bc_loss": loss.detach(), **self.distill(self.actor.normalizer.obs(data.obs))}

    def learn_values(self, data: Batch) -> Metrics:
        """Take one step of V, Q and the models on the dataset, and one of the student."""
        normalizer = self.actor.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
        # V: an upper expectile of Q over the data's actions approximates their maximum.
        with torch.no_grad():
            q_of_data = self.target_q(obs, action).amin(0)
        value_loss = expectile_loss(self.critic(obs).squeeze(-1)[None], q_of_data, self.expectile)
        self.critic_optimizer.step(value_loss)
        # Q: the reward of one decision, then V of the next observation.
        with torch.no_grad():
            target = data.reward + data.discount * self.critic(next_obs).squeeze(-1)
        q = self.q_networks(obs, action)
        q_loss = (q - target).square().mean(1).sum()
        self.q_optimizer.step(q_loss)
        polyak(self.target_q, self.q_networks, self.tau)
        model_loss = self.gate.dynamics.loss(obs, action, next_obs, data.discount == 0)
        self.dynamics_optimizer.step(model_loss)
        return {
            "value_loss": value_loss.detach(), "critic_loss": q_loss.detach(),
            "q_mean": q.detach().mean(), "dynamics_loss": model_loss.detach(),
            **self.distill(obs),
        }  # fmt: skip

    @property
    def branch(self) -> Hashable:
        """Whether the candidate begins with the next update, whether it is scored then; warm-up."""
        return self.gate.branch(self.gate_every), super().branch

    def improve(self, data: Batch) -> Metrics:
        """Take one step of the candidate for each denoising step; score it every ``gate_every``."""
        obs = self.actor.normalizer.obs(data.obs)
        first, scored = self.gate.branch(self.gate_every)
        if first:  # start from the accepted policy
            self.candidate.load_state_dict(self.actor.network.state_dict())
        with torch.no_grad():
            chain, old = self.denoising.sample_chains(self.actor.network, obs)
            value = self.q_networks(obs, self.denoising.clip_to_limits(chain[:, -1])).amin(0)
            advantage = normalized(value - self.critic(obs).squeeze(-1))
        decayed = 1.0 - 0.9 * (self.gate.count() / self.clip_decay_updates).clamp(max=1.0)
        losses = []
        for step, old_density in zip(self.denoising.steps, old.unbind(1), strict=True):
            log_ratio = (
                self.denoising.step_log_density(self.candidate, obs, chain, step) - old_density
            )
            loss = clipped_surrogate(log_ratio, advantage, decayed * self.offline_clip).mean()
            self.candidate_optimizer.step(loss)
            losses.append(loss.detach())
        self.gate.increase()
        if scored:
            # Scored anew, from the same states as the candidate.
            self.gate.set_baseline(self.score(self.actor.network, obs))
            self.gate.accept_if_better(
                self.score(self.candidate, obs), self.actor.network, self.candidate
            )
        return {
            "policy_loss": torch.stack(losses).mean(),
            "best_score": self.gate.best.clone(),
            "accepted": self.gate.accepted.clone(),
            **self.distill(obs),
        }

    def update(self, data: Rollout) -> Metrics:
        """Improve policy and V on one rollout, then distil the policy into the student."""
        samples = self.decisions(data, self.old_densities)
        samples = replace(samples, advantage=normalized(samples.advantage))
        minibatches = minibatch_rows(
            len(samples), self.pace.batch_size, self.epochs, samples.obs.device
        )
        steps = [self.learn(samples[rows]) for rows in minibatches]
        self.updates += 1
        obs, distilled = self.actor.normalizer.obs(data.obs).flatten(0, 1), {}
        for _ in range(self.epochs):
            for rows in torch.randperm(len(obs), device=obs.device).split(self.pace.batch_size):
                distilled = self.distill(obs[rows])
        return {**mean_metrics(steps), **distilled}

    def learn(self, part: Decisions) -> dict[str, Tensor]:
        """Take one step of V and, after the warm-up, of the policy, for each denoising step."""
        metrics = []
        learns = self.updates >= self.critic_warmup
        for step, old_density in zip(self.denoising.steps, part.old.unbind(1), strict=True):
            value_loss = 0.5 * (self.critic(part.obs).squeeze(-1) - part.target).square().mean()
            self.critic_optimizer.step(value_loss)
            log_ratio = torch.zeros_like(part.target)  # while V alone learns
            loss = log_ratio.sum()
            if learns:
                density = self.denoising.step_log_density(
                    self.actor.network, part.obs, part.chain, step
                )
                log_ratio = density - old_density
                loss = clipped_surrogate(log_ratio, part.advantage, self.clip).mean()
                self.actor_optimizer.step(loss)
            metrics.append(surrogate_metrics(loss, value_loss, log_ratio, self.clip))
        return {name: torch.stack([one[name] for one in metrics]).mean() for name in metrics[0]}

    def old_densities(self, obs: Tensor, chain: Tensor) -> Tensor:
        """Return the log-density of each step under the accepted policy, ``[M, K]``."""
        network, sampler = self.actor.network, self.denoising
        return torch.stack(
            [sampler.step_log_density(network, obs, chain, step) for step in sampler.steps], 1
        )

    def score(self, network: DenoisingNetwork, obs: Tensor) -> Tensor:
        """Return AM-Q: the mean of min Q along rollouts of the policy's mode in the models."""
        return self.gate.score(obs, lambda obs: self.denoising.mode(network, obs), self.q_networks)

    def distill(self, obs: Tensor) -> Metrics:
        """Take one step of the student, if there is one, towards the accepted policy."""
        if self.student is None:
            return {}
        loss = same_chunk_loss(
            self.student, obs, lambda z: self.denoising.denoise(self.actor.network, obs, z)
        )
        self.student_optimizer.step(loss)
        return {"distillation_loss": loss.detach()}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Clone, learn values, improve behind the gate, then interact."""
        clone_updates = int(self.clone_share * budget.offline_steps)
        value_updates = int(self.value_share * (budget.offline_steps - clone_updates))
        improve_updates = budget.offline_steps - clone_updates - value_updates
        phases = (
            Phase("clone", clone_updates, "updates", Feed.DATASET, self.clone),
            Phase("values", value_updates, "updates", Feed.DATASET, self.learn_values),
            Phase("improve", improve_updates, "updates", Feed.DATASET, self.improve),
            Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, self.update),
        )
        return tuple(phase for phase in phases if phase.length)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return actions sampled from the accepted policy, and their denoising chains."""
        chain, _ = self.denoising.sample_chains(self.actor.network, self.actor.normalizer.obs(obs))
        action = self.actor.normalizer.raw_action(chain[:, -1])[:, : self.act_steps]
        return action, {"chain": chain}


class DenoisingSampler:
    """Samples denoising chains under a given network, and evaluates their log-densities.

    Observations are normalised. A density covers the executed part of a chunk, summed over it.

    Args:
        policy: its shapes, normaliser and sampler are used, and not its network.
        floor: least standard deviation of a step.
        act_steps: number of executed actions in a chunk.
    """

    def __init__(self, policy: DiffusionPolicy, *, floor: float, act_steps: int) -> None:
        self.policy, self.act_steps = policy, act_steps
        device = policy.normalizer.obs_shift.device
        self.chain = DiffusionChain(policy.sampler, floor=floor).to(device)
        self.steps = torch.arange(self.chain.steps, device=device).split(1)

    def sample_chains(self, network: DenoisingNetwork, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return chains ``[B, K + 1, H, A]`` and the log-densities of their steps ``[B, K]``."""
        spec, condition = self.policy.spec, network.condition(obs)
        shape = (len(obs), self.chain.steps + 1, spec.horizon, spec.action_dim)
        noise = chain_noise(shape, obs.device)
        points = walk(self.chain, lambda x, k: network(x, self.chain.time(k), condition), noise)
        # A log-density follows from the step's noise, so the network is not evaluated again.
        step_noise = noise[:, 1:, : self.act_steps]
        one = torch.ones((), device=obs.device)
        std = self.chain.deviations[:, None, None]
        density = (log_density(step_noise, 0 * one, one) - std.log()).sum((2, 3))
        return torch.stack(points, 1), density

    def step_log_density(
        self, network: DenoisingNetwork, obs: Tensor, chain: Tensor, step: Tensor
    ) -> Tensor:
        """Return the log-density of one step ``[1]`` of each chain under ``network``, ``[B]``."""
        point, reached = chain.index_select(1, torch.cat([step, step + 1])).unbind(1)
        prediction = network(point, self.chain.time(step), network.condition(obs))
        mean = self.chain.mean(point, prediction, step)
        each = log_density(reached, mean, self.chain.std(step))
        return each[:, : self.act_steps].sum((1, 2))

    def clip_to_limits(self, chunk: Tensor) -> Tensor:
        """Return the executed part of normalised chunks, clipped to the action limits."""
        normalizer = self.policy.normalizer
        return normalizer.normalize_action(normalizer.raw_action(chunk[:, : self.act_steps]))

    def denoise(self, network: DenoisingNetwork, obs: Tensor, noise: Tensor) -> Tensor:
        """Return the normalised chunks ``[B, H, A]`` that the sampler makes from ``noise``."""
        condition = network.condition(obs)
        return self.policy.sampler(lambda x, time: network(x, time, condition), noise)

    def mode(self, network: DenoisingNetwork, obs: Tensor) -> Tensor:
        """Return the executed part of the chunk for zero noise, normalised."""
        noise = torch.zeros(len(obs), *self.policy.noise_shape, device=obs.device)
        return self.clip_to_limits(self.denoise(network, obs, noise))
