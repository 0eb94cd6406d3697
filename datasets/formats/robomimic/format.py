"""robomimic's HDF5: a group a demonstration, with ``obs`` and ``next_obs`` by key, and masks.

The layout: ``docs/datasets/overview.md``, ``robomimic/utils/file_utils.py`` and ``dataset.py`` of
robomimic, whose readers take whatever lies in the group ``data`` for a demonstration. What Trimtab
adds is therefore in a group ``trimtab`` beside it; files of earlier versions have it inside.
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
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.own import (
    Own,
    check_replaceable,
    flag_ends,
    flags_of,
    need,
    no_reward,
    parse,
    text_of,
)
from trimtab.datasets.formats.robomimic.tasks import PARTS, Parts, env_args, observation_parts
from trimtab.datasets.io.hdf5 import (
    REOPEN,
    child,
    children,
    opened,
    read_array,
    read_file,
    root_names,
)
from trimtab.datasets.io.hdf5_writer import OpenFile, write_hdf5
from trimtab.datasets.io.sandbox import Read
from trimtab.errors import TrimtabError
from trimtab.files import atomic_file

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_DEMO = re.compile(r"demo_(\d{1,9})", re.ASCII)
_OWN = "trimtab"
_STATES = "states"
_TEXT = "json"  # in the group of ours; earlier, the group's own place in "data" was this array
_OWN_KEYS = ("actions", "rewards", f"{_OWN}/terminations", f"{_OWN}/truncations")
_EARLIER_PARTS = [("flat", 0)]  # of all observations in files that do not note any
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
    recipe's ``masks``, and ``states`` an info.

    Raises:
        TrimtabError: if anything is missing, damaged or of a wrong shape.
    """
    path = Path(path)
    where = f"dataset {path}"
    values, arrays = read_file(path, _read, str(path), where)
    own = parse(arrays[_OWN].tobytes(), where) if _OWN in arrays else None
    if values["images"]:
        logger.warning("%s: images are left out: %s", where, ", ".join(sorted(values["images"])))
    demos: list[Arrays] = [{} for _ in values["demos"]]
    for name, array in arrays.items():
        index, _, key = name.partition("/")
        if key:
            demos[int(index)][key] = array
    if own is None:
        several = {path.partition("/obs/")[2] for path in arrays if "/obs/" in path}
        if len(several) > 1 and "keys" not in hints:
            logger.warning(
                "%s: observation keys are joined in the order of their names (%s); keys= says "
                "which, and in what order", where, ", ".join(sorted(several)),
            )  # fmt: skip
        keys = [key.strip() for key in hints.get("keys", "").split(",") if key.strip()]
        episodes = _stranger_episodes(demos, keys, where)
        parts = _parts(demos[0] if demos else {}, keys)
    else:
        episodes = _own_episodes(demos, own, where)
        parts = []
    named, masks = values["env_args"], values["masks"]
    recipe = {"imported": "robomimic", "env_args": named, **({"masks": masks} if masks else {})}
    recipe.update({PARTS: [list(part) for part in parts]} if parts else {})
    env = named.get("env_name")
    env = env if isinstance(env, str) and env else "unknown"
    left_out = sorted(values["images"])
    return contents_of(path, episodes, own, left_out=left_out, env=env, recipe=recipe, hints=hints)


def _read(file: h5py.File, path: str, where: str) -> Read:
    data = child(file, "data", where)
    if not isinstance(data, h5py.Group):
        raise TrimtabError(f"{where}, key 'data': not a group; {_ADVICE}")
    numbered = {name: match for name in data if (match := _DEMO.fullmatch(name))}
    demos = sorted(numbered, key=lambda name: int(numbered[name][1]))
    images: list[str] = []
    values = {
        "demos": demos,
        "images": images,
        "env_args": _env_args(data),
        "masks": _masks(file, demos, where),
    }
    file.close()
    return values, _arrays(Path(path), demos, images, where)


