"""Broken files in the Minari layout: each is refused in one line that names the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.datasets.formats.minari.reader import load
from trimtab.datasets.formats.minari.writer import save
from trimtab.types import TrimtabError


def edit_metadata(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "data/metadata.json"
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def make_foreign(folder: Path) -> None:
    """Leave only what Minari itself writes: no checksum of ours."""

    def strip(metadata: dict[str, Any]) -> None:
        for key in [key for key in metadata if key.startswith("trimtab_")]:
            del metadata[key]

    edit_metadata(folder, strip)


def replace_array(key: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[f"episode_1/{key}"]
        file[f"episode_1/{key}"] = value

    return change


def delete(key: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(key)


def empty(file: h5py.File) -> None:
    for name in list(file):
        del file[name]


def loop(file: h5py.File) -> None:
    file["episode_1/infos/again"] = file["episode_1/infos"]


def claim_too_much(file: h5py.File) -> None:
    del file["episode_1/actions"]
    file["episode_1"].create_dataset("actions", shape=(1 << 40, 2), dtype="f4", chunks=(64, 2))


def store_away(file: h5py.File) -> None:
    del file["episode_1/rewards"]
    away = [("elsewhere.bin", 0, h5py.h5f.UNLIMITED)]
    file["episode_1"].create_dataset("rewards", shape=(1,), dtype="f4", external=away)


def map_away(file: h5py.File) -> None:
    del file["episode_1/rewards"]
    layout = h5py.VirtualLayout(shape=(1,), dtype="f4")
    layout[:] = h5py.VirtualSource("elsewhere.hdf5", "rewards", shape=(1,))
    file["episode_1"].create_virtual_dataset("rewards", layout)


def compress(file: h5py.File) -> None:
    del file["episode_1/rewards"]
    file["episode_1"].create_dataset(
        "rewards", shape=(1 << 40,), dtype="f4", chunks=(64,), compression="gzip"
    )


def link_away(file: h5py.File) -> None:
    del file["episode_1/actions"]
    file["episode_1/actions"] = h5py.ExternalLink("elsewhere.hdf5", "/actions")


def make_group(file: h5py.File) -> None:
    del file["episode_1/rewards"]
    file["episode_1/rewards/x"] = [1.0]


def note(place: str, **values: Any) -> Callable[[h5py.File], None]:
    return lambda file: file[place].attrs.update(values)


# Episode 1 has one step, three observation and two action dimensions.
BROKEN_FILES: list[tuple[str, Callable[[h5py.File], None], str]] = [
    ("no observations", delete("episode_1/observations"), "episode 1, key 'observations': missing"),
    ("no rewards", delete("episode_1/rewards"), "episode 1, key 'rewards': missing"),
    ("no truncations", delete("episode_1/truncations"), "key 'truncations': missing"),
    ("no episode", delete("episode_1"), "2 episodes, but metadata.json says 3"),
    ("no episodes", empty, "0 episodes, but"),
    ("text", replace_array("actions", ["a"]), "key 'actions': type .* is not a number"),
    ("complex", replace_array("rewards", [1j]), "key 'rewards': type complex128"),
    ("group", make_group, "key 'rewards': not an array"),
    ("scalar", replace_array("rewards", 1.0), "episode 1"),
    ("shape", replace_array("actions", np.zeros((1, 5))), r"'actions': shape \(1, 5\)"),
    ("length", replace_array("observations", np.zeros((1, 3))), r"shape \(1, 3\), expected \(2, 3"),
    ("nan", replace_array("observations", np.full((2, 3), np.nan)), "'observations': NaN"),
    (
        "overflow",
        replace_array("rewards", [1e300]),
        "its rewards_sum is .*, but the rewards' sum is 1e\\+300",
    ),
    ("flags", replace_array("terminations", [7]), "'terminations': not one flag of 0 or 1 a row"),
    ("total_steps", note("episode_1", total_steps=9), "episode 1: its total_steps is 9, expected"),
    ("id", note("episode_1", id=np.float32(7)), "episode 1: its id is 7, expected 1"),
    ("steps as text", note("episode_1", total_steps="1"), "'total_steps': not one number"),
    ("two numbers", note("episode_1", total_steps=[1, 1]), "'total_steps': not one number"),
    ("sum", note("episode_1", rewards_sum=np.nan), "episode 1: its rewards_sum is nan, but"),
    ("claim", claim_too_much, "needs 8796093022208 bytes, 0 are stored"),
    ("compressed claim", compress, "needs 4398046511104 bytes, 0 are stored"),
    ("external storage", store_away, "its values lie in another file"),
    ("virtual", map_away, "its values lie in another file"),
    ("external link", link_away, "a link that leads nowhere or into another file"),
    ("endless nesting", loop, "nested too deeply"),
]


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in BROKEN_FILES], ids=[c[0] for c in BROKEN_FILES]
)
def test_a_broken_file_is_one_line(
    make_dataset: Any, tmp_path: Path, change: Callable[[h5py.File], None], message: str
) -> None:
    save(make_dataset(), tmp_path / "x")
    path = tmp_path / "x/data/main_data.hdf5"
    make_foreign(tmp_path / "x")
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(TrimtabError, match=message) as caught:
        load(tmp_path / "x")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


BROKEN_METADATA: list[tuple[dict[str, Any], str]] = [
    ({"dataset_id": 3}, "'dataset_id' is not of type str"),
    ({"total_episodes": "3"}, "'total_episodes' is not of type int"),
    ({"total_episodes": True}, "'total_episodes' is not of type int"),
    ({"total_episodes": 0}, "no episodes"),
    ({"total_episodes": 10**9}, "3 episodes, but metadata.json says 1000000000"),
    ({"total_steps": 13}, "12 steps, but metadata.json says 13"),
    ({"data_format": "arrow"}, "convert it"),
    ({"action_space": "{}"}, "'action_space' is not a flat Box"),
    ({"action_space": None}, "'action_space' is missing"),
    ({"action_space": '{"type": "Discrete", "n": 3}'}, "a Discrete space"),
    (
        {"action_space": '{"type": "Box", "dtype": "int64", "low": [0], "high": [1]}'},
        "Box of int64",
    ),
    (
        {"observation_space": '{"type": "Box", "dtype": "float32", "shape": [3], "low": [0, 0]}'},
        r"'low' of shape \(2,\) for numbers of shape \(3,\)",
    ),
    ({"action_space": '{"type": "Box", "low": [[0]], "high": [[1]]}'}, "limits of shapes"),
    ({"action_space": '{"type": "Box", "low": [0], "high": [1]}'}, "1 entries for 2 action dim"),
    ({"action_space": '{"type": "Box", "low": ["a"], "high": [1]}'}, "not a flat Box"),
    ({"trimtab_env": "other"}, "keys were changed"),
    ({"trimtab_content_hash": None}, "keys were changed"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN_METADATA)
def test_broken_metadata_is_one_line(
    make_dataset: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    save(make_dataset(), tmp_path / "x")
    edit_metadata(tmp_path / "x", lambda metadata: metadata.update(change))
    with pytest.raises(TrimtabError, match=message):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\xff"]
)
def test_metadata_that_is_no_object_is_one_line(
    make_dataset: Any, tmp_path: Path, text: str
) -> None:
    save(make_dataset(), tmp_path / "x")
    (tmp_path / "x/data/metadata.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(TrimtabError, match="JSON"):
        load(tmp_path / "x")


def test_missing_files_are_one_line(make_dataset: Any, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="give the folder of a dataset"):
        load(tmp_path / "nowhere")
    save(make_dataset(), tmp_path / "x")
    (tmp_path / "x/data/main_data.hdf5").unlink()
    with pytest.raises(TrimtabError, match="the file is missing"):
        load(tmp_path / "x")


def test_one_changed_byte_is_noticed_before_the_file_is_opened(
    make_dataset: Any, tmp_path: Path
) -> None:
    save(make_dataset(), tmp_path / "x")
    path = tmp_path / "x/data/main_data.hdf5"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(TrimtabError, match="truncated or changed"):
        load(tmp_path / "x")


def test_content_that_its_hash_contradicts_is_refused(make_dataset: Any, tmp_path: Path) -> None:
    save(make_dataset(), tmp_path / "x")
    edit_metadata(tmp_path / "x", lambda metadata: metadata.update(dataset_id="test/other-v0"))
    with pytest.raises(TrimtabError, match="content differs from its stored hash"):
        load(tmp_path / "x")
