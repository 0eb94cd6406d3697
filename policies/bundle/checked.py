"""What is refused as an observation or noise, wherever a finished policy acts; numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, called, count
from trimtab.policies.bundle.files import Contract

__all__ = ["NotFinite", "check_shape", "checked_array", "checked_parts", "checked_rows"]


class NotFinite(TrimtabError):
    """A value of a fitting shape that is NaN, infinite or masked: a sensor or a policy failed."""


def checked_rows(
    obs: ArrayLike | Mapping[str, ArrayLike],
    contract: Contract,
    check: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Return observations ``[B, ...]`` by the names of their parts; a flat one is called ``obs``.

    Args:
        obs: of B rows, with their history and all inputs where there are any.
        contract: of the policy that reads them.
        check: checks one part, and returns it; None for :func:`checked_array`.

    Raises:
        TrimtabError: if they have other shapes, are not numeric or not finite, have a masked value
            or the number of no choice, or lack a part.
    """
    shapes, types = contract.input_shapes, contract.input_types
    names = list(contract.parts) or [FLAT]
    given = checked_parts(obs, contract.parts, names)
    checked = {
        name: (check or checked_array)(
            given[name], (None, *shapes[name]), called(name), types[name]
        )
        for name in names
    }
    if any(len(part) != count(checked) for part in checked.values()):
        raise TrimtabError("observation: its parts have different numbers of rows")
    for name, part in contract.parts.items():
        if part.choices:
            _check_numbers(checked[name], len(part.choices), called(name))
    return checked


def _check_numbers(values: Any, choices: int, what: str) -> None:
    """Check that an array or tensor has numbers of choices, whole ones from 0 on."""
    try:
        known = bool(sum(values == number for number in range(choices)).all())
    except RuntimeError:  # torch maps a function: there are no values to look at
        return
    if not known:
        raise TrimtabError(f"{what}: give the number of a choice, from 0 to {choices - 1}")


def checked_parts(
    obs: ArrayLike | Mapping[str, ArrayLike], parts: Mapping[str, Any], names: Sequence[str]
) -> Mapping[str, Any]:
    """Return an observation by the names of its parts.

    Raises:
        TrimtabError: if it lacks one, has others, or is no mapping where it has to be one.
    """
    if not parts:
        return {FLAT: obs}
    if not isinstance(obs, Mapping):
        raise TrimtabError(f"observation: give a mapping with the parts {', '.join(names)}")
    for missing in sorted(set(names) - set(obs)):
        raise TrimtabError(f"observation: lacks the part {missing}; the policy reads it")
    for unknown in sorted(set(obs) - set(names)):
        raise TrimtabError(
            f"observation: has the part {unknown}, which is not one of {', '.join(names)}"
        )
    return obs


def checked_array(
    value: Any, shape: tuple[int | None, ...], what: str, dtype: str = "float32"
) -> NDArray[Any]:
    """Return ``value`` as ``dtype`` if it is finite, numeric and of ``shape``.

    Args:
        value: what a caller gave.
        shape: None in it stands for any number of rows but zero.
        what: it is, for the message.
        dtype: ``float32``, or ``uint8``, to which nothing else is converted.

    Raises:
        NotFinite: if a value is NaN, infinite or masked.
        TrimtabError: if it is something else.
    """
    try:
        # Plain asarray drops a mask, also of a list's rows.
        given = np.ma.asarray(value)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise TrimtabError(f"{what}: is no array ({error}); give shape {shape}") from error
    array: NDArray[Any] = np.asarray(given)
    if array.dtype.kind not in "fiu":
        raise TrimtabError(f"{what}: has type {array.dtype}; give numbers in raw units")
    masked = np.ma.getmaskarray(given)  # type: ignore[no-untyped-call]
    if masked.any():  # what stands beneath a mask is no measurement
        index = tuple(int(i) for i in np.argwhere(masked)[0])
        raise NotFinite(f"{what}: value at index {index} is masked; check that sensor first")
    check_shape(array.shape, shape, what)
    if dtype == "uint8":
        if array.dtype != np.uint8:
            raise TrimtabError(f"{what}: has type {array.dtype}; give bytes (uint8), 0 to 255")
        return array
    with np.errstate(over="ignore"):  # too large for float32 becomes inf, refused below
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise NotFinite(
            f"{what}: value at index {index} is NaN or infinite; check that sensor first"
        )
    return array


def check_shape(found: Sequence[int], shape: Sequence[int | None], what: str) -> None:
    """Check that a shape is the one that a policy reads.

    Args:
        found: of what a caller gave.
        shape: None in it stands for any number of rows but zero.
        what: it is, for the message.

    Raises:
        TrimtabError: if not.
    """
    fits = len(found) == len(shape) and all(
        have > 0 if want is None else have == want for have, want in zip(found, shape, strict=True)
    )
    if not fits:
        raise TrimtabError(
            f"{what}: has shape {tuple(found)}; the policy reads "
            f"({', '.join('rows' if size is None else str(size) for size in shape)})"
        )
