"""Files as other projects write them, laid out by hand after their published formats."""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.datasets.episodes import Dataset

Arrays = dict[str, npt.NDArray[Any]]

LENGTHS = (3, 2)


def frames(seed: int = 0, rows: int = sum(LENGTHS)) -> Arrays:
    """Return ``rows`` frames of 3 observation and 2 action dimensions."""
    generator = np.random.default_rng(seed)
    return {
        "observations": generator.normal(size=(rows, 3)).astype(np.float32),
        "actions": generator.uniform(-0.9, 0.9, size=(rows, 2)).astype(np.float32),
        "rewards": generator.normal(size=rows).astype(np.float32),
    }


def d4rl(path: Path, **more: Any) -> Arrays:
    """Six rows: an episode ended by a terminal, one by the clock, and a row that nothing ends."""
    arrays = frames(rows=6)
    arrays["terminals"] = np.array([0, 0, 1, 0, 0, 0], bool)
    arrays["timeouts"] = np.array([0, 0, 0, 0, 1, 0], bool)
    arrays["infos/qpos"] = np.arange(12.0).reshape(6, 2)
    arrays.update(more)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                packed = {"compression": "gzip"} if np.ndim(array) else {}
                file.create_dataset(name, data=array, **packed)
        file["metadata/algorithm"] = "SAC"
    return arrays


def robomimic(path: Path, *, following: bool = True) -> Arrays:
    arrays = frames()
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(LENGTHS)
        kwargs = {"robots": ["Panda"]}
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": kwargs})
        begin = 0
        for index, steps in enumerate(LENGTHS):
            rows = slice(begin, begin + steps)
            demo = data.create_group(f"demo_{index}")
            demo.attrs["num_samples"] = steps
            demo.attrs["model_file"] = "<mujoco/>"
            demo["actions"] = arrays["actions"][rows]
            demo["rewards"] = np.arange(steps) == steps - 1 if index == 0 else np.zeros(steps)
            demo["dones"] = (np.arange(steps) == steps - 1).astype(np.int64)
            demo["states"] = np.ones((steps, 4))
            seen = arrays["observations"][rows]
            later = np.concatenate([seen[1:], seen[-1:] + 1])
            for group, values in (("obs", seen), ("next_obs", later)):
                if group == "obs" or following:
                    demo[f"{group}/robot0_eef_pos"] = values[:, 1:]
                    demo[f"{group}/object"] = values[:, :1].astype(np.float64)
                    demo[f"{group}/agentview_image"] = np.zeros((steps, 4, 4, 3), np.uint8)
            begin += steps
        file["mask/train"] = np.array([b"demo_1"], "S8")
        file["mask/20_percent"] = np.array([b"demo_0", b"demo_1"], "S8")
    return arrays


def ogbench(path: Path, lengths: tuple[int, ...] = LENGTHS, seed: int = 0, **more: Any) -> Arrays:
    rows = sum(lengths) + len(lengths)
    arrays = frames(seed, rows)
    del arrays["rewards"]
    arrays["terminals"] = np.zeros(rows, np.float32)
    arrays["terminals"][np.cumsum(np.array(lengths) + 1) - 1] = 1
    arrays["qpos"] = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    arrays.update(more)
    np.savez_compressed(path, **arrays)
    return arrays


def dppo(path: Path, **more: Any) -> Arrays:
    """Scaled frames; returns the raw ones."""
    raw = frames()
    limits = {
        "obs_min": raw["observations"].min(0), "obs_max": raw["observations"].max(0),
        "action_min": np.array([-1.0, -1.0]), "action_max": np.array([1.0, 1.0]),
    }  # fmt: skip

    def scaled(name: str, prefix: str) -> npt.NDArray[Any]:
        low, high = limits[f"{prefix}_min"], limits[f"{prefix}_max"]
        return (2 * (raw[name] - low) / (high - low + 1e-6) - 1).astype(np.float32)

    arrays = {
        "states": scaled("observations", "obs"),
        "actions": scaled("actions", "action"),
        "images": np.zeros((5, 3, 4, 4), np.uint8),
        "traj_lengths": np.array(LENGTHS),
        **more,
    }
    np.savez_compressed(path, **{name: a for name, a in arrays.items() if a is not None})
    np.savez(path.with_name("normalization.npz"), **limits)
    return raw


