"""Writing LeRobot's layout, version 3.0: tables of frames, episodes and tasks, JSON, and videos."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.datasets.episodes import Dataset, validate
from trimtab.datasets.formats.lerobot.video_writer import (
    VIDEO_PATH,
    Videos,
    camera_infos,
    without,
    write_videos,
)
from trimtab.datasets.formats.naming import names_in
from trimtab.datasets.formats.own import (
    check_replaceable,
    common_infos,
    text_of,
    uneven_infos,
    with_common_infos,
)
from trimtab.files import atomic_directory

__all__ = ["loses", "save"]

Arrays = dict[str, npt.NDArray[Any]]

VERSION = "v3.0"
OWN_FILE = "meta/trimtab.json"
STATE, ACTION, REWARD = "observation.state", "action", "next.reward"
DONE, TERMINATED, TRUNCATED = "next.done", "next.terminated", "next.truncated"
SUCCESS = "next.success"
INDICES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_CHUNK_FILES, _FILE_MEGABYTES, _VIDEO_MEGABYTES = 1000, 100, 200
_EPISODES_AT_ONCE, _GROUP_BYTES = 100, 1 << 20
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_STATISTICS = ("min", "max", "mean", "std", *_QUANTILES)
_COUNT = "count"


def loses(dataset: Dataset) -> list[str]:
    """Return what LeRobot's layout cannot hold of ``dataset``, one line each."""
    return (
        uneven_infos(dataset)
        + [
            f"info '{name}' is of type {np.dtype(kind)}, which Parquet has not: it is left out"
            for name, (kind, _) in common_infos(dataset)[0].items()
            if not _fits(kind)
        ]
        + [
            f"info '{name}' becomes a video of H.264, which changes its pixels a little"
            for name in camera_infos(dataset)
        ]
    )


def _fits(dtype: str) -> bool:
    return np.dtype(dtype).itemsize <= 8  # a long double has no counterpart


def _held(dataset: Dataset) -> Dataset:
    dataset = with_common_infos(dataset)
    kept = [name for name, (kind, _) in common_infos(dataset)[0].items() if _fits(kind)]
    episodes = [
        dataclasses.replace(e, infos={name: e.infos[name] for name in kept})
        for e in dataset.episodes
    ]
    return dataclasses.replace(dataset, episodes=tuple(episodes))


def save(dataset: Dataset, path: Path) -> None:
    """Write ``dataset`` as the folder ``path``, whole or not at all.

    The frame rate is a whole number there, and T+1 observations are T; both are kept exactly in
    ``meta/trimtab.json``. Camera frames become videos, which are not exact: the content hash there
    is that of the dataset without them.

    Raises:
        TrimtabError: if the dataset is not valid, something else is in its place, or the disk
            refuses.
    """
    validate(dataset, f"dataset {dataset.id}")
    ours = (path / OWN_FILE).is_file() and {p.name for p in path.iterdir()} <= {
        "data", "meta", "videos",
    }  # fmt: skip
    check_replaceable(path, ours)
    whole = _held(dataset)
    cameras = camera_infos(whole)
    held = without(whole, cameras)
    features = _info_features(held)
    final = np.stack([episode.observations[-1] for episode in held.episodes]).astype("<f4")
    text = text_of(
        held,
        features=features,
        kinds=common_infos(held)[0],
        final_observations=base64.b64encode(final.tobytes()).decode(),
        **({"videos": cameras} if cameras else {}),
    )
    fps = max(1, round(held.control_rate or 1))
    readers = _readers(held, fps, features)
    first = _frames(held, 0, readers)
    with atomic_directory(path) as beside:
        places, statistics = _write_frames(beside, held, readers)
        videos = write_videos(
            beside, whole, cameras, fps, _QUANTILES,
            most_bytes=_VIDEO_MEGABYTES << 20, chunk_files=_CHUNK_FILES,
        )  # fmt: skip
        _write_table(beside / "meta/tasks.parquet", _tasks(held.env))
        _write_table(
            beside / "meta/episodes/chunk-000/file-000.parquet",
            _episode_table(held, _statistics_columns(held, first, statistics), places, videos),
        )
        _write_text(beside / "meta/info.json", _json(_info(held, first, fps, videos)))
        stats = {name: _of_all(held, read) for name, read in readers.items()} | videos.statistics
        _write_text(beside / "meta/stats.json", _json(stats))
        _write_text(beside / OWN_FILE, text)


def _starts(dataset: Dataset) -> list[int]:
    return [0, *itertools.accumulate(len(episode) for episode in dataset.episodes[:-1])]


