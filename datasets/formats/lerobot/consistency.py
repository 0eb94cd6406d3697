"""What a LeRobot folder says twice: names, types, numbers of frames and episodes, ends, times.

A contradiction is refused with its place. Only what concerns the time between frames is a finding
instead: the frames can be used where it is known how far apart they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.formats.findings import Finding
from trimtab.datasets.formats.lerobot.metadata import Arrays, episode_table
from trimtab.datasets.formats.lerobot.writer import DONE, TERMINATED, TRUNCATED
from trimtab.datasets.formats.own import KINDS, check_no_end_inside
from trimtab.datasets.io.parquet import Table
from trimtab.errors import TrimtabError

__all__ = [
    "check_columns", "check_ends", "check_metadata", "episode_slices",
    "time_findings",
]  # fmt: skip


_TOLERANCE = 1e-4  # seconds, LeRobot's own; less where frames are close
_SHARE = 0.01  # of the time between two frames
_ADVICE = "make the dataset again or fetch a fresh copy"


def check_columns(
    table: Table, info: Mapping[str, Any], widths: Mapping[str, int], where: str
) -> None:
    """Check that the table of frames has the features of info.json, and their kinds of numbers.

    Single and double precision are one kind, because LeRobot casts them when it reads.

    Raises:
        TrimtabError: if one is missing in either, or of another kind.
    """
    for name in widths:
        if name not in table.columns:
            raise TrimtabError(
                f"{where}, key '{name}': info.json has this feature, the table of frames has no "
                f"such column; {_ADVICE}"
            )
        stated = KINDS[np.dtype(str(info["features"][name]["dtype"])).kind]
        stored = KINDS[table.columns[name].dtype.kind]
        if stated != stored:
            raise TrimtabError(
                f"{where}, key '{name}': {stored}, but info.json says {stated}; correct its 'dtype'"
            )
    more = [column for column in table.names if column not in info["features"]]
    for column in more:
        if not column.startswith("__"):  # pandas' own index
            raise TrimtabError(
                f"{where}, key '{column}': a column of the table of frames that info.json does not "
                "have; add it to 'features', or drop the column"
            )


def episode_slices(arrays: Arrays, info: Mapping[str, Any], where: str) -> list[slice]:
    """Put the frames in order, in place, and return where each episode lies.

    Raises:
        TrimtabError: if a frame is there twice, an episode's rows are not together, or a count or
            the numbers of the frames say otherwise.
    """
    for name in ("episode_index", "frame_index", "index", "task_index"):
        if name in arrays:
            arrays[name] = _numbers(arrays[name], f"{where}, key '{name}'")
    numbers = arrays["episode_index"]
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    again = _repeated(numbers[begins])
    if again is not None:
        first, second = begins[numbers[begins] == again][:2]
        raise TrimtabError(
            f"{where}: the rows of episode_index {again} begin at row {first} and again at row "
            f"{second}: two recordings under one number; give each its own"
        )
    frames = arrays.get("frame_index", np.arange(len(numbers)))
    order = np.lexsort((frames, numbers))
    if (np.diff(order) != 1).any():
        arrays.update({name: array[order] for name, array in arrays.items()})
    slices = _slices(arrays["episode_index"])
    for what, count in (("frames", len(numbers)), ("episodes", len(slices))):
        stated = info.get(f"total_{what}")
        if stated not in (None, count):
            raise TrimtabError(f"{where}: {count} {what}, but info.json says {stated}; {_ADVICE}")
    if not slices:
        raise TrimtabError(f"{where}: it has no frames; {_ADVICE}")
    _check_frame_numbers(arrays, slices, where)
    return slices


def _slices(numbers: npt.NDArray[np.int64]) -> list[slice]:
    begins = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    return [slice(a, b) for a, b in zip(begins, [*begins[1:], len(numbers)], strict=True)]


def _numbers(array: npt.NDArray[Any], place: str) -> npt.NDArray[np.int64]:
    """Return whole numbers from 0."""
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64, copy=False)
    if array.ndim != 1 or (whole != array).any() or (whole < 0).any():
        raise TrimtabError(f"{place}: not one whole number from 0 a row; {_ADVICE}")
    return whole


def _repeated(numbers: npt.NDArray[np.int64]) -> int | None:
    ordered = np.sort(numbers)
    again = ordered[1:][np.diff(ordered) == 0]
    return int(again[0]) if len(again) else None


def _inside(slices: Sequence[slice]) -> npt.NDArray[np.bool_]:
    """Return whether each row but the last is in the episode of the row after it, ``[N - 1]``."""
    inside = np.ones(slices[-1].stop, np.bool_)
    inside[[rows.stop - 1 for rows in slices]] = False
    return inside[:-1]


def _check_frame_numbers(arrays: Arrays, slices: Sequence[slice], where: str) -> None:
    """Check ``frame_index`` and ``index`` of frames in order."""
    numbers, inside = arrays["episode_index"], _inside(slices)
    steps: npt.NDArray[Any] = np.ones(len(inside), np.int64)
    if "frame_index" in arrays:
        steps = np.diff(arrays["frame_index"])
        if (inside & (steps == 0)).any():
            row = int(np.argmax(inside & (steps == 0)))
            raise TrimtabError(
                f"{where}: frame_index {arrays['frame_index'][row]} of episode_index "
                f"{numbers[row]} is there twice; give each recording its own number"
            )
    if "index" not in arrays:
        return
    index = arrays["index"]
    again = _repeated(index)
    if again is not None:
        first, second = numbers[np.flatnonzero(index == again)[:2]]
        raise TrimtabError(
            f"{where}: index {again} is there twice, in the episodes {first} and {second}; number "
            "the frames of all episodes from 0"
        )
    wrong = inside & (np.diff(index) != 1) & (np.diff(index) != steps)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TrimtabError(
            f"{where}: in episode {numbers[row]}, index {index[row]} is followed by "
            f"{index[row + 1]}, which 'frame_index' contradicts; {_ADVICE}"
        )


def check_ends(arrays: Arrays, slices: Sequence[slice], where: str) -> None:
    """Check that the flags of an end are where an episode ends, and agree.

    Raises:
        TrimtabError: if one is inside an episode, or ``next.done`` is not what the others say.
    """
    there = [name for name in (DONE, TERMINATED, TRUNCATED) if name in arrays]
    for name in there:
        for rows in slices:
            number = arrays["episode_index"][rows.start]
            check_no_end_inside(arrays[name][rows], f"{where}: episode {number}, key '{name}'")
    if DONE not in arrays or len(there) == 1:
        return
    done = arrays[DONE]
    ended = np.logical_or.reduce([arrays[name] for name in there[1:]])
    wrong = done != ended if len(there) == 3 else ended & ~done
    if wrong.any():
        row = int(np.argmax(wrong))
        raise TrimtabError(
            f"{where}: episode {arrays['episode_index'][row]} ends with '{DONE}' "
            f"{bool(done[row])}, which {' and '.join(there[1:])} contradict; {_ADVICE}"
        )


def check_metadata(
    path: Path,
    info: Mapping[str, Any],
    arrays: Arrays,
    slices: Sequence[slice],
) -> None:
    """Check the episodes that ``meta/`` lists against the frames.

    Raises:
        TrimtabError: if they differ.
    """
    _check_episodes(episode_table(path, info["major"]), arrays, slices, f"dataset {path}/meta")


def _check_episodes(
    table: Mapping[str, npt.NDArray[Any]], arrays: Arrays, slices: Sequence[slice], where: str
) -> None:
    if "episode_index" not in table:
        return
    listed = table["episode_index"]
    again = _repeated(listed)
    if again is not None:
        raise TrimtabError(f"{where}: episode {again} is listed twice; {_ADVICE}")
    numbers = [int(arrays["episode_index"][rows.start]) for rows in slices]
    if other := sorted(set(numbers) ^ set(listed.tolist())):
        where_not = "no frames" if other[0] in listed else "frames and is not listed"
        raise TrimtabError(f"{where}: episode {other[0]} has {where_not}; {_ADVICE}")
    order = np.argsort(listed)
    lengths = np.array([rows.stop - rows.start for rows in slices])
    stated = {"length": lengths}
    if {"dataset_from_index", "dataset_to_index"} <= table.keys():
        begins = arrays["index"][[r.start for r in slices]] if "index" in arrays else None
        begins = table["dataset_from_index"][order] if begins is None else begins
        stated |= {"dataset_from_index": begins, "dataset_to_index": begins + lengths}
    for name, found in stated.items():
        wrong = table[name][order] != found if name in table else np.zeros(1, np.bool_)
        if wrong.any():
            place = int(np.argmax(wrong))
            raise TrimtabError(
                f"{where}: episode {numbers[place]} has '{name}' {table[name][order][place]}, its "
                f"frames say {found[place]}; {_ADVICE}"
            )


def time_findings(
    arrays: Arrays, slices: Sequence[slice], info: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield where frames are not ``1 / fps`` apart: the control rate may be another one."""
    fps, numbers, inside = info["fps"], arrays["episode_index"], _inside(slices)
    remedy = "or say control_rate=<Hz> to take every step as one of that rate"
    for name, feature in info["features"].items():
        for rate in _rates(feature):
            if rate != fps:
                yield Finding(
                    "error", "control-rate", f"info.json, feature '{name}'",
                    f"{rate:g} frames a second, but 'fps' is {fps:g}; correct one, {remedy}",
                )  # fmt: skip
    steps: npt.NDArray[Any] = np.ones(len(inside), np.int64)
    if "frame_index" in arrays:
        frames = arrays["frame_index"]
        steps = np.diff(frames)
        gaps = np.append(frames[0] != 0, np.where(inside, steps != 1, frames[1:] != 0))
        if gaps.any():
            row = int(np.argmax(gaps))
            hit = len(np.unique(numbers[gaps]))
            yield Finding(
                "error", "missing-frames", f"episode {numbers[row]}",
                f"frames before frame_index {frames[row]} are missing ({hit} of {len(slices)} "
                f"episodes lack some); drop those episodes, {remedy}",
            )  # fmt: skip
    if "timestamp" in arrays and arrays["timestamp"].ndim == 1:
        times = arrays["timestamp"].astype(np.float64)
        gaps = np.diff(times)
        rounding = np.spacing(np.abs(times[1:]).astype(np.float32)).astype(np.float64)
        allowed = min(_TOLERANCE, _SHARE / fps) + 2 * rounding
        wrong = inside & ~(np.abs(gaps - steps / fps) <= allowed)
        if unknown := int((~np.isfinite(times)).sum()):
            row = int(np.argmin(np.isfinite(times)))
            yield Finding(
                "error", "control-rate", f"episode {numbers[row]}, key 'timestamp'",
                f"the times of {unknown} of {len(times)} rows are not finite; correct them, "
                f"{remedy}",
            )  # fmt: skip
        elif wrong.any():
            row = int(np.argmax(wrong))
            first = int(np.argmax(numbers == numbers[row]))
            spans = gaps[inside] / steps[inside]
            yield Finding(
                "error", "control-rate", f"episode {numbers[row]}, key 'timestamp'",
                f"row {row + 1 - first} comes {gaps[row]:.6g} s after the row before "
                f"({wrong.sum()} of {inside.sum()} steps are not 1/{fps:g} s; their median tells "
                f"{1 / max(1e-9, float(np.median(spans))):.4g} a second, info.json {fps:g}); "
                f"correct 'fps' or the times, {remedy}",
            )  # fmt: skip


def _rates(feature: Any) -> Iterator[float]:
    """Yield the frames a second that a feature of info.json states for itself."""
    if not isinstance(feature, dict):
        return
    videos = [feature.get(key) for key in ("info", "video_info")]
    stated = [feature.get("fps"), *(v.get("video.fps") for v in videos if isinstance(v, dict))]
    yield from (rate for rate in stated if isinstance(rate, int | float))
