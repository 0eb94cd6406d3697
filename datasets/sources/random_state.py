"""The state of a random generator as JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["generator_state", "generator_words"]


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state of a PCG64 generator; its large integers as text, for JSON."""
    state = generator.bit_generator.state
    return {
        "state": str(state["state"]["state"]),
        "inc": str(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def generator_words(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return numpy's own form of what ``generator_state`` returned."""
    return {
        "bit_generator": "PCG64",
        "state": {"state": int(state["state"]), "inc": int(state["inc"])},
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }
