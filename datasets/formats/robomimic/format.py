"""robomimic's HDF5: a group a demonstration, with ``obs`` and ``next_obs`` by key, and masks.

The layout: ``docs/datasets/overview.md``, ``robomimic/utils/file_utils.py`` and ``dataset.py`` of
robomimic, whose readers take whatever lies in the group ``data`` for a demonstration. What Trimtab
adds is therefore in a group ``trimtab`` beside it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import h5py
import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import Contents, LazyEpisodes, contents_of, loads
from trimtab.datasets.formats.findings import Finding
from trimtab.datasets.formats.hints import Hints, wanted_keys
from trimtab.datasets.formats.own import (
    Own,
    check_replaceable,
    need,
    parse,
    text_of,
)
from trimtab.datasets.formats.robomimic.demonstrations import (
    STATES,
    Arrays,
    check_not_raw,
    check_total,
    parts_of,
    stranger_episodes,
    vectors,
)
from trimtab.datasets.formats.robomimic.tasks import PARTS, Parts, env_args, observation_parts
from trimtab.datasets.io.hdf5 import (
    REOPEN,
    child,
    children,
    has,
    noted_number,
    opened,
    read_array,
    read_file,
    root_names,
)
from trimtab.datasets.io.hdf5_writer import room_for, write_hdf5
from trimtab.datasets.io.sandbox import Read
from trimtab.errors import TrimtabError
from trimtab.files import atomic_file

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

_DEMO = re.compile(r"demo_(\d{1,9})", re.ASCII)
_OWN = "trimtab"
_TEXT = "json"  # in the group of ours
_OWN_KEYS = ("actions", "rewards", f"{_OWN}/terminations", f"{_OWN}/truncations")
_MEANT = ("actions", "rewards", "dones", STATES)
_MOST_NAMES = 1_000_000
_ADVICE = "make the dataset again or fetch a fresh copy"


def _open(path: str | Path, **hints: Unpack[Hints]) -> Contents:
    """Read a file of robomimic's layout.

    In a stranger's file the vectors below ``obs`` are concatenated in the order of their names, or
    those that the hint ``keys`` names, in its order; images are left out. The final observation is
    the last of ``next_obs``; where there is none, the last of ``obs`` stands in its place, and an
    episode that is not terminated says so. Missing rewards are zero. ``dones`` is set at the end of
    every demonstration by most writers, whatever ended it: an episode counts as terminated only
    where it ends done with a reward of 1 in data whose rewards are 0 and 1. ``mask/*`` becomes the
    recipe's ``masks``, and ``states`` an info. A mask that names what is not there is noted in the
    recipe.

    Raises:
        TrimtabError: if anything is missing, damaged or of a wrong shape, or the file contradicts
            itself.
    """
    path = Path(path)
    where = f"dataset {path}"
    values, arrays = read_file(path, _read, str(path), where)
    own = parse(arrays[_OWN].tobytes(), where) if _OWN in arrays else None
    left_out = sorted([*values["images"], *values["texts"]])
    for said, names in (("images are left out", "images"), ("left out, as no numbers", "texts")):
        if values[names]:
            logger.warning("%s: %s: %s", where, said, ", ".join(sorted(values[names])))
    demos: list[Arrays] = [{} for _ in values["demos"]]
    for name, array in arrays.items():
        index, _, key = name.partition("/")
        if key:
            demos[int(index)][key] = array
    named, masks = values["env_args"], values["masks"]
    recipe = {"imported": "robomimic", "env_args": named, **({"masks": masks} if masks else {})}
    if own is not None:
        episodes = _own_episodes(demos, own, where)
    else:
        keys = wanted_keys(hints, where)
        if not left_out:
            check_not_raw(demos, where)
        check_total(demos, values["total"], where)
        episodes = stranger_episodes(demos, values["demos"], values["samples"], keys, where)
        parts = parts_of(demos[0] if demos else {}, keys)
        recipe.update({PARTS: [list(part) for part in parts]} if parts else {})
        if len(parts) > 1 and not keys:
            logger.warning(
                "%s: observation keys are joined in the order of their names (%s); keys= says "
                "which, and in what order", where, ", ".join(name for name, _ in parts),
            )  # fmt: skip
    env = named.get("env_name")
    env = env if isinstance(env, str) and env else "unknown"
    return contents_of(
        path, episodes, own, left_out=left_out, env=env, recipe=recipe,
        hints=hints, findings=[Finding(**row) for row in values["findings"]],
    )  # fmt: skip


def _read(file: h5py.File, path: str, where: str) -> Read:
    data = child(file, "data", where)
    if not isinstance(data, h5py.Group):
        raise TrimtabError(f"{where}, key 'data': not a group; {_ADVICE}")
    numbered = {name: match for name in data if (match := _DEMO.fullmatch(name))}
    demos = sorted(numbered, key=lambda name: int(numbered[name][1]))
    masks, findings = _masks(file, demos, where)
    values: dict[str, Any] = {
        "demos": demos,
        "images": [],
        "texts": [],
        "samples": [],
        "total": noted_number(data, "total", f"{where}, key 'data'"),
        "env_args": _env_args(data, findings),
        "masks": masks,
        "findings": [vars(finding) for finding in findings],
    }
    file.close()
    return values, _arrays(Path(path), demos, values, where)


def _arrays(
    path: Path, demos: Sequence[str], values: dict[str, Any], where: str
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield what is to be read, a demonstration at a time; note lengths and what is left out."""
    for first in range(0, len(demos), REOPEN):
        with opened(path) as file:
            data = child(file, "data", where)
            ours = _own_group(file, where)
            if first == 0 and ours is not None:
                yield _OWN, read_array(child(ours, _TEXT, where), f"{where}, key '{_OWN}/{_TEXT}'")
            for index, demo in enumerate(demos[first : first + REOPEN], first):
                place = f"{where}: {demo}"
                group = child(data, demo, where)
                if not isinstance(group, h5py.Group):
                    raise TrimtabError(f"{place}: not a group; {_ADVICE}")
                values["samples"].append(noted_number(group, "num_samples", place))
                for name, member in _wanted(group, None if ours is None else ours.get(demo), place):
                    if name in _MEANT or _is_read(name, member):  # what has a meaning is not lost
                        yield f"{index}/{name}", read_array(member, f"{place}, key '{name}'")
                    else:
                        left_out = values["images" if member.dtype.kind in "biuf" else "texts"]
                        left_out.extend([name] * (name not in left_out))


def _is_read(name: str, member: h5py.Dataset) -> bool:
    return member.dtype.kind in "biuf" and (_OWN in name or len(member.shape or ()) <= 2)


def _own_group(file: h5py.File, where: str) -> h5py.Group | None:
    if _OWN not in file:
        return None
    group = child(file, _OWN, where)
    return group if isinstance(group, h5py.Group) and _TEXT in group else None


def _wanted(
    group: h5py.Group, ours: h5py.Group | None, place: str
) -> Iterator[tuple[str, h5py.Group | h5py.Dataset]]:
    """Yield the arrays of a demonstration that are read, and those that Trimtab adds to it."""
    if isinstance(ours, h5py.Group):
        for below, member in children(ours, place).items():
            yield f"{_OWN}/{below}", member
    for name in _MEANT:
        if has(group, name):
            yield name, child(group, name, place)
    for name in ("obs", "next_obs"):
        if has(group, name):
            inside = child(group, name, place)
            if not isinstance(inside, h5py.Group):
                raise TrimtabError(f"{place}, key '{name}': not a group; {_ADVICE}")
            for below, member in children(inside, place).items():
                yield f"{name}/{below}", member


def _env_args(data: h5py.Group, findings: list[Finding]) -> dict[str, Any]:
    """Return the environment that the file names; an empty one where it names none.

    Where it cannot be read, that is added to the findings.
    """
    try:
        text = data.attrs.get("env_args", "{}")
        values = json.loads(text) if isinstance(text, str | bytes) else None
        json.dumps(values, allow_nan=False)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict):
        return values
    fault = "not a JSON object, so the task is unknown; name it with env="
    findings.append(Finding("warning", "unknown-task", "attribute 'env_args' of 'data'", fault))
    return {}


def _masks(
    file: h5py.File, demos: list[str], where: str
) -> tuple[dict[str, list[int]], list[Finding]]:
    """Return the places of the demonstrations that each mask names, and what is wrong with one."""
    if "mask" not in file:
        return {}, []
    group = child(file, "mask", where)
    if not isinstance(group, h5py.Group):
        raise TrimtabError(f"{where}, key 'mask': not a group; {_ADVICE}")
    places = {name: index for index, name in enumerate(demos)}
    masks: dict[str, list[int]] = {}
    findings = []
    for key in group:
        member = child(group, key, where)
        fit = isinstance(member, h5py.Dataset) and len(member.shape or ()) == 1
        if not fit or member.dtype.kind not in "SO" or member.shape[0] > _MOST_NAMES:
            fault, names = "is no list of names", []
        else:
            names = [
                x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in member[()]
            ]
            other = next((name for name in names if name not in places), "")
            fault = f"names {other!r:.40}, which is not there" if other else ""
            if len(set(names)) < len(names):
                fault = fault or "names a demonstration twice"
        masks[key] = [places[name] for name in dict.fromkeys(names) if name in places]
        if fault:
            taken = f"mask={key} takes the rest ({len(masks[key])})" if masks[key] else "left out"
            findings.append(Finding("warning", "stale-mask", f"mask/{key}", f"{fault}: {taken}"))
    return {key: chosen for key, chosen in masks.items() if chosen}, findings


def _own_episodes(demos: list[Arrays], own: Own, where: str) -> LazyEpisodes:
    prefix = f"{_OWN}/infos/"
    parts = [name for name, _ in own[PARTS]]

    def build(index: int) -> Episode:
        demo, seed, has_states = demos[index], own["seeds"][index], own[STATES][index]
        below = [f"{group}/{part}" for group in ("obs", "next_obs") for part in parts]
        need(demo, (*below, *_OWN_KEYS, *[STATES] * has_states), where)
        infos = {n.removeprefix(prefix): a for n, a in demo.items() if n.startswith(prefix)}
        if has_states:
            infos[STATES] = demo[STATES]
        actions, rewards, *flags = (demo[name] for name in _OWN_KEYS)
        seen = vectors(demo, "obs", parts, where)
        following = vectors(demo, "next_obs", parts, where)
        if seen is None or following is None or following.shape != seen.shape:
            raise TrimtabError(f"{where}, key 'obs': not what Trimtab saved; {_ADVICE}")
        observations = np.concatenate([seen, following[-1:]])
        return Episode(observations, actions, rewards, flags[0], flags[1], infos, seed)

    return LazyEpisodes(min(len(demos), len(own["seeds"])), build)


def _save(dataset: Dataset, path: Path) -> None:
    """Write ``dataset`` as one file; the recipe's ``masks`` become robomimic's filter keys.

    A task of robosuite, and data that came from a file of robomimic's, has the environment and the
    observation keys of theirs; any other observation is the key ``flat``.

    Raises:
        TrimtabError: if the dataset is not valid, something else is in its place, or the disk
            refuses.
    """
    validate(dataset, f"dataset {dataset.id}")
    check_replaceable(path, _OWN in root_names(path))
    has_states = [_is_states(episode) for episode in dataset.episodes]
    parts = observation_parts(dataset)
    text = text_of(dataset, states=has_states, **{PARTS: parts})

    def write(file: h5py.File) -> None:
        data = file.create_group("data")
        data.attrs["total"] = dataset.num_steps
        data.attrs["env_args"] = json.dumps(env_args(dataset))
        ours = file.create_group(_OWN)
        ours.create_dataset(_TEXT, data=np.frombuffer(text.encode(), np.uint8))
        for index, episode in enumerate(dataset.episodes):
            demo = file.create_group(f"data/demo_{index}")
            demo.attrs["num_samples"] = len(episode)
            _write_arrays(demo, _arrays_of(episode, parts, has_states[index]))
            beside = file.create_group(f"{_OWN}/demo_{index}")
            _write_arrays(beside, _own_arrays(episode, has_states[index]))
        for name, chosen in _valid_masks(dataset).items():
            names = np.array([f"demo_{index}".encode() for index in chosen], "S")
            file.create_dataset(f"mask/{name}", data=names)

    with atomic_file(path) as place:
        room = room_for(a for e in dataset.episodes for a in e.arrays().values())
        write_hdf5(place, write, 3 * room + len(text))


def _is_states(episode: Episode) -> bool:
    return STATES in episode.infos and episode.infos[STATES].ndim == 2


def _valid_masks(dataset: Dataset) -> Mapping[str, list[int]]:
    masks = dataset.recipe.get("masks")
    return masks if isinstance(masks, Mapping) else {}


def _arrays_of(episode: Episode, parts: Parts, has_states: bool) -> Arrays:
    """Return what robomimic reads of an episode."""
    arrays: Arrays = {}
    stops = np.cumsum([length for _, length in parts])[:-1]
    for group, rows in (("obs", episode.observations[:-1]), ("next_obs", episode.observations[1:])):
        split = np.split(rows, stops, axis=1)
        arrays.update({f"{group}/{n}": a for (n, _), a in zip(parts, split, strict=True)})
    arrays["actions"], arrays["rewards"] = episode.actions, episode.rewards
    arrays["dones"] = (episode.terminations | episode.truncations).astype(np.int64)
    arrays[STATES] = episode.infos[STATES] if has_states else np.zeros((len(episode), 1))
    return arrays


def _own_arrays(episode: Episode, has_states: bool) -> Arrays:
    """Return what robomimic has no place for."""
    infos = {n: a for n, a in episode.infos.items() if not (has_states and n == STATES)}
    return {
        "terminations": episode.terminations,
        "truncations": episode.truncations,
        **{f"infos/{name}": array for name, array in infos.items()},
    }


def _write_arrays(group: h5py.Group, arrays: Arrays) -> None:
    for name, array in arrays.items():
        group.create_dataset(name, data=array)  # assigning would note the time in its groups


def _recognises(path: Path) -> bool:
    names = root_names(path)
    return any(_DEMO.fullmatch(name.removeprefix("data/")) for name in names)


FORMAT = Format(
    name="robomimic",
    description="robomimic's HDF5 of demonstrations with masks",
    suffixes=(".hdf5", ".h5"),
    load=loads(_open),
    open=_open,
    recognises=_recognises,
    save=_save,
    hints=frozenset({"env", "id", "mask", "keys"}),
)
