"""An edited policy: a small actor corrects the action chunks of a frozen base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.observations import joined
from trimtab.policies.agent import PolicyInputs
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import Obs, PolicySpec, Statistics

CHUNK = "base_chunk"
"""The part by which an editor sees what it edits, in the base's normalised units."""


def editor_spec(base: Policy, act_steps: int, *, sees_chunk: bool) -> PolicySpec:
    """Return the spec of an actor over edits of the first actions of a chunk, in ``[-1, 1]``.

    Args:
        base: what is edited.
        act_steps: actions that are edited, those that are executed.
        sees_chunk: whether the editor reads these actions beside the observation.

    Raises:
        TrimtabError: if ``act_steps`` is not within the chunk.
    """
    if not 1 <= act_steps <= base.spec.horizon:
        raise TrimtabError(f"editing: act_steps={act_steps}: must be from 1 to {base.spec.horizon}")
    dim = base.spec.action_dim
    spec = replace(base.spec, horizon=act_steps, action_low=(-1.0,) * dim, action_high=(1.0,) * dim)
    return spec.with_input(CHUNK, 0.0, (act_steps * dim,)) if sees_chunk else spec


def editor_of(
    base: Policy,
    act_steps: int,
    *,
    sees_chunk: bool,
    hidden: Sequence[int],
    layer_norm: bool = False,
    log_std_min: float = -5.0,
) -> TanhGaussianPolicy:
    """Return an actor over edits that sees what the base sees, and that edits little at first.

    Its last layer is orthogonal with gain 0.01, so that its mode is near no edit at all.
    """
    editor = TanhGaussianPolicy(
        editor_spec(base, act_steps, sees_chunk=sees_chunk),
        hidden=hidden, layer_norm=layer_norm, log_std_min=log_std_min,
        obs_limit=base.normalizer.limit,
    ).to(base.normalizer.obs_shift.device)  # fmt: skip
    read_as(editor, base)
    last = editor.network[-1]
    assert isinstance(last, nn.Linear)
    nn.init.orthogonal_(last.weight, 0.01)
    nn.init.zeros_(last.bias)
    return editor


def read_as(editor: Policy, base: Policy) -> None:
    """Let an editor normalise observations as its base does now."""
    observed = base.spec.obs_dim  # what an editor sees besides comes last and is left as it is
    editor.normalizer.obs_shift[:observed].copy_(base.normalizer.obs_shift)
    editor.normalizer.obs_scale[:observed].copy_(base.normalizer.obs_scale)


def seen(editor: TanhGaussianPolicy, obs: Obs, plan: Tensor) -> Obs:
    """Return what an editor reads: the observation, and what it edits where it asks for that.

    Args:
        editor: what :func:`editor_of` returned.
        obs: raw observations ``[B, O]``, or parts.
        plan: normalised chunks ``[B, >= h, A]``, h being the editor's own length.
    """
    if CHUNK not in editor.spec.parts:
        return obs
    return joined(obs, **{CHUNK: plan[:, : editor.spec.horizon].flatten(1)})


def check_editor(base: Policy, editor: TanhGaussianPolicy) -> None:
    """Check that an editor fits a base.

    Raises:
        TrimtabError: if it does not.
    """
    ours, theirs = editor.spec, base.spec
    fits = isinstance(editor, TanhGaussianPolicy) and ours == editor_spec(
        base, min(ours.horizon, theirs.horizon), sees_chunk=CHUNK in ours.parts
    )
    if not fits:
        raise TrimtabError(
            f"editing: an editor of chunks of {ours.horizon} actions of {ours.action_dim} numbers, "
            f"from {ours.obs_dim} numbers, does not fit a base of {theirs.horizon}, "
            f"{theirs.action_dim} and {theirs.obs_dim}; make it with editor_of"
        )


class EditedPolicy(ComposedPolicy):
    """``action = base(obs, noise) + scale * editor(obs)``, with the base frozen.

    As in Yuan et al., "Policy Decorator: Model-Agnostic Online Refinement for Large Policy Model"
    (arXiv 2412.13630): the edit is the editor's mode, the base is sampled. Edits are in the base's
    normalised units, the sum is clipped to the action limits. What the base plans beyond the
    editor's chunk stays as it is.

    Args:
        base: any policy; its weights get no gradients.
        editor: what :func:`editor_of` returned.
        scale: the most that an edit can change of a normalised action.

    Raises:
        TrimtabError: if the editor does not fit the base.
    """

    def __init__(self, base: Policy, editor: TanhGaussianPolicy, *, scale: float = 0.1) -> None:
        super().__init__(base.spec, base.noise_shape, scale=float(scale))
        check_editor(base, editor)
        self.evaluate_deterministic = base.evaluate_deterministic
        self.normalizer = base.normalizer
        self.base = base.requires_grad_(False).eval()
        self.editor = editor
        self.scale = float(scale)
        self.act_steps = editor.spec.horizon

    @property
    def inputs(self) -> PolicyInputs:
        """What it reads at each decision; what it hands on to the next one is its base's."""
        return replace(super().inputs, advance=self.base.inputs.advance)

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the base's normaliser, and let the editor read as the base does."""
        self.base.fit_normalizer(statistics)
        read_as(self.editor, self.base)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        plan: Tensor = self.base(obs, noise)
        mean, _ = self.editor.distribution(self.seen(obs, plan))
        return torch.cat([self.applied(plan, torch.tanh(mean)), plan[:, self.act_steps :]], 1)

    def seen(self, obs: Obs, plan: Tensor) -> Obs:
        """Return what the editor reads: the observation, with the plan's first actions beside it.

        Args:
            obs: raw observations ``[B, O]``, or parts.
            plan: raw chunks of the base ``[B, >= act_steps, A]``.
        """
        return seen(self.editor, obs, self.normalizer.normalize_action(plan))

    def applied(self, plan: Tensor, edit: Tensor) -> Tensor:
        """Return the plan's first actions with an edit in [-1, 1], raw and inside the limits."""
        first = self.normalizer.normalize_action(plan[:, : self.act_steps])
        return self.normalizer.raw_action(first + self.scale * edit)
