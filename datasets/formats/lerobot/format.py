"""LeRobot's folder of Parquet and JSON: versions 3.0 (also written), 2.1 and 2.0 are read.

The layout: ``src/lerobot/datasets/`` of LeRobot (``utils.py``, ``io_utils.py``). What it has no
feature for is in ``meta/trimtab.json``, which its readers pass over.
"""

from __future__ import annotations

import base64
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.contents import Contents, LazyEpisodes, contents_of
from trimtab.datasets.formats.findings import Finding
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.lerobot.cameras import advice, chosen_cameras
from trimtab.datasets.formats.lerobot.consistency import (
    check_columns,
    check_ends,
    check_metadata,
    episode_slices,
    time_findings,
)
from trimtab.datasets.formats.lerobot.metadata import (
    OBSERVATION,
    Arrays,
    data_files,
    read_info,
    split_masks,
    widths_of,
)
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
from trimtab.datasets.formats.own import (
    Own,
    check_continuous,
    flag_ends,
    flags_of,
    need,
    no_reward,
    parse,
)
from trimtab.datasets.io.parquet import read_table
from trimtab.errors import TrimtabError
from trimtab.files import read_bytes, read_json

__all__ = ["FORMAT"]

logger = logging.getLogger(__name__)

_FIRST = (STATE, "observation.environment_state")
_ADVICE = "make the dataset again or fetch a fresh copy"


def _load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
    """Read a folder of LeRobot's layout; camera frames are left out unless ``frames`` names them.

    In a stranger's folder the observation is ``observation.state``, then
    ``observation.environment_state``, then other vectors below ``observation.`` in the order of
    their names. No final observation is stored: the last one stands in its place, and an episode
    that is not terminated says so. Missing rewards are zero. ``next.done`` does not tell an end by
    the clock from a true one: an episode counts as terminated where it ends with
    ``next.terminated``, with ``next.done`` and not ``next.truncated``, or, where neither is stored,
    with ``next.success``. The splits of info.json become the recipe's ``masks``. Frames that are
    missing, or not as far apart as ``fps`` says, are noted in the recipe, unless the hint
    ``control_rate`` says how far apart they are.

    Raises:
        TrimtabError: if anything is missing, damaged, of a wrong shape or of another version, or
            the folder contradicts itself.
    """
    contents, frames = _read(Path(path), hints)
    return frames.assemble(contents, hints)


def _open(path: str | Path, **hints: Unpack[Hints]) -> Contents:
    """Read as ``_load`` does, without frames, which are not streamed."""
    contents, frames = _read(Path(path), hints)
    if frames.cameras:
        raise TrimtabError(f"dataset {path}: frames= is for data in memory; raise stream_above")
    return contents


def _read(path: Path, hints: Hints) -> tuple[Contents, Frames]:
    """Return what the tables hold, and what decodes the frames of the cameras that are wanted."""
    where = f"dataset {path}"
    info = read_info(path, hints.get("control_rate"))
    widths, left_out = widths_of(info, where)
    cameras = chosen_cameras(info, hints.get("frames", ""), where)
    left_out = sorted({*left_out} - {camera.name for camera in cameras})
    if left_out:
        names = ", ".join(left_out)
        logger.warning("%s: left out, as not vectors: %s%s", where, names, advice(info, left_out))
    files = data_files(path, info["major"], where)
    table = read_table(files, widths, path)
    arrays = table.columns
    need(arrays, ("episode_index", ACTION), where)
    check_columns(table, info, widths, where)
    check_continuous(_matrix(arrays[ACTION]), f"{where}, key '{ACTION}'")
    for name in (DONE, TERMINATED, TRUNCATED, SUCCESS):
        if name in arrays:
            arrays[name] = flags_of(arrays[name], f"{where}, key '{name}'")
    slices = episode_slices(arrays, info, where)
    check_metadata(path, info, arrays, slices)
    numbers = [int(arrays["episode_index"][rows.start]) for rows in slices]
    own_path = path / OWN_FILE
    own = parse(read_bytes(own_path), where) if own_path.is_file() else None
    recipe: dict[str, Any] = {"imported": "lerobot"}
    findings: list[Finding] = []
    if own is not None:
        episodes = _own_episodes(arrays, slices, own, where)
    else:
        check_ends(arrays, slices, where)
        episodes = _stranger_episodes(arrays, slices, where)
        masks, findings = split_masks(info, numbers)
        recipe.update({"masks": masks} if masks else {})
        if "control_rate" not in hints:
            findings += time_findings(arrays, slices, info)
    robot = info.get("robot_type")
    recipe.update({"robot_type": robot} if isinstance(robot, str) else {})
    recipe[NAMES] = feature_names(info["features"], _observed(widths), widths)
    rate = float(info["fps"])
    contents = contents_of(
        path, episodes, own, left_out=left_out, recipe=recipe, control_rate=rate, hints=hints,
        findings=findings,
    )  # fmt: skip
    return contents, Frames(path, info, cameras, numbers, own)


def _observed(features: Iterable[str]) -> list[str]:
    """Return those features that are observed, in the order in which they are joined."""
    below = sorted(name for name in features if name.startswith(OBSERVATION))
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
            parts = [_matrix(arrays[name][rows]) for name in names]
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
        return (path / "meta" / "info.json").is_file()  # reading it says what is wrong
    return isinstance(info, dict) and bool({"codebase_version", "features"} & info.keys())


FORMAT = Format(
    name="lerobot",
    description="LeRobotDataset v3.0 (v2.1 is read), with videos",
    suffixes=("",),
    load=_load,
    open=_open,
    recognises=_recognises,
    save=save,
    loses=loses,
    hints=frozenset({"env", "id", "mask", "frames", "control_rate"}),
)
