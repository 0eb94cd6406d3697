"""The golden rows of a bundle: what its policy does, for every loader to do again."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trimtab.observations import joined, tree_map
from trimtab.policies.base import Policy
from trimtab.policies.bundle.files import Array
from trimtab.policies.features import column_of, observations
from trimtab.policies.memory import MEMORIES
from trimtab.policies.normalizer import Normalizer

__all__ = ["golden_rows"]

_ROWS = 32


def golden_rows(policy: Policy) -> dict[str, Tensor]:
    """Return golden rows: observations from the fitted range, a quarter with zero noise."""
    generator = np.random.Generator(np.random.Philox(0))
    shift, scale = _with_memories(policy, *_obs_range(policy))
    unit = generator.uniform(-1.0, 1.0, (_ROWS, policy.spec.obs_dim)).astype(np.float32)
    noise = generator.standard_normal((_ROWS, *policy.noise_shape), dtype=np.float32)
    noise[: _ROWS // 4] = 0.0
    obs = observations(torch.from_numpy(shift + scale * unit), policy.spec)
    drawn = torch.from_numpy(noise)
    device = policy.normalizer.obs_shift.device
    training = policy.training
    try:
        with torch.no_grad():
            there = tree_map(lambda part: part.to(device), obs)
            action = policy.eval()(there, drawn.to(device))
    finally:
        policy.train(training)
    parts = {name: part.contiguous() for name, part in joined(obs).items()}
    return {**parts, "noise": drawn, "action": action.cpu().contiguous()}


def _obs_range(policy: Policy) -> tuple[Array, Array]:
    """Return centre and half width ``[O]`` of the observations that the policy was fitted to.

    A composed policy has several normalisers, of which only the base's may have been fitted.
    """
    ranges = [
        (module.obs_shift.cpu().numpy(), module.obs_scale.cpu().numpy())
        for module in policy.modules()
        if isinstance(module, Normalizer) and len(module.obs_shift) == policy.spec.obs_dim
    ]
    fitted = [pair for pair in ranges if pair[0].any() or (pair[1] != 1).any()]
    return (fitted or ranges)[0]


def _with_memories(policy: Policy, shift: Array, scale: Array) -> tuple[Array, Array]:
    """Return centre and half width ``[O]``, in what is remembered those of its kind."""
    shift, scale, first = shift.copy(), scale.copy(), 0
    for part in policy.spec.layout.values():
        entries = slice(first, first + column_of(part, policy.spec))
        if part.remembered:
            low, high = MEMORIES[part.remembered].usual
            shift[entries], scale[entries] = (high + low) / 2, (high - low) / 2
        first = entries.stop
    return shift, scale
