"""What a policy that torch runs out of a bundle takes: what it takes on a robot, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, count
from trimtab.policies.bundle.checked import check_shape, checked_array, checked_rows
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
        checked = checked_rows(obs, self.contract, _checked)
        tensors = {name: part.to(device) for name, part in checked.items()}
        return tensors if self.contract.parts else tensors[FLAT]

    def noise(self, noise: Any, obs: Any, device: torch.device) -> Tensor:
        """Return noise as a tensor on a device, for observations that were checked.

        Raises:
            TrimtabError: as :func:`trimtab.policies.bundle.checked.checked_array`.
        """
        shape = (count(obs), *self.contract.noise_shape)
        return _checked(noise, shape, "noise").to(device)

    def answer(self, action: Tensor, obs: Any) -> Any:
        """Return an action as an array where the observation was no tensor."""
        parts = obs.values() if isinstance(obs, Mapping) else [obs]
        tensors = any(isinstance(part, Tensor) for part in parts)
        return action if tensors else action.detach().cpu().numpy()


def _checked(
    value: Any, shape: tuple[int | None, ...], what: str, dtype: str = "float32"
) -> Tensor:
    """Return a tensor as :func:`trimtab.policies.bundle.checked.checked_array` does an array.

    Where torch traces or maps a function (``torch.func.vmap``), a tensor has no values that could
    be looked at: then its shape alone is checked.
    """
    if not isinstance(value, Tensor):
        return torch.from_numpy(checked_array(value, shape, what, dtype).copy())
    kind = str(value.dtype).removeprefix("torch.")
    if value.is_complex() or value.is_quantized or value.dtype == torch.bool:
        raise TrimtabError(f"{what}: has type {kind}; give numbers in raw units")
    if value.layout != torch.strided or value.is_nested or value.device.type == "meta":
        raise TrimtabError(f"{what}: is a tensor without values in rows; give a dense tensor")
    check_shape(value.shape, shape, what)
    if dtype == "uint8":
        if kind != dtype:
            raise TrimtabError(f"{what}: has type {kind}; give bytes (uint8), 0 to 255")
        return value
    made = value.to(torch.float32)
    finite = torch.isfinite(made)
    try:
        right = bool(finite.all())
    except RuntimeError:  # there are no values, as above
        right = True
    if not right:
        index = tuple(finite.logical_not().nonzero()[0].tolist())
        raise TrimtabError(
            f"{what}: value at index {index} is NaN or infinite; check that sensor first"
        )
    return made
