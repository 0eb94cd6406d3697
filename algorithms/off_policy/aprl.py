"""APRL: soft actor-critic, exploring within a limit that grows, and that surprise shrinks.

Smith et al., "Grow Your Limits: Continuous Improvement with Real-World RL for Robotic Locomotion"
(arXiv 2310.17634), on SAC (:mod:`trimtab.algorithms.off_policy.sac`) in the form of DroQ (Hiraoka
et al., arXiv 2110.02034: critics with dropout and layer normalisation, many updates a decision):

- limit:       L(t) grows in a line from ``first_limit`` to ``last_limit`` over ``ramp_steps``
- actor:       L_pi = SAC's + c mean sum_d |a_d| 1(some |a_d| > L(t))
               so the limit is soft: an action beyond it is executed as it is
- warm-up:     uniform actions times L(0), or times min(1, 1.5 L(0)) by a chance of 0.15
- dynamics:    L_f = mean (f(s, a) - s')^2, one step for each of the actor's
- shrink:      the error of f on the newest transitions, averaged by halves, above
               ``surprise_threshold``: the ramp begins again, at max(first_limit, L(t) / 2), and the
               average begins anew; actor and critics go on

The paper's ablations are settings: no limit is ``penalty=0 first_limit=1 last_limit=1``, a fixed
one has ``first_limit`` equal to ``last_limit`` and ``surprise_threshold=null``, one that never
shrinks has ``surprise_threshold=null``.

Deviations: a learner here is not told where episodes end, so surprise is judged after every
``surprise_window`` decisions (there: at each episode's end); it is the mean error of those rows of
the batches since then that are not older than that window (there: of one batch of the newest rows).
L(t) stays at ``first_limit`` in the warm-up (there: it grows in it). The robot's filter of actions,
its gains and its past action in the observation belong to a task and are left out. Of a chunk, each
action is held to the limit by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.schedules import UpdateCount
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.observations import count, first_leaf
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import Bounds, Count, NonNegative, Positive, Share
from trimtab.types import Batch, Metrics, Obs

_WIDER, _WIDER_CHANCE = 1.5, 0.15
"""How much wider than the limit some random actions of the warm-up are, and how many."""


class APRL(SAC):
    """Soft actor-critic within a limit of its actions that surprise shrinks.

    Args:
        setup: shapes, limits and device; nothing else is needed.
        first_limit: L at the start, of actions scaled to [-1, 1].
        last_limit: L at the end of the ramp.
        ramp_steps: environment steps that the ramp takes.
        penalty: c; 0: there is no limit.
        surprise_threshold: error of the dynamics network above which L shrinks; None: it never
            does. It is in the units of observations, squared.
        surprise_window: decisions between two judgements, and the age of what is judged.
        dropout: chance that a hidden number of the critics is 0.
        updates_per_decision: updates for each executed action.
        max_gradient_norm: bound on the norm of all gradients of the critics together.
        sac: further settings of SAC; DroQ's are in ``conf/algorithm/aprl.yaml``. ``hidden`` and
            ``learning_rate`` are the dynamics network's, too.
    """

    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        first_limit: Share = 0.35,
        last_limit: Annotated[float, Bounds(least_of="first_limit", most=1)] = 0.6,
        ramp_steps: Count = 30_000,
        penalty: NonNegative = 12.0,
        surprise_threshold: NonNegative | None = 1.5,
        surprise_window: Count = 256,
        dropout: Annotated[float, Bounds(least=0, below=1)] = 0.01,
        updates_per_decision: Annotated[float, Bounds(least=1e-3)] = 20.0,
        max_gradient_norm: Positive = 100.0,
        **sac: Any,
    ) -> None:
        self.dropout = dropout
        super().__init__(setup, updates_per_decision=updates_per_decision, **sac)
        self.penalty, self.act_steps = penalty, setup.spec.horizon
        self.critic_optimizer.max_gradient_norm = max_gradient_norm
        self.judged_every = max(1, round(surprise_window * updates_per_decision))
        spec, rate = setup.spec, self.critic_optimizer.learning_rate
        reads = spec.obs_dim + spec.horizon * spec.action_dim
        self.dynamics = mlp(reads, self.hidden, spec.obs_dim).to(setup.device)
        self.dynamics_optimizer = Adam(self.dynamics.parameters(), rate)
        self.count = UpdateCount(setup.device)
        self.ramp = Ramp(first_limit, last_limit, ramp_steps, surprise_threshold).to(setup.device)

    def update(self, data: Batch) -> Metrics:
        """Take one step of SAC, and of the dynamics network where the actor had one."""
        self.count.increase()  # the limit is that of this update
        actor_due, judged_due = self.branch
        metrics = super().update(data)
        if actor_due:
            self.update_dynamics(data)
        if judged_due:
            self.ramp.judge(self.steps)
        return {
            **metrics,
            "dynamics_loss": self.ramp.error.clone(),
            "surprise": self.ramp.average.clone(),
            "limit": self.ramp.limit(self.steps),
            "beyond_limit": self.ramp.beyond.clone(),
        }

    @property
    def branch(self) -> tuple[bool, bool]:
        """Whether the next update has a step of the actor, and a judgement of the surprise."""
        return self.actor_due, (self.updates + 1) % self.judged_every == 0

    def update_actor(self, raw_obs: Obs, obs: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of actor and temperature; return the actor's loss and log-densities."""
        action, log_prob = self.sample(raw_obs)
        value = self.critic(obs, action)
        value = value.amin(0) if self.pessimistic_actor else value.mean(0)
        actor_loss = self.penalized((alpha * log_prob - value).mean(), action)
        self.actor_optimizer.step(actor_loss)

        log_prob = log_prob.detach()
        temperature_loss = -(self.temperature.log * (log_prob + self.target_entropy)).mean()
        self.temperature_optimizer.step(temperature_loss)
        return actor_loss, log_prob

    def penalized(self, loss: Tensor, action: Tensor) -> Tensor:
        """Return the actor's loss with the cost of actions ``[B, H, A]`` beyond the limit."""
        size = action.abs()
        beyond = (size.detach() > self.ramp.limit(self.steps)).any(2)
        self.ramp.beyond.copy_(beyond.float().mean())
        return loss + self.penalty * (size.sum(2) * beyond).sum(1).mean()

    def update_dynamics(self, data: Batch) -> None:
        """Take one step of the dynamics network, and count its errors at the newest rows."""
        normalizer = self.actor.normalizer
        obs = normalizer.obs(data.obs)
        action = normalizer.normalize_action(data.action).flatten(1)
        predicted = obs + self.dynamics(torch.cat([obs, action], dim=1))
        error = (predicted - normalizer.obs(data.next_obs)).square().mean(1)
        loss = error.mean()
        self.dynamics_optimizer.step(loss)
        newest = data.aux["moment"] > self.count() - self.judged_every
        self.ramp.see(error.detach(), newest)

    @property
    def steps(self) -> Tensor:
        """Environment steps of the run, as many as its updates say, a scalar."""
        learned: Tensor = self.act_steps * self.count() / self.pace.updates_per_decision
        return (self.pace.warmup_steps + learned).float()

    @property
    def aux_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The number of updates at that moment is stored, which tells the newest transitions."""
        return {"moment": ()}

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return uniform actions within the limit during warm-up, sampled ones after it."""
        device, rows = first_leaf(obs).device, count(obs)
        aux = {"moment": torch.full((rows,), float(self.updates), device=device)}
        if not warmup:
            return self.actor.act(obs), aux
        noise = 2 * torch.rand(rows, *self.actor.noise_shape, device=device) - 1
        limit = self.ramp.limit(0.0)
        wider = torch.rand(rows, 1, 1, device=device) < _WIDER_CHANCE
        within = torch.where(wider, (_WIDER * limit).clamp(max=1.0), limit)
        return self.actor.normalizer.raw_action(within * noise), aux

    def make_critic(
        self, obs_dim: int, size: int, hidden: Sequence[int], critics: int, layer_norm: bool
    ) -> EnsembleCritic:
        """Return Q functions with dropout."""
        return EnsembleCritic(
            obs_dim, size, hidden=hidden, members=critics, layer_norm=layer_norm,
            dropout=self.dropout,
        )  # fmt: skip


