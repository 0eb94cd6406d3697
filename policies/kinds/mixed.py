"""A mix of two flow policies, or of two diffusion policies, whose weight its user chooses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.policies.base import ComposedPolicy, Policy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Obs

MIX = "mix"
"""Name of the input that weighs the second policy."""


class MixedPolicy(ComposedPolicy):
    """Carry noise to an action chunk along ``v = (1 - w) v_first + w v_second``.

    Cao et al., "Compose Your Policies!" (arXiv 2510.01068): a convex mix of what two networks
    predict, velocities or noise, at every step of one sampler. The weight w is an input, ``mix``:
    0 is the first policy and 1 the second, with the sampler of the first, bit for bit. A weight
    outside of 0 to 1 goes beyond one of them.

    Predictions can be mixed if they are of one noisy chunk. So both policies must scale actions
    alike, and diffusion policies must be trained on the same noise levels.

    Args:
        first: a flow or diffusion policy; its sampler is used.
        second: of the same kind.

    Raises:
        TrimtabError: if one is another policy, or the two cannot be mixed.
    """

    built_by_method = True
    frozen = ("first", "second")

    def __init__(self, first: Policy, second: Policy) -> None:
        if not isinstance(first, FlowPolicy | DiffusionPolicy) or type(first) is not type(second):
            raise TrimtabError(
                f"mix: a {first.kind} and a {second.kind} policy predict different things; give "
                "two flow policies, or two diffusion policies"
            )
        if first.spec != second.spec:
            raise TrimtabError(
                "mix: the two policies read or command different things; give two of one task, "
                "with chunks of one length"
            )
        for one, other in (
            (first.normalizer.action_shift, second.normalizer.action_shift),
            (first.normalizer.action_scale, second.normalizer.action_scale),
        ):
            if not torch.equal(one, other):
                raise TrimtabError(
                    "mix: the two policies scale actions differently, so that their noisy chunks "
                    "are not the same; train both on data with one range of actions"
                )
        levels = [one.alpha for one in (first, second) if isinstance(one, DiffusionPolicy)]
        if levels and not torch.equal(*levels):
            raise TrimtabError(
                "mix: the two policies were trained on different noise levels; give both one "
                "policy.train_steps and one schedule"
            )
        super().__init__(first.spec.with_input(MIX, 0.5), first.noise_shape)
        self.evaluate_deterministic = first.evaluate_deterministic
        self.first: FlowPolicy | DiffusionPolicy = first.requires_grad_(False).eval()
        self.second: FlowPolicy | DiffusionPolicy = second.requires_grad_(False).eval()
        self.normalizer.take_maps(first.normalizer)
        for buffer in (self.normalizer.obs_shift, self.normalizer.obs_scale):
            buffer[-1] = 0.5  # golden rows have weights from 0 to 1

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        first, second = self.first.field(obs), self.second.field(obs)
        even = noise.new_full((noise.shape[0], 1), 0.5)
        weight = (obs.get(MIX, even) if isinstance(obs, Mapping) else even)[..., None]

        def field(x: Tensor, time: Tensor) -> Tensor:
            # Not a lerp, whose end need not have the bits of the second policy.
            return (1 - weight) * first(x, time) + weight * second(x, time)

        return self.first.normalizer.raw_action(self.first.sampler(field, noise))

    @property
    def label(self) -> str:
        """It is listed under the kind of its policies."""
        return f"{self.first.label}, mixed"
