"""DPPO's npz: frames end to end, scaled to [-1, 1] by a ``normalization.npz`` beside it.

The layout and the scaling: README.md and ``env/gym_utils/wrapper/robomimic_lowdim.py`` of DPPO.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import assemble, contents_of
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.own import (
    check_no_end_inside,
    flag_ends,
    flags_of,
    need,
    no_reward,
    whole_numbers,
)
from trimtab.datasets.io.npz import array_names, read_npz
from trimtab.errors import TrimtabError

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_REQUIRED = ("states", "actions", "traj_lengths")
_OPTIONAL = ("rewards", "terminals")
_LIMITS = ("obs_min", "obs_max", "action_min", "action_max")
_IMAGES = "images"
_LIMITS_FILE = "normalization.npz"
_EPSILON = 1e-6  # DPPO adds it to the range that it divides by
_MOST_SCALED = 1.1  # of what is scaled to [-1, 1], perhaps by the limits of a part of it
_ADVICE = "make the dataset again or fetch a fresh copy"


def _load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
    """Read a file of DPPO's layout and bring it back to raw units; images are left out.

    No final observation is stored: the last one stands in its place, and the episode says so.
    Missing rewards are zero. An episode is terminated where its last row of ``terminals`` says so,
    otherwise truncated.

    Raises:
        TrimtabError: if anything is missing (without ``normalization.npz`` the units are unknown),
            damaged or of a wrong shape, or two of its parts contradict each other.
    """
    path = Path(path)
    where = f"dataset {path}"
    arrays = read_npz(path, lambda name: name in (*_REQUIRED, *_OPTIONAL))
    limits_path = path.with_name(_LIMITS_FILE)
    if not limits_path.is_file():
        raise TrimtabError(
            f"{where}: there is no {_LIMITS_FILE} beside it, so that its units are unknown; put "
            "the one that it was made with there"
        )
    limits = read_npz(limits_path, lambda name: name in _LIMITS)
    need(arrays, _REQUIRED, where)
    need(limits, _LIMITS, f"dataset {limits_path}")
    recipe: dict[str, Any] = {"imported": "dppo"}
    if _IMAGES in array_names(path):
        logger.warning("%s: images are left out", where)
        recipe["left_out"] = [_IMAGES]
    lengths = arrays["traj_lengths"] = whole_numbers(arrays["traj_lengths"])
    for key in ("states", "actions"):
        if arrays[key].ndim != 2:
            raise TrimtabError(
                f"{where}, key '{key}': shape {arrays[key].shape} is not (N, D); {_ADVICE}"
            )
    rows = len(arrays["states"])
    if lengths.dtype.kind not in "iu" or lengths.ndim != 1 or (lengths < 1).any():
        raise TrimtabError(f"{where}, key 'traj_lengths': not whole numbers from 1 on; {_ADVICE}")
    if sum(lengths.tolist()) != rows:
        raise TrimtabError(f"{where}, key 'traj_lengths': their sum is not {rows} rows; {_ADVICE}")
    for key, array in arrays.items():
        expected = len(lengths) if key == "traj_lengths" else rows
        if array.shape[:1] != (expected,):
            raise TrimtabError(
                f"{where}, key '{key}': {array.shape[:1]} rows do not fit 'traj_lengths'; {_ADVICE}"
            )
    if "terminals" in arrays:
        terminals = flags_of(arrays["terminals"], f"{where}, key 'terminals'")
        for index, flags in enumerate(np.split(terminals, np.cumsum(lengths)[:-1])):
            check_no_end_inside(flags, f"{where}, key 'terminals': episode {index}")
        arrays["terminals"] = terminals
    _rescale(arrays, limits, where, limits_path)
    return assemble(contents_of(path, list(_episodes(arrays)), None, recipe=recipe), hints)


def _rescale(arrays: Arrays, limits: Arrays, where: str, limits_path: Path) -> None:
    """Bring states and actions back to raw units.

    Raises:
        TrimtabError: if the limits do not fit them.
    """
    for name, prefix in (("states", "obs"), ("actions", "action")):
        low, high = limits[f"{prefix}_min"], limits[f"{prefix}_max"]
        if not low.shape == high.shape == arrays[name].shape[1:]:
            raise TrimtabError(
                f"dataset {limits_path}: '{prefix}_min' and '{prefix}_max' of shapes {low.shape} "
                f"and {high.shape} for '{name}' of shape {arrays[name].shape}; {_ADVICE}"
            )
        if not (np.isfinite(low) & np.isfinite(high)).all():
            raise TrimtabError(
                f"dataset {limits_path}: NaN or infinity in '{prefix}_min' or '{prefix}_max'; put "
                "the one that it was made with there"
            )
        if not (low <= high).all():
            raise TrimtabError(f"dataset {limits_path}: '{prefix}_min' exceeds '{prefix}_max'")
        most = float(np.abs(arrays[name].astype(np.float64)).max())
        if most > _MOST_SCALED:
            raise TrimtabError(
                f"{where}, key '{name}': values of up to {most:.3g}, which the scaling of "
                f"{_LIMITS_FILE} to [-1, 1] cannot give; put the one that it was made with there"
            )
        arrays[name] = _raw(arrays[name], low, high)


def _raw(
    scaled: npt.NDArray[Any], low: npt.NDArray[Any], high: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Undo ``2 * (raw - low) / (high - low + 1e-6) - 1``."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # refused afterwards
        raw: npt.NDArray[np.float64]
        raw = (scaled.astype(np.float64) + 1) / 2 * (high - low + _EPSILON) + low
    return raw


def _episodes(arrays: Arrays) -> Iterator[Episode]:
    begin = 0
    for steps in arrays["traj_lengths"].tolist():
        rows = slice(begin, begin + steps)
        begin += steps
        states = arrays["states"][rows]
        terminals = arrays.get("terminals")
        terminated = terminals is not None and bool(terminals[begin - 1])
        with np.errstate(over="ignore"):
            yield Episode(
                np.concatenate([states, states[-1:]]),
                arrays["actions"][rows],
                arrays["rewards"][rows] if "rewards" in arrays else no_reward(steps),
                *flag_ends(steps, terminated=terminated),
                last_observed=terminated,
            )


def _recognises(path: Path) -> bool:
    return path.is_file() and set(_REQUIRED) <= array_names(path)


FORMAT = Format(
    name="dppo",
    description="DPPO's npz, brought back to raw units; read only",
    suffixes=(".npz",),
    load=_load,
    recognises=_recognises,
)
