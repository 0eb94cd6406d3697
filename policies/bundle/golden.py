"""The golden rows of a bundle: what its policy does, for every loader to do again."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trimtab.observations import FLAT, joined, tree_map
from trimtab.policies.base import Policy
from trimtab.policies.bundle.files import MOST_TOLERANCE, TOLERANCE, Array
from trimtab.policies.features import column_of, observations
from trimtab.policies.memory import MEMORIES, following
from trimtab.policies.networks.mlp import DenoisingNetwork
from trimtab.policies.networks.samplers import TableSampler
from trimtab.policies.normalizer import Normalizer
from trimtab.types import Obs, PolicySpec

__all__ = ["golden_rows", "replay_tolerance"]

_ROWS = 32
_LAST_BITS, _TRIALS = 1e-6, 8  # differences of a network's output between libraries
_SLACK = 5.0  # of a tolerance, over the largest difference of these trials


def golden_rows(policy: Policy) -> dict[str, Tensor]:
    """Return golden rows: observations from the fitted range, a quarter with zero noise."""
    generator = np.random.Generator(np.random.Philox(0))
    shift, scale = _with_memories(policy, *_obs_range(policy))
    unit = generator.uniform(-1.0, 1.0, (_ROWS, policy.spec.obs_dim)).astype(np.float32)
    noise = generator.standard_normal((_ROWS, *policy.noise_shape), dtype=np.float32)
    noise[: _ROWS // 4] = 0.0
    obs = observations(torch.from_numpy(shift + scale * unit), policy.spec)
    if chosen := _combinations(policy.spec, _ROWS):
        obs = joined(obs, **chosen)
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
    rows = {**parts, "noise": drawn, "action": action.cpu().contiguous()}
    if policy.inputs.advance is not None:
        read = tree_map(lambda part: part.numpy(), parts)
        for name, value in policy.inputs.advance(read, noise).items():
            rows[following(name)] = torch.from_numpy(value)
    return rows


def _combinations(spec: PolicySpec, rows: int) -> dict[str, Tensor]:
    """Return numbers of choices ``[rows, 1]`` by input: every combination in its turn."""
    found, turn = {}, torch.arange(rows)
    for name, part in reversed(list(spec.parts.items())):
        if part.choices:
            found[name] = (turn % len(part.choices))[:, None].float()
            turn = turn // len(part.choices)
    return found


def replay_tolerance(policy: Policy, golden: Mapping[str, Tensor]) -> dict[str, float]:
    """Return ``{"tolerance": …}`` for the contract of a policy whose sampler magnifies last bits.

    A scheduler may begin where hardly any signal is left, and take few, long steps. There a clean
    chunk is what the predicted noise leaves, divided by a small number, and so are the last bits of
    the network, which differ with the library and the processor. How far they move the golden
    actions is measured, in 64 bits. Where it is less than every bundle allows, there is no entry.
    """
    if not any(isinstance(one, TableSampler) for one in policy.modules()):
        return {}
    exact = copy.deepcopy(policy).cpu().double().eval()
    parts = {name: golden[name] for name in policy.spec.layout}
    parts = {n: part.double() if part.is_floating_point() else part for n, part in parts.items()}
    obs: Obs = parts if policy.spec.parts else parts[FLAT]
    generator = torch.Generator().manual_seed(0)

    def stirred(network: object, given: object, said: Tensor) -> Tensor:
        drawn = torch.randn(said.shape, generator=generator, dtype=said.dtype)
        return said + _LAST_BITS * drawn

    with torch.no_grad():
        still = exact(obs, golden["noise"].double())
        for network in exact.modules():
            if isinstance(network, DenoisingNetwork):
                network.register_forward_hook(stirred)
        moved = [exact(obs, golden["noise"].double()) - still for _ in range(_TRIALS)]
    error = float(torch.stack(moved).abs().max())
    most = max(np.subtract(policy.spec.action_high, policy.spec.action_low)) * MOST_TOLERANCE
    tolerance = min(float(f"{_SLACK * error:.0e}"), most)
    return {"tolerance": tolerance} if tolerance > TOLERANCE else {}


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
