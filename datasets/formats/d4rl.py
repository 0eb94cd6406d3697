"""D4RL's HDF5: all transitions end to end, with ``terminals`` and ``timeouts``.

The layout and what its readers make of it: ``d4rl/offline_env.py`` and ``qlearning_dataset`` in
``d4rl/__init__.py``. Those readers pass over keys below ``metadata``, where ours are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import Contents, LazyEpisodes, contents_of, loads
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.own import (
    Own,
    check_continuous,
    check_no_picture,
    check_replaceable,
    column_of,
    common_infos,
    flag_ends,
    flags_of,
    parse,
    text_of,
    uneven_infos,
    with_common_infos,
)
from trimtab.datasets.io.hdf5 import (
    child,
    children,
    has,
    in_blocks,
    read_file,
    root_names,
)
from trimtab.datasets.io.hdf5_writer import append, room_for, write_hdf5
from trimtab.datasets.io.sandbox import Read
from trimtab.errors import TrimtabError
from trimtab.files import atomic_file

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]
Kind = tuple[npt.DTypeLike, tuple[int, ...]]

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_D3RLPY = ("episode_terminals", "discrete_action")
_FLAGS = ("terminals", "timeouts")
_DIMENSIONS = {"observations": 2, "next_observations": 2, "actions": 2, "rewards": 1}
_OPTIONAL = ("timeouts", "next_observations")
_TEXT = "metadata/trimtab/json"  # as bytes: HDF5 limits the length of an attribute
_TRUNCATIONS = "metadata/trimtab/truncations"
_ADVICE = "make the dataset again or fetch a fresh copy"
_SLAB = 1 << 18  # rows that are compared at a time


def _open(path: str | Path, **hints: Unpack[Hints]) -> Contents:
    """Read a file of D4RL's layout.

    An episode ends at a terminal or a timeout. Its final observation is ``next_observations`` where
    the file has them. Otherwise a row that ended by the clock has no known successor: the
    transition is dropped, as D4RL drops it, and its observation is the final one; so is the last
    row of the file. After a terminal the final observation has no effect and is repeated.

    Raises:
        TrimtabError: if anything is missing, damaged or of a wrong shape, the actions are discrete,
            two arrays contradict each other, or the file marks no timeouts, and neither
            ``next_observations`` nor ``horizon`` tells them.
    """
    path = Path(path)
    where = f"dataset {path}"
    values, read = read_file(path, _read, where)
    arrays = {name: _column(name, array) for name, array in read.items()}
    check_continuous(arrays["actions"], f"{where}, key 'actions'")
    check_no_picture(arrays["observations"], f"{where}, key 'observations'")
    for name, dimensions in _DIMENSIONS.items():
        if name in arrays and arrays[name].ndim != dimensions:
            raise TrimtabError(
                f"{where}, key '{name}': shape {arrays[name].shape} is not of {dimensions} "
                f"dimensions; {_ADVICE}"
            )
    rows = len(arrays["rewards"])
    for name in (*_REQUIRED, *(n for n in _OPTIONAL if n in arrays)):
        if arrays[name].ndim == 0 or len(arrays[name]) != rows or not rows:
            raise TrimtabError(
                f"{where}, key '{name}': shape {arrays[name].shape}, expected {rows} rows; "
                f"{_ADVICE}"
            )
    following = arrays.get("next_observations")
    if following is not None and following.shape != arrays["observations"].shape:
        raise TrimtabError(
            f"{where}, key 'next_observations': shape {following.shape}, and 'observations' have "
            f"{arrays['observations'].shape}; {_ADVICE}"
        )
    for name in _FLAGS:
        if name in arrays:
            arrays[name] = flags_of(arrays[name], f"{where}, key '{name}'")
    own = parse(arrays.pop(_TEXT).tobytes(), where) if _TEXT in arrays else None
    if own is not None:
        episodes = _own_episodes(arrays, own, where)
    else:
        episodes = _episodes(arrays, _ends(arrays, hints.get("horizon"), where), where)
    return contents_of(
        path, episodes, own, left_out=values["left_out"], recipe={"imported": "d4rl"}, hints=hints
    )


def _read(file: h5py.File, where: str) -> Read:
    for name in _D3RLPY:
        if has(file, name):
            raise TrimtabError(
                f"{where}, key '{name}': a file of d3rlpy 1, which marks ends in its own way; save "
                "its episodes with 'terminals' and 'timeouts', or as minari"
            )
    names = [*_REQUIRED, *(name for name in _OPTIONAL if has(file, name))]
    arrays = {n: in_blocks(child(file, n, where), f"{where}, key '{n}'") for n in names}
    rows = arrays["rewards"].shape[:1]
    left_out: list[str] = []
    if "infos" in file and isinstance(infos := child(file, "infos", where), h5py.Group):
        for name, member in children(infos, where).items():
            if member.dtype.kind in "biuf" and member.shape[:1] == rows != ():
                arrays[f"infos/{name}"] = in_blocks(member, f"{where}, key 'infos/{name}'")
            else:
                left_out.append(f"infos/{name}")
    if _TEXT.split("/")[0] in file and _TEXT in file:
        for name in (_TEXT, _TRUNCATIONS):
            group: Any = file
            for part in name.split("/"):
                group = child(group, part, where)
            arrays[name] = in_blocks(group, f"{where}, key '{name}'")
    return {"left_out": sorted(left_out)}, arrays.items()


def _column(key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``rewards`` and flags of ``[N, 1]`` as ``[N]``, and actions of ``[N]`` as ``[N, 1]``.

    Actions of whole numbers stay as they are: without a width they may be choices.
    """
    if key == "actions" and array.ndim == 1 and (array != np.rint(array)).any():
        return array[:, None]
    return column_of(array) if key in ("rewards", *_FLAGS) else array


