"""A policy whose actions are squashed into the limits after it has chosen them: a GoRL decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.types import Obs, PolicySpec, Statistics


class SquashedPolicy(Policy):
    """``action = tanh(x)``, scaled to the limits, with ``x = base(obs, noise)``.

    At first the base is left out: ``x = noise``, and the policy is the identity up to the tanh. So
    is the decoder of GoRL (arXiv 2512.02581) before anything was collected that it could learn. A
    buffer says which of the two it is, so that a checkpoint of either fits.

    Args:
        spec: shapes and limits of the task.
        base: chooses x; its limits are those of x, such as 10, beyond which the tanh is flat.

    Raises:
        TrimtabError: if the base's noise has not the shape of its chunk, or ``spec`` other shapes.
    """

    built_by_method = True

    identity: Tensor

    def __init__(self, spec: PolicySpec, base: Policy) -> None:
        shape = (spec.horizon, spec.action_dim)
        found = (base.spec.horizon, base.spec.action_dim)
        if not shape == found == base.noise_shape:
            raise TrimtabError(
                f"a decoder turns a latent {shape} into a chunk of that shape; this {base.kind} "
                f"policy turns {base.noise_shape} into {found}: give one whose sampler is "
                "deterministic, such as policy=flow, or policy=diffusion with policy.sampler=ddim"
            )
        super().__init__(spec, shape)
        self.base = base
        self.register_buffer("identity", torch.ones((), dtype=torch.bool))
        self.is_identity = True  # beside the buffer, so that an exported graph has no branch in it
        self.register_load_state_dict_post_hook(type(self).read_identity)  # type: ignore[no-untyped-call]

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.squash(self.before_tanh(obs, noise))

    def before_tanh(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return x ``[B, H, A]``."""
        return noise if self.is_identity else self.base(obs, noise)

    def squash(self, chunk: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]`` of x."""
        return self.normalizer.raw_action(torch.tanh(chunk))

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the squashed actions to a dataset, and let the base read observations so."""
        super().fit_normalizer(statistics)
        self.base.normalizer.obs_shift.copy_(self.normalizer.obs_shift)
        self.base.normalizer.obs_scale.copy_(self.normalizer.obs_scale)

    def take(self, base: Policy) -> None:
        """Act by the weights of ``base`` from now on."""
        self.base.load_state_dict(base.state_dict())
        self.identity.fill_(False)
        self.is_identity = False

    @staticmethod
    def read_identity(policy: Any, incompatible_keys: Any) -> None:
        """Set what acts by the buffer, after a state was loaded."""
        policy.is_identity = bool(policy.identity)

    @property
    def label(self) -> str:
        """It is listed under the kind of its base."""
        return self.base.label

    def config(self) -> dict[str, Any]:
        """Return JSON that nests the config of the base."""
        return {**super().config(), "base": self.base.config()}
