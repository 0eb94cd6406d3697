"""From an observation to the one vector that a network reads, and back.

Parts, histories and inputs become this vector before any network, so a method whose networks are
perceptrons has no code for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, Part
from trimtab.types import Obs, PolicySpec

__all__ = ["column_of", "features", "observations"]


def features(obs: Obs, spec: PolicySpec) -> Tensor:
    """Return an observation ``[..., (K,) ...]`` as one float vector ``[..., obs_dim]``, raw units.

    Parts follow one another in the spec's order; of each, the oldest observation comes first. An
    input that is not there has its default: what is stored and gathered is what was observed.

    Raises:
        TrimtabError: if a part that the environment gives is not there.
    """
    if isinstance(obs, Tensor) and spec.history == 1 and not spec.parts:
        return obs
    parts = {FLAT: obs} if isinstance(obs, Tensor) else obs
    columns: dict[str, Tensor] = {}
    for name, part in spec.layout.items():
        if name in parts:
            columns[name] = _flat(parts[name], _axes(part, spec)).float()
        elif part.given is None:
            raise TrimtabError(f"observation: lacks the part {name}; it has {', '.join(parts)}")
    some = next(iter(columns.values()))
    for name, part in spec.layout.items():
        if name not in columns:
            assert part.given is not None
            columns[name] = some.new_full((*some.shape[:-1], part.size), part.given)
    return torch.cat([columns[name] for name in spec.layout], dim=-1)


def observations(vector: Tensor, spec: PolicySpec) -> Obs:
    """Return the observation whose :func:`features` are ``vector`` ``[B, obs_dim]``.

    Numbers of a part of bytes are rounded to the nearest byte.
    """
    if not spec.parts and spec.history == 1:
        return vector
    found: dict[str, Tensor] = {}
    for name, part in spec.layout.items():
        width = column_of(part, spec)
        numbers, vector = vector[:, :width], vector[:, width:]
        if part.dtype == "uint8":
            numbers = numbers.round().clamp(0, 255).to(torch.uint8)
        past = (spec.history,) if spec.history > 1 and part.given is None else ()
        found[name] = numbers.reshape(-1, *past, *part.shape)
    return found if spec.parts else found[FLAT]


def column_of(part: Part, spec: PolicySpec) -> int:
    """Return how many entries of the vector are a part's."""
    return part.size * (spec.history if part.given is None else 1)


def _axes(part: Part, spec: PolicySpec) -> int:
    """Return the number of axes that one row of a part has."""
    return len(part.shape) + (spec.history > 1 and part.given is None)


def _flat(part: Tensor, axes: int) -> Tensor:
    return part.flatten(part.ndim - axes) if axes else part[..., None]
