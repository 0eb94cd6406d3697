"""Minari's observations of several parts, and what its metadata and its arrays say twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces

from trimtab.datasets.formats.minari.reader import load
from trimtab.types import TrimtabError

STEPS = 4


def write(space: Any, observations: Any, path: Path, monkeypatch: Any) -> Path:
    """Let Minari write two episodes of these observations ``[T+1, ...]``."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path))
    generator = np.random.default_rng(0)
    episodes = [
        minari.data_collector.EpisodeBuffer(
            id=index,
            observations=observations,
            actions=generator.uniform(-1, 1, size=(STEPS, 2)),
            rewards=list(generator.normal(size=STEPS)),
            terminations=[False] * STEPS,
            truncations=[False] * (STEPS - 1) + [True],
        )
        for index in range(2)
    ]
    minari.create_dataset_from_buffers(
        "my/x-v0", episodes, observation_space=space, action_space=spaces.Box(-1, 1, (2,)),
        author="a", author_email="b", code_permalink="c", algorithm_name="d", description="e",
    )  # fmt: skip
    return path / "my/x-v0"


def rows(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=(STEPS + 1, *shape)).astype(np.float32)


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-9, 9, shape)


VECTOR, GOAL, POINTS = rows(3), rows(1), rows(2, 2)
PICTURES = np.zeros((STEPS + 1, 40, 36, 3), np.uint8)
CAMERA = spaces.Box(0, 255, (40, 36, 3), np.uint8)
GEAR = np.array([2, 3, 4, 3, 2])

CASES: list[tuple[str, Any, Any, list[Any], list[str]]] = [
    (
        "camera", spaces.Dict({"cam": CAMERA, "state": box(3)}),
        {"cam": PICTURES, "state": VECTOR}, [VECTOR], ["cam"],
    ),
    (
        "small picture", spaces.Dict({"a": spaces.Box(0, 255, (6, 5, 3), np.uint8), "b": box(3)}),
        {"a": PICTURES[:, :6, :5], "b": VECTOR}, [VECTOR], ["a"],
    ),
    (
        "nested", spaces.Dict({"robot": spaces.Dict({"arm": box(3), "eye": CAMERA}), "to": box(1)}),
        {"robot": {"arm": VECTOR, "eye": PICTURES}, "to": GOAL}, [VECTOR, GOAL], ["robot/eye"],
    ),
    ("tuple", spaces.Tuple([box(3), box(1)]), (VECTOR, GOAL), [VECTOR, GOAL], []),
    ("points", spaces.Dict({"p": box(2, 2)}), {"p": POINTS}, [POINTS.reshape(-1, 4)], []),
    (
        "choice", spaces.Dict({"gear": spaces.Discrete(3, start=2), "state": box(3)}),
        {"gear": GEAR, "state": VECTOR}, [VECTOR], ["gear"],
    ),
    (
        "text", spaces.Dict({"say": spaces.Text(9), "state": box(3)}),
        {"say": ["a"] * (STEPS + 1), "state": VECTOR}, [VECTOR], ["say"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("space", "observations", "wanted", "left_out"),
    [c[1:] for c in CASES],
    ids=[c[0] for c in CASES],
)
def test_the_vectors_of_a_space_are_read(
    space: Any, observations: Any, wanted: list[Any], left_out: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = write(space, observations, tmp_path, monkeypatch)
    dataset = load(path)
    joined = np.concatenate(wanted, axis=1).astype(np.float32)
    np.testing.assert_array_equal(dataset.episodes[1].observations, joined)
    assert dataset.recipe.get("left_out", []) == left_out
    assert (", ".join(left_out) + "; read: " in caplog.text) == bool(left_out)
    if left_out:
        with pytest.raises(TrimtabError, match=f"no part '{left_out[0]}' that is a vector; there"):
            load(path, keys=left_out[0])


def test_pictures_alone_are_no_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(CAMERA, PICTURES, tmp_path, monkeypatch)
    with pytest.raises(TrimtabError, match="no vector to observe, only observations"):
        load(path)


def change_space(**change: Any) -> Any:
    def change_file(metadata: dict[str, Any], file: Any) -> None:
        space = json.loads(metadata["observation_space"])
        space["subspaces"].update(change)
        metadata["observation_space"] = json.dumps(space)

    return change_file


def attribute(name: str, value: Any) -> Any:
    return lambda metadata, file: file["episode_1"].attrs.__setitem__(name, value)


def flag(name: str) -> Any:
    return lambda metadata, file: file[f"episode_1/{name}"].__setitem__(1, True)


BOX = {"type": "Box", "dtype": "float32", "low": -9, "high": 9}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_space(a={**BOX, "shape": [2]}), "'a': shape .* says rows of \\(2,\\)"),
        (change_space(a={**BOX, "shape": []}), "'a': shape .* says rows of \\(\\)"),
        (change_space(c={**BOX, "shape": [1]}), "not those of 'observation_space'"),
        (change_space(a={"type": "Box"}), "'observation_space' is not readable"),
        (lambda m, f: m.update(observation_space="{"), "'observation_space' is not readable"),
        (attribute("id", 0), "episode 1: its id is 0, expected 1"),
        (attribute("total_steps", STEPS + 1), "episode 1: its total_steps is 5, expected 4"),
        (attribute("rewards_sum", 99.0), "episode 1: its rewards_sum is 99"),
        (flag("terminations"), "episode 1, key 'terminations': set at step 1 of 4"),
        (flag("truncations"), "episode 1, key 'truncations': set at step 1 of 4"),
        (lambda m, f: f["episode_0/observations/a"].resize(STEPS, axis=0), "numbers of rows"),
        (
            lambda m, f: m.update(action_space=json.dumps(
                {"type": "Box", "shape": [3], "low": [-1, -1], "high": [1, 1]}
            )),
            "2 limits, but the shape is",
        ),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused(
    change: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = spaces.Dict({"a": box(3), "b": box(1)})
    path = write(space, {"a": VECTOR, "b": GOAL}, tmp_path, monkeypatch)
    metadata = json.loads((path / "data/metadata.json").read_text())
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        change(metadata, file)
    (path / "data/metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(TrimtabError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)
