"""Diffusion Policy's Zarr: frames end to end in ``data/*``, their ends in ``meta/episode_ends``.

The layout: ``diffusion_policy/common/replay_buffer.py`` of Diffusion Policy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from trimtab.datasets.io.zarr import Stored, array_files, describe_arrays, read_arrays
from trimtab.errors import TrimtabError

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_ACTION = "action"
_OBSERVATIONS = ("obs", "state")  # the first that is there is the observation
_REWARDS = ("reward", "rewards")
_ENDS = "meta/episode_ends"
_DATA = "data/"
_NUMBERS = ("b", "i", "u", "f")
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
    root = _root(path, array_files(path))
    if root is None:
        raise TrimtabError(f"{where}, key '{_ENDS}': missing; {_ADVICE}")
    stored = describe_arrays(path, root)
    there = {n.removeprefix(_DATA): a for n, a in stored.items() if n.startswith(_DATA)}
    left_out = [name for name, array in there.items() if not _is_vector(name, array)]
    names = [name for name in there if name not in left_out]
    read = read_arrays(path, [*(_DATA + name for name in names), _ENDS], root)
    arrays = {name: read[_DATA + name] for name in names}
    ends = whole_numbers(read[_ENDS])
    findings = list(_missing_chunks(stored, names, where))
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


def _root(path: Path, files: Iterable[str]) -> str | None:
    """Return the folder in which a zip has the store, where it was packed with its name; or None.

    A folder is the store itself.
    """
    ends = f"{_ENDS}/"
    tops = [file.rpartition(ends)[0] for file in files if f"/{file}".find(f"/{ends}") >= 0]
    root = min(tops, key=len).rstrip("/") if tops else None
    return None if root and path.is_dir() else root


def _is_vector(name: str, array: Stored) -> bool:
    """Return whether an array is read: a group below, a text or a picture is not."""
    if name in (_ACTION, *_REWARDS) or (name in _OBSERVATIONS and array.letter not in _NUMBERS):
        return True  # leaving it out would change what is learned; reading refuses texts
    if name.count("/") or array.letter not in _NUMBERS or not array.shape:
        return False
    return not is_picture(len(array.shape), floats=array.letter == "f")


def _observed(names: Iterable[str]) -> list[str]:
    """Return those vectors that are the observation."""
    there = sorted(names)
    return next(([name] for name in _OBSERVATIONS if name in there), there)


def _missing_chunks(
    stored: Mapping[str, Stored], names: Sequence[str], where: str
) -> Iterator[Finding]:
    """Yield a finding for each array that lost some of its chunks.

    Raises:
        TrimtabError: if it is the ends of the episodes, all actions or all observations.
    """
    missing = {n: stored[_DATA + n].missing for n in names if stored[_DATA + n].missing}
    observed = _observed(name for name in names if name not in (_ACTION, *_REWARDS))
    for group in ([_ACTION], observed):  # of rewards, all may be 0
        if group and all(missing.get(n) == stored[_DATA + n].chunks for n in group if n in names):
            raise TrimtabError(
                f"{where}, key '{_DATA}{group[0]}': none of its chunks is stored; {_ADVICE}"
            )
    if stored[_ENDS].missing:
        raise TrimtabError(
            f"{where}, key '{_ENDS}': {stored[_ENDS].missing} of its {stored[_ENDS].chunks} chunks "
            f"are not stored; {_ADVICE}"
        )
    for name, count in missing.items():
        yield Finding(
            "warning",
            "missing-chunk",
            f"key '{_DATA}{name}'",
            f"{count} of its {stored[_DATA + name].chunks} chunks are not stored: the fill value "
            "is read there; if the writer did not leave them out, fetch a fresh copy",
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
    try:
        files = array_files(path)
    except (TrimtabError, OSError):
        return False
    return _root(path, files) is not None


FORMAT = Format(
    name="diffusion_policy",
    description="Diffusion Policy's Zarr of frames; read only",
    suffixes=(".zarr", ".zip"),
    load=_load,
    recognises=_recognises,
)
