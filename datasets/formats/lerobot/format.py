"""LeRobot's folder of Parquet and JSON: versions 3.0 (also written) and 2.1 are read.

The layout: ``src/lerobot/datasets/`` of LeRobot (``utils.py``, ``io_utils.py``). What it has no
feature for is in ``meta/trimtab.json``, which its readers pass over.
"""

from __future__ import annotations

import base64
import logging
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import Contents, LazyEpisodes, contents_of
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.lerobot.cameras import advice, chosen_cameras
from trimtab.datasets.formats.lerobot.names import feature_names
from trimtab.datasets.formats.lerobot.video import Frames
from trimtab.datasets.formats.lerobot.writer import (
    ACTION,
    DONE,
    INDICES,
    OWN_FILE,
    REWARD,
    STATE,
    SUCCESS,
    TERMINATED,
    TRUNCATED,
    loses,
    save,
)
from trimtab.datasets.formats.naming import NAMES
from trimtab.datasets.formats.own import Own, flag_ends, flags_of, need, no_reward, parse
from trimtab.datasets.io.parquet import read_columns
from trimtab.errors import TrimtabError
from trimtab.files import read_bytes, read_json

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

_FILES = {2: "data/chunk-*/episode_*.parquet", 3: "data/chunk-*/file-*.parquet"}
"""Where the frames are, by the layout's major version."""
_OBSERVATION = "observation."
_FIRST = (STATE, "observation.environment_state")
_VERSION = re.compile(r"v(\d)\.\d+", re.ASCII)
_MOST_NUMBERS = 1 << 20  # in one row of one feature
_ADVICE = "make the dataset again or fetch a fresh copy"


def _load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
    """Read a folder of LeRobot's layout; camera frames are left out unless ``frames`` names them.

    In a stranger's folder the observation is ``observation.state``, then
    ``observation.environment_state``, then other vectors below ``observation.`` in the order of
    their names. No final observation is stored: the last one stands in its place, and an episode
    that is not terminated says so. Missing rewards are zero. ``next.done`` does not tell an end by
    the clock from a true one: an episode counts as terminated where it ends with
    ``next.terminated``, with ``next.done`` and not ``next.truncated``, or, where neither is stored,
    with ``next.success``.

    Raises:
        TrimtabError: if anything is missing, damaged, of a wrong shape or of another version.
    """
    contents, frames = _read(Path(path), hints.get("frames", ""))
    return frames.assemble(contents, hints)


def _open(path: str | Path, **hints: Unpack[Hints]) -> Contents:
    """Read as ``_load`` does, without frames, which are not streamed."""
    contents, frames = _read(Path(path), hints.get("frames", ""))
    if frames.cameras:
        raise TrimtabError(f"dataset {path}: frames= is for data in memory; raise stream_above")
    return contents


def _read(path: Path, wanted: str) -> tuple[Contents, Frames]:
    """Return what the tables hold, and what decodes the frames of the cameras ``wanted``."""
    where = f"dataset {path}"
    info = _info(path)
    widths, left_out = _widths(info, where)
    cameras = chosen_cameras(info, wanted, where)
    left_out = sorted({*left_out} - {camera.name for camera in cameras})
    if left_out:
        names = ", ".join(left_out)
        logger.warning("%s: left out, as not vectors: %s%s", where, names, advice(info, left_out))
    files = sorted(path.glob(_FILES[info["major"]]))
    if not files:
        raise TrimtabError(f"{where}: there is no {_FILES[info['major']]} in it; {_ADVICE}")
    arrays = read_columns(files, widths, path)
    need(arrays, ("episode_index", ACTION), where)
    for name in (DONE, TERMINATED, TRUNCATED, SUCCESS):
        if name in arrays:
            arrays[name] = flags_of(arrays[name], f"{where}, key '{name}'")
    own_path = path / OWN_FILE
    own = parse(read_bytes(own_path), where) if own_path.is_file() else None
    slices = _slices(arrays, info, where)
    if own is not None:
        episodes = _own_episodes(arrays, slices, own, where)
    else:
        episodes = _stranger_episodes(arrays, slices, where)
    robot = info.get("robot_type")
    recipe: dict[str, Any] = {"imported": "lerobot"}
    recipe.update({"robot_type": robot} if isinstance(robot, str) else {})
    recipe[NAMES] = feature_names(info["features"], _observed(widths), widths)
    numbers = [int(arrays["episode_index"][rows.start]) for rows in slices]
    rate = float(info["fps"])
    contents = contents_of(path, episodes, own, left_out=left_out, recipe=recipe, control_rate=rate)
    return contents, Frames(path, info, cameras, numbers, own)