def zarr_array(
    folder: Path,
    array: npt.NDArray[Any],
    chunks: tuple[int, ...],
    compressor: Mapping[str, Any] | None,
    encode: Callable[[bytes], bytes],
    **further: Any,
) -> None:
    """Write one array as the specification of Zarr v2 lays it out."""
    folder.mkdir(parents=True)
    description = {
        "chunks": chunks, "compressor": compressor, "dtype": array.dtype.str, "fill_value": 0,
        "filters": None, "order": "C", "shape": array.shape, "zarr_format": 2, **further,
    }  # fmt: skip
    (folder / ".zarray").write_text(json.dumps(description))
    for place in np.ndindex(*(-(-s // c) for s, c in zip(array.shape, chunks, strict=True))):
        block = np.zeros(chunks, array.dtype)
        begins = [i * c for i, c in zip(place, chunks, strict=True)]
        part = array[tuple(slice(b, b + c) for b, c in zip(begins, chunks, strict=True))]
        block[tuple(slice(0, size) for size in part.shape)] = part
        separator = str(further.get("dimension_separator", "."))
        file = folder / separator.join(map(str, place))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(block.tobytes(order=str(description["order"]))))


def diffusion_policy(
    folder: Path,
    compressor: Mapping[str, Any] | None = None,
    encode: Callable[[bytes], bytes] = lambda data: data,
    rows: int = 1,
    **further: Any,
) -> Arrays:
    """The chunks hold ``rows`` times the rows of the smallest ones."""
    arrays = frames()
    given = (compressor, encode)
    (folder / "data").mkdir(parents=True)
    (folder / "meta").mkdir()
    for group in (folder, folder / "data", folder / "meta"):
        (group / ".zgroup").write_text('{"zarr_format": 2}')
    state = arrays["observations"].astype(np.float64)
    zarr_array(folder / "data/state", state, (2 * rows, 2), *given, **further)
    zarr_array(folder / "data/action", arrays["actions"] * 512, (4 * rows, 2), *given, **further)
    zarr_array(
        folder / "data/n_contacts", np.arange(5.0)[:, None], (5 * rows, 1), *given, **further
    )
    points = np.arange(90.0, dtype=np.float32).reshape(5, 9, 2)
    zarr_array(folder / "data/keypoint", points, (3 * rows, 9, 2), *given, **further)
    zarr_array(folder / "data/img", np.zeros((5, 4, 4, 3), np.uint8), (5, 4, 4, 3), None, bytes)
    zarr_array(folder / "meta/episode_ends", np.cumsum(LENGTHS), (2 * rows,), *given, **further)
    return arrays


def zlib_diffusion_policy(folder: Path) -> Arrays:
    return diffusion_policy(folder, {"id": "zlib", "level": 1}, zlib.compress)


def blosc_diffusion_policy(folder: Path, *, cname: str = "lz4") -> Arrays:
    """Chunks so large that Blosc does compress them, shuffled as Zarr's own default is."""
    codec = numcodecs.Blosc(cname=cname, clevel=5, shuffle=numcodecs.Blosc.SHUFFLE)

    def encode(data: bytes) -> bytes:
        return bytes(codec.encode(data))

    return diffusion_policy(folder, codec.get_config(), encode, rows=40)


def zipped_diffusion_policy(path: Path) -> Arrays:
    with tempfile.TemporaryDirectory() as folder:
        arrays = blosc_diffusion_policy(Path(folder) / "x", cname="zstd")
        shutil.make_archive(str(path.with_suffix("")), "zip", Path(folder) / "x")
    return arrays


def lerobot(folder: Path, version: str = "v3.0", **more: Any) -> Arrays:
    """Two files of v3.0 (an episode each), or the two files of v2.1."""
    arrays = frames()
    columns: dict[str, Any] = {
        "observation.state": arrays["observations"][:, :2],
        "observation.environment_state": arrays["observations"][:, 2:],
        "action": arrays["actions"],
        "next.reward": arrays["rewards"],
        "next.done": np.array([0, 0, 1, 0, 1], bool),
        "next.success": np.array([0, 0, 1, 0, 0], bool),
        "timestamp": np.array([0, 0.1, 0.2, 0, 0.1], np.float32),
        "frame_index": np.array([0, 1, 2, 0, 1]),
        "episode_index": np.array([0, 0, 0, 1, 1]),
        "index": np.arange(5),
        "task_index": np.zeros(5, np.int64),
        **more,
    }
    columns = {name: column for name, column in columns.items() if column is not None}
    features: dict[str, Any] = {
        name: {"dtype": str(a.dtype), "shape": list(a.shape[1:]) or [1], "names": None}
        for name, a in columns.items()
    }
    shape = [3, 4, 4]
    features["observation.images.top"] = {"dtype": "video", "shape": shape, "names": None}
    (folder / "meta").mkdir(parents=True)
    info = {
        "codebase_version": version, "robot_type": "so100", "fps": 10, "features": features,
        "total_episodes": 2, "total_frames": 5, "total_tasks": 1, "splits": {"train": "0:2"},
    }  # fmt: skip
    (folder / "meta/info.json").write_text(json.dumps(info))
    for index in range(2):
        rows = columns["episode_index"] == index
        table = pa.table({name: parquet_column(a[rows]) for name, a in columns.items()})
        place = "chunk-000/file-{:03d}" if version == "v3.0" else "chunk-000/episode_{:06d}"
        path = folder / "data" / f"{place.format(index)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    return arrays


def parquet_column(array: npt.NDArray[Any]) -> Any:
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])


