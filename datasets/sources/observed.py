"""How observations lie in a storage: one flat vector, or named parts, each of its own type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError
from trimtab.observations import Part
from trimtab.types import Tensor

__all__ = ["NEXT", "OBS", "ObsForm", "Takes", "as_array", "saved_obs"]

OBS = "obs"
NEXT = "next_"
"""Begins the name of what is observed after a row."""


class Takes(Protocol):
    """Rows whose values are taken by name and flat index."""

    def take(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return a value's numbers ``[*index.shape, ...]`` in the rows at flat indices."""
        ...


@dataclass(frozen=True)
class ObsForm:
    """What observations are stored as, and what a batch gets of them.

    Attributes:
        stored: shape and type in a row by the name in the storage: ``obs``, or ``obs/<part>``.
        entries: where rows are flat and batches have parts: the entries of each part.
    """

    stored: Mapping[str, Part]
    entries: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    @classmethod
    def of(cls, obs: int | tuple[int, ...] | Mapping[str, Part]) -> ObsForm:
        """Return the form of observations that are stored as they are.

        Args:
            obs: length or shape of a flat one, or its parts by name. Parts that are given
                (``Part.given``) are left out, because no environment observes them.

        Raises:
            TrimtabError: if a size is not positive, or nothing is observed.
        """
        if isinstance(obs, Mapping):
            stored = {f"{OBS}/{name}": part for name, part in obs.items() if part.given is None}
            if not stored:
                raise TrimtabError("buffer: no part of its observations is observed; name one")
            return cls(stored)
        return cls({OBS: Part((obs,) if isinstance(obs, int) else obs)})

    def split(self, parts: Mapping[str, tuple[int, ...]] | None) -> ObsForm:
        """Return the form whose batches have parts of what is flat in the rows.

        Args:
            parts: entries of the flat observation by the part's name; None: it stays flat.

        Raises:
            TrimtabError: if a part has no entries, or some that the observation has not.
        """
        size = self.stored[OBS].size
        for name, entries in (parts or {}).items():
            if not entries or min(entries) < 0 or max(entries) >= size:
                raise TrimtabError(
                    f"part '{name}': entries {tuple(entries)} of an observation of {size} numbers; "
                    f"name at least one of 0 to {size - 1}"
                )
        found = {name: np.array(entries, np.int64) for name, entries in (parts or {}).items()}
        return ObsForm(self.stored, found)

    @property
    def types(self) -> dict[str, str]:
        """Type of each part by its name."""
        return {name.removeprefix(f"{OBS}/"): part.dtype for name, part in self.stored.items()}

    @property
    def is_flat(self) -> bool:
        """Whether rows hold one flat vector."""
        return OBS in self.stored

    def read(self, rows: Takes, prefix: str, index: npt.NDArray[np.int64]) -> Any:
        """Return the observations ``[*index.shape, ...]`` of rows: an array, or parts by name.

        Args:
            rows: where they lie.
            prefix: empty for what was acted upon, ``NEXT`` for what was observed afterwards.
            index: flat indices of the rows.
        """
        if not self.is_flat:
            begin = len(OBS) + 1
            return {name[begin:]: rows.take(prefix + name, index) for name in self.stored}
        flat = rows.take(prefix + OBS, index)
        if self.entries:
            return {name: flat.take(entries, axis=-1) for name, entries in self.entries.items()}
        return flat

    def named(self, prefix: str, obs: Any, where: str) -> dict[str, Any]:
        """Return what ``obs`` has for each name in the storage.

        Args:
            prefix: as ``read``'s.
            obs: of every column.
            where: opens the message.

        Raises:
            TrimtabError: if it has parts where rows are flat, or other parts than the rows.
        """
        given = f"{prefix}{OBS}"
        if self.is_flat:
            if isinstance(obs, Mapping):
                raise TrimtabError(
                    f"{where}: '{given}' has parts {sorted(obs)}, expected one flat vector"
                )
            return {given: obs}
        wanted = [name.removeprefix(f"{OBS}/") for name in self.stored]
        if not isinstance(obs, Mapping) or set(obs) != set(wanted):
            found = sorted(obs) if isinstance(obs, Mapping) else "no parts"
            raise TrimtabError(f"{where}: '{given}' has {found}, expected parts {sorted(wanted)}")
        return {f"{given}/{name}": obs[name] for name in wanted}


def saved_obs(
    shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str]
) -> int | dict[str, Part]:
    """Return the first argument of ``ObsForm.of`` from what was saved of a buffer.

    Args:
        shapes: in a row, by the name in the storage.
        types: ``ObsForm.types``; empty where observations are flat.
    """
    parts = {name: Part(shapes[f"{OBS}/{name}"], dtype) for name, dtype in types.items()}
    return parts or shapes[OBS][0]


def as_array(value: npt.ArrayLike | Tensor, dtype: npt.DTypeLike, name: str) -> npt.NDArray[Any]:
    """Return a value as an array of a type.

    Args:
        value: what was given.
        dtype: what it has to become; bytes have to be bytes already.
        name: of the value, opens the message.

    Raises:
        TrimtabError: if the conversion would change more than the precision.
    """
    array = np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
    wanted = np.dtype(dtype)
    same = array.dtype == wanted
    if not (same if wanted == np.uint8 else np.can_cast(array.dtype, wanted, "same_kind")):
        raise TrimtabError(f"{name} is of type {array.dtype}, expected {wanted}")
    return array if same else array.astype(wanted)
