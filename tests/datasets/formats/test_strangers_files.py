"""Files of every format by plain code, with random shapes, names, orders and contradictions.

What is read equals what was written, or the refusal names what contradicts. A contradiction is
something that a format says twice, said once in another way. The writers use nothing of Trimtab.
By hand, with more cases::

    STRANGERS_CASES=2000 pytest tests/datasets/formats/test_strangers_files.py
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.datasets.lint import check as check_dataset
from trimtab.errors import TrimtabError

CASES = int(os.environ.get("STRANGERS_CASES", "40"))
"""Cases of all formats together."""
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Recording:
    """Episodes as a stranger has them.

    Attributes:
        names: parts of the observation in the order in which they are written.
        parts: for each episode, its parts [T+1, W]; the last row is the final observation.
        actions: for each episode [T, A], within -1 and 1.
        rewards: for each episode [T].
        solved: whether each episode ended because the task did.
        numbers: how the episodes are numbered, where a format lets them be numbered freely.
        rng: draws what a contradiction needs.
    """

    names: list[str]
    parts: list[dict[str, Array]]
    actions: list[Array]
    rewards: list[Array]
    solved: list[bool]
    numbers: list[int]
    rng: np.random.Generator

    def __len__(self) -> int:
        return len(self.actions)

    def lengths(self) -> list[int]:
        """Return the steps of each episode."""
        return [len(actions) for actions in self.actions]

    def observations(self, names: Sequence[str]) -> list[Array]:
        """Return each episode's observations [T+1, O], its parts joined in the order of names."""
        return [np.concatenate([one[name] for name in names], 1) for one in self.parts]

    def one_of(self, count: int) -> int:
        """Return a number below ``count``."""
        return int(self.rng.integers(count))


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Return recordings of one to four episodes of two to seven steps."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    letters = st.text("abcxyz_0123456789", min_size=1, max_size=6).filter(
        lambda x: x[0] not in "_0123456789"
    )
    names = draw(st.lists(letters, min_size=2, max_size=4, unique=True))
    widths = {name: draw(st.integers(1, 3)) for name in names}
    lengths = draw(st.lists(st.integers(2, 7), min_size=2, max_size=4))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    action_dim = draw(st.integers(1, 3))
    numbers = sorted(
        draw(
            st.lists(st.integers(0, 30), min_size=len(lengths), max_size=len(lengths), unique=True)
        )
    )
    return Recording(
        names=names,
        parts=[
            {
                name: rng.normal(size=(steps + 1, width)).astype(dtype)
                for name, width in widths.items()
            }
            for steps in lengths
        ],
        actions=[rng.uniform(-1, 1, (steps, action_dim)).astype(dtype) for steps in lengths],
        rewards=[rng.normal(size=steps).astype(np.float32) for steps in lengths],
        solved=[bool(rng.integers(2)) for _ in lengths],
        numbers=numbers,
        rng=rng,
    )


Writer = Callable[[Path, Recording, str], tuple[list[str], str]]
"""Writes a recording with one contradiction or, where it is "", without.

Returns the order in which the parts are to be joined, and what the refusal is to name.
"""


# ---- robomimic -----------------------------------------------------------------------------------