def _arrays(
    path: Path, demos: Sequence[str], images: list[str], where: str
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield what is to be read, demonstration by demonstration; name the images."""
    for first in range(0, len(demos), REOPEN):
        with opened(path) as file:
            data = child(file, "data", where)
            ours = _own_group(file, where)
            if first == 0 and ours is not None:
                yield _OWN, read_array(child(ours, _TEXT, where), f"{where}, key '{_OWN}/{_TEXT}'")
            elif first == 0 and _OWN in data:
                yield _OWN, read_array(child(data, _OWN, where), f"{where}, key 'data/{_OWN}'")
            for index, demo in enumerate(demos[first : first + REOPEN], first):
                place = f"{where}: {demo}"
                group = child(data, demo, where)
                if not isinstance(group, h5py.Group):
                    raise TrimtabError(f"{place}: not a group; {_ADVICE}")
                for name, member in _wanted(group, None if ours is None else ours.get(demo), place):
                    if member.dtype.kind in "biuf" and (_OWN in name or len(member.shape) <= 2):
                        yield f"{index}/{name}", read_array(member, f"{place}, key '{name}'")
                    elif name not in images:
                        images.append(name)


def _own_group(file: h5py.File, where: str) -> h5py.Group | None:
    if _OWN not in file:
        return None
    group = child(file, _OWN, where)
    return group if isinstance(group, h5py.Group) and _TEXT in group else None


def _wanted(
    group: h5py.Group, ours: h5py.Group | None, place: str
) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield the arrays of a demonstration that are read, and those that Trimtab adds to it."""
    if isinstance(ours, h5py.Group):
        for below, member in children(ours, place).items():
            yield f"{_OWN}/{below}", member
    for name in ("actions", "rewards", "dones", _STATES):
        if name in group:
            member = child(group, name, place)
            if isinstance(member, h5py.Dataset):
                yield name, member
    for name in ("obs", "next_obs", _OWN):
        if name in group:
            inside = child(group, name, place)
            if not isinstance(inside, h5py.Group):
                raise TrimtabError(f"{place}, key '{name}': not a group; {_ADVICE}")
            for below, member in children(inside, place).items():
                yield f"{name}/{below}", member


def _env_args(data: h5py.Group) -> dict[str, Any]:
    """Return the environment that the file names; an empty one where it names none."""
    try:
        text = data.attrs.get("env_args", "{}")
        values = json.loads(text) if isinstance(text, str | bytes) else {}
        json.dumps(values, allow_nan=False)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _masks(file: h5py.File, demos: list[str], where: str) -> dict[str, list[int]]:
    """Return the positions of the demonstrations that each mask names."""
    if "mask" not in file:
        return {}
    group = child(file, "mask", where)
    if not isinstance(group, h5py.Group):
        raise TrimtabError(f"{where}, key 'mask': not a group; {_ADVICE}")
    places = {name: index for index, name in enumerate(demos)}
    masks = {}
    for key in group:
        member = child(group, key, where)
        fit = isinstance(member, h5py.Dataset) and len(member.shape or ()) == 1
        if not fit or member.dtype.kind not in "SO" or member.shape[0] > _MOST_NAMES:
            raise TrimtabError(f"{where}, key 'mask/{key}': not a list of names; {_ADVICE}")
        names = [n.decode(errors="replace") if isinstance(n, bytes) else str(n) for n in member[()]]
        unknown = [name for name in names if name not in places]
        if unknown:
            raise TrimtabError(
                f"{where}, key 'mask/{key}': there is no demonstration '{unknown[0]}'; {_ADVICE}"
            )
        masks[key] = [places[name] for name in names]
    return masks


def _vectors(demo: Arrays, group: str, keys: Sequence[str], place: str) -> npt.NDArray[Any] | None:
    """Return what lies below ``group``: ``keys`` in their order, or all in that of their names."""
    prefix = f"{group}/"
    there = sorted(name.removeprefix(prefix) for name in demo if name.startswith(prefix))
    lacking = [key for key in keys if key not in there]
    if there and lacking:
        raise TrimtabError(
            f"{place}: there is no key '{prefix}{lacking[0]}'; there are {', '.join(there)}"
        )
    arrays = [demo[prefix + key] for key in (keys if there and keys else there)]
    parts = [array[:, None] if array.ndim == 1 else array for array in arrays]
    if any(part.ndim != 2 or len(part) != len(parts[0]) for part in parts):
        raise TrimtabError(f"{place}, key '{group}': parts of shapes {[p.shape for p in parts]}")
    return np.concatenate(parts, axis=1) if parts else None


def _parts(demo: Arrays, keys: Sequence[str]) -> Parts:
    """Return the names and lengths of the parts that an observation is put together of."""
    prefix = "obs/"
    there = {n.removeprefix(prefix): a for n, a in demo.items() if n.startswith(prefix)}
    chosen = [key for key in keys or sorted(there) if key in there]
    return [(key, there[key].shape[1] if there[key].ndim > 1 else 1) for key in chosen]


def _stranger_episodes(demos: list[Arrays], keys: Sequence[str], where: str) -> LazyEpisodes:
    seen = [demo["rewards"] for demo in demos if "rewards" in demo]
    sparse = bool(seen) and all(bool(np.isin(rewards, (0, 1)).all()) for rewards in seen)
    if not all(any(key.startswith("next_obs/") for key in demo) for demo in demos):
        logger.warning("%s: no next_obs: last observations are not known", where)
    if len(seen) < len(demos):
        logger.warning("%s: missing rewards are zero", where)

    def build(index: int) -> Episode:
        demo, place = demos[index], f"{where}: demonstration {index}"
        observations = _vectors(demo, "obs", keys, place)
        if "actions" not in demo or observations is None or not len(observations):
            raise TrimtabError(f"{place}: it has no 'actions' or no vectors in 'obs'; {_ADVICE}")
        following = _vectors(demo, "next_obs", keys, place)
        final = (observations if following is None else following)[-1:]
        if final.shape[1:] != observations.shape[1:]:
            raise TrimtabError(f"{place}, key 'next_obs': not the keys of 'obs'; {_ADVICE}")
        steps = len(observations)
        rewards = demo.get("rewards", no_reward(steps))
        dones = flags_of(demo.get("dones", np.zeros(steps)), f"{place}, key 'dones'")
        done = sparse and dones.shape == rewards.shape == (steps,)
        terminated = bool(done and dones[-1] and rewards[-1] == 1)
        flags = flag_ends(steps, terminated=terminated)
        states = demo.get(_STATES)
        infos = {_STATES: states} if states is not None and len(states) == steps else {}
        with np.errstate(over="ignore"):  # infinity is refused afterwards
            return Episode(
                np.concatenate([observations, final]), demo["actions"], rewards, *flags, infos,
                last_observed=terminated or following is not None,
            )  # fmt: skip

    return LazyEpisodes(len(demos), build)


def _own_episodes(demos: list[Arrays], own: Own, where: str) -> LazyEpisodes:
    prefix = f"{_OWN}/infos/"
    parts = [name for name, _ in own.get(PARTS, _EARLIER_PARTS)]

    def build(index: int) -> Episode:
        demo, seed, has_states = demos[index], own["seeds"][index], own[_STATES][index]
        below = [f"{group}/{part}" for group in ("obs", "next_obs") for part in parts]
        need(demo, (*below, *_OWN_KEYS, *[_STATES] * has_states), where)
        infos = {n.removeprefix(prefix): a for n, a in demo.items() if n.startswith(prefix)}
        if has_states:
            infos[_STATES] = demo[_STATES]
        actions, rewards, *flags = (demo[name] for name in _OWN_KEYS)
        seen = _vectors(demo, "obs", parts, where)
        following = _vectors(demo, "next_obs", parts, where)
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
    check_replaceable(path, not root_names(path).isdisjoint({_OWN, f"data/{_OWN}"}))
    has_states = [_is_states(episode) for episode in dataset.episodes]
    parts = observation_parts(dataset)
    text = text_of(dataset, states=has_states, **{PARTS: parts})

    def write(file: OpenFile) -> None:
        data = file.root.create_group("data")
        data.attrs["total"] = dataset.num_steps
        data.attrs["env_args"] = json.dumps(env_args(dataset))
        ours = file.root.create_group(_OWN)
        ours.create_dataset(_TEXT, data=np.frombuffer(text.encode(), np.uint8))
        for index, episode in enumerate(dataset.episodes):
            demo = file.root.create_group(f"data/demo_{index}")
            demo.attrs["num_samples"] = len(episode)
            _write_arrays(demo, _arrays_of(episode, parts, has_states[index]))
            beside = file.root.create_group(f"{_OWN}/demo_{index}")
            _write_arrays(beside, _own_arrays(episode, has_states[index]))
            file.pause()
        for name, chosen in _valid_masks(dataset).items():
            names = np.array([f"demo_{index}".encode() for index in chosen], "S")
            file.root.create_dataset(f"mask/{name}", data=names)

    with atomic_file(path) as place:
        write_hdf5(place, write)


def _is_states(episode: Episode) -> bool:
    return _STATES in episode.infos and episode.infos[_STATES].ndim == 2


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
    arrays[_STATES] = episode.infos[_STATES] if has_states else np.zeros((len(episode), 1))
    return arrays


def _own_arrays(episode: Episode, has_states: bool) -> Arrays:
    """Return what robomimic has no place for."""
    infos = {n: a for n, a in episode.infos.items() if not (has_states and n == _STATES)}
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
