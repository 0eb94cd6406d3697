"""PPO whose data are gathered so that together they look as if its own policy had drawn them.

Corrado and Hanna, "On-Policy Policy Gradient Reinforcement Learning Without On-Policy Sampling"
(arXiv 2311.08290), there called PROPS (proximal robust on-policy sampling), with their code
(NicholasCorrado/PPOROS: ``PROPS/ppo_props_continuous.py``). A finite sample of a policy has some
actions too often and others too seldom. A behaviour policy b acts; before each rollout it becomes a
copy of the policy pi, and then steps away from what the kept data have too much of:

- behaviour:  L_b = mean max(rho, clip(rho, 1 - e, 1 + e)) + c/D KL(b || pi),
              rho = b(a|s) / pi(a|s), over the kept decisions, but for the oldest rollout where the
              next one replaces it; several epochs, or until mean (rho - 1 - log rho) exceeds
              ``kl_limit``; an action has D entries

Where pi learns, the newest ``kept_batches`` batches are one long rollout to PPO: likelihoods,
values and advantages are computed anew by the policy of the moment. A batch is ``target_every``
rollouts; in the paper m = ``rollout_steps`` times ``num_envs`` decisions, n = ``target_every`` m.

| task of the paper | n | m | learning_rate | behaviour_learning_rate | kl_weight | kl_limit |
| :-- | :-- | :-- | :-- | :-- | :-- | :-- |
| Swimmer | 4096 | 2048 | 1e-3 | 1e-4 | 0.01 | 0.03 |
| HalfCheetah | 1024 | 512 | 1e-4 | 1e-3 | 0.3 | 0.05 |
| Hopper | 2048 | 256 | 1e-3 | 1e-3 | 0.3 | 0.05 |
| Walker2d | 2048 | 256 | 1e-3 | 1e-3 | 0.3 | 0.1 |
| Ant | 1024 | 1024 | 1e-4 | 1e-4 | 0.1 | 0.1 |
| Humanoid | 8192 | 256 | 1e-4 | 1e-4 | 0.1 | 0.1 |

With ``kept_batches=1`` and ``target_every=1`` the next rollout replaces all that is kept, so that b
stays pi, and it is PPO. Everything else is PPO's.

Deviations: where pi has just learned, their code has the likelihoods of pi before that in rho and
KL; here they are those of pi, as in the paper. After the limit on the divergence Adam's moments
still follow the gradients, but weights stay. Their PPO, with its own limit on the divergence, is
this suite's without one. The last bootstrap of a batch knows whether time or failure ended it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.rollouts import estimate_kl, mean_metrics, minibatch_rows
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.algorithms.phases import Budget, Phase
from trimtab.errors import TrimtabError
from trimtab.observations import count, tree_map
from trimtab.policies.kinds.diagonal_gaussian import gaussian_kl
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Count, Natural, NonNegative, Positive, Size
from trimtab.types import Metrics, Obs, Rollout


@dataclass(frozen=True)
class Taken:
    """M kept decisions without their order, and what the policy says of them."""

    obs: Tensor  # [M, O] normalised
    action: Tensor  # [M, H, A] normalised, before it was clipped
    mean: Tensor  # [M, H, A] of the policy
    log_prob: Tensor  # [M] log-density under the policy

    def __getitem__(self, rows: Tensor) -> Taken:
        """Return some of the rows."""
        return Taken(*(part[rows] for part in vars(self).values()))


class PROPS(PPO):
    """PPO with proximal robust on-policy sampling.

    Args:
        setup: as in PPO.
        target_every: rollouts in a batch, after each of which the policy learns.
        kept_batches: batches that the policy learns from.
        behaviour_learning_rate: Adam's, for the behaviour policy.
        behaviour_epochs: passes over the kept decisions, before each rollout.
        behaviour_minibatches: minibatches of a pass, where all kept batches are full.
        behaviour_clip: e; a decision whose likelihood fell by more than this share has no gradient.
        kl_weight: c.
        kl_limit: estimated divergence at which the behaviour policy stops learning.
        ppo: settings of PPO.
    """

    minibatch_updates = ("learn", "learn_behaviour")
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        target_every: Count = 2,
        kept_batches: Count = 2,
        behaviour_learning_rate: NonNegative = 1e-3,
        behaviour_epochs: Natural = 16,
        behaviour_minibatches: Size = 16,
        behaviour_clip: Positive = 0.3,
        kl_weight: NonNegative = 0.3,
        kl_limit: Positive = 0.05,
        **ppo: Any,
    ) -> None:
        super().__init__(setup, **ppo)
        self.target_every, self.most = target_every, kept_batches * target_every
        self.behaviour_learning_rate = behaviour_learning_rate
        self.behaviour_epochs = behaviour_epochs
        self.behaviour_clip, self.kl_weight, self.kl_limit = behaviour_clip, kl_weight, kl_limit
        decisions = self.pace.rollout_steps * setup.num_envs
        self.behaviour_rows = max((self.most - 1) * decisions // behaviour_minibatches, 1)
        self.behaviour = copy.deepcopy(self.policy)
        self.behaviour.normalizer = self.policy.normalizer
        self.behaviour_optimizer = Adam(
            self.behaviour.parameters(),
            behaviour_learning_rate,
            epsilon=1e-5,  # as PPO's and that of their code
            max_gradient_norm=0.5,
        )
        self.kept: list[Rollout] = []  # the newest rollouts, oldest first
        # Rewards are counted once, and scaled whenever the policy learns from them.
        self.return_scale, self.reward_scale = self.reward_scale, None
        names = ("policy_loss", "value_loss", "kl", "entropy", "learning_rate")
        self.last_metrics = dict.fromkeys(names, 0.0)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Return the one phase, in which a batch has to become full.

        Raises:
            TrimtabError: if none does, so that the policy would never learn.
        """
        batch = self.target_every * self.steps_per_update
        if 0 < budget.online_steps < batch:
            raise TrimtabError(
                f"online_steps={budget.online_steps}: the policy learns after every {batch} steps "
                "(target_every x rollout_steps x num_envs x act_steps) only; raise online_steps"
            )
        return super().phases(budget)

    def update(self, data: Rollout) -> Metrics:
        """Keep a rollout; improve policy and value where a batch is full; move the behaviour."""
        if self.return_scale is not None:
            self.return_scale(data.reward, data.cut)
        self.kept = [*self.kept, keep(data)][-self.most :]
        if (self.updates + 1) % self.target_every == 0:
            whole = join(self.kept)
            if self.return_scale is not None:
                whole = replace(whole, reward=self.return_scale.scale(whole.reward))
            self.last_metrics = self.improve(self.samples(whole))
        if isinstance(self.actor.normalizer, RunningNormalizer):
            self.actor.normalizer.see(data.obs)
        self.updates += 1
        return {**self.last_metrics, **self.move_behaviour()}

    def move_behaviour(self) -> Metrics:
        """Make the behaviour the policy, then move it away from what is kept too often."""
        with torch.no_grad():
            for mine, other in zip(
                self.behaviour.parameters(), self.policy.parameters(), strict=True
            ):
                mine.copy_(other)
        lasting = self.kept if len(self.kept) < self.most else self.kept[1:]
        if not lasting or not self.behaviour_epochs:
            return {"behaviour_loss": 0.0, "behaviour_kl": 0.0, "moving": 0.0}
        self.behaviour_optimizer.change_rate(self.behaviour_learning_rate)
        taken = self.taken(join(lasting))
        rows = minibatch_rows(
            len(taken.obs), self.behaviour_rows, self.behaviour_epochs, taken.obs.device
        )
        return mean_metrics([self.learn_behaviour(taken[chosen]) for chosen in rows])

    def learn_behaviour(self, part: Taken) -> dict[str, Tensor]:
        """Take one step of the behaviour policy on a minibatch, unless it has gone far enough."""
        mean = self.behaviour.head(part.obs)
        log_ratio = self.behaviour.log_prob(mean, part.action) - part.log_prob
        # What was drawn too often becomes less likely, until its likelihood fell by e.
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - self.behaviour_clip, 1 + self.behaviour_clip)
        avoiding = torch.maximum(ratio, clipped).mean()
        divergence = gaussian_kl(
            mean, self.behaviour.log_std, part.mean, self.policy.log_std.detach()
        )
        loss = avoiding + self.kl_weight * divergence.mean() / part.mean[0].numel()
        # Beyond the limit the rate becomes 0 and stays so until the next rollout.
        rate = self.behaviour_optimizer.learning_rate
        assert isinstance(rate, Tensor)
        rate.mul_(estimate_kl(log_ratio) <= self.kl_limit)
        self.behaviour_optimizer.step(loss)
        return {
            "behaviour_loss": loss.detach(),
            "behaviour_kl": estimate_kl(log_ratio),
            "moving": (rate > 0).to(loss.dtype),
        }

    @torch.no_grad()
    def taken(self, data: Rollout) -> Taken:
        """Return a rollout's decisions, and what the policy says of them."""
        obs = self.policy.normalizer.obs(data.obs).flatten(0, 1)
        action = data.aux["unclipped"].flatten(0, 1)
        mean = self.policy.head(obs)
        return Taken(obs, action, mean, self.policy.log_prob(mean, action))

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return actions of the behaviour policy; there is no warm-up."""
        unclipped = self.behaviour.unclipped(obs, self.behaviour.sample_noise(count(obs)))
        return self.behaviour.normalizer.raw_action(unclipped), {"unclipped": unclipped}

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly, the kept rollouts included."""
        return {**super().state_dict(), "kept": [dict(vars(one)) for one in self.kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``, so that learning continues exactly from it."""
        super().load_state_dict(state)
        device = next(self.policy.parameters()).device
        self.kept = [
            Rollout(**{name: on_device(value, device) for name, value in one.items()})
            for one in state["kept"]
        ]


def keep(data: Rollout) -> Rollout:
    """Return a copy of a rollout, whose tensors may be written over, with its cuts named."""
    return Rollout(
        obs=tree_map(torch.clone, data.obs),
        action=data.action.clone(),
        reward=data.reward.clone(),
        next_obs=tree_map(torch.clone, data.next_obs),
        discount=data.discount.clone(),
        cut=data.cut.clone(),
        aux={name: value.clone() for name, value in data.aux.items()},
        cut_rows=data.cuts.clone(),
    )


def join(rollouts: Sequence[Rollout]) -> Rollout:
    """Return rollouts ``[T, N, ...]`` that follow one another as one."""

    def together(name: str) -> Any:
        parts = [getattr(one, name) for one in rollouts]
        if isinstance(parts[0], Mapping):
            return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        return torch.cat(parts)

    names = ("obs", "action", "reward", "next_obs", "discount", "cut", "aux")
    rows = [one.cuts + place * len(one) for place, one in enumerate(rollouts)]
    return Rollout(**{name: together(name) for name in names}, cut_rows=torch.cat(rows))


def on_device(value: Any, device: torch.device) -> Any:
    """Return a tensor, or a mapping of some, on a device; None stays."""
    if isinstance(value, Mapping):
        return {name: on_device(part, device) for name, part in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value