def _info(path: Path) -> dict[str, Any]:
    place = path / "meta" / "info.json"
    info = read_json(place, "dataset")
    if isinstance(info, dict) and isinstance(info.get("fps"), float) and info["fps"].is_integer():
        info["fps"] = int(info["fps"])  # some writers have 24.0
    types = {"codebase_version": str, "fps": int, "features": dict, "total_frames": int}
    for key, kind in types.items():
        if not isinstance(info, dict) or type(info.get(key)) is not kind:
            raise TrimtabError(
                f"dataset {place}: '{key}' is not of type {kind.__name__}; {_ADVICE}"
            )
    version = _VERSION.fullmatch(info["codebase_version"])
    if version is None or int(version[1]) not in _FILES:
        raise TrimtabError(
            f"dataset {place}: version {info['codebase_version']} is not read here; convert it to "
            "v3.0 with the lerobot package"
        )
    if not 0 < info["fps"] < 10**6:
        raise TrimtabError(f"dataset {place}: 'fps' is {info['fps']}; {_ADVICE}")
    return {**info, "major": int(version[1])}


def _widths(info: Mapping[str, Any], where: str) -> tuple[dict[str, int], list[str]]:
    """Return the numbers in a row of each feature of numbers, and the names of the others."""
    widths, left_out = {}, []
    for name, feature in info["features"].items():
        try:
            shape = [int(size) for size in feature["shape"]]
            dtype = np.dtype(str(feature["dtype"]))
            numbers = dtype.kind in "biuf"
        except (KeyError, TypeError, ValueError):
            numbers, shape = False, []
        width = math.prod(shape)
        if numbers and 0 < width < _MOST_NUMBERS:
            widths[name] = width
        else:
            left_out.append(name)
    if not any(name.startswith(_OBSERVATION) for name in widths):
        raise TrimtabError(f"{where}: no vector below '{_OBSERVATION}' to observe; {_ADVICE}")
    return widths, sorted(left_out)


def _slices(arrays: Arrays, info: Mapping[str, Any], where: str) -> list[slice]:
    """Put the frames in order and return where each episode lies."""
    numbers = arrays["episode_index"].astype(np.int64)
    frames = arrays.get("frame_index", np.arange(len(numbers)))
    order = np.lexsort((frames, numbers))
    if (order != np.arange(len(order))).any():
        arrays.update({name: array[order] for name, array in arrays.items()})
        numbers = numbers[order]
    if len(numbers) != info["total_frames"] or not len(numbers):
        raise TrimtabError(
            f"{where}: {len(numbers)} frames, but info.json says {info['total_frames']}; {_ADVICE}"
        )
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    if info.get("total_episodes", len(starts) - 1) != len(starts) - 1:
        raise TrimtabError(
            f"{where}: {len(starts) - 1} episodes, but info.json says otherwise; {_ADVICE}"
        )
    return [slice(a, b) for a, b in zip(starts[:-1], starts[1:], strict=True)]


def _observed(features: Iterable[str]) -> list[str]:
    """Return those features that are observed, in the order in which they are joined."""
    below = sorted(name for name in features if name.startswith(_OBSERVATION))
    return [n for n in _FIRST if n in below] + [n for n in below if n not in _FIRST]


