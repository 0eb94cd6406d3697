"""Diffusion Policy's Zarr: frames end to end in ``data/*``, their ends in ``meta/episode_ends``.

The layout: ``diffusion_policy/common/replay_buffer.py`` of Diffusion Policy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import assemble, contents_of
from trimtab.datasets.formats.findings import Finding
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.own import check_continuous, flag_ends, is_picture, whole_numbers
from trimtab.datasets.io.zarr import Store, opened_store
from trimtab.errors import TrimtabError

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_ACTION = "action"
_OBSERVATIONS = ("obs", "state")  # the first that is there is the observation
_REWARDS = ("reward", "rewards")
_ENDS = "meta/episode_ends"
_NO_NUMBERS = "SUOMmVc["  # kinds of types: texts, objects, times, complex numbers, fields
_ADVICE = "make the dataset again or fetch a fresh copy"


def _load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
    """Read a folder or zip of Diffusion Policy's layout.

    The observation is ``obs``, else ``state``, else every other vector, concatenated in the order
    of their names. Vectors beside it become infos. Points, such as Push-T's ``keypoint``
    ``[N, 9, 2]``, are vectors too, their coordinates end to end; images, texts and what lies in
    groups below ``data`` are left out. No final observation is stored: the last one stands in its
    place, and the episode says so. Rewards are zero unless stored, and every episode is truncated:
    a demonstration does not say that its task ended. Chunks that are not stored are the fill value,
    as Zarr has it, which is a doubt.

    Raises:
        TrimtabError: if anything is missing, damaged, of a wrong shape or version, or compressed in
            a way that needs another package.
    """
    path = Path(path)
    where = f"dataset {path}"
    with opened_store(path) as store:
        if store.version_3:
            raise TrimtabError(
                f"{where}: of Zarr v3, and v2 is read here; copy its arrays with the zarr package "
                "into zarr.open_group(..., zarr_format=2)"
            )
        there = store.arrays("data")
        left_out = [name for name, described in there.items() if not _is_vector(name, *described)]
        arrays = {name: store.read(f"data/{name}") for name in there if name not in left_out}
        ends = whole_numbers(store.read(_ENDS))
        findings = list(_missing_chunks(store, arrays, where))
    if left_out:
        logger.warning("%s: left out, as not vectors: %s", where, ", ".join(left_out))
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
    check_continuous(arrays[_ACTION], f"{where}, key 'data/{_ACTION}'")
    for name in _REWARDS:
        if name in arrays and arrays[name].shape[1] != 1:
            raise TrimtabError(
                f"{where}, key 'data/{name}': {arrays[name].shape[1]} numbers a row; keep one, or "
                "give the array another name"
            )
    actions = arrays.pop(_ACTION)
    rewards = next((arrays.pop(name)[:, 0] for name in _REWARDS if name in arrays), None)
    chosen = _observed(arrays)
    if not chosen:
        raise TrimtabError(f"{where}: there is no vector in 'data' to observe; {_ADVICE}")
    arrays.update(
        observations=np.concatenate([arrays.pop(name) for name in chosen], axis=1),
        actions=actions,
        rewards=np.zeros(len(actions), np.float32) if rewards is None else rewards,
    )
    recipe: dict[str, Any] = {"imported": "diffusion_policy", "observation": chosen}
    contents = contents_of(
        path,
        list(_episodes(arrays, ends)),
        None,
        left_out=left_out,
        recipe=recipe,
        findings=findings,
    )
    return assemble(contents, hints)


def _is_vector(name: str, shape: tuple[int, ...], letter: str) -> bool:
    """Return whether an array is read: a group below, a text or a picture is not."""
    if name in (_ACTION, *_REWARDS) or (name in _OBSERVATIONS and letter in _NO_NUMBERS):
        return True  # leaving it out would change what is learned; reading refuses texts
    if name.count("/") or letter in _NO_NUMBERS or not shape:
        return False
    return not is_picture(len(shape), floats=letter == "f")


def _lost(store: Store, name: str) -> str:
    """Return what is lost of an array of which chunks are not stored, or nothing."""
    missing = store.missing(name)
    if not missing.count:
        return ""
    if missing.count == missing.whole:
        return f"none of its {missing.whole} chunks is stored"
    return (
        f"{missing.count} of its {missing.whole} chunks are not stored, the first that of rows "
        f"{missing.rows[0]} to {missing.rows[1]}"
    )


def _observed(names: Iterable[str]) -> list[str]:
    """Return those vectors that are the observation."""
    there = sorted(names)
    return next(([name] for name in _OBSERVATIONS if name in there), there)


def _missing_chunks(store: Store, arrays: Arrays, where: str) -> Iterator[Finding]:
    """Yield a finding for each array that lost some of its chunks.

    Raises:
        TrimtabError: if it is the ends of the episodes, all actions or all observations, or NaN
            stands for what is lost.
    """
    ends = store.missing(_ENDS)  # without any, its fill value may be the one end
    if ends.count < ends.whole and (what := _lost(store, _ENDS)):
        raise TrimtabError(f"{where}, key '{_ENDS}': {what}; {_ADVICE}")
    lost = {name: what for name in arrays if (what := _lost(store, f"data/{name}"))}
    observed = _observed(name for name in arrays if name not in (_ACTION, *_REWARDS))
    for names in ([_ACTION], observed):  # of rewards, all may be 0
        if names and all(lost.get(name, "").startswith("none") for name in names):
            raise TrimtabError(f"{where}, key 'data/{names[0]}': {lost[names[0]]}; {_ADVICE}")
    for name, what in lost.items():
        begin, last = store.missing(f"data/{name}").rows
        if np.isnan(arrays[name][begin : last + 1]).any():
            raise TrimtabError(
                f"{where}, key 'data/{name}': {what}, and the fill value is NaN; {_ADVICE}"
            )
        yield Finding(
            "warning",
            "missing-chunk",
            f"key 'data/{name}'",
            f"{what}: the fill value is read there; if the writer did not leave them out, "
            "fetch a fresh copy",
        )


def _episodes(arrays: Arrays, ends: npt.NDArray[Any]) -> Iterator[Episode]:
    core = ("observations", "actions", "rewards")
    begin = 0
    for end in ends.tolist():
        observations, actions, rewards = (arrays[name][begin:end] for name in core)
        with np.errstate(over="ignore"):  # infinity is refused afterwards
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
        # A store of version 3 is recognised, so that reading it can say so.
        places = (f"{_ENDS}/.zarray", f"{_ENDS}/zarr.json", "zarr.json")
        return any((path / place).is_file() for place in places)
    try:
        with opened_store(path) as store:
            return _ENDS in store or store.version_3
    except (TrimtabError, OSError):
        return False


FORMAT = Format(
    name="diffusion_policy",
    description="Diffusion Policy's Zarr (v2) of frames; read only",
    suffixes=(".zarr", ".zip"),
    load=_load,
    recognises=_recognises,
)
