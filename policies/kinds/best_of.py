"""A policy that samples several action chunks and plays one that a critic values highly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.settings import Bounds, Size
from trimtab.types import Obs, Statistics


class BestOfPolicy(ComposedPolicy):
    """``action = argmax_i Q(obs, base(obs, noise_i))``, of N candidates.

    As in Hansen-Estruch et al., "IDQL: Implicit Q-Learning as an Actor-Critic Method with Diffusion
    Policies" (arXiv 2304.10573), algorithm 2. The critic is part of the policy, so that a bundle
    holds both and its one graph makes the choice. Zero noise makes all candidates one.

    With a temperature T candidate i is drawn with a chance proportional to ``exp(Q_i / T)``, as in
    Wang et al., "Diffusion Policies as an Expressive Policy Class for Offline Reinforcement
    Learning" (arXiv 2208.06193), section 4. Each candidate then has one more number of noise, which
    becomes the Gumbel variable of its draw.

    Args:
        base: any policy; it proposes.
        candidates: number N of proposals.
        hidden: widths of the critic's hidden layers.
        members: Q functions of the critic.
        act_steps: actions of a chunk that the critic values, those that are executed; None: all.
        layer_norm: whether the critic normalises after each hidden layer.
        pessimistic: whether a candidate is worth the least of the members; else their mean.
        temperature: T of the draw; None: the most valued candidate is played.

    Raises:
        TrimtabError: if there is no candidate or member, ``act_steps`` is not within the chunk, or
            the temperature is not above 0.
    """

    adjustable = frozenset({"candidates", "temperature"})
    frozen = ()

    def __init__(
        self,
        base: Policy,
        *,
        candidates: Size = 32,
        hidden: Sequence[Size] = (256, 256),
        members: Size = 2,
        act_steps: int | None = None,
        layer_norm: bool = False,
        pessimistic: bool = True,
        temperature: Annotated[float, Bounds(above=0)] | None = None,
    ) -> None:
        horizon = base.spec.horizon
        valued = horizon if act_steps is None else act_steps
        if not 1 <= valued <= horizon:
            raise TrimtabError(f"best_of policy: act_steps={valued}: must be from 1 to {horizon}")
        one = base.noise_shape if temperature is None else (math.prod(base.noise_shape) + 1,)
        super().__init__(base.spec, (candidates, *one), act_steps=valued)
        self.base = base
        self.normalizer = base.normalizer
        self.candidates, self.act_steps = candidates, valued
        self.pessimistic, self.temperature = pessimistic, temperature
        size = valued * base.spec.action_dim
        self.critic = EnsembleCritic(
            base.spec.obs_dim, size, hidden=hidden, members=members, layer_norm=layer_norm
        )

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the base's normaliser, which the critic shares."""
        self.base.fit_normalizer(statistics)

    def value(self, obs: Obs, action: Tensor, critic: EnsembleCritic | None = None) -> Tensor:
        """Return Q of every member ``[E, B]`` for raw ``obs`` and raw chunks ``[B, H, A]``.

        Args:
            obs: raw observations.
            action: raw chunks, of which the first ``act_steps`` actions count.
            critic: another one of the same shape, such as a target; None: the policy's own.
        """
        scaled = self.normalizer.normalize_action(action[:, : self.act_steps])
        values: Tensor = (critic or self.critic)(self.normalizer.obs(obs), scaled)
        return values

    def worth(self, values: Tensor) -> Tensor:
        """Return what candidates are worth ``[B]`` by the values of the members ``[E, B]``."""
        return values.amin(0) if self.pessimistic else values.mean(0)

    def propose(self, obs: Obs, noise: Tensor) -> tuple[Obs, Tensor]:
        """Return observations of B * N rows, each repeated N times, and a raw chunk for each.

        Args:
            obs: raw observations of B rows.
            noise: of the base, ``[B, N, *base.noise_shape]``; N may be any number.
        """
        rows = repeated(obs, noise.shape[1])
        return rows, self.base(rows, noise.flatten(0, 1))

    @staticmethod
    def taken(chunks: Tensor, score: Tensor) -> Tensor:
        """Return the chunk with the highest score of each row ``[B, H, A]``.

        Args:
            chunks: what :meth:`propose` returned, ``[B * N, H, A]``.
            score: ``[B, N]``.
        """
        chosen = score.argmax(1)[:, None, None, None].expand(-1, 1, *chunks.shape[1:])
        groups = chunks.reshape(-1, score.shape[1], *chunks.shape[1:])
        return torch.gather(groups, 1, chosen)[:, 0]

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return the chosen raw chunk ``[B, H, A]``; ``noise`` is ``[B, N, ...]``."""
        draw = None
        if self.temperature is not None:
            draw, noise = noise[..., 0], noise[..., 1:]
            noise = noise.reshape(*noise.shape[:2], *self.base.noise_shape)
        rows, chunks = self.propose(obs, noise)
        score = self.worth(self.value(rows, chunks)).reshape(-1, self.candidates)
        if draw is not None and self.temperature is not None:
            score = score / self.temperature + gumbel(draw)
        return self.taken(chunks, score)


def repeated(obs: Obs, many: int) -> Obs:
    """Return every row of an observation ``many`` times, one after another."""

    def more(part: Tensor) -> Tensor:
        return part[:, None].expand(-1, many, *part.shape[1:]).flatten(0, 1)

    rows: Obs = tree_map(more, obs)
    return rows


def picked(plans: Tensor, best: Tensor) -> Tensor:
    """Return of plans ``[B, C, H, A]`` those with the numbers ``best`` ``[B]``."""
    index = best[:, None, None, None].expand(-1, 1, *plans.shape[2:])
    return torch.gather(plans, 1, index)[:, 0]


def gumbel(noise: Tensor) -> Tensor:
    """Return standard Gumbel variables of standard normal ones, in the same order.

    ``argmax_i (l_i + G_i)`` is a draw from the softmax of ``l``.
    """
    chance = 0.5 * (1.0 + torch.erf(noise / math.sqrt(2.0)))
    # Beyond these limits a number of 32 bits would become 0 or 1, and its logarithm infinite.
    return -torch.log(-torch.log(chance.clamp(1e-6, 1.0 - 1e-6)))
