"""What a LeRobot folder says of itself: info.json, and the tables of its episodes and tasks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.formats.findings import Finding
from trimtab.datasets.formats.lerobot.writer import (
    ACTION,
    DONE,
    INDICES,
    REWARD,
    STATE,
    SUCCESS,
    TERMINATED,
    TRUNCATED,
)
from trimtab.datasets.io.parquet import read_columns
from trimtab.errors import TrimtabError
from trimtab.files import read_bytes, read_json

__all__ = ["data_files", "episode_table", "read_info", "split_masks", "widths_of"]

Arrays = dict[str, npt.NDArray[Any]]

OBSERVATION = "observation."
_FILES = {2: "data/chunk-*/episode_*.parquet", 3: "data/chunk-*/file-*.parquet"}
"""Where the frames are, by the layout's major version."""
_MEANT = (STATE, ACTION, REWARD, DONE, TERMINATED, TRUNCATED, SUCCESS, *INDICES)
_VERSION = re.compile(r"v?(\d)\.\d+", re.ASCII)
_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
_MOST_NUMBERS = 1 << 20  # in one row of one feature
_EPISODE_COLUMNS = (
    "episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index",
    "data/file_index",
)  # fmt: skip
_ADVICE = "make the dataset again or fetch a fresh copy"


def read_info(path: Path, control_rate: float | None) -> dict[str, Any]:
    """Return what info.json says, with the layout's ``major`` version.

    Args:
        path: the folder.
        control_rate: stands for ``fps`` where the file does not say it.

    Raises:
        TrimtabError: if it is missing, damaged or of another version, or a key is missing.
    """
    place = path / "meta" / "info.json"
    info = read_json(place, "dataset")
    where = f"dataset {place}"
    if not isinstance(info, dict):
        raise TrimtabError(f"{where}: not an object; {_ADVICE}")
    if "fps" not in info and control_rate is not None:
        info["fps"] = control_rate
    for key in ("codebase_version", "fps", "features"):
        if key not in info:
            further = " (or say control_rate=<Hz>)" if key == "fps" else ""
            raise TrimtabError(f"{where}: '{key}' is missing; write it there{further}")
    fps = info["fps"]
    if type(fps) not in (int, float) or not 0 < fps < 10**6:
        raise TrimtabError(f"{where}: 'fps' is not a number of frames a second; {_ADVICE}")
    info["fps"] = int(fps) if float(fps).is_integer() else fps  # some writers have 24.0
    if not isinstance(info["features"], dict):
        raise TrimtabError(f"{where}: 'features' is not of type dict; {_ADVICE}")
    for key in ("total_frames", "total_episodes", "total_tasks"):
        if info.get(key) is not None and type(info[key]) is not int:
            raise TrimtabError(f"{where}: '{key}' is not of type int; {_ADVICE}")
    version = _VERSION.fullmatch(str(info["codebase_version"]))
    if version is None or int(version[1]) not in _FILES:
        raise TrimtabError(
            f"{where}: version {info['codebase_version']} is not read here, only v2.0, v2.1 and "
            "v3.0; convert it to v3.0 with the lerobot package"
        )
    return {**info, "major": int(version[1])}


def data_files(path: Path, major: int, where: str) -> list[Path]:
    """Return the files of the table of frames, in their order.

    Raises:
        TrimtabError: if there are none where the layout has them.
    """
    found = {version: sorted(path.glob(pattern)) for version, pattern in _FILES.items()}
    if found[major]:
        return found[major]
    for version, files in found.items():
        if files:
            raise TrimtabError(
                f"{where}: info.json says version {major}, but {files[0].relative_to(path)} is of "
                f"version {version}; correct 'codebase_version', or {_ADVICE}"
            )
    raise TrimtabError(f"{where}: there is no {_FILES[major]} in it; {_ADVICE}")


