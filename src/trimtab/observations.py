"""Observations: one tensor, or several named parts.

An observation is a flat vector ``[B, O]``, or a mapping of names to parts ``[B, ...]``, such as a
position and a picture. What a policy is given besides (a goal of its user, a weight of guidance) is
a further part, so that there is one way for everything that a policy reads.

Nothing here needs torch: robots use it with arrays, learners with tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.errors import TrimtabError

__all__ = [
    "FLAT", "REMEMBERED", "RESERVED", "Part", "called", "count", "first_leaf", "joined", "tree_map",
]  # fmt: skip

FLAT = "obs"
"""Name of a flat observation where other parts stand beside it."""

RESERVED = frozenset({"noise", "action", "seed", "__metadata__"})
"""Names that no part may have: they stand beside the parts in a bundle, or at a robot's reset."""

DTYPES = ("float32", "uint8")
"""What a part may consist of: numbers in raw units, or bytes of a picture."""


REMEMBERED = ("observations", "actions", "returns", "steps", "state")
"""What an agent can remember of an episode: ``trimtab.policies.memory`` says what each one is."""


@dataclass(frozen=True)
class Part:
    """One named part of what a policy reads.

    Attributes:
        shape: of one row.
        dtype: ``float32``, or ``uint8`` for pictures.
        given: None where the environment observes it. Otherwise an input that the user of the
            policy chooses, float32, and the value that it has unless told otherwise.
        remembered: empty, or one of ``REMEMBERED``. What acts then keeps this input itself, along
            an episode; ``given`` is what stands there as one begins.
        choices: what the user of the policy can choose from, numbers or texts; empty: any number.
            The policy reads the number of the choice, ``[1]``, from 0.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    given: float | None = None
    remembered: str = ""
    choices: tuple[float | str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if min(self.shape, default=1) < 1:
            raise TrimtabError(f"observation part: sizes must be at least 1, got {self.shape}")
        if self.dtype not in DTYPES:
            raise TrimtabError(f"observation part: type {self.dtype}; use {' or '.join(DTYPES)}")
        if self.given is not None:
            object.__setattr__(self, "given", float(self.given))
            if self.dtype != "float32" or not math.isfinite(self.given):
                raise TrimtabError("observation part: an input is float32 with a finite default")
        if self.remembered and (self.remembered not in REMEMBERED or self.given is None):
            raise TrimtabError(
                f"observation part: remembered={self.remembered}; there are "
                f"{', '.join(REMEMBERED)}, each with what stands there as an episode begins"
            )

        object.__setattr__(self, "choices", tuple(self.choices))
        if self.choices and (
            self.shape != (1,)
            or self.given not in range(len(self.choices))
            or not {type(one) for one in self.choices} <= {int, float, str}
            or len({one for one in self.choices if one == one}) < len(self.choices)  # NaN is none
        ):
            raise TrimtabError(
                f"observation part: choices={self.choices}: give different numbers or texts, for "
                "an input of one number"
            )

    @property
    def size(self) -> int:
        """How many numbers one row has."""
        return math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON values."""
        chosen = {} if self.given is None else {"given": self.given}
        kept = {"remembered": self.remembered} if self.remembered else {}
        some = {"choices": list(self.choices)} if self.choices else {}
        return {"shape": list(self.shape), "dtype": self.dtype, **chosen, **kept, **some}


def called(name: str) -> str:
    """Return what people are told of a part: a flat observation is no part."""
    return f"observation part {name}" if name != FLAT else "observation"


def tree_map(function: Callable[..., Any], obs: Any, *others: Any) -> Any:
    """Return ``function`` of an observation, or of each of its parts, by name.

    Args:
        function: takes one tensor or array of each observation.
        obs: a tensor, an array or a mapping of them.
        others: further observations with the same parts.
    """
    if isinstance(obs, Mapping):
        return {name: function(part, *(o[name] for o in others)) for name, part in obs.items()}
    return function(obs, *others)


def first_leaf(obs: Any) -> Any:
    """Return a tensor or array of an observation, for its number of rows and its device."""
    return next(iter(obs.values())) if isinstance(obs, Mapping) else obs


def count(obs: Any) -> int:
    """Return the number of rows of an observation."""
    return int(first_leaf(obs).shape[0])


def joined(obs: Any, /, **inputs: Any) -> dict[str, Any]:
    """Return an observation with inputs as further parts; a flat one becomes the part ``obs``."""
    parts = dict(obs) if isinstance(obs, Mapping) else {FLAT: obs}
    return {**parts, **inputs}
