"""FQL: flow Q-learning, with a policy of one step that is pulled to a flow and climbs the critics.

Park, Li and Levine, "Flow Q-Learning" (arXiv 2502.02538). A flow mu(s, z) clones the data; a policy
pi(s, z) of one step, which alone is judged, copies its end points and raises Q, so that no gradient
passes through the flow's steps:

- critic:  y = r + gamma (1 - d) mean_i Q'_i(s', pi(s', z')),  L_Q = sum_i mean (Q_i(s, a) - y)^2
- flow:    mean |v(s, x_t, t) - (a - eps)|^2,  x_t = (1 - t) eps + t a
- policy:  alpha mean |pi(s, z) - sg mu(s, z)|^2 - mean_i mean Q_i(s, pi(s, z)),  z ~ N(0, I)

All three losses are those of the same weights, as in the authors' one step for all. On chunks it is
QC-FQL (Li, Zhou and Levine, "Reinforcement Learning with Action Chunking", arXiv 2507.07969), whose
alpha is 100: the critics are then about executed chunks, mu and pi about plans.

Deviations from the authors' code:

- a run may start from a pretrained flow without a dataset. pi is then fresh, so the flow itself
  gathers the warm-up, and ``distill_updates`` updates of the distillation alone on what it gathered
  come before learning (there: learning begins offline, with a dataset, which is done here as well);
- actions are clipped to the task's limits, and errors are in normalised units (there: data in
  [-1, 1]); the squared error of a plan is that of all its actions, executed or not;
- flow and networks are those of this suite: the run's policy or base, which may also be a diffusion
  policy with DDIM; widths of 256 and critics with ReLU after layer normalisation (there: four
  layers of 512, GELU, normalisation after it). Losses of the critics are summed (there: averaged);
- the target critics move after the critics' step (there: before it, to their weights so far);
- chunks, as in QC: one update and one discount for each decision (there: for each step), and a
  chunk that its episode cut short stays, its missing actions being those of pi (there: left out).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import as_plans, check_clonable, continued
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.errors import TrimtabError
from trimtab.observations import count
from trimtab.policies.kinds.one_step import OneStepPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class FQL(Algorithm):
    """Clone by a flow, and distil it into a policy of one step that climbs the critics.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; its noise is one latent chunk.
        alpha: weight of the distillation; to be tuned to the scale of Q: 3 to 30000 in the paper.
        normalize_q: divide the value in the policy's loss by the mean size of Q, as the authors
            advise for new tasks, with alpha from 0.03 to 10.
        hidden: widths of the hidden layers of policy and critics.
        layer_norm: normalise after each hidden layer of the critics.
        critics: number of Q functions.
        pessimistic: whether the target takes the least Q function; else their mean.
        learning_rate: Adam's, for flow, policy and critics.
        batch_size: decisions in one update.
        tau: Polyak rate of the target critics.
        distill_updates: updates of the distillation alone, between warm-up and learning, of a run
            without offline updates.
        warmup_steps: environment steps before learning online, of the flow itself if no offline
            updates came before.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"start"})
    revision = 2  # 1 let the flow gather the first steps after offline updates, too
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        alpha: NonNegative = 10.0,
        normalize_q: bool = False,
        hidden: Sequence[Size] = (256, 256, 256),
        layer_norm: bool = True,
        critics: Size = 2,
        pessimistic: bool = False,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        distill_updates: Natural = 2_000,
        warmup_steps: Natural = 5_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.alpha, self.normalize_q, self.pessimistic = alpha, normalize_q, pessimistic
        self.pace = Pace(
            batch_size, warmup_steps, updates_per_decision, skip_warmup_after_offline=True
        )
        self.tau = tau
        self.distill_updates = distill_updates
        self.act_steps = setup.spec.horizon  # the flow may plan further than is executed
        self.flow = setup.start()
        check_clonable(self.flow)
        spec = self.flow.spec
        if self.flow.noise_shape != (spec.horizon, spec.action_dim):
            raise TrimtabError(
                f"distillation: the noise of a {self.flow.kind} policy has shape "
                f"{self.flow.noise_shape}, not that of one latent chunk "
                f"{(spec.horizon, spec.action_dim)}; give a flow, or diffusion with sampler=ddim"
            )
        normalizer = self.flow.normalizer
        self.policy: OneStepPolicy = OneStepPolicy(
            spec, hidden=hidden, obs_limit=normalizer.limit
        ).to(setup.device)
        self.policy.read_as(normalizer)
        self.critic = EnsembleCritic(
            spec.obs_dim, self.act_steps * spec.action_dim, hidden=hidden, members=critics,
            layer_norm=layer_norm,
        ).to(setup.device)  # fmt: skip
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.flow_optimizer = Adam(self.flow.parameters(), learning_rate)
        self.policy_optimizer = Adam(self.policy.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of policy, critics and flow, and move the target critics."""
        normalizer = self.policy.normalizer
        obs = normalizer.obs(data.obs)
        action = normalizer.normalize_action(continued(data, self.policy))

        # Critic: regress every Q to the value of the next state under the policy of one step.
        with torch.no_grad():
            noise = self.policy.sample_noise(len(data))
            following = self.executed(self.policy.unclipped(data.next_obs, noise))
            value = self.target(normalizer.obs(data.next_obs), following)
            value = value.amin(0) if self.pessimistic else value.mean(0)
            backup = data.reward + data.discount * value
        estimate = self.critic(obs, action)
        critic_loss = (estimate - backup).square().mean(1).sum()

        # Policy: the flow's end points and the mean of the critics, whose weights do not move.
        distillation_loss, plan = self.distillation(data.obs)
        climbed = self.critic(obs, self.executed(plan)).mean(0)
        scale = 1.0 / climbed.detach().abs().mean().clamp_min(1e-6) if self.normalize_q else 1.0
        policy_loss = self.alpha * distillation_loss - scale * climbed.mean()

        # Flow: imitation of all that is stored.
        flow_loss = self.flow.bc_loss(as_plans(data, self.flow.spec.horizon))

        # Each loss is that of the weights before any of them moved: the policy's step comes first.
        self.policy_optimizer.step(policy_loss)
        self.critic_optimizer.step(critic_loss)
        self.flow_optimizer.step(flow_loss)
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "q_mean": estimate.detach().mean(),
            "flow_loss": flow_loss.detach(),
            "distillation_loss": distillation_loss.detach(),
            "policy_loss": policy_loss.detach(),
        }

    def distill(self, data: Batch) -> Metrics:
        """Take one step of the policy towards the flow, with no critic."""
        loss, _ = self.distillation(data.obs)
        self.policy_optimizer.step(loss)
        return {"distillation_loss": loss.detach()}

    def distillation(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Return the error against the flow's end points, and the policy's plans ``[B, H, A]``."""
        noise = self.policy.sample_noise(count(obs))
        with torch.no_grad():
            taught = self.policy.normalizer.normalize_action(self.flow(obs, noise))
        plan = self.policy.unclipped(obs, noise)
        return (plan - taught).square().mean(), plan

    def executed(self, plan: Tensor) -> Tensor:
        """Return the executed part of normalised plans, within the task's limits, normalised."""
        normalizer = self.policy.normalizer
        return normalizer.normalize_action(normalizer.raw_action(plan[:, : self.act_steps]))

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the flow during warm-up, and as the policy of one step after it."""
        acting = self.flow if warmup else self.policy
        return acting.act(obs)[:, : self.act_steps], {}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Return the usual phases; without an offline one, the flow gathers and is distilled."""
        first, taught = self.pace.warmup_steps, self.distill_updates
        rest = budget.online_steps - first
        if budget.offline_steps or not first or rest <= 0 or not self.distill_updates:
            return super().phases(budget)
        return (
            # Nothing is judged before the policy of one step has been distilled.
            Phase("warmup", first, "steps", Feed.EXPERIENCE, None, eval_every=2 * first),
            Phase("distill", taught, "updates", Feed.EXPERIENCE, self.distill, eval_every=taught),
            Phase("online", rest, "steps", Feed.EXPERIENCE, self.update),
        )