def _ends(arrays: Arrays, horizon: int | None, where: str) -> npt.NDArray[np.bool_]:
    """Return the rows after which another episode begins."""
    terminals: npt.NDArray[np.bool_] = arrays["terminals"]
    if "timeouts" in arrays:
        ends = terminals | arrays["timeouts"]
    elif "next_observations" in arrays:
        return _inferred_ends(arrays, horizon, where)
    elif horizon:
        ends, begin = terminals.copy(), 0
        for end in [*np.flatnonzero(terminals).tolist(), len(terminals) - 1]:
            ends[begin + horizon - 1 : end + 1 : horizon] = True
            begin = end + 1
        return ends
    else:
        raise TrimtabError(
            f"{where}: it has no 'timeouts', so that ends by the clock are not marked; give "
            "horizon=<steps of a whole episode>"
        )
    if horizon:
        logger.warning("%s: horizon= is not used, as the file marks its ends itself", where)
    return ends


def _inferred_ends(arrays: Arrays, horizon: int | None, where: str) -> npt.NDArray[np.bool_]:
    """Return the terminals, and the rows that the next row does not go on from.

    Raises:
        TrimtabError: if most rows are such, or an episode is longer than ``horizon``.
    """
    ends: npt.NDArray[np.bool_] = arrays["terminals"].copy()
    following, observations = arrays["next_observations"], arrays["observations"]
    jumps = ~np.isclose(following[:-1], observations[1:]).all(1) & ~ends[:-1]
    if jumps.sum() * 2 > len(ends):
        raise TrimtabError(
            f"{where}, key 'next_observations': in {jumps.sum()} of {len(ends)} rows it is not the "
            "observation of the next row, and no 'timeouts' mark ends; put the rows in their order "
            "and add 'timeouts', or leave out 'next_observations' and give horizon="
        )
    ends[:-1] |= jumps
    longest = int(np.diff(np.flatnonzero(ends[:-1]), prepend=-1, append=len(ends) - 1).max())
    if horizon and longest > horizon:
        raise TrimtabError(
            f"{where}: by 'next_observations' an episode has {longest} steps, but horizon= says "
            f"{horizon}; leave out one of the two"
        )
    return ends


def _episodes(arrays: Arrays, ends: npt.NDArray[np.bool_], where: str) -> LazyEpisodes:
    observations, terminals = arrays["observations"], arrays["terminals"]
    following = arrays.get("next_observations")
    if following is not None:
        _check_following(observations, following, ends, where)
    last = np.flatnonzero(ends)
    if not len(last) or last[-1] != len(ends) - 1:
        last = np.append(last, len(ends) - 1)
    begin = np.append(0, last[:-1] + 1)
    whole = terminals[last] | (following is not None)
    stop = last + whole  # the row that the clock ended has no successor
    if lost := int((~whole).sum()):
        logger.info("%s: %d of %d rows have no successor", where, lost, len(ends))
    spans = np.stack([begin, stop, last])[:, stop > begin].T
    if following is not None and "timeouts" not in arrays:
        logger.warning(
            "%s: has no 'timeouts'; an episode ends where 'next_observations' is not the next "
            "row's observation: %d episodes of %d rows", where, len(spans), len(ends),
        )  # fmt: skip

    def build(number: int) -> Episode:
        begin, stop, last = spans[number].tolist()
        final = following[last] if following is not None else observations[last]
        flags = flag_ends(stop - begin, terminated=bool(stop > last and terminals[last]))
        return _episode(arrays, begin, stop, final, flags)

    return LazyEpisodes(len(spans), build)


