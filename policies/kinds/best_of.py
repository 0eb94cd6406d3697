"""A policy that samples several action chunks and plays the one that a critic values most."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.observations import tree_map
from trimtab.policies.base import Policy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.types import Obs, Statistics, TrimtabError


class BestOfPolicy(Policy):
    """``action = argmax_i Q(obs, base(obs, noise_i))``, of N candidates.

    As in Hansen-Estruch et al., "IDQL: Implicit Q-Learning as an Actor-Critic Method with Diffusion
    Policies" (arXiv 2304.10573), algorithm 2. The critic is part of the policy, so that a bundle
    holds both and its one graph makes the choice. Zero noise makes all candidates one.

    Args:
        base: any policy; it proposes.
        candidates: number N of proposals.
        hidden: widths of the critic's hidden layers.
        members: Q functions of the critic; a candidate is worth the least of them.
        act_steps: actions of a chunk that the critic values, those that are executed; None: all.

    Raises:
        TrimtabError: if there is no candidate, or ``act_steps`` is not within the chunk.
    """

    def __init__(
        self,
        base: Policy,
        *,
        candidates: int = 32,
        hidden: Sequence[int] = (256, 256),
        members: int = 2,
        act_steps: int | None = None,
    ) -> None:
        horizon = base.spec.horizon
        valued = horizon if act_steps is None else act_steps
        if candidates < 1:
            raise TrimtabError(f"best_of policy: candidates={candidates}: must be at least 1")
        if not 1 <= valued <= horizon:
            raise TrimtabError(f"best_of policy: act_steps={valued}: must be from 1 to {horizon}")
        super().__init__(
            base.spec, (candidates, *base.noise_shape),
            candidates=candidates, hidden=list(hidden), members=members, act_steps=valued,
        )  # fmt: skip
        self.base = base
        self.normalizer = base.normalizer
        self.candidates, self.act_steps = candidates, valued
        size = valued * base.spec.action_dim
        self.critic = EnsembleCritic(base.spec.obs_dim, size, hidden=hidden, members=members)

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the base's normaliser, which the critic shares."""
        self.base.fit_normalizer(statistics)

    def value(self, obs: Obs, action: Tensor) -> Tensor:
        """Return Q of every member ``[E, B]`` for raw ``obs`` and raw chunks ``[B, H, A]``."""
        scaled = self.normalizer.normalize_action(action[:, : self.act_steps])
        values: Tensor = self.critic(self.normalizer.obs(obs), scaled)
        return values

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return the most valued raw chunk ``[B, H, A]``; ``noise`` is ``[B, N, ...]``."""
        many = self.candidates

        def repeated(part: Tensor) -> Tensor:
            return part[:, None].expand(-1, many, *part.shape[1:]).flatten(0, 1)

        rows = tree_map(repeated, obs)
        chunks = self.base(rows, noise.flatten(0, 1))
        best = self.value(rows, chunks).amin(0).reshape(-1, many).argmax(1)
        chosen = best[:, None, None, None].expand(-1, 1, *chunks.shape[1:])
        return torch.gather(chunks.reshape(-1, many, *chunks.shape[1:]), 1, chosen)[:, 0]

    @property
    def label(self) -> str:
        """It is listed under the kind of what proposes."""
        return self.base.label

    def config(self) -> dict[str, object]:
        """Return JSON that nests the config of the base."""
        described = super().config()
        described.pop("spec")
        return {**described, "base": self.base.config()}
