"""What a policy that torch runs out of a bundle takes: what it takes on a robot, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.observations import FLAT, count, tree_map
from trimtab.policies.bundle.checked import checked_array, checked_rows
from trimtab.policies.bundle.files import Contract

__all__ = ["CheckedInputs"]


@dataclass(frozen=True)
class CheckedInputs:
    """Checks what a caller gives to a policy, and answers in kind: arrays with an array.

    Attributes:
        contract: of the policy.
    """

    contract: Contract

    def obs(self, obs: Any, device: torch.device) -> Any:
        """Return observations as tensors on a device; a tensor keeps its graph.

        Raises:
            TrimtabError: as :func:`trimtab.policies.bundle.checked.checked_rows`.
        """
        checked = checked_rows(tree_map(_array, obs), self.contract)
        parts = obs if isinstance(obs, Mapping) else {FLAT: obs}
        tensors = {name: _tensor(parts[name], array, device) for name, array in checked.items()}
        return tensors if self.contract.parts else tensors[FLAT]

    def noise(self, noise: Any, obs: Any, device: torch.device) -> Tensor:
        """Return noise as a tensor on a device, for observations that were checked.

        Raises:
            TrimtabError: as :func:`trimtab.policies.bundle.checked.checked_array`.
        """
        shape = (count(obs), *self.contract.noise_shape)
        return _tensor(noise, checked_array(_array(noise), shape, "noise"), device)

    def answer(self, action: Tensor, obs: Any) -> Any:
        """Return an action as an array where the observation was no tensor."""
        parts = obs.values() if isinstance(obs, Mapping) else [obs]
        tensors = any(isinstance(part, Tensor) for part in parts)
        return action if tensors else action.detach().cpu().numpy()


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _tensor(value: Any, array: Any, device: torch.device) -> Tensor:
    made = value if isinstance(value, Tensor) else torch.from_numpy(array.copy())
    return made.to(device, torch.uint8 if array.dtype == "uint8" else torch.float32)