def _info_features(dataset: Dataset) -> dict[str, str | None]:
    """Return the feature of each info; None for one without numbers. Names may hold no slash."""
    features: dict[str, str | None] = {}
    for key, (dtype, tail) in common_infos(dataset)[0].items():
        feature = f"info.{key.replace('/', '.')}"
        if key == "success" and not tail and np.dtype(dtype) == np.bool_:
            feature = SUCCESS
        while feature in features.values():
            feature += "_"
        features[key] = feature if np.prod(tail, dtype=int) else None
    return features


def _readers(
    dataset: Dataset, fps: int, features: Mapping[str, str | None]
) -> dict[str, Callable[[int], npt.NDArray[Any]]]:
    """Return what reads each feature of an episode, by its number, as ``[T]`` or ``[T, k]``."""
    starts, episodes = _starts(dataset), dataset.episodes

    def steps(number: int) -> npt.NDArray[np.int64]:
        return np.arange(len(episodes[number]), dtype=np.int64)

    def info(name: str, number: int) -> npt.NDArray[Any]:
        array = episodes[number].infos[name]
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        return native.reshape(len(native), -1) if native.ndim > 1 else native

    readers: dict[str, Callable[[int], npt.NDArray[Any]]] = {
        STATE: lambda i: episodes[i].observations[:-1],
        ACTION: lambda i: episodes[i].actions,
        REWARD: lambda i: episodes[i].rewards,
        DONE: lambda i: episodes[i].terminations | episodes[i].truncations,
        TERMINATED: lambda i: episodes[i].terminations,
        TRUNCATED: lambda i: episodes[i].truncations,
        **{feature: partial(info, name) for name, feature in features.items() if feature},
        "timestamp": lambda i: (steps(i) / fps).astype(np.float32),
        "frame_index": steps,
        "episode_index": lambda i: np.full(len(episodes[i]), i, np.int64),
        "index": lambda i: steps(i) + starts[i],
        "task_index": lambda i: np.zeros(len(episodes[i]), np.int64),
    }
    return {name: partial(_flattened, read) for name, read in readers.items()}


def _flattened(read: Callable[[int], npt.NDArray[Any]], number: int) -> npt.NDArray[Any]:
    array = read(number)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _frames(
    dataset: Dataset, number: int, readers: Mapping[str, Callable[[int], npt.NDArray[Any]]]
) -> Arrays:
    return {name: read(number) for name, read in readers.items()}


def _write_frames(
    folder: Path, dataset: Dataset, readers: Mapping[str, Callable[[int], npt.NDArray[Any]]]
) -> tuple[list[tuple[int, int]], npt.NDArray[Any]]:
    """Write the frames, whole episodes in groups of rows: each group has a long description.

    Returns:
        Each episode's chunk and file, and its statistics ``[E, S, D]``.
    """
    places: list[tuple[int, int]] = []
    most = _FILE_MEGABYTES * 1 << 20
    schema = _schema(_frames(dataset, 0, readers))
    number, used, writer = -1, 0, None
    each: list[npt.NDArray[Any]] = []
    with ExitStack() as files:  # the one that is written now
        for group in _groups(_frames(dataset, index, readers) for index in range(len(dataset))):
            columns = [np.concatenate([arrays[name] for arrays in group]) for name in group[0]]
            size = sum(column.nbytes for column in columns)
            if writer is None or used + size > most:
                files.close()
                number, used = number + 1, 0
                chunk, file = divmod(number, _CHUNK_FILES)
                place = folder / _DATA_PATH.format(chunk_index=chunk, file_index=file)
                place.parent.mkdir(parents=True, exist_ok=True)
                raw = files.enter_context(open(place, "wb"))  # pyarrow's paths are UTF-8
                writer = pq.ParquetWriter(raw, schema, compression="snappy")
                files.callback(writer.close)
            writer.write_table(pa.table(list(map(_column, columns)), schema=schema))
            used += size
            places += [divmod(number, _CHUNK_FILES)] * len(group)
            each += [_statistics(_side_by_side(arrays)) for arrays in group]
    return places, np.stack(each)


def _groups(episodes: Iterable[Arrays]) -> Iterator[list[Arrays]]:
    """Yield small episodes together, large ones alone."""
    group: list[Arrays] = []
    size = 0
    for arrays in episodes:
        group.append(arrays)
        size += sum(array.nbytes for array in arrays.values())
        if size >= _GROUP_BYTES or len(group) == _EPISODES_AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _column(array: npt.NDArray[Any]) -> Any:
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])


def _schema(arrays: Arrays) -> Any:
    """Return the columns' types, with the note of Hugging Face's datasets library."""
    fields, features = [], {}
    for name, array in arrays.items():
        fields.append(pa.field(name, _column(array[:1]).type))
        value = {"dtype": str(array.dtype), "_type": "Value"}
        features[name] = (
            value
            if array.ndim == 1
            else {"feature": value, "length": array.shape[1], "_type": "List"}
        )
    note = json.dumps({"info": {"features": features}})
    return pa.schema(fields, metadata={"huggingface": note})