def robomimic(path: Path, made: Recording, fault: str) -> tuple[list[str], str]:
    """``data/demo_<n>`` with ``obs`` and ``next_obs``; the numbers have gaps."""
    bad = 1 + made.one_of(len(made) - 1)
    named = f"demo_{made.numbers[bad]}"
    first, second = sorted(made.names)[:2]
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = "{}"
        data.attrs["total"] = sum(made.lengths()) + (fault == "total")
        for index, (parts, actions) in enumerate(zip(made.parts, made.actions, strict=True)):
            demo, wrong = data.create_group(f"demo_{made.numbers[index]}"), index == bad
            steps = len(actions)
            demo.attrs["num_samples"] = steps + (wrong and fault == "num_samples")
            demo["actions"] = actions[:-1] if wrong and fault == "short actions" else actions
            # Where rewards are not 0 and 1, a writer may set dones at each success.
            sparse = np.zeros(steps) if fault == "done inside" else made.rewards[index]
            demo["rewards"] = sparse
            done = np.arange(steps) == steps - 1
            if wrong and fault == "done inside":
                done[0] = True
            demo["dones"] = done.astype(np.int64)
            for name in made.names:
                seen, stored = parts[name], name
                if wrong and name == first and fault == "other key":
                    stored = f"{name}_zz"
                if wrong and name == first and fault == "other width":
                    seen = np.concatenate([seen, seen], 1)
                if wrong and name == first and fault == "swapped widths":
                    seen = np.concatenate([seen, parts[second]], 1)
                if wrong and name == first and fault == "missing key":
                    continue
                demo[f"obs/{stored}"] = seen[:-1]
                following = seen[1:].copy()
                if wrong and name == first and fault == "next_obs":
                    following[0] += 1
                if not (wrong and name == first and fault == "missing next_obs"):
                    demo[f"next_obs/{stored}"] = following
    return sorted(made.names), "total" if fault == "total" else named


# ---- LeRobot -------------------------------------------------------------------------------------


def lerobot(path: Path, made: Recording, fault: str) -> tuple[list[str], str]:
    """Version 3.0 in one file, ``observation.state`` alone and then other parts by their names."""
    fps = int(made.rng.integers(5, 60))
    lengths, total = made.lengths(), sum(made.lengths())
    bad = 1 + made.one_of(len(made) - 1)
    episode = np.repeat(np.arange(len(made)), lengths)
    frame = np.concatenate([np.arange(steps) for steps in lengths])
    names = {name: f"observation.{name}" for name in made.names}
    names[made.names[0]] = "observation.state"
    columns: dict[str, Array] = {
        names[name]: np.concatenate([parts[name][:-1] for parts in made.parts]).astype(np.float32)
        for name in made.names
    }
    columns["action"] = np.concatenate(made.actions).astype(np.float32)
    columns["next.reward"] = np.concatenate(made.rewards)
    last = np.array([f == lengths[e] - 1 for e, f in zip(episode, frame, strict=True)])
    columns |= {
        "next.done": last, "timestamp": (frame / fps).astype(np.float32), "frame_index": frame,
        "episode_index": episode, "index": np.arange(total),
        "task_index": np.zeros(total, np.int64),
    }  # fmt: skip
    rows = np.flatnonzero(episode == bad)
    named = f"episode {bad}"
    if fault == "half the rate":
        columns["timestamp"] = columns["timestamp"] * 2
        named = "fps"
    if fault == "one timestamp":
        columns["timestamp"][rows[1:]] += 0.5 / fps
    if fault == "done inside":
        columns["next.done"][rows[0]] = True
    if fault == "frame twice":
        columns["frame_index"][rows[1]] = 0
        named = f"frame_index 0 of episode_index {bad}"
    if fault == "index twice":
        columns["index"][rows[1]] = columns["index"][rows[0]]
        named = "index"
    keep = np.arange(total)
    if fault == "lost frames":
        keep = np.delete(keep, rows[0])
    if fault == "two recordings":
        keep = np.concatenate([keep, keep])
        named = "episode"
    features = {
        name: {"dtype": str(a.dtype), "shape": list(a.shape[1:]) or [1], "names": None}
        for name, a in columns.items()
    }
    if fault == "feature shape":
        features["action"]["shape"] = [columns["action"].shape[1] + 1]
        named = "action"
    count = len(keep)
    info = {
        "codebase_version": "v3.0", "fps": fps, "features": features, "total_tasks": 1,
        "total_frames": count + (fault == "total_frames"),
        "total_episodes": len(made) + (fault == "total_episodes"),
    }  # fmt: skip
    if fault.startswith("total_"):
        named = f"{fault.removeprefix('total_')}, but info.json says"
    write_json(path / "meta" / "info.json", info)
    starts = np.cumsum([0, *lengths])
    noted = list(lengths)
    if fault == "noted length":
        noted[bad] += 1
    table = {
        "episode_index": list(range(len(made))), "length": noted,
        "dataset_from_index": starts[:-1].tolist(), "dataset_to_index": starts[1:].tolist(),
        "data/chunk_index": [0] * len(made), "data/file_index": [0] * len(made),
    }  # fmt: skip
    if fault not in ("two recordings", "lost frames"):  # as a broken writer left them: none
        place = path / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        place.parent.mkdir(parents=True)
        pq.write_table(pa.table(table), place)
    file = path / "data" / "chunk-000" / "file-000.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(
        pa.table({name: list(a[keep]) if a.ndim > 1 else a[keep] for name, a in columns.items()}),
        file,
    )
    return [made.names[0], *sorted(made.names[1:])], named