def _check_following(
    observations: npt.NDArray[Any],
    following: npt.NDArray[Any],
    ends: npt.NDArray[np.bool_],
    where: str,
) -> None:
    """Check ``next_observations`` inside of episodes, where it must be the next row's observation.

    Raises:
        TrimtabError: if it is another one, or a number is not finite.
    """
    key = f"{where}, key 'next_observations'"
    for begin in range(0, len(ends) - 1, _SLAB):
        stop = min(begin + _SLAB, len(ends) - 1)
        inner = begin + np.flatnonzero(~ends[begin:stop])
        theirs, ours = following[inner], observations[inner + 1]
        unfit = ~np.isfinite(theirs).all(1)
        if unfit.any():
            raise TrimtabError(
                f"{key}: row {inner[unfit.argmax()]} is not finite; correct or leave out the row"
            )
        others = ~np.isclose(theirs, ours).all(1)
        if others.any():
            row = inner[others.argmax()]
            raise TrimtabError(
                f"{key}: row {row} is not the observation of row {row + 1}, and no episode ends "
                "there; mark the end in 'timeouts', or leave out 'next_observations'"
            )


def _own_episodes(arrays: Arrays, own: Own, where: str) -> LazyEpisodes:
    truncations, following = arrays.pop(_TRUNCATIONS), arrays.get("next_observations")
    if following is None or not sum(own["lengths"]) == len(arrays["rewards"]) == len(truncations):
        raise TrimtabError(f"{where}: not the rows that Trimtab saved; {_ADVICE}")
    stops = np.cumsum(own["lengths"], dtype=np.int64).tolist()
    starts = [0, *stops]

    def build(number: int) -> Episode:
        begin, stop = starts[number], stops[number]
        flags = (arrays["terminals"][begin:stop], truncations[begin:stop])
        return _episode(arrays, begin, stop, following[stop - 1], flags, own["seeds"][number])

    return LazyEpisodes(len(stops), build)


def _episode(
    arrays: Arrays,
    begin: int,
    stop: int,
    final: npt.NDArray[Any],
    flags: Any,
    seed: int | None = None,
) -> Episode:
    rows = slice(begin, stop)
    prefix = "infos/"
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which is refused
        return Episode(
            observations=np.concatenate([arrays["observations"][rows], final[None]]),
            actions=arrays["actions"][rows],
            rewards=arrays["rewards"][rows],
            terminations=flags[0],
            truncations=flags[1],
            infos={
                n.removeprefix(prefix): a[rows] for n, a in arrays.items() if n.startswith(prefix)
            },
            seed=seed,
        )


def _save(dataset: Dataset, path: Path) -> None:
    """Write ``dataset`` as one file; the last row of an episode is its terminal or its timeout.

    Raises:
        TrimtabError: if the dataset is not valid, something else is in its place, or the disk
            refuses.
    """
    validate(dataset, f"dataset {dataset.id}")
    check_replaceable(path, _TEXT.rpartition("/")[0] in root_names(path))
    held = with_common_infos(dataset)
    text = text_of(held, lengths=[len(episode) for episode in held.episodes])
    rows = held.num_steps
    infos = {f"infos/{name}": kind for name, kind in common_infos(held)[0].items()}

    def write(file: h5py.File) -> None:
        vector, action, flag = (held.obs_dim,), (held.action_dim,), (np.bool_, ())
        seen: dict[str, tuple[Kind, Callable[[Episode], npt.NDArray[Any]]]] = {
            "observations": ((np.float32, vector), lambda e: e.observations[:-1]),
            "next_observations": ((np.float32, vector), lambda e: e.observations[1:]),
            "actions": ((np.float32, action), lambda e: e.actions),
            "rewards": ((np.float32, ()), lambda e: e.rewards),
            "terminals": (flag, lambda e: e.terminations),
            "timeouts": (flag, _timeouts),
            **{name: (kind, partial(_stored, name)) for name, kind in infos.items()},
            _TRUNCATIONS: (flag, lambda e: e.truncations),
        }
        for name, (kind, rows_of) in seen.items():
            append(file, name, map(rows_of, held.episodes), rows, kind)
        file.create_dataset(_TEXT, data=np.frombuffer(text.encode(), np.uint8))

    with atomic_file(path) as place:
        room = room_for(a for e in held.episodes for a in e.arrays().values())
        write_hdf5(place, write, 2 * room + len(text))


def _stored(name: str, episode: Episode) -> npt.NDArray[Any]:
    return episode.arrays()[name]


def _timeouts(episode: Episode) -> npt.NDArray[np.bool_]:
    """Return where the clock ended an episode: at its last row, if its task did not end there."""
    timeouts = np.zeros_like(episode.terminations)
    timeouts[-1] = not episode.terminations[-1]
    return timeouts


def _recognises(path: Path) -> bool:
    return {"observations", "actions"} <= root_names(path)


FORMAT = Format(
    name="d4rl",
    description="D4RL's HDF5 of transitions; read by d4rl and CORL",
    suffixes=(".hdf5", ".h5"),
    load=loads(_open),
    open=_open,
    recognises=_recognises,
    save=_save,
    loses=uneven_infos,
    hints=frozenset({"env", "id", "mask", "horizon"}),
)
