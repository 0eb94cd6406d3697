"""Uni-O4: one on-policy objective for cloned policies offline, behind a gate, and online.

Lei et al., "Uni-O4: Unifying Online and Offline Deep Reinforcement Learning with Multi-Step
On-Policy Optimization" (arXiv 2311.03351), on observations of mean 0 and standard deviation 1. N
Gaussian policies, whose mean and width depend on the state:

- clone:    L_i = -mean log pi_i(a|s) - alpha D_i,
            D_i = mean [log pi_i(b|s) - max_{j != i} log pi_j(b|s)],  b ~ pi_i(.|s) reparameterised,
            where the other policies get no gradient: their disagreement
- values:   IQL (arXiv 2110.06169): V by the expectile of min Q'(s, a), Q by
            r + gamma (1 - d) V(s'); and an ensemble of models of what comes next
- improve:  at the data's observations, actions b of the accepted policies pi_i,old,
            L_i = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A),  rho = pi_i(b|s) / pi_i,old(b|s),
            A = min Q(s, b) - V(s), normalised in the batch; the learning rate falls in a line to 0.
            Every ``gate_every`` updates each candidate is scored (AM-Q): the mean of min Q over
            ``gate_decisions`` decisions of its mean in the models. A score above that of its
            accepted policy makes it the accepted one
- online:   PPO of the accepted policy with the best score, A by generalised advantage estimation
            from V, normalised in the rollout, with an entropy bonus; rates fall in a line

What is judged while the members are cloned is the first of them, then the accepted one with the
best score. Published: cloning 4e5 updates, values 2e6, improvement 1e4, batches of 512, policies
256x3, V 512x3, Q 1024x2, models scored for 1000 decisions in locomotion; online 2048 decisions a
rollout, actor rates 1e-6 to 3e-5 and 5 to 30 epochs by task. An adaptation (``faithful`` is False),
because:

- the disagreement is the paper's idea, its formula ours (the code's has cloning's gradient only);
- actions are clipped to the limits before Q sees them; the clip stays (code: it falls to 0.98 of
  itself in 200 updates, and stays); Q and V are IQL's throughout (code, where no setting says
  otherwise: Q of the data's next action, V of the data's returns, asymmetric weights of A);
- candidate and accepted policy are scored from the same observations (there: a candidate against
  the best of all earlier scores); the members' gradients have one bound together, as large;
- what goes on online is chosen by its score alone (there: by episodes among the best three);
- V, Q and models learn at ``critic_learning_rate`` (there: 1e-4, 1e-4, 1e-3) and targets move in
  every step (there: every second); 5 models of 200x2 (there: 7 of 200x4, of which 5 are used);
- all models are used, by their means, without elites or early stop; ends are learned, weigh rows;
- V's loss online has no bound, rewards have no scale; Q and V have the policies' widths; hidden
  layers begin with a gain of the root of 2 (there: 1).
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
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.common.rollouts import (
    Decisions,
    RolloutActorCritic,
    clipped_surrogate,
    mean_metrics,
    minibatch_rows,
    surrogate_metrics,
)
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.observations import count
from trimtab.policies.kinds.bounded_gaussian import BoundedGaussianPolicy, MemberGaussians, density
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive, Share, Size
from trimtab.types import Batch, Metrics, Obs, Rollout


class UniO4(RolloutActorCritic):
    """Clone several policies, improve each behind a gate, and go on online with the best.

    Args:
        setup: needs ``dataset``.
        members: number N of policies.
        disagreement: alpha.
        clone_share: share of the offline updates that clone.
        value_share: share of the other offline updates that learn values and models.
        expectile: of V.
        tau: Polyak rate of the target critics.
        clone_learning_rate: Adam's, of the members while they are cloned.
        offline_learning_rate: Adam's, of the candidates at the start of improvement.
        offline_clip: eps of offline improvement.
        gate_every: updates between two scores.
        gate_decisions: decisions in the models.
        entropy_weight: weight of the entropy bonus online.
        minibatch_size: decisions in a minibatch online.
        decay_steps: environment steps over which the rates fall to 0 online; None or 0: they stay.
        hidden: widths of the hidden layers of policies, V and critics.
        common: further settings of ``RolloutActorCritic``; ``batch_size`` is that of the offline
            updates, ``clip`` is eps online.
    """

    needs = Needs({"dataset"}, transitions_only=True)
    # V is learned offline, in unscaled rewards.
    unused_settings = frozenset({"normalize_rewards", "critic_warmup"})
    faithful = False
    policy: BoundedGaussianPolicy
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        members: Size = 4,
        disagreement: NonNegative = 0.1,
        clone_share: Share = 0.2,
        value_share: Share = 0.75,
        expectile: Share = 0.7,
        tau: Share = 0.005,
        clone_learning_rate: NonNegative = 1e-4,
        offline_learning_rate: NonNegative = 1e-4,
        offline_clip: Positive = 0.25,
        gate_every: Count = 100,
        gate_decisions: Count = 1000,
        entropy_weight: NonNegative = 0.01,
        minibatch_size: Annotated[int, Bounds(least=2)] = 128,
        decay_steps: Natural | None = None,
        hidden: Sequence[Size] = (256, 256, 256),
        **common: Any,
    ) -> None:
        assert setup.statistics is not None
        self.clone_share, self.value_share = clone_share, value_share
        self.disagreement = disagreement
        self.expectile, self.tau, self.offline_clip = expectile, tau, offline_clip
        self.gate_every, self.entropy_weight = gate_every, entropy_weight
        self.minibatch_size, self.decay_steps = minibatch_size, decay_steps
        self.offline_learning_rate, self.improvements = offline_learning_rate, 1
        spec, shape = setup.spec, (setup.spec.horizon, setup.spec.action_dim)
        self.policy = BoundedGaussianPolicy(spec, hidden=hidden).to(setup.device)
        self.policy.normalizer.standardize(setup.statistics)
        learned = list(self.policy.network.parameters())
        super().__init__(setup, learned, 1, hidden=hidden, normalize_rewards=False, **common)
        self.rates = (float(self.actor_optimizer.learning_rate), self.critic_learning_rate)
        self.accepted = MemberGaussians(spec.obs_dim, shape, hidden=hidden, members=members)
        self.accepted.to(setup.device)
        self.candidates = copy.deepcopy(self.accepted)
        size = self.act_steps * spec.action_dim
        self.values = EnsembleCritic(spec.obs_dim, size, hidden=hidden).to(setup.device)
        self.target = copy.deepcopy(self.values).requires_grad_(False)
        gate = Gate(spec.obs_dim, size, decisions=gate_decisions, candidates=members)
        self.gate = gate.to(setup.device)
        self.values_optimizer = Adam(self.values.parameters(), self.critic_learning_rate)
        self.dynamics_optimizer = Adam(gate.dynamics.parameters(), self.critic_learning_rate)
        self.clone_optimizer = Adam(self.accepted.parameters(), clone_learning_rate)
        norm = self.max_gradient_norm
        self.candidates_optimizer = Adam(
            self.candidates.parameters(), offline_learning_rate,
            max_gradient_norm=None if norm is None else norm * members**0.5,
        )  # fmt: skip
        self.publish()

    def clone(self, data: Batch) -> Metrics:
        """Take one step of all members on the data's actions, away from each other."""
        obs = self.policy.normalizer.obs(data.obs)
        action = self.policy.normalizer.normalize_action(data.action)
        mean, log_std = self.accepted(obs)
        likely = density(action, mean, log_std, data.valid)
        apart = torch.zeros_like(likely)
        if self.disagreement and self.accepted.members > 1:
            drawn = mean + log_std.exp() * torch.randn_like(mean)
            apart = apartness(drawn, mean, log_std)
        loss = -(likely + self.disagreement * apart).mean(1).sum()
        self.clone_optimizer.step(loss)
        self.publish()
        return {"bc_loss": -likely.detach().mean(), "apart": apart.detach().mean()}

    def learn_values(self, data: Batch) -> Metrics:
        """Take one step of V, Q and the models on the dataset."""
        normalizer = self.policy.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
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
        }  # fmt: skip

    @property
    def branch(self) -> Hashable:
        """Whether the candidates begin with the next update, and whether it scores them."""
        return self.gate.branch(self.gate_every)

    def improve(self, data: Batch) -> Metrics:
        """Take one step of every candidate; score them when that is due."""
        obs = self.policy.normalizer.obs(data.obs)
        first, scored = self.gate.branch(self.gate_every)
        if first:
            self.candidates.load_state_dict(self.accepted.state_dict())
        left = (1.0 - self.gate.count() / self.improvements).clamp(min=0.0)
        with torch.no_grad():
            mean, log_std = self.accepted(obs)
            drawn = mean + log_std.exp() * torch.randn_like(mean)
            old = density(drawn, mean, log_std)
            rows = obs.repeat(len(drawn), 1)
            worth = self.values(rows, self.executed(drawn.flatten(0, 1))).amin(0)
            value = self.critic(obs).squeeze(-1)
            advantage = normalized(worth.reshape(old.shape) - value)
        log_ratio = density(drawn, *self.candidates(obs)) - old
        loss = clipped_surrogate(log_ratio, advantage, self.offline_clip).mean(1)
        self.candidates_optimizer.learning_rate = self.offline_learning_rate * left
        self.candidates_optimizer.step(loss.sum())
        self.gate.increase()
        if scored:
            self.gate.set_baseline(self.score(self.accepted, obs))
            self.gate.accept_if_better(
                self.score(self.candidates, obs), self.accepted, self.candidates
            )
            self.publish()
        return {
            "policy_loss": loss.detach().mean(),
            "best_score": self.gate.best.amax(),
            "accepted": self.gate.accepted.sum(),
        }

    def update(self, data: Rollout) -> Metrics:
        """Improve what is judged, and V, on one rollout; rates fall."""
        left = 1.0
        if self.decay_steps:
            left = max(1.0 - self.updates * self.steps_per_update / self.decay_steps, 0.0)
        self.actor_optimizer.change_rate(left * self.rates[0])
        self.critic_optimizer.change_rate(left * self.rates[1])
        samples = self.decisions(
            data, lambda obs, drawn: density(drawn[:, 0], *self.policy.head(obs))
        )
        total, device = len(samples), samples.obs.device
        samples = replace(samples, advantage=normalized(samples.advantage))
        minibatches = minibatch_rows(total, self.minibatch_size, self.epochs, device)
        steps = [self.learn(samples[rows]) for rows in minibatches]
        self.updates += 1
        return mean_metrics(steps)

    def learn(self, part: Decisions) -> dict[str, Tensor]:
        """Take one step of V and of what is judged."""
        value_loss = 0.5 * (self.critic(part.obs).squeeze(-1) - part.target).square().mean()
        self.critic_optimizer.step(value_loss)
        mean, log_std = self.policy.head(part.obs)
        log_ratio = density(part.chain[:, 0], mean, log_std) - part.old
        loss = clipped_surrogate(log_ratio, part.advantage, self.clip).mean()
        # A Gaussian's entropy is the sum of its log widths, and a constant.
        loss = loss - self.entropy_weight * log_std.sum((1, 2)).mean()
        self.actor_optimizer.step(loss)
        return surrogate_metrics(loss, value_loss, log_ratio, self.clip)

    def score(self, members: MemberGaussians, obs: Tensor) -> Tensor:
        """Return AM-Q of every member ``[N]``: the mean value that its mean meets in the models."""

        def act(rows: Tensor) -> Tensor:
            mean, _ = members(rows.unflatten(0, (members.members, -1)))
            return self.executed(mean.flatten(0, 1))

        return self.gate.score(obs, act, self.values)

    def executed(self, chunk: Tensor) -> Tensor:
        """Return what is executed of normalised chunks ``[B, H, A]``, normalised again."""
        normalizer = self.policy.normalizer
        return normalizer.normalize_action(normalizer.raw_action(chunk))

    @torch.no_grad()
    def publish(self) -> None:
        """Make the accepted policy with the best score the one that is judged."""
        best = self.gate.best.argmax()[None]
        rows = [weight.index_select(0, best) for weight in self.accepted.parameters()]
        torch._foreach_copy_(list(self.policy.network.parameters()), rows)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Clone, learn values, improve behind the gate, then interact."""
        cloned = int(self.clone_share * budget.offline_steps)
        valued = int(self.value_share * (budget.offline_steps - cloned))
        self.improvements = max(budget.offline_steps - cloned - valued, 1)
        known = (
            Phase("clone", cloned, "updates", Feed.DATASET, self.clone),
            Phase("values", valued, "updates", Feed.DATASET, self.learn_values),
            Phase("improve", budget.offline_steps - cloned - valued, "updates", Feed.DATASET,
                  self.improve),
            Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, self.update),
        )  # fmt: skip
        return tuple(phase for phase in known if phase.length)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions of what is judged, and what they were before they were clipped."""
        unclipped = self.policy.unclipped(obs, self.policy.sample_noise(count(obs)))
        return self.policy.normalizer.raw_action(unclipped), {"chain": unclipped[:, None]}


def apartness(drawn: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return ``log p_i(b) - max_{j != i} log p_j(b)`` of each member's own samples, ``[N, B]``.

    Args:
        drawn: a sample b of each member in each state, ``[N, B, H, A]``.
        mean: of the members' Gaussians, as ``drawn``; those of others get no gradient.
        log_std: of the members' Gaussians.
    """
    own = density(drawn, mean, log_std)
    crossed = density(drawn[:, None], mean.detach(), log_std.detach())  # [i, j, B]
    same = torch.eye(len(drawn), dtype=torch.bool, device=drawn.device)
    return own - crossed.masked_fill(same[..., None], -torch.inf).amax(1)