def _tasks(task: str) -> Any:
    """Return the table of tasks; its index, in pandas' terms, is the task's text."""

    def column(name: str, kind: str, numpy_type: str) -> dict[str, Any]:
        return {
            "name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_type,
            "metadata": None,
        }  # fmt: skip

    note = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array([0], pa.int64()), "task": pa.array([task])})
    return table.replace_schema_metadata({"pandas": json.dumps(note)})


def _episode_table(
    dataset: Dataset, statistics: Mapping[str, Any], places: list[tuple[int, int]], videos: Videos
) -> Any:
    starts = _starts(dataset)
    lengths = [len(episode) for episode in dataset.episodes]
    columns: dict[str, Any] = {
        "episode_index": range(len(dataset)),
        "tasks": [[dataset.env]] * len(dataset),
        "length": lengths,
        "data/chunk_index": [chunk for chunk, _ in places],
        "data/file_index": [file for _, file in places],
        "dataset_from_index": starts,
        "dataset_to_index": [a + b for a, b in zip(starts, lengths, strict=True)],
        "meta/episodes/chunk_index": [0] * len(dataset),
        "meta/episodes/file_index": [0] * len(dataset),
    }
    return pa.table(
        {name: pa.array(list(values)) for name, values in columns.items()}
        | dict(statistics)
        | {name: pa.array(list(values)) for name, values in videos.columns.items()}
    )


def _statistics_columns(dataset: Dataset, arrays: Arrays, each: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the columns of the table of episodes that hold statistics.

    Args:
        dataset: the data.
        arrays: of any episode.
        each: ``[E, S, D]`` the statistics of each episode, for all features side by side.
    """
    widths = [array.reshape(len(array), -1).shape[1] for array in arrays.values()]
    parts = [slice(a, b) for a, b in itertools.pairwise([0, *itertools.accumulate(widths)])]
    counts = _lists(np.array([[len(episode)] for episode in dataset.episodes]))
    columns: dict[str, Any] = {}
    for name, part in zip(arrays, parts, strict=True):
        for index, statistic in enumerate(_STATISTICS):
            columns[f"stats/{name}/{statistic}"] = _lists(each[:, index, part])
        columns[f"stats/{name}/{_COUNT}"] = counts
    return columns


def _side_by_side(arrays: Arrays) -> npt.NDArray[np.float64]:
    """Return all features of an episode as one array, because each call of NumPy's takes time."""
    columns = [array.reshape(len(array), -1) for array in arrays.values()]
    return np.concatenate(columns, axis=1, dtype=np.float64, casting="unsafe")


def _lists(rows: npt.NDArray[Any]) -> Any:
    stops = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(stops), pa.array(rows.ravel()))


def _of_all(dataset: Dataset, read: Callable[[int], npt.NDArray[Any]]) -> dict[str, list[Any]]:
    """Return a feature's statistics over all episodes: quantiles need all values of a dimension."""
    width = read(0).reshape(len(read(0)), -1).shape[1]
    each = [
        _statistics(
            np.concatenate([_dimension(read(index), place) for index in range(len(dataset))])
        )
        for place in range(width)
    ]
    joined = np.concatenate(each, axis=1).tolist()
    return {**dict(zip(_STATISTICS, joined, strict=True)), _COUNT: [dataset.num_steps]}


def _dimension(array: npt.NDArray[Any], place: int) -> npt.NDArray[Any]:
    return array if array.ndim == 1 else array[:, place]


def _statistics(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the statistics of each dimension, ``[S, D]`` in the order of their names."""
    values = array.astype(np.float64).reshape(len(array), -1)
    basic = [values.min(0), values.max(0), values.mean(0), values.std(0)]
    return np.stack([*basic, *np.quantile(values, list(_QUANTILES.values()), axis=0)])


def _info(dataset: Dataset, arrays: Arrays, fps: int, videos: Videos) -> dict[str, Any]:
    sides, names = {STATE: "observation", ACTION: "action"}, names_in(dataset)
    return {
        "codebase_version": VERSION,
        "robot_type": None,
        "total_episodes": len(dataset),
        "total_frames": dataset.num_steps,
        "total_tasks": 1,
        "chunks_size": _CHUNK_FILES,
        "data_files_size_in_mb": _FILE_MEGABYTES,
        "video_files_size_in_mb": _VIDEO_MEGABYTES,
        "fps": fps,
        "splits": {"train": f"0:{len(dataset)}"},
        "data_path": _DATA_PATH,
        "video_path": VIDEO_PATH if videos.features else None,
        "features": {
            name: {
                "dtype": str(a.dtype),
                "shape": list(a.shape[1:]) or [1],
                "names": names.get(sides.get(name, "")),
            }
            for name, a in arrays.items()
        }
        | videos.features,
    }


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=4)


def _write_table(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        pq.write_table(table, file, compression="snappy")


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