def widths_of(info: Mapping[str, Any], where: str) -> tuple[dict[str, int], list[str]]:
    """Return the numbers in a row of each feature of numbers, and the names of the others.

    Raises:
        TrimtabError: if there is nothing to observe, a feature with a meaning is none of numbers,
            or a feature names its numbers and has another number of them.
    """
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
            # One name an axis is in use, too, such as ["state"] of eight numbers.
            if (named := _count(feature.get("names"))) not in (None, width, len(shape)):
                raise TrimtabError(
                    f"{where}, feature '{name}': it has {named} names and {width} numbers; correct "
                    "'names' or 'shape' in info.json"
                )
        elif name in _MEANT:
            stated = feature if isinstance(feature, dict) else {}
            raise TrimtabError(
                f"{where}, key '{name}': type {stated.get('dtype')!s:.40} is not a number, or "
                f"shape {stated.get('shape')!s:.40} is none; store numbers, or rename it"
            )
        else:
            left_out.append(name)
    if not any(name.startswith(OBSERVATION) for name in widths):
        raise TrimtabError(
            f"{where}: no vector below '{OBSERVATION}' to observe; the features of info.json are "
            f"{', '.join(info['features']) or 'none'}"
        )
    return widths, sorted(left_out)


def _count(names: Any) -> int | None:
    """Return how many names there are: of a list, or of an object of names or of lists of them."""
    if isinstance(names, dict):
        lists = [value for value in names.values() if isinstance(value, list)]
        names = sum(lists, []) if len(lists) == len(names) else list(names)
    whole = isinstance(names, list) and bool(names) and all(isinstance(n, str) for n in names)
    return len(names) if whole else None


def episode_table(path: Path, major: int) -> Arrays:
    """Return what ``meta/`` says of each episode, by column; nothing where it says nothing.

    Columns: ``episode_index``, ``length``, and in v3.0 ``dataset_from_index``,
    ``dataset_to_index``, ``data/chunk_index`` and ``data/file_index``, as far as they are there.

    Raises:
        TrimtabError: if it is damaged.
    """
    if major == 2:
        return _json_columns(path / "meta/episodes.jsonl", _EPISODE_COLUMNS[:2])
    files = sorted(path.glob("meta/episodes/chunk-*/file-*.parquet"))
    return read_columns(files, dict.fromkeys(_EPISODE_COLUMNS, 1), path) if files else {}


def _json_columns(file: Path, names: Sequence[str]) -> Arrays:
    """Return whole numbers of a file of one JSON object a line, by their keys."""
    if not file.exists():
        return {}
    rows = []
    for number, line in enumerate(read_bytes(file).splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            raise TrimtabError(f"dataset {file}, line {number}: not JSON; {_ADVICE}") from error
        if row is None:
            continue
        if not isinstance(row, dict) or any(type(row.get(name)) is not int for name in names):
            raise TrimtabError(
                f"dataset {file}, line {number}: without whole numbers {', '.join(names)}; "
                f"{_ADVICE}"
            )
        rows.append([row[name] for name in names])
    try:
        columns = np.array(rows, np.int64).reshape(len(rows), len(names))
    except OverflowError as error:
        raise TrimtabError(f"dataset {file}: a number is too large; {_ADVICE}") from error
    return {name: columns[:, place] for place, name in enumerate(names)}


def split_masks(
    info: Mapping[str, Any], numbers: Sequence[int]
) -> tuple[dict[str, list[int]], list[Finding]]:
    """Return the splits of info.json as masks: the places of the episodes in each.

    Args:
        info: see :func:`read_info`.
        numbers: ``episode_index`` of each episode, in order.

    Returns:
        The masks, and what is wrong with a split: it is then of those episodes that there are.
    """
    masks: dict[str, list[int]] = {}
    findings = []
    splits = info.get("splits")
    for name, text in (splits if isinstance(splits, dict) else {}).items():
        ends = _RANGE.fullmatch(text) if isinstance(text, str) else None
        first, end = (int(ends[1]), int(ends[2])) if ends is not None else (0, 0)
        places = [place for place, number in enumerate(numbers) if first <= number < end]
        if places:
            masks[name] = places
        if not places or end > numbers[-1] + 1:
            findings.append(
                Finding(
                    "warning", "stale-mask", f"info.json, split '{name}'",
                    f"{text!r:.40} is no range of the episodes {numbers[0]} to {numbers[-1]}: "
                    f"mask={name} takes {len(places)} of them",
                )
            )  # fmt: skip
    return masks, findings