class Ramp(nn.Module):
    """The limit L(t), and the surprise that makes it begin again.

    Args:
        first: L at the start, and the least that it shrinks to.
        last: L at the end.
        length: steps from the one to the other.
        threshold: average error above which it shrinks; None: it does not.
    """

    begin: Tensor
    start: Tensor
    average: Tensor
    judged: Tensor
    total: Tensor
    rows: Tensor
    error: Tensor
    beyond: Tensor

    def __init__(self, first: float, last: float, length: int, threshold: float | None) -> None:
        super().__init__()
        self.first, self.last, self.length, self.threshold = first, last, length, threshold
        beginnings = {"begin": 0.0, "start": first, "average": 0.0, "judged": 0.0}
        kept = {"total": 0.0, "rows": 0.0, "error": 0.0, "beyond": 0.0}
        for name, value in {**beginnings, **kept}.items():
            self.register_buffer(name, torch.tensor(value))

    def limit(self, step: float | Tensor) -> Tensor:
        """Return L, a scalar, at a step."""
        share = ((step - self.begin) / self.length).clamp(0.0, 1.0)
        return self.start + (self.last - self.start) * share

    def see(self, error: Tensor, newest: Tensor) -> None:
        """Count the errors ``[B]`` of the rows that are among the newest, ``[B]`` bool."""
        self.error.copy_(error.mean())
        self.total += (error * newest).sum()
        self.rows += newest.sum()

    def judge(self, step: Tensor) -> None:
        """Average what was counted into the surprise, and shrink the limit if it is too much."""
        seen, known = self.rows > 0, self.judged > 0
        error = self.total / self.rows.clamp(min=1.0)
        average = torch.where(known, 0.5 * error + 0.5 * self.average, error)
        self.average.copy_(torch.where(seen, average, self.average))
        self.judged.copy_((seen | known).float())
        self.total.zero_()
        self.rows.zero_()
        if self.threshold is None:
            return
        shrinks = (self.judged > 0) & (self.average > self.threshold)
        halved = (0.5 * self.limit(step)).clamp(min=self.first)
        self.start.copy_(torch.where(shrinks, halved, self.start))
        self.begin.copy_(torch.where(shrinks, step, self.begin))
        self.judged.mul_(~shrinks)