def _matrix(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array[:, None] if array.ndim == 1 else array


def _stranger_episodes(arrays: Arrays, slices: list[slice], where: str) -> LazyEpisodes:
    names = _observed(arrays)
    used = {*names, ACTION, REWARD, *INDICES, DONE, TERMINATED, TRUNCATED}
    infos = {name: array for name, array in arrays.items() if name not in used}
    if SUCCESS in infos:
        infos["success"] = infos.pop(SUCCESS)
    if "task_index" in arrays and len(np.unique(arrays["task_index"])) > 1:
        infos["task_index"] = arrays["task_index"]
    if REWARD not in arrays:
        logger.warning("%s: it has no rewards; they are zero", where)

    def build(index: int) -> Episode:
        rows = slices[index]
        with np.errstate(over="ignore"):  # infinity is refused afterwards
            parts = [_matrix(arrays[name][rows]).astype(np.float32) for name in names]
        seen = np.concatenate(parts, axis=1)
        steps = len(seen)
        terminated = _terminated(arrays, rows.stop - 1)
        return Episode(
            np.concatenate([seen, seen[-1:]]),
            _matrix(arrays[ACTION][rows]),
            arrays[REWARD][rows] if REWARD in arrays else no_reward(steps),
            *flag_ends(steps, terminated=terminated),
            infos={name: array[rows] for name, array in infos.items()},
            last_observed=terminated,
        )

    return LazyEpisodes(len(slices), build)


def _terminated(arrays: Arrays, row: int) -> bool:
    """Return whether an episode's last frame is a true end."""

    def flag(name: str) -> bool | None:
        return bool(arrays[name][row]) if name in arrays else None

    if flag(TERMINATED) is not None:
        return bool(flag(TERMINATED))
    if flag(DONE) is not None and flag(TRUNCATED) is not None:
        return bool(flag(DONE)) and not flag(TRUNCATED)
    return bool(flag(SUCCESS)) and flag(DONE) is not False


def _own_episodes(arrays: Arrays, slices: list[slice], own: Own, where: str) -> LazyEpisodes:
    features = filter(None, own["features"].values())
    need(arrays, (STATE, REWARD, TERMINATED, TRUNCATED, *features), where)
    width = math.prod(arrays[STATE].shape[1:])
    final = np.frombuffer(base64.b64decode(own["final_observations"]), "<f4")
    if len(final) != len(slices) * width or len(own["seeds"]) != len(slices):
        raise TrimtabError(f"{where}: not the frames that Trimtab saved; {_ADVICE}")
    final = final.reshape(len(slices), width)

    def build(index: int) -> Episode:
        rows = slices[index]
        steps = rows.stop - rows.start
        infos = {}
        for name, feature in own["features"].items():
            dtype, tail = own["kinds"][name]
            flat = arrays[feature][rows] if feature else np.zeros(0)
            infos[name] = flat.astype(dtype).reshape(steps, *tail)
        return Episode(
            np.concatenate([_matrix(arrays[STATE][rows]), final[index : index + 1]]),
            _matrix(arrays[ACTION][rows]),
            arrays[REWARD][rows],
            arrays[TERMINATED][rows],
            arrays[TRUNCATED][rows],
            infos,
            own["seeds"][index],
        )

    return LazyEpisodes(len(slices), build)


def _recognises(path: Path) -> bool:
    try:
        info = read_json(path / "meta" / "info.json", "dataset")
    except TrimtabError:
        return False
    return isinstance(info, dict) and "codebase_version" in info


FORMAT = Format(
    name="lerobot",
    description="LeRobotDataset v3.0 (v2.1 is read), with videos",
    suffixes=("",),
    load=_load,
    open=_open,
    recognises=_recognises,
    save=save,
    loses=loses,
    hints=frozenset({"env", "id", "mask", "frames"}),
)
