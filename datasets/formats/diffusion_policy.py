"""Diffusion Policy's Zarr: frames end to end in ``data/*``, their ends in ``meta/episode_ends``.

The layout: ``diffusion_policy/common/replay_buffer.py`` of Diffusion Policy.
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
from trimtab.datasets.formats.own import flag_ends
from trimtab.datasets.io.zarr import opened_store
from trimtab.errors import TrimtabError

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_ACTION = "action"
_OBSERVATIONS = ("obs", "state")  # the first that is there is the observation
_REWARDS = ("reward", "rewards")
_ENDS = "meta/episode_ends"
_ADVICE = "make the dataset again or fetch a fresh copy"


def _load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
    """Read a folder or zip of Diffusion Policy's layout.

    The observation is ``obs``, else ``state``, else every other vector, concatenated in the order
    of their names. Vectors beside it become infos. Points, such as Push-T's ``keypoint``
    ``[N, 9, 2]``, are vectors too, their coordinates end to end; images are left out. No final
    observation is stored: the last one stands in its place, and the episode says so. Rewards are
    zero unless stored, and every episode is truncated: a demonstration does not say that its task
    ended.

    Raises:
        TrimtabError: if anything is missing, damaged, of a wrong shape, or compressed in a way
            that needs another package.
    """
    path = Path(path)
    where = f"dataset {path}"
    with opened_store(path) as store:
        there = store.arrays("data")
        images = sorted(name for name, described in there.items() if _is_image(*described))
        arrays = {name: store.read(f"data/{name}") for name in there if name not in images}
        ends = store.read(_ENDS)
    if images:
        logger.warning("%s: images are left out: %s", where, ", ".join(images))
    if _ACTION not in arrays:
        raise TrimtabError(f"{where}, key 'data/{_ACTION}': missing; {_ADVICE}")
    whole = ends.ndim == 1 and len(ends) > 0 and ends.dtype.kind in "iu"
    if not whole or (np.diff(ends.astype(np.int64), prepend=0) < 1).any():
        raise TrimtabError(f"{where}, key '{_ENDS}': not growing whole numbers; {_ADVICE}")
    for name, array in arrays.items():
        if array.shape[:1] != (int(ends[-1]),) or not array.size:
            raise TrimtabError(
                f"{where}, key 'data/{name}': shape {array.shape}, expected {ends[-1]} rows; "
                f"{_ADVICE}"
            )
    arrays = {name: a.reshape(len(a), -1) for name, a in arrays.items()}
    actions = arrays.pop(_ACTION)
    rewards = next((arrays.pop(name)[:, 0] for name in _REWARDS if name in arrays), None)
    chosen = next(([name] for name in _OBSERVATIONS if name in arrays), sorted(arrays))
    if not chosen:
        raise TrimtabError(f"{where}: there is no vector in 'data' to observe; {_ADVICE}")
    with np.errstate(over="ignore"):  # infinity is refused afterwards
        parts = [arrays.pop(name).astype(np.float32) for name in chosen]
    arrays.update(
        observations=np.concatenate(parts, axis=1),
        actions=actions,
        rewards=np.zeros(len(actions), np.float32) if rewards is None else rewards,
    )
    recipe: dict[str, Any] = {"imported": "diffusion_policy", "observation": chosen}
    if images:
        recipe["left_out"] = images
    return assemble(contents_of(path, list(_episodes(arrays, ends)), None, recipe=recipe), hints)


def _is_image(shape: tuple[int, ...], floats: bool) -> bool:
    """Tell pictures from points: only floats can be a table of coordinates."""
    return len(shape) > 3 or (len(shape) == 3 and not floats)


def _episodes(arrays: Arrays, ends: npt.NDArray[Any]) -> Iterator[Episode]:
    core = ("observations", "actions", "rewards")
    begin = 0
    for end in ends.tolist():
        observations, actions, rewards = (arrays[name][begin:end] for name in core)
        yield Episode(
            np.concatenate([observations, observations[-1:]]),
            actions,
            rewards,
            *flag_ends(end - begin, terminated=False),
            infos={n: a[begin:end] for n, a in arrays.items() if n not in core},
            last_observed=False,
        )
        begin = end


def _recognises(path: Path) -> bool:
    if path.is_dir():
        return (path / _ENDS / ".zarray").is_file()
    try:
        with opened_store(path) as store:
            return _ENDS in store
    except (TrimtabError, OSError):
        return False


FORMAT = Format(
    name="diffusion_policy",
    description="Diffusion Policy's Zarr (v2) of frames; read only",
    suffixes=(".zarr", ".zip"),
    load=_load,
    recognises=_recognises,
)
