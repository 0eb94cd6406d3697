"""What robomimic finds in a file of ours: its own layout, environments and observation keys."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.base import Format
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.formats.registry import get_format
from trimtab.datasets.formats.robomimic.tasks import env_args, observation_parts
from trimtab.envs.registry import list_tasks, make

FORMAT: Format = get_format("robomimic")


def write(dataset: Dataset, path: Path) -> None:
    assert FORMAT.save is not None
    FORMAT.save(dataset, path)


def as_sequences(path: Path, obs_keys: list[str]) -> dict[str, dict[str, Any]]:
    """Return what robomimic's ``SequenceDataset`` holds in memory, gathered by its own rules.

    Every key of ``data`` is a demonstration and has its number from the sixth letter on; arrays
    are read by their names, and whatever else is in a demonstration must be an array, too.
    """
    with h5py.File(path, "r", swmr=True, libver="latest") as file:
        demos = list(file["data"].keys())
        demos = [demos[i] for i in np.argsort([int(name[5:]) for name in demos])]
        found = {}
        for demo in demos:
            group = file[f"data/{demo}"]
            for name in group:
                assert name in ("obs", "next_obs") or isinstance(group[name], h5py.Dataset)
            found[demo] = {
                "num_samples": group.attrs["num_samples"],
                **{key: group[key][()].astype("float32") for key in ("actions", "rewards")},
                **{f"{part}/{key}": group[f"{part}/{key}"][()]
                   for part in ("obs", "next_obs") for key in obs_keys},
            }  # fmt: skip
    return found


def recorded(make_dataset: Any, env: str, arms: int, objects: int) -> Dataset:
    """A dataset that was recorded here in a task of robosuite, of random numbers."""
    dataset = make_dataset((4, 2))
    generator = np.random.default_rng(1)
    episodes = [
        dataclasses.replace(e, observations=generator.normal(size=(len(e) + 1, 9 * arms + objects)))
        for e in dataset.episodes
    ]
    return dataclasses.replace(dataset, env=env, env_options={}, episodes=episodes)


def test_every_key_of_data_is_a_demonstration(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset([2] * 120)
    write(dataset, tmp_path / "x.hdf5")
    found = as_sequences(tmp_path / "x.hdf5", ["flat"])
    assert list(found) == [f"demo_{index}" for index in range(120)]
    assert FORMAT.load(tmp_path / "x.hdf5").content_hash == dataset.content_hash
    write(make_dataset((3,)), tmp_path / "x.hdf5")  # ours, and so replaced
    assert len(FORMAT.load(tmp_path / "x.hdf5")) == 1


@pytest.mark.parametrize(
    ("env", "arms"), [("robosuite/Lift", 1), ("robosuite/TwoArmTransport-DSRL", 2)]
)
def test_tasks_of_robosuite_have_its_names(
    env: str, arms: int, make_dataset: Any, tmp_path: Path
) -> None:
    dataset = recorded(make_dataset, env, arms, 10)
    write(dataset, tmp_path / "x.hdf5")
    keys = [f"robot{arm}_{part}" for arm in range(arms) for part in
            ("eef_pos", "eef_quat", "gripper_qpos")]  # fmt: skip
    found = as_sequences(tmp_path / "x.hdf5", [*keys, "object"])
    for episode, demo in zip(dataset.episodes, found.values(), strict=True):
        for part, rows in (("obs", slice(None, -1)), ("next_obs", slice(1, None))):
            whole = np.concatenate([demo[f"{part}/{key}"] for key in [*keys, "object"]], axis=1)
            np.testing.assert_array_equal(whole, episode.observations[rows])
        assert demo["obs/robot0_eef_quat"].shape == (len(episode), 4)
    with h5py.File(tmp_path / "x.hdf5") as file:
        named = json.loads(file["data"].attrs["env_args"])
        assert "flat" not in file["data/demo_0/obs"]
    assert named["env_name"] == env.removeprefix("robosuite/").partition("-")[0]
    assert (named["type"], named["env_kwargs"]["robots"]) == (1, ["Panda"] * arms)
    assert FORMAT.load(tmp_path / "x.hdf5").content_hash == dataset.content_hash


def test_every_task_of_robosuite_is_known(make_dataset: Any) -> None:
    ids = [id for id in list_tasks() if id.startswith("robosuite/")]
    assert len(ids) > 5
    for id in ids:
        assert env_args(recorded(make_dataset, id, 2, 3))["type"] == 1


def test_robosuite_makes_that_environment(make_dataset: Any) -> None:
    """robomimic's own way to it gives the observations that the task has here."""
    id, steps = "robosuite/Lift", 3
    env = make(id)
    seen, _ = env.reset(seed=3)
    dataset = recorded(make_dataset, id, 2, len(seen) - 18)
    named, parts = env_args(dataset), observation_parts(dataset)
    import robosuite

    # As EnvRobosuite of robomimic 0.5 completes them.
    theirs = robosuite.make(
        named["env_name"], **named["env_kwargs"], has_renderer=False, use_camera_obs=False,
        has_offscreen_renderer=False, ignore_done=True, use_object_obs=True, camera_depths=False,
    )  # fmt: skip
    try:
        theirs.rng.bit_generator.state = np.random.default_rng(3).bit_generator.state
        stored, generator = theirs.reset(), np.random.default_rng(0)
        for step in range(steps + 1):
            values = {**stored, "object": stored["object-state"]}
            assert [len(values[name]) for name, _ in parts] == [n for _, n in parts]
            whole = np.concatenate([values[name] for name, _ in parts])
            np.testing.assert_allclose(whole, seen, atol=1e-5)
            if step < steps:
                action = generator.uniform(-1, 1, env.action_space.shape[0]).astype(np.float32)
                seen, reward, *_ = env.step(action)
                stored, given, *_ = theirs.step(action.astype(np.float64))
                assert float(reward) == given
    finally:
        theirs.close()
        env.close()


def test_a_strangers_keys_come_back(foreign: Any, make_dataset: Any, tmp_path: Path) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    for index, keys in enumerate((["robot0_eef_pos", "object"], ["object"])):
        dataset = FORMAT.load(tmp_path / "x.hdf5", id="some/one-v0", keys=",".join(keys))
        save_minari(dataset, tmp_path / f"{index}")
        write(load_minari(tmp_path / f"{index}"), tmp_path / f"{index}.hdf5")
        with h5py.File(tmp_path / "x.hdf5") as one, h5py.File(tmp_path / f"{index}.hdf5") as two:
            assert set(two["data/demo_0/obs"]) == set(keys)
            for key in keys:
                theirs = one[f"data/demo_0/obs/{key}"][()].astype(np.float32)
                np.testing.assert_array_equal(two[f"data/demo_0/obs/{key}"][()], theirs)
            named = [json.loads(file["data"].attrs["env_args"]) for file in (one, two)]
            assert named[0] == named[1]
        again = FORMAT.load(tmp_path / f"{index}.hdf5")
        assert again.content_hash == dataset.content_hash


def test_a_strangers_vector_is_not_taken_apart(make_dataset: Any, tmp_path: Path) -> None:
    """It may be in any order; only what was recorded here is known to be in ours."""
    dataset = recorded(make_dataset, "robosuite/Lift", 1, 10)
    unknown = dataclasses.replace(dataset, fingerprint=None)
    assert observation_parts(unknown) == [("flat", 19)]
    assert env_args(unknown) == {"env_name": "robosuite/Lift", "type": 2, "env_kwargs": {}}
    small = recorded(make_dataset, "robosuite/Lift", 1, 0)
    assert observation_parts(small) == [("flat", 9)]
