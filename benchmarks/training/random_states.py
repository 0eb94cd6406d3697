"""All random states that a run depends on, as a part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["random_states", "set_random_states"]

_KEY = "device_random"
_MODULES: Mapping[str, Any] = {"cuda": torch.cuda, "xpu": torch.xpu}


def random_states(device: str) -> dict[str, Any]:
    """Return the states of torch's and numpy's generators, and of a device's.

    Of other devices than CUDA's and XPU's none is kept.

    Args:
        device: torch's name of it.
    """
    module = _module(device)
    of_device = {} if module is None else {_KEY: module.get_rng_state(torch.device(device))}
    return {
        "torch_random": torch.get_rng_state(),
        "numpy_random": np.random.get_state(legacy=True),
        **of_device,
    }


def set_random_states(device: str, state: Mapping[str, Any]) -> None:
    """Go on with the random states in a checkpoint.

    It has none of the device if the run was on the processor when it was written.

    Args:
        device: torch's name of it.
        state: that ``random_states`` is a part of.
    """
    torch.set_rng_state(state["torch_random"])
    np.random.set_state(tuple(state["numpy_random"]))
    module = _module(device)
    if module is not None and _KEY in state:
        module.set_rng_state(state[_KEY], torch.device(device))


def _module(device: str) -> Any:
    """Return torch's module of a device that keeps a random state, or None."""
    return _MODULES.get(torch.device(device).type)
