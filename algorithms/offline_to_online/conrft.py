"""ConRFT: a consistency policy, tuned by cloning and values, offline and then online.

Chen et al., "ConRFT: A Reinforced Fine-tuning Method for VLA Models via Consistency Policy" (arXiv
2502.05450). The policy maps noise to an action chunk in one step, a = f(s, sigma_max z), so that
the gradient of a value reaches its weights directly:

- offline critic:  y = r + gamma (1 - d) min_i Q'_i(s', a'),  a' ~ pi(.|s')
                   L_Q = mean_i (Q_i(s, a) - y)^2 + alpha mean_i gap_i
                   gap = log mean exp of max(Q(s, a_j), G) and Q(s, a), less Q(s, a): Cal-QL (arXiv
                   2303.05479), with G the return of the demonstration, and actions a_j uniform,
                   from pi(.|s) and from pi(.|s')
- online critic:   the first two lines without the gap
- actor:           L_pi = beta recon - eta mean_i Q_i(s, f(s, sigma_max z)), where recon is the
                   policy's imitation loss (``policies/kinds/consistency.py``); offline beta = 1 and
                   eta = 0.1, online beta = 0.1 and eta = 1

Half of each online batch is demonstrations (``offline_share: 0.5``); both halves are cloned.

A base of kind consistency is tuned itself. Of another base a student of one step is distilled
first, on the same noise, in a share of the offline updates; the paper in this place trains a new
consistency head on a pretrained trunk, which this suite does not have.

Published: 20000 offline updates with eta 0 in its task's script (0.1 by default), gamma 0.97 to
0.98, tanh. Deviations: an eighth of each batch has the conservative term, which takes most of the
time (``conservative_share: 1`` for all); critics have ReLU; uniform actions come from the data's
range; imitation is not clipped (see the policy); critics are about the actions that are executed,
and chunks that were cut short go on as the policy plans; the actor climbs the critics after their
step (there: before it); nobody intervenes online.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.conservative import conservative_gap
from trimtab.algorithms.common.one_step import same_noise_loss, student_of
from trimtab.algorithms.common.plans import as_plans
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, Count, Natural, NonNegative, Share, Size
from trimtab.types import Batch, Metrics, Obs


class ConRFT(Algorithm):
    """Cloning with values on demonstrations, then on what is gathered.

    Args:
        setup: needs ``dataset``, and ``base`` or ``policy``.
        hidden: widths of the critics' hidden layers.
        layer_norm: normalise after each hidden layer of the critics.
        critics: number of Q functions.
        student_hidden: widths of a student's hidden layers, where the base is of another kind.
        distillation_share: share of the offline updates in which a student is distilled.
        candidates: sampled actions of each of three kinds in the conservative term.
        conservative_share: share of a batch whose rows have a conservative term.
        conservative_weight: alpha.
        offline_imitation: beta offline.
        offline_value: eta offline.
        online_imitation: beta online.
        online_value: eta online.
        actor_every: updates of the critics for one of the actor.
        learning_rate: Adam's, for actor and critics.
        batch_size: transitions in one update.
        tau: Polyak rate of the target critics.
        warmup_steps: environment steps of the policy before the first online update.
        updates_per_decision: online updates for each executed chunk.

    Raises:
        TrimtabError: if the policy is of another kind, or the base has nothing to teach.
    """

    needs = Needs({"start", "dataset"})
    unsaved = frozenset({"teacher"})  # it is frozen
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        hidden: Sequence[Size] = (256, 256),
        layer_norm: bool = True,
        critics: Size = 2,
        student_hidden: Sequence[Size] = (256, 256, 256),
        distillation_share: Share = 0.25,
        candidates: Size = 10,
        conservative_share: Annotated[float, Bounds(above=0, most=1)] = 0.125,
        conservative_weight: NonNegative = 0.1,
        offline_imitation: NonNegative = 1.0,
        offline_value: NonNegative = 0.1,
        online_imitation: NonNegative = 0.1,
        online_value: NonNegative = 1.0,
        actor_every: Count = 2,
        learning_rate: NonNegative = 3e-4,
        batch_size: Size = 256,
        tau: Share = 0.005,
        warmup_steps: Natural = 1_000,
        updates_per_decision: NonNegative = 1.0,
    ) -> None:
        self.offline, self.online = (
            (offline_imitation, offline_value),
            (online_imitation, online_value),
        )
        self.pace = Pace(batch_size, warmup_steps, updates_per_decision)
        self.tau = tau
        self.actor_every = actor_every
        self.candidates, self.conservative_weight = candidates, conservative_weight
        self.conservative_share = conservative_share
        self.distillation_share, self.act_steps = distillation_share, setup.spec.horizon

        self.teacher: Policy | None = None
        start = setup.start()
        if not isinstance(start, ConsistencyPolicy):
            if setup.base is None:
                raise TrimtabError(
                    f"ConRFT trains a consistency policy, not a {start.kind} policy: give "
                    "policy=consistency"
                )
            self.teacher = start.requires_grad_(False).eval()
            start = student_of(start, hidden=student_hidden, time_dim=16, levels=40)
        self.policy: ConsistencyPolicy = start
        size = self.act_steps * setup.spec.action_dim
        self.critic = EnsembleCritic(
            start.spec.obs_dim, size, hidden=hidden, members=critics, layer_norm=layer_norm
        ).to(setup.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_optimizer = Adam(self.policy.parameters(), learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), learning_rate)
        self.last_metrics = {"imitation_loss": 0.0, "actor_value": 0.0}

    def learn(self, data: Batch, conservative: bool, imitation: float, value: float) -> Metrics:
        """Take one step of critics and, when it is due, of the actor.

        Args:
            data: the batch.
            conservative: whether the critics' loss has the conservative term.
            imitation: beta.
            value: eta.
        """
        normalizer = self.policy.normalizer
        obs, next_obs = normalizer.obs(data.obs), normalizer.obs(data.next_obs)
        action = normalizer.normalize_action(self.continue_chunks(data))
        with torch.no_grad():
            following = self.target(next_obs, self.sample(next_obs, 1)[0]).amin(0)
            backup = data.reward + data.discount * following
            asked = self.asked(obs, next_obs) if conservative else None
        critic_loss, gap, taken = self.critic_loss(data, obs, action, backup, asked)
        self.critic_optimizer.step(critic_loss)
        if self.actor_due:
            cloned, valued = self.actor_losses(data, obs)
            self.actor_optimizer.step(imitation * cloned - value * valued)
            self.last_metrics = {"imitation_loss": cloned.detach(), "actor_value": valued.detach()}
        self.updates += 1
        polyak(self.target, self.critic, self.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "conservative_gap": gap.detach(),
            "q_mean": taken.detach().mean(),
            **self.last_metrics,
        }

    def critic_loss(
        self, data: Batch, obs: Tensor, action: Tensor, backup: Tensor, asked: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the critics' loss, the mean conservative gap, and values ``[E, B]``.

        Args:
            data: the batch.
            obs: its normalised observations.
            action: its normalised actions, continued.
            backup: what their values are to be.
            asked: what :meth:`asked` returned; None: there is no conservative term.
        """
        if asked is None:
            taken = self.critic(obs, action)
            return (taken - backup).square().mean(), torch.zeros_like(backup[0]), taken
        assert data.mc_return is not None  # data from a dataset always has it
        # One pass for the data's actions and all others, which come by candidate, then by row.
        many, rows = asked.shape[:2]
        where = torch.cat([obs, obs[:rows].repeat(many, 1)])
        values = self.critic(where, torch.cat([action, asked.flatten(0, 1)]))
        taken, sampled = values[:, : len(obs)], values[:, len(obs) :]
        sampled = sampled.reshape(-1, many, rows).transpose(1, 2)
        gap = conservative_gap(sampled, taken[:, :rows], data.mc_return[:rows]).mean()
        loss = (taken - backup).square().mean() + self.conservative_weight * gap
        return loss, gap, taken

    def actor_losses(self, data: Batch, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the imitation loss, and the mean value of the policy's own chunks."""
        cloned = self.policy.bc_loss(as_plans(data, self.policy.spec.horizon))
        return cloned, self.critic(obs, self.sample(obs, 1)[0]).mean()

    def asked(self, obs: Tensor, next_obs: Tensor) -> Tensor:
        """Return what the conservative term values at some rows, ``[3 n, rows, h, A]``."""
        rows = math.ceil(self.conservative_share * len(obs))
        here = self.sample(obs[:rows], self.candidates)
        there = self.sample(next_obs[:rows], self.candidates)
        return torch.cat([2 * torch.rand_like(here) - 1, here, there])

    def sample(self, obs: Tensor, many: int) -> Tensor:
        """Return the policy's executed chunks ``[many, B, h, A]``, as critics see them.

        Args:
            obs: normalised ``[B, O]``.
            many: chunks for each of them.
        """
        normalizer, condition = self.policy.normalizer, self.policy.network.condition(obs)
        noise = self.policy.sample_noise(many * len(obs))
        chunk = self.policy.chunk(condition.repeat(many, 1), noise)[:, : self.act_steps]
        executed = normalizer.normalize_action(normalizer.raw_action(chunk))
        return executed.reshape(many, len(obs), *executed.shape[1:])

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics online, and of the actor when it is due."""
        return self.learn(data, False, *self.online)

    def update_offline(self, data: Batch) -> Metrics:
        """Take one step of conservative critics, and of the actor when it is due."""
        return self.learn(data, True, *self.offline)

    def distil(self, data: Batch) -> Metrics:
        """Take one step of the student towards the base, on the same noise."""
        assert self.teacher is not None
        loss = same_noise_loss(self.policy, self.teacher, data.obs)
        self.actor_optimizer.step(loss)
        return {"distillation_loss": loss.detach()}

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sampled actions of the policy, those that are executed."""
        return self.policy.act(obs)[:, : self.act_steps], {}

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Distil a base of another kind, clone with conservative values, then interact."""
        distilled = 0
        if self.teacher is not None:
            distilled = int(self.distillation_share * budget.offline_steps)
            if not distilled:
                raise TrimtabError(
                    f"offline_steps={budget.offline_steps}: a base of kind {self.teacher.kind} is "
                    "distilled offline first; give more, raise algorithm.distillation_share, or "
                    "give a base of kind consistency"
                )
        rest = budget.offline_steps - distilled
        known = (
            Phase("distil", distilled, "updates", Feed.DATASET, self.distil),
            Phase("offline", rest, "updates", Feed.DATASET, self.update_offline),
            Phase("online", budget.online_steps, "steps", Feed.EXPERIENCE, self.update),
        )
        return tuple(phase for phase in known if phase.length)
