"""Several policies of one task: what each is worth in a state, which acts now, and by what rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.types import Rollout

__all__ = ["Seen", "Selection", "Turns", "ValueEnsembles", "score", "standardized", "stretches"]

Selection = Literal["raps", "mean", "maps", "mamba"]
"""Rules by which a policy takes over from the learner."""


class ValueEnsembles(nn.Module):
    """V of P policies, of each by E networks, all of them computed in one pass.

    Args:
        obs_dim: length of a normalised observation.
        policies: number P.
        members: networks E of each policy.
        hidden: widths of the hidden layers.
    """

    def __init__(self, obs_dim: int, policies: int, members: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.policies, self.members = policies, members
        self.networks = EnsembleCritic(obs_dim, 0, hidden=hidden, members=policies * members)

    def each(self, obs: Tensor) -> Tensor:
        """Return values ``[P, E, B]`` at each policy's own observations ``[P, B, O]``."""
        value = self.networks.of_rows(obs.repeat_interleave(self.members, 0))
        return value.reshape(self.policies, self.members, -1)

    def moments(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the members at observations ``[..., O]``.

        Returns:
            Each ``[P, ...]``; the deviation is that of the members themselves, not of a sample.
        """
        rows = obs.reshape(-1, obs.shape[-1])
        value = self.each(rows.expand(self.policies, -1, -1))
        shape = (self.policies, *obs.shape[:-1])
        return value.mean(1).reshape(shape), value.std(1, correction=0).reshape(shape)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the mean V of the first policy, ``[..., 1]``, at observations ``[..., O]``."""
        return self.moments(obs)[0][0][..., None]


class Seen(nn.Module):
    """A ring of observations, with what was collected after them and by which policy.

    Args:
        rows: how many it holds.
        obs_dim: length of an observation.
    """

    obs: Tensor
    target: Tensor
    actor: Tensor
    added: Tensor

    def __init__(self, rows: int, obs_dim: int) -> None:
        super().__init__()
        self.register_buffer("obs", torch.zeros(rows, obs_dim))
        self.register_buffer("target", torch.zeros(rows))
        self.register_buffer("actor", torch.full((rows,), -1.0))  # nobody
        self.register_buffer("added", torch.zeros((), dtype=torch.int64))

    def add(self, obs: Tensor, target: Tensor, actor: Tensor) -> None:
        """Add rows ``[B, ...]``; what the first policy, which learns, had collected is gone."""
        self.actor.copy_(torch.where(self.actor == 0, -1.0, self.actor))
        kept = min(len(obs), len(self.obs))
        places = torch.remainder(
            self.added + torch.arange(kept, device=self.added.device), len(self.obs)
        )
        for ring, rows in ((self.obs, obs), (self.target, target), (self.actor, actor)):
            ring.index_copy_(0, places, rows[-kept:].to(ring.dtype))
        self.added.add_(kept)

    def draw(self, policies: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw rows of each policy, each of its rows with the same chance.

        Returns:
            Observations ``[P, count, O]`` and targets ``[P, count]``, and which rows count,
            ``[P, count]``: none of a policy that has none.
        """
        own = self.actor == torch.arange(policies, device=self.actor.device)[:, None]
        rows = torch.multinomial(own + 1e-12, count, replacement=True)
        return self.obs[rows], self.target[rows], own.gather(1, rows)


class Turns(nn.Module):
    """Which policy acts in each environment: the learner, 0, until a step, then the chosen one.

    Args:
        num_envs: environments N.
    """

    fresh: Tensor
    step: Tensor
    switch: Tensor
    actor: Tensor

    def __init__(self, num_envs: int) -> None:
        super().__init__()
        self.num_envs = num_envs
        self.register_buffer("fresh", torch.ones(num_envs, dtype=torch.bool))
        for name in ("step", "switch", "actor"):
            self.register_buffer(name, torch.zeros(num_envs, dtype=torch.int64))

    def next(self, switch: Tensor, chosen: Tensor) -> Tensor:
        """Return which policy acts now, ``[N]``, and count the decision.

        Args:
            switch: of episodes that begin now: their decision at which another takes over, ``[N]``.
            chosen: the policy that takes over where one does so now, ``[N]``.
        """
        self.step.copy_(torch.where(self.fresh, 0, self.step + 1))
        self.switch.copy_(torch.where(self.fresh, switch, self.switch))
        self.actor.copy_(torch.where(self.fresh, 0, self.actor))
        self.actor.copy_(torch.where(self.step == self.switch, chosen, self.actor))
        self.fresh.fill_(False)
        return self.actor.clone()

    def on_episode_end(self, rows: Sequence[int]) -> None:
        """Begin anew in some of the environments."""
        self.fresh[list(rows)] = True


def score(rule: Selection, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return scores ``[P, B]``, the learner's first: the policy with the highest takes over.

    Args:
        rule: ``raps``: upper bounds of the oracles' values and the learner's lower bound; ``mean``:
            means; ``maps``: upper bounds of the oracles' values; ``mamba``: chance. With the last
            two, the learner is never chosen.
        mean: of each policy's values, ``[P, B]``.
        deviation: as ``mean``.
    """
    if rule == "mean":
        return mean
    if rule == "raps":
        return mean + torch.cat([-deviation[:1], deviation[1:]])
    oracles = mean + deviation if rule == "maps" else torch.rand_like(mean)
    return torch.cat([torch.full_like(mean[:1], -torch.inf), oracles[1:]])


def stretches(data: Rollout) -> Tensor:
    """Return where an episode ended, or somebody else acts after a decision, ``[T, N]`` bool."""
    actor = data.aux["actor"]
    others = torch.cat([actor[1:] != actor[:-1], torch.zeros_like(data.cut[:1])])
    return data.cut | others


def standardized(advantage: Tensor, own: Tensor) -> Tensor:
    """Return advantages with mean 0 and deviation 1 of the learner's own, and 0 elsewhere.

    They weigh so much more as the learner's decisions are fewer, so that a mean over all decisions
    is one over its own.

    Args:
        advantage: ``[T, N]``.
        own: where the learner acted, ``[T, N]`` bool.
    """
    share = own.float().mean().clamp(min=1e-8)
    centred = (advantage - (advantage * own).mean() / share) * own
    return centred / ((centred.square().mean() / share).sqrt() + 1e-8) / share