def minari(folder: Path) -> Arrays:
    """Minari's folder in HDF5's oldest version, as Minari writes it: without checksums."""
    arrays = frames()
    data = folder / "data"
    data.mkdir(parents=True)
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1, -1], "high": [1, 1]}
    metadata = {
        "dataset_id": "foreign/box-v0", "total_episodes": 2, "total_steps": 5,
        "data_format": "hdf5", "action_space": json.dumps(box), "minari_version": "0.5.3",
    }  # fmt: skip
    (data / "metadata.json").write_text(json.dumps(metadata))
    with h5py.File(data / "main_data.hdf5", "w", libver="earliest", track_order=True) as file:
        begin = 0
        for index, steps in enumerate(LENGTHS):
            rows = slice(begin, begin + steps)
            group = file.create_group(f"episode_{index}")
            group.attrs["id"], group.attrs["total_steps"] = index, steps
            seen = arrays["observations"][rows]
            group["observations"] = np.concatenate([seen, seen[-1:] + 1])
            group["actions"], group["rewards"] = arrays["actions"][rows], arrays["rewards"][rows]
            group["terminations"] = np.zeros(steps, bool)
            group["truncations"] = np.arange(steps) == steps - 1
            begin += steps
    return arrays


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "d4rl": ("x.hdf5", d4rl),
    "diffusion_policy": ("x.zarr", zlib_diffusion_policy),
    "dppo": ("train.npz", dppo),
    "lerobot": ("x", lerobot),
    "minari": ("x", minari),
    "ogbench": ("x.npz", ogbench),
    "robomimic": ("x.hdf5", robomimic),
}
"""The name of a file or folder of each format, and what writes it."""

VARIANTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "blosc diffusion_policy": ("x.zarr", blosc_diffusion_policy),
    "zipped diffusion_policy": ("x.zip", zipped_diffusion_policy),
}
"""The same for what a format's files may also be like; a name ends with the format's."""


def ends(dataset: Dataset) -> list[tuple[int, bool, bool]]:
    """Return each episode's length and whether it ended terminated and truncated."""
    flags = [(len(e), bool(e.terminations[-1]), bool(e.truncations[-1])) for e in dataset.episodes]
    inside = [e.terminations[:-1].any() or e.truncations[:-1].any() for e in dataset.episodes]
    assert not any(inside)
    return flags


def equal(array: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> None:
    """Hold an array to what is wanted, in its own type."""
    np.testing.assert_array_equal(array, np.asarray(wanted, dtype=array.dtype))
