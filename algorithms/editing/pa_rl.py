"""PA-RL: actions are optimised by a critic, and the policy imitates what came of it.

Mark et al., "Policy Agnostic RL: Offline RL and Online RL Fine-Tuning of Any Class and Backbone"
(arXiv 2412.06685). The policy pi_b may be of any class that can be cloned. Its actions are improved
in two steps (``trimtab.policies.kinds.edited_ascent``), Q being the mean of the critics:

- global:   of N actions of the policy those K with the highest Q
- local:    T times  a <- clip(a + eta grad_a Q(s, a)),  of which the best one stays
- critic:   y = r + gamma (1 - d) min_{i in M} Q'_i(s', a'),  a' the best of the optimised actions,
            M two critics drawn at random;  L_Q = mean_i mean (Q_i(s, a) - y)^2
- policy:   its own imitation loss on an action drawn from softmax(Q / temperature) over the K

It gathers with such a draw, and is judged at the best of the K. Offline updates train the critic
alone, as in the released recipe. A new policy first clones the data, for half of them.

An adaptation (``faithful`` is False): the critic learns by differences in time alone (there: also
by Cal-QL's regulariser, of weight 0.005, which needs the data's returns, and a distribution over
128 values in [-100, 0]). Other deviations from the code:

- the draw's ``temperature`` is 0.1, for rewards of 0 and 1 (there: 1, for values down to -100);
- T of 2 and eta of 1.5e-3 (there: 10 and 3e-4), which reach as far; eta is in the base's
  normalised units, where its data fills [-1, 1];
- one step of the policy for ``base_every`` of the critics, each on actions that are optimised anew
  (there: they are stored, and the policy learns in rounds between episodes);
- during warm-up the policy's own actions are played;
- a copy that follows the policy slowly proposes what is imitated, ``proposal_tau`` (there: the
  policy of the round). A clone that was stopped early does not sample what it was taught. Where it
  imitates its own samples, each time anew, it drifts away, whatever the critic says;
- no dataset action takes the place of the worst of the K, which the code offers;
- ``backup_candidates`` of 4 in the target and for imitation (32), of which all are optimised; five
  critics (ten); batches of 128 (256).

The paper learns from half demonstrations, and trains the critics on them first: give ``dataset``,
``offline_steps`` and ``offline_share=0.5``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.plans import as_plans, check_clonable
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.observations import count
from trimtab.policies.kinds.best_of import picked
from trimtab.policies.kinds.edited_ascent import EditedAscentPolicy
from trimtab.settings import Bounds, Count, Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class PARL(Algorithm):
    """Imitate one's own actions after a critic has improved them.

    Args:
        setup: needs ``base``, or ``policy`` and ``dataset``.
        candidates: N, actions of the policy from which acting starts.
        backup_candidates: the same in the target y and for imitation.
        kept: K, those that are optimised.
        ascent_steps: T, gradient steps on an action.
        step_size: eta, of a gradient step on a normalised action.
        temperature: of the draw among optimised actions.
        hidden: widths of the critics' hidden layers.
        layer_norm: normalise after each hidden layer of the critics.
        critics: number of Q functions.
        target_critics: how many of them, drawn anew each time, y takes the least of.
        base_every: critic updates for one of the policy.
        proposal_tau: Polyak rate by which the copy that proposes actions to imitate follows the
            policy; at 1 it is the policy.
        learning_rate: Adam's, for the critics.
        base_learning_rate: Adam's, for the policy.
        clone_learning_rate: Adam's, for the policy where it first clones the data.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        warmup_steps: environment steps of the policy as it is before learning.
        updates_per_decision: updates for each executed action chunk.
    """

    needs = Needs({"start"})
    faithful = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        candidates: Size = 32,
        backup_candidates: Size = 4,
        kept: Annotated[int, Bounds(least=1, most_of="candidates")] = 10,
        ascent_steps: Natural = 2,
        step_size: NonNegative = 1.5e-3,
        temperature: Annotated[float, Bounds(least=1e-6)] = 0.1,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = True,
        critics: Size = 5,
        target_critics: Annotated[int, Bounds(least=1, most_of="critics")] = 2,
        base_every: Count = 2,
        proposal_tau: Share = 0.005,
        learning_rate: NonNegative = 3e-4,
        base_learning_rate: NonNegative = 5e-5,
        clone_learning_rate: NonNegative = 3e-4,
        batch_size: Size = 128,
        tau: Share = 0.005,
        warmup_steps: Natural = 4_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        self.base_every = base_every
        self.backup_candidates, self.temperature = backup_candidates, temperature
        self.target_critics, self.proposal_tau = target_critics, proposal_tau
        self.starts_cloned = setup.base is not None
        self.act_steps = setup.spec.horizon  # the policy may plan further than is executed
        start = setup.start()
        check_clonable(start)
        self.policy: EditedAscentPolicy = EditedAscentPolicy(
            start, act_steps=self.act_steps, candidates=candidates, kept=kept,
            ascent_steps=ascent_steps, step_size=step_size, hidden=hidden, critics=critics,
            layer_norm=layer_norm,
        ).to(setup.device)  # fmt: skip
        self.target = copy.deepcopy(self.policy.critic).requires_grad_(False)
        self.proposer = copy.deepcopy(self.policy.base).requires_grad_(False)
        self.critic_optimizer = Adam(self.policy.critic.parameters(), learning_rate)
        self.base_optimizer = Adam(self.policy.base.parameters(), base_learning_rate)
        self.clone_optimizer = Adam(self.policy.base.parameters(), clone_learning_rate)
        self.last_metrics = {"bc_loss": 0.0, "q_spread": 0.0}

    @property
    def branch(self) -> bool:
        """Whether the next update has a step of the policy."""
        return (self.updates + 1) % self.base_every == 0

    def update(self, data: Batch) -> Metrics:
        """Take one step of the critics, and at times one of the policy."""
        base_due = self.branch
        metrics = self.update_critic(data)
        if base_due:
            self.last_metrics = self.distill(data)
        return {**metrics, **self.last_metrics}

    def update_critic(self, data: Batch) -> Metrics:
        """Regress every Q to the target critics' value of the best optimised next action."""
        normalizer = self.policy.normalizer
        with torch.no_grad():
            plans, values = self.policy.optimized(data.next_obs, self.noise(len(data)))
            best = picked(plans, values.argmax(1))[:, : self.act_steps]
            following = normalizer.normalize_action(best)
            next_obs = normalizer.obs(data.next_obs)
            value = self.target(next_obs, following, self.target.drawn(self.target_critics)).amin(0)
            backup = data.reward + data.discount * value
            taken = self.executed(data)
        value = self.policy.critic(normalizer.obs(data.obs), taken)
        loss = (value - backup).square().mean()
        self.critic_optimizer.step(loss)
        polyak(self.target, self.policy.critic, self.tau)
        self.updates += 1
        return {"critic_loss": loss.detach(), "q_mean": value.detach().mean()}

    def distill(self, data: Batch) -> Metrics:
        """Take one step of the policy towards a draw of its optimised actions."""
        with torch.no_grad():
            noise = self.noise(len(data))
            plans, values = self.policy.optimized(data.obs, noise, self.proposer)
            chosen = self.draw(values)
            spread = values.gather(1, chosen[:, None])[:, 0] - values.amin(1)
        imitated = Batch(
            obs=data.obs, action=picked(plans, chosen), reward=data.reward, next_obs=data.next_obs,
            discount=data.discount, valid=torch.ones_like(plans[:, 0, :, 0], dtype=torch.bool),
            whole=True,
        )  # fmt: skip
        loss = self.policy.base.bc_loss(imitated)
        self.base_optimizer.step(loss)
        polyak(self.proposer, self.policy.base, self.proposal_tau)
        return {"bc_loss": loss.detach(), "q_spread": spread.mean()}

    def clone(self, data: Batch) -> Metrics:
        """Take one step of a new policy on the data."""
        loss = self.policy.base.bc_loss(as_plans(data, self.policy.spec.horizon))
        self.clone_optimizer.step(loss)
        polyak(self.proposer, self.policy.base, 1.0)
        return {"bc_loss": loss.detach()}

    def draw(self, values: Tensor) -> Tensor:
        """Return numbers ``[B]``, drawn from the softmax of values ``[B, K]`` over temperature."""
        # The largest logit with Gumbel noise (-log of a waiting time) is a draw from the softmax.
        waits: Tensor = torch.empty_like(values).exponential_()
        drawn: Tensor = (values / self.temperature - waits.log()).argmax(1)
        return drawn

    def noise(self, rows: int) -> Tensor:
        """Return noise of the target's proposals ``[rows, N, ...]``."""
        many = self.backup_candidates
        return self.policy.base.sample_noise(rows * many).reshape(
            rows, many, *self.policy.base.noise_shape
        )

    def executed(self, data: Batch) -> Tensor:
        """Return what was executed, normalised; what an end cut off goes on as a new plan does."""
        action = data.action
        if not data.whole and self.act_steps > 1:
            plan = self.policy.base.act(data.obs)[:, : self.act_steps]
            action = torch.where(data.valid[..., None], action, plan)
        return self.policy.normalizer.normalize_action(action)

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the policy does during warm-up, by a draw of its optimised actions after it."""
        if warmup:
            return self.policy.base.act(obs)[:, : self.act_steps], {}
        plans, values = self.policy.optimized(obs, self.policy.sample_noise(count(obs)))
        return picked(plans, self.draw(values))[:, : self.act_steps], {}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Clone the data where the policy is new, fit the critics to it, then learn all online."""
        cloning = 0 if self.starts_cloned else budget.offline_steps // 2
        fitting = budget.offline_steps - cloning
        usual = (
            Phase("clone", cloning, "updates", Feed.DATASET, self.clone),
            Phase("critic", fitting, "updates", Feed.DATASET, self.update_critic),
            Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, self.update),
        )
        return tuple(phase for phase in usual if phase.length)