# ---- Minari --------------------------------------------------------------------------------------


def minari(path: Path, made: Recording, fault: str) -> tuple[list[str], str]:
    """A Dict of Boxes; the parts in the order of the space, which is theirs in the file."""
    bad = 1 + made.one_of(len(made) - 1)
    named = f"episode {bad}"
    names = sorted(made.names)

    def box(width: int, dtype: str) -> dict[str, Any]:
        return {
            "type": "Box",
            "dtype": dtype,
            "shape": [width],
            "low": [-9.0] * width,
            "high": [9.0] * width,
        }

    widths = {name: made.parts[0][name].shape[1] for name in names}
    dtype = str(made.actions[0].dtype)
    if fault == "space width":
        widths[names[0]] += 1
        named = names[0]
    width = made.actions[0].shape[1] + (fault == "action space")
    if fault == "action space":
        named = "action"
    metadata = {
        "dataset_id": "my/x-v0", "data_format": "hdf5", "minari_version": "0.5.4",
        "total_episodes": len(made) + (fault == "total_episodes"),
        "total_steps": sum(made.lengths()) + (fault == "total_steps"),
        "action_space": json.dumps(
            {**box(width, dtype), "low": [-1.0] * width, "high": [1.0] * width}
        ),
        "observation_space": json.dumps(
            {"type": "Dict", "subspaces": {name: box(widths[name], dtype) for name in names}}
        ),
    }  # fmt: skip
    if fault.startswith("total_"):
        named = f"{fault.removeprefix('total_')}, but metadata.json says"
    write_json(path / "data" / "metadata.json", metadata)
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for index, (parts, actions) in enumerate(zip(made.parts, made.actions, strict=True)):
            group, wrong, steps = file.create_group(f"episode_{index}"), index == bad, len(actions)
            group.attrs["id"] = index
            group.attrs["total_steps"] = steps + (wrong and fault == "noted steps")
            group["actions"], group["rewards"] = actions, made.rewards[index]
            ended = np.arange(steps) == steps - 1
            group["terminations"] = ended & made.solved[index]
            group["truncations"] = ended & (not made.solved[index])
            if wrong and fault == "end inside":
                group["truncations"][0] = True
            for name in names:
                seen = parts[name]
                if wrong and name == names[0] and fault == "short observations":
                    seen = seen[:-1]
                if wrong and name == names[0] and fault == "other width":
                    seen = np.concatenate([seen, seen], 1)
                group[f"observations/{name}"] = seen
    return names, named


# ---- D4RL ----------------------------------------------------------------------------------------


def d4rl(path: Path, made: Recording, fault: str) -> tuple[list[str], str]:
    """All transitions end to end, with ``next_observations``."""
    names = made.names
    seen = made.observations(names)
    lasts = np.cumsum(made.lengths()) - 1
    terminals = np.zeros(lasts[-1] + 1, bool)
    terminals[lasts] = made.solved
    timeouts = np.zeros_like(terminals)
    timeouts[lasts] = [not solved for solved in made.solved]
    arrays: dict[str, Array] = {
        "observations": np.concatenate([one[:-1] for one in seen]),
        "next_observations": np.concatenate([one[1:] for one in seen]),
        "actions": np.concatenate(made.actions), "rewards": np.concatenate(made.rewards),
        "terminals": terminals, "timeouts": timeouts,
    }  # fmt: skip
    named = ""
    if fault in arrays:
        arrays[fault], named = arrays[fault][:-1], fault
    if fault == "width of next_observations":
        arrays["next_observations"] = np.repeat(arrays["next_observations"], 2, 1)
        named = "next_observations"
    with h5py.File(path, "w") as file:
        for name in made.rng.permutation(list(arrays)):
            file[name] = arrays[name]
    return names, named


