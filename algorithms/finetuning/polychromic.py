"""Polychromic PPO: a flow is tuned for sets of trajectories that succeed in different ways.

Hamid et al., "Polychromic Objectives for Reinforcement Learning" (arXiv 2509.25424). What is
maximised is the worth of a set of n trajectories from one state, so that a policy that knows
several ways loses by forgetting one:

- worth:      f(tau_1 ... tau_n) = mean_i R(tau_i) d(tau_1 ... tau_n)  (equation 7)
- diversity:  d is the share of distinct trajectories among the n; 0 where all are alike
- vines:      each rollout begins with N trajectories from each of p states of episodes that go on
              beside them; the states are restored exactly
- advantage:  in a vine's first W decisions, the mean over all sets g of n vines of one state that
              have this vine in them of f(g) - f_mean, with f_mean the mean over all sets;
              elsewhere PPO's generalised advantage. V has PPO's targets
- policy:     PPO's clipped surrogate, + c_KL KL(pi_old || pi)

What is tuned here is a flow, as by ReinFlow (``reinflow.py``), which has the ratios, the noise and
V; without vines (``roots`` as many as environments) and with c_KL = 0 it is ReinFlow. One
environment of each of p groups plays whole episodes; the others are the vines, from a state of its
running episode that is drawn. A vine goes from the rollout's beginning to the episode's end, or to
the rollout's; what its environment does after that is learned from as by PPO. R is its discounted
reward, scaled as for V.

Two vines are alike if each normalised observation of either one is within ``radius`` (root mean
square of ``entries``) of some observation of the other, at whatever time, or if a row of such pairs
joins them. Where one radius tells ways apart depends on what is observed; on the point mazes, 0.4
does so of all entries, and 0.2 to 0.6 of the position. The metric ``ways`` shows what is found.
By the definition a failure that looks different is a way, too: where few trajectories succeed in
more than one way, it is worth more to fail now and then than always to go one way.

Published settings (BabyAI, MiniGrid): N = 8, n = 4, p = 2, W = 5, c_KL from 0.005 to 0.05, 2
epochs, gamma 1.

An adaptation (``faithful`` is False): no code of the authors was found, and their policies are
discrete. Their diversity is written for each task, such as the rooms that are visited; here it is
one distance for all. All sets count (there: M = 4 are drawn, which has the same expectation, up to
a factor). A vine that the rollout cuts counts with what it has earned; a set with a return below 0
counts as 0 (there: returns from 0 to 1). The divergence is from the policy that gathered the
rollout, by its estimate k3 (there: from that of the epoch before). Restoring a state repeats up to
an episode of steps, which are not counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.rollouts import Decisions
from trimtab.algorithms.finetuning.reinflow import ReinFlow
from trimtab.errors import TrimtabError
from trimtab.settings import Bounds, Count, Natural, NonNegative, Positive
from trimtab.types import Metrics, Rollout

MOST_SETS = 10_000
"""Sets of vines of one state; each is looked at."""


class Polychromic(ReinFlow):
    """ReinFlow whose advantages are those of sets of trajectories.

    Args:
        setup: as in :class:`ReinFlow`; the policy reads no history.
        roots: p, states from which vines begin, N = ``num_envs`` / p - 1 from each. Of fewer than
            three vines there is nothing to compare, and they have PPO's advantage.
        set_size: n, trajectories in a set; at most N - 1, as one set alone has no others beside it.
        window: W, decisions of a vine that get the advantage of its sets.
        radius: distance within which trajectories are alike, in normalised observations.
        entries: entries of the observation in which it is measured; None: all.
        divergence_weight: c_KL.
        reinflow: settings of :class:`ReinFlow`.

    Raises:
        TrimtabError: if ``roots`` does not divide ``num_envs``, there are too many sets, or an
            observation has fewer entries.
    """

    faithful = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        roots: Count = 1,
        set_size: Annotated[int, Bounds(least=2)] = 4,
        window: Count = 5,
        radius: Positive = 0.4,
        entries: Sequence[Natural] | None = None,
        divergence_weight: NonNegative = 0.005,
        **reinflow: Any,
    ) -> None:
        if setup.num_envs % roots:
            raise TrimtabError(
                f"algorithm.roots={roots}: must divide num_envs={setup.num_envs}, whose "
                "environments are shared among the roots"
            )
        self.vines = setup.num_envs // roots - 1
        self.set_size = min(set_size, max(self.vines - 1, 1))
        if math.comb(self.vines, self.set_size) > MOST_SETS:
            raise TrimtabError(
                f"algorithm.set_size={set_size}: {self.vines} vines have more than {MOST_SETS} "
                "such sets; raise algorithm.roots, or lower it"
            )
        size = setup.spec.obs_dim
        if entries is not None and not all(one < size for one in entries):
            raise TrimtabError(f"algorithm.entries={[*entries]}: an observation has only {size}")
        self.entries = slice(None) if entries is None else [*entries]
        self.roots, self.window, self.radius = roots, window, radius
        self.divergence_weight = divergence_weight
        self.ways = torch.ones((), device=setup.device)  # of the last rollout, from one state
        super().__init__(setup, **reinflow)

    def update(self, data: Rollout) -> Metrics:
        """Improve flow, noise and V on one rollout; say how many ways its vines went."""
        return {**super().update(data), "ways": self.ways}

    @torch.no_grad()
    def decisions(self, data: Rollout, old: Callable[[Tensor, Tensor], Tensor]) -> Decisions:
        """Return the rollout's decisions; the first ones of vines have the advantage of sets."""
        found = super().decisions(data, old)
        if not self.vines:
            return found
        # [T, E]: the decisions of vines end where the first episode of their environment does.
        in_vine = data.cut.cumsum(0) - data.cut.long() == 0
        row = torch.arange(len(in_vine), device=in_vine.device)[:, None]
        reward = data.reward if self.reward_scale is None else self.reward_scale.scale(data.reward)
        weight = torch.cat([torch.ones_like(reward[:1]), data.discount[:-1].cumprod(0)])
        returns = (in_vine * weight * reward).sum(0)
        reached = self.policy.normalizer.obs(data.next_obs)[..., self.entries]
        last = torch.minimum(row, in_vine.sum(0) - 1)  # a path stays where its vine ended
        path = reached.gather(0, last[..., None].expand_as(reached)).transpose(0, 1)
        # [P, N]: the first environment of each group is no vine.
        same = same_way(path.unflatten(0, (self.roots, -1))[:, 1:], self.radius)
        self.ways = (1 / same.float().sum(-1)).sum(-1).mean()
        if self.vines < 3:
            return found
        advantage = set_advantage(returns.view(self.roots, -1)[:, 1:], same, self.set_size)
        advantage = nn.functional.pad(advantage, (1, 0)).flatten()
        early = in_vine & (row < self.window) & self.is_vine().to(row.device)
        gae = found.advantage.view_as(reward)
        return replace(found, advantage=torch.where(early, advantage, gae).flatten())

    def surrogate_loss(
        self, obs: Tensor, chain: Tensor, old: Tensor, advantage: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ReinFlow's loss, and the divergence from the policy that acted."""
        loss, log_ratio = super().surrogate_loss(obs, chain, old, advantage)
        if self.divergence_weight:
            divergence = (log_ratio.exp() - 1 - log_ratio).mean()
            loss = loss + self.divergence_weight * divergence
        return loss, log_ratio

    def is_vine(self) -> Tensor:
        """Return which environments have vines, ``[E]``: all but the first one of each group."""
        return torch.arange(self.roots * (self.vines + 1)) % (self.vines + 1) > 0

    def branches(self) -> tuple[Tensor, Tensor] | None:
        """Return for each environment the first one of its group, and where in its episode."""
        if not self.vines:
            return None
        group, environment = self.vines + 1, torch.arange(self.roots * (self.vines + 1))
        if self.reward_scale is not None:  # the returns of vines count from their states on
            self.reward_scale.carried[self.is_vine()] = 0.0
        return environment - environment % group, torch.rand(self.roots).repeat_interleave(group)


def same_way(path: Tensor, radius: float) -> Tensor:
    """Return which trajectories of one state went the same way, ``[P, N, N]`` bool.

    Args:
        path: normalised observations ``[P, N, T, O]``.
        radius: root mean square distance within which two observations are alike.
    """
    states, vines, rows, entries = path.shape
    others = path.flatten(1, 2)
    farthest = []  # of each trajectory's observations, its distance from each other trajectory
    for one in path.unbind(1):
        apart = torch.cdist(one, others, compute_mode="donot_use_mm_for_euclid_dist")
        farthest.append(apart.view(states, rows, vines, rows).amin(-1).amax(1))
    apart = torch.stack(farthest, 1)
    same = torch.maximum(apart, apart.mT) <= radius * math.sqrt(entries)
    for _ in range(math.ceil(math.log2(vines))):  # each time, rows of alike pairs join up
        same = same.float() @ same.float() > 0
    return same


def set_worth(returns: Tensor, same: Tensor) -> Tensor:
    """Return f of sets of trajectories, ``[...]``: their mean return times their diversity.

    Args:
        returns: ``[..., n]``.
        same: which of them went the same way, ``[..., n, n]`` bool.
    """
    distinct = (1 / same.float().sum(-1)).sum(-1).round()
    diversity = torch.where(distinct > 1, distinct / returns.shape[-1], 0.0)
    return returns.mean(-1).clamp(min=0) * diversity


def set_advantage(returns: Tensor, same: Tensor, size: int) -> Tensor:
    """Return how much more the sets with each trajectory are worth than all sets, ``[P, N]``.

    Args:
        returns: of N trajectories from each of P states, ``[P, N]``.
        same: which of them went the same way, ``[P, N, N]`` bool.
        size: n, trajectories in a set.
    """
    count = returns.shape[-1]  # sets are [S, n]
    sets = torch.tensor([*itertools.combinations(range(count), size)], device=returns.device)
    worth = set_worth(returns[:, sets], same[:, sets[:, :, None], sets[:, None, :]])  # [P, S]
    member = nn.functional.one_hot(sets, count).sum(1).to(worth.dtype)  # [S, N]
    return worth @ member / member.sum(0) - worth.mean(-1, keepdim=True)
