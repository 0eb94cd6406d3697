"""A policy that edits several proposals and plays the best of them all, edited or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.best_of import picked, repeated
from trimtab.policies.kinds.edited import check_editor, read_as, seen
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.networks.critic import EnsembleCritic, Members
from trimtab.settings import Bounds, Size
from trimtab.types import Obs, Statistics


class EditedBestOfPolicy(ComposedPolicy):
    """``action = argmax Q(obs, a)`` over N proposals of a base and the same N edited.

    The on-the-fly policy of Dong et al., "EXPO: Stable Reinforcement Learning with Expressive
    Policies" (arXiv 2507.07986). What a plan is worth is the least of a few Q functions of an
    ensemble. Which ones is drawn anew at each decision, by a part of the noise, so that one graph
    holds base, editor, critics and the choice. Zero noise makes all proposals one.

    Args:
        base: any policy; it proposes, and its weights get no gradients.
        editor: what ``editor_of`` returned, which sees what it edits.
        scale: the most that an edit can change of a normalised action.
        candidates: number N of proposals.
        hidden: widths of the critics' hidden layers.
        critics: number of Q functions.
        target_critics: how many of them judge a decision.
        layer_norm: normalise after each hidden layer of the critics.

    Raises:
        TrimtabError: if the editor does not fit the base, or a number is not in its range.
    """

    adjustable = frozenset({"candidates"})

    def __init__(
        self,
        base: Policy,
        editor: TanhGaussianPolicy,
        *,
        scale: float = 0.1,
        candidates: Size = 8,
        hidden: Sequence[Size] = (256, 256),
        critics: Size = 10,
        target_critics: Annotated[int, Bounds(least=1, most_of="critics")] = 2,
        layer_norm: bool = True,
    ) -> None:
        check_editor(base, editor)
        shapes = ((candidates, *base.noise_shape), (candidates, *editor.noise_shape), (critics,))
        super().__init__(base.spec, (sum(map(math.prod, shapes)),), scale=float(scale))
        self._noise_shapes = shapes
        self.normalizer = base.normalizer
        self.base = base.requires_grad_(False).eval()
        self.editor = editor
        self.scale, self.target_critics = float(scale), target_critics
        self.act_steps = editor.spec.horizon
        self.critic = EnsembleCritic(
            base.spec.obs_dim, self.act_steps * base.spec.action_dim,
            hidden=hidden, members=critics, layer_norm=layer_norm,
        )  # fmt: skip

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the base's normaliser, and let the editor read as the base does."""
        self.base.fit_normalizer(statistics)
        read_as(self.editor, self.base)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return the most valued raw chunk ``[B, H, A]``."""
        sizes = [math.prod(shape) for shape in self._noise_shapes]
        parts = zip(noise.split(sizes, dim=1), self._noise_shapes, strict=True)
        base_noise, edit_noise, lots = (part.reshape(-1, *shape) for part, shape in parts)
        plans = self.proposals(self.base, obs, base_noise, edit_noise)
        # The critics with the highest lots judge; equal lots, as of zero noise, go by number.
        lots = lots - 1e-6 * torch.arange(lots.shape[1], device=lots.device)
        judges = lots.topk(self.target_critics, dim=1).indices
        values = self.values(obs, plans).permute(1, 2, 0)  # [B, 2N, E]
        judges = judges[:, None].expand(-1, values.shape[1], -1)
        return picked(plans, values.gather(2, judges).amin(2).argmax(1))

    def proposals(self, base: Policy, obs: Obs, base_noise: Tensor, edit_noise: Tensor) -> Tensor:
        """Return raw plans ``[B, 2N, H, A]``: the base's own, then the same ones edited.

        Args:
            base: what proposes: that of this policy, or one that is learned beside it.
            obs: raw observations ``[B, O]``, or parts.
            base_noise: ``[B, N, *base.noise_shape]``.
            edit_noise: ``[B, N, *editor.noise_shape]``.
        """
        many = base_noise.shape[1]
        rows = repeated(obs, many)
        plans: Tensor = base(rows, base_noise.flatten(0, 1))
        first = self.normalizer.normalize_action(plans[:, : self.act_steps])
        edit, _ = self.editor.sample_with_log_prob(
            seen(self.editor, rows, first), edit_noise.flatten(0, 1)
        )
        edited = torch.cat([self.applied(first, edit), plans[:, self.act_steps :]], 1)
        shape = (-1, many, *plans.shape[1:])
        return torch.cat([plans.reshape(shape), edited.reshape(shape)], 1)

    def applied(self, first: Tensor, edit: Tensor) -> Tensor:
        """Return raw actions inside the limits, of normalised ones ``[B, h, A]`` and their edit."""
        return self.normalizer.raw_action(first + self.scale * edit)

    def values(self, obs: Obs, plans: Tensor, members: Members = None) -> Tensor:
        """Return Q of some or all members ``[E, B, C]`` for raw plans ``[B, C, H, A]``."""
        many = plans.shape[1]
        scaled = self.normalizer.normalize_action(plans[:, :, : self.act_steps])
        features = repeated(self.normalizer.obs(obs), many)
        worth: Tensor = self.critic(features, scaled.flatten(0, 1), members)
        return worth.reshape(worth.shape[0], -1, many)