# ---- OGBench -------------------------------------------------------------------------------------


def ogbench(path: Path, made: Recording, fault: str) -> tuple[list[str], str]:
    """States of each trajectory and its final one; actions of the final state have no meaning."""
    names = made.names
    seen = made.observations(names)
    rows = sum(len(one) for one in seen)
    ends = np.cumsum([len(one) for one in seen]) - 1
    terminals = np.zeros(rows, np.float32)
    terminals[ends] = 1
    arrays = {
        "observations": np.concatenate(seen).astype(np.float32),
        "actions": np.concatenate([np.concatenate([one, one[-1:]]) for one in made.actions]),
        "terminals": terminals,
    }
    named = ""
    if fault in arrays:
        arrays[fault], named = arrays[fault][:-1], fault
    np.savez(path, **arrays)
    if fault == "width of the validation file":
        wide = {**arrays, "observations": np.repeat(arrays["observations"], 2, 1)}
        np.savez(path.with_name(f"{path.stem}-val.npz"), **wide)
        named = "-val"
    return names, named


# ---- Diffusion Policy ----------------------------------------------------------------------------


def diffusion_policy(path: Path, made: Recording, fault: str) -> tuple[list[str], str]:
    """A Zarr store of version 2 with ``state`` and ``action``, in chunks of a random size."""
    names = made.names
    ends = np.cumsum(made.lengths())
    arrays = {
        "data/state": np.concatenate([one[:-1] for one in made.observations(names)]),
        "data/action": np.concatenate(made.actions),
        "meta/episode_ends": ends.astype(np.int64),
    }
    named = ""
    if fault in arrays:
        arrays[fault], named = arrays[fault][:-1], "rows"
    if fault == "ends go back":
        arrays["meta/episode_ends"] = ends[::-1].copy()
        named = "episode_ends"
    if fault == "lost chunk":
        named = "data/action"
    for name, array in arrays.items():
        rows = 2 if fault == "lost chunk" else 1 + made.one_of(len(array))
        chunks = [rows, *array.shape[1:]]
        folder = path / name
        write_json(folder / ".zarray", {
            "zarr_format": 2, "shape": list(array.shape), "chunks": chunks,
            "dtype": array.dtype.str, "compressor": None, "fill_value": 0, "order": "C",
            "filters": None,
        })  # fmt: skip
        for number in range(-(-len(array) // rows)):
            block = np.zeros(chunks, array.dtype)
            part = array[number * rows : (number + 1) * rows]
            block[: len(part)] = part
            place = ".".join(map(str, [number] + [0] * (array.ndim - 1)))
            if not (fault == "lost chunk" and name == "data/action" and number == 1):
                (folder / place).write_bytes(block.tobytes())
    return names, named


# ---- DPPO ----------------------------------------------------------------------------------------


def dppo(path: Path, made: Recording, fault: str) -> tuple[list[str], str]:
    """Scaled states and actions beside ``normalization.npz``."""
    names = made.names
    raw = np.concatenate([one[:-1] for one in made.observations(names)]).astype(np.float64)
    actions = np.concatenate(made.actions).astype(np.float64)
    limits = {
        "obs_min": raw.min(0) - 0.5, "obs_max": raw.max(0) + 0.5,
        "action_min": -np.ones(actions.shape[1]), "action_max": np.ones(actions.shape[1]),
    }  # fmt: skip

    def scaled(values: Array, low: Array, high: Array) -> Array:
        return np.asarray((2 * (values - low) / (high - low + 1e-6) - 1).astype(np.float32))

    arrays = {
        "states": scaled(raw, limits["obs_min"], limits["obs_max"]),
        "actions": scaled(actions, limits["action_min"], limits["action_max"]),
        "traj_lengths": np.array(made.lengths()),
    }
    named = ""
    if fault in arrays:
        arrays[fault], named = arrays[fault][:-1], ""
    if fault == "width of the limits":
        limits["obs_min"], limits["obs_max"] = limits["obs_min"][:-1], limits["obs_max"][:-1]
        named = "obs_m"
    if fault == "limits upside down":
        limits["obs_min"], limits["obs_max"] = limits["obs_max"], limits["obs_min"]
        named = "obs_m"
    np.savez(path, **arrays)
    np.savez(path.with_name("normalization.npz"), **limits)
    return names, named


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


FORMATS: Mapping[str, tuple[Writer, str, tuple[str, ...]]] = {
    "robomimic": (robomimic, "x.hdf5", (
        "other key", "other width", "swapped widths", "missing key", "num_samples", "total",
        "short actions", "done inside", "next_obs", "missing next_obs",
    )),
    "lerobot": (lerobot, "x", (
        "two recordings", "lost frames", "half the rate", "one timestamp", "frame twice",
        "index twice", "done inside", "total_frames", "total_episodes", "noted length",
        "feature shape",
    )),
    "minari": (minari, "x", (
        "total_steps", "total_episodes", "noted steps", "end inside", "short observations",
        "other width", "space width", "action space",
    )),
    "d4rl": (d4rl, "x.hdf5", (
        "observations", "actions", "terminals", "timeouts", "next_observations",
        "width of next_observations",
    )),
    "ogbench": (ogbench, "x.npz", (
        "observations", "actions", "terminals", "width of the validation file",
    )),
    "diffusion_policy": (diffusion_policy, "x.zarr", (
        "data/state", "data/action", "meta/episode_ends", "ends go back", "lost chunk",
    )),
    "dppo": (dppo, "train.npz", (
        "states", "actions", "traj_lengths", "width of the limits", "limits upside down",
    )),
}  # fmt: skip


FOUND = {
    "lost chunk": "missing-chunk",
    "lost frames": "missing-frames",
    "half the rate": "control-rate",
    "one timestamp": "control-rate",
}
"""What a format allows, so that only ``dataset check`` finds it, and the code of its finding."""


def cases() -> Iterator[tuple[str, str]]:
    """Yield every format with each of its contradictions, and first without one."""
    for name, (_, _, faults) in FORMATS.items():
        yield from ((name, fault) for fault in ("", *faults))


@pytest.mark.parametrize(("name", "fault"), cases())
def test_a_stranger_s_file_is_read_as_written_or_refused(name: str, fault: str) -> None:
    each = max(1, CASES // len(list(cases()))) * (1 if fault else 3)

    @settings(
        max_examples=each, deadline=None, derandomize="STRANGERS_CASES" not in os.environ,
        suppress_health_check=list(HealthCheck), database=None,
        phases=[Phase.generate],
    )  # fmt: skip
    @given(made=recordings())
    def check(made: Recording) -> None:
        write, file, _ = FORMATS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file
            order, named = write(path, made, fault)
            assert recognise(path).name == name
            if fault in FOUND:
                findings = check_dataset(get_format(name).load(path))
                assert any(
                    one.code == FOUND[fault] and named in f"{one.where}: {one.message}"
                    for one in findings
                ), findings
                return
            if fault:
                with pytest.raises(TrimtabError, match=re.escape(named)) as told:
                    get_format(name).load(path)
                assert "\n" not in str(told.value)
                return
            read = get_format(name).load(path)
            assert [len(one) for one in read.episodes] == made.lengths()
            for number, (one, seen) in enumerate(
                zip(read.episodes, made.observations(order), strict=True)
            ):
                close = dict(rtol=0, atol=0) if name != "dppo" else dict(rtol=1e-5, atol=1e-5)
                wanted = seen.astype(np.float32)
                np.testing.assert_allclose(one.observations[:-1], wanted[:-1], **close)
                if one.last_observed and not one.terminations[-1]:
                    np.testing.assert_allclose(one.observations[-1], wanted[-1], **close)
                np.testing.assert_allclose(
                    one.actions, made.actions[number].astype(np.float32), **close
                )
                if name in ("robomimic", "lerobot", "minari", "d4rl"):
                    np.testing.assert_array_equal(one.rewards, made.rewards[number])
                if name in ("minari", "d4rl"):
                    assert bool(one.terminations[-1]) == made.solved[number]

    check()
