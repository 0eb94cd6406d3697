"""What a dataset is of, and what a run says of it that its file does not."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training import matching
from trimtab.benchmarks.training.dataset import load_dataset
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.groups import group_options
from trimtab.benchmarks.training.train import train
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.registry import get_format
from trimtab.envs.registry import checked_names, get_spec
from trimtab.types import TrimtabError


def test_a_dataset_of_another_task_is_refused(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its rewards and ends mean something else, also where only an option differs."""
    words = [word for word in tiny.cloning(tmp_path) if word != "other_task=true"]
    message = (
        r"is of robotics/PointMaze-TwoRoutes-v0 with env_options \{\} and physics \w+, this run is "
        r"in robotics/PointMaze-TwoRoutes-v0 with \{'horizon': 28\} and .*; leave out "
        "env_options.horizon, or add other_task=true$"
    )
    with pytest.raises(TrimtabError, match=message) as error:
        train(compose_run(words))
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())
    own = [word for word in words if word != "env_options.horizon=28"]
    plan = checked_plan(compose_run(own))  # the task itself
    allowed = checked_plan(compose_run([*own, "other_task=true"]))
    assert plan.config_hash == allowed.config_hash  # it changes nothing
    assert "may mean" not in caplog.text
    checked_plan(compose_run([*words, "other_task=true"]))
    assert "may mean something else" in caplog.text


def test_a_recipe_of_another_task_is_refused_before_it_is_made(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.task(tmp_path), "algorithm=bc", "policy=gaussian", "offline_steps=2"]
    words += ["dataset=two_routes", "dataset.episodes=2", "other_task=false"]
    with pytest.raises(TrimtabError, match="or add other_task=true"):
        checked_plan(compose_run(words))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("named", "env", "same"),
    [
        ("unknown", "robosuite/Lift", True),
        ("robosuite/Lift", "robosuite/Lift", True),
        ("Lift", "robosuite/Lift", True),  # as robomimic's files name it
        ("Lift", "robosuite/Lift-DPPO", True),
        ("Hopper-v5", "gym/Hopper-v5", True),  # as Minari's do
        ("Cart-v0", "gymnasium:my_lab:Cart-v0", True),
        ("lab/Cart-v0", "gymnasium:lab/Cart-v0", True),
        ("Cart-v0", "gymnasium:lab/Cart-v0", False),
        ("Hopper-v4", "gym/Hopper-v5", False),
        ("Door", "robosuite/Lift", False),
        ("robosuite/Lift-DSRL", "robosuite/Lift", False),
        ("gym/Hopper-v5", "dmc/hopper-hop", False),
    ],
)
def test_a_strangers_name_of_a_task(
    named: str, env: str, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    spec: Any = dataclasses.make_dataclass("Spec", ["id", "options", "fingerprint"])(
        env, {}, "0" * 12
    )
    matching.check_same_task("x/y-v0", named, {}, None, spec, allowed=True)
    assert ("may mean something else" in caplog.text) != same
    if not same:
        with pytest.raises(TrimtabError, match=f"is of {named}, this run is in {env}: its rewards"):
            matching.check_same_task("x/y-v0", named, {}, None, spec, allowed=False)


def test_the_same_task_with_other_options_is_told_by_their_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec: Any = dataclasses.make_dataclass("Spec", ["id", "options", "fingerprint"])(
        "x/y-v0", {"reward": "sparse"}, "0" * 12
    )
    made = {"horizon": 50, "terminate_on_success": True}
    words = (
        "give the run env_options.horizon=50 env_options.terminate_on_success=true and leave out "
        "env_options.reward, or add other_task=true"
    )
    with pytest.raises(TrimtabError, match=words):
        matching.check_same_task("data", "x/y-v0", made, "1" * 12, spec, allowed=False)
    with pytest.raises(TrimtabError, match="choose a dataset of this task, or add other_task=true"):
        matching.check_same_task("data", "x/z-v0", made, "1" * 12, spec, allowed=False)
    with caplog.at_level("INFO"):
        matching.check_same_task("data", "unknown", {}, None, spec, allowed=False)
    assert "dataset data does not name its task; it is taken as one of x/y-v0" in caplog.text


def test_what_a_file_does_not_say_is_said_by_the_run(tiny: Any, tmp_path: Path) -> None:
    """A D4RL file without timeouts needs a horizon; a robomimic file has keys and masks."""
    generator = np.random.default_rng(0)
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        file["observations"], file["actions"] = generator.normal(size=(9, 6)), np.zeros((9, 2))
        file["rewards"], file["terminals"] = np.zeros(9), np.zeros(9, bool)
    with h5py.File(tmp_path / "r.hdf5", "w") as file:
        for name in ("demo_0", "demo_1"):
            demo = file.create_group(f"data/{name}")
            demo["obs/a"], demo["obs/b"] = np.zeros((5, 4)), np.ones((5, 2))
            demo["actions"], demo["rewards"] = np.zeros((5, 2)), np.zeros(5)
        file["mask/train"] = np.array([b"demo_1"])
    words = tiny.cloning(tmp_path / "out")

    def opened(*more: str) -> Dataset:
        config = compose_run([*words, *more])
        return load_dataset(config, get_spec(config["env"], **config["env_options"]))

    with pytest.raises(TrimtabError, match="give horizon="):
        opened(f"dataset={tmp_path / 'd.hdf5'}")
    cut = opened(f"dataset={tmp_path / 'd.hdf5'}", "dataset.horizon=5")
    assert [len(episode) for episode in cut.episodes] == [4, 3]  # the last rows have no successor
    turned = opened(f"dataset={tmp_path / 'r.hdf5'}", 'dataset.keys="b,a"', "dataset.mask=train")
    (episode,) = turned.episodes
    assert episode.observations[0].tolist() == [1, 1, 0, 0, 0, 0]
    for word, message in (
        ("dataset.keys=a", "dataset.keys=a: does not apply to d4rl data"),
        ("dataset.horizon=0", "must be at least 1"),
        ("dataset.keys=[a]", "must be text"),
        ("dataset.nothing=1", "folder has no such setting"),
    ):
        with pytest.raises(TrimtabError, match=re.escape(message)):
            opened(f"dataset={tmp_path / 'd.hdf5'}", word)


def test_a_contradicted_control_rate_is_refused_or_stated(tiny: Any, tmp_path: Path) -> None:
    """Both ways, the run knows the rate; a stated one is part of what the run is known by."""
    path = tmp_path / "x"
    save = get_format("lerobot").save
    assert save is not None
    save(load_minari(tiny.dataset), path)
    (path / "meta/trimtab.json").unlink()
    words = [*tiny.cloning(tmp_path / "out"), f"dataset={path}"]
    plain = checked_plan(compose_run(words))
    information = json.loads((path / "meta/info.json").read_text())
    true = information["fps"]
    (path / "meta/info.json").write_text(json.dumps({**information, "fps": 2 * true}))
    with pytest.raises(
        TrimtabError, match=rf"'timestamp': row 1 comes .* their median tells {true}"
    ):
        checked_plan(compose_run(words))
    stated = checked_plan(compose_run([*words, f"dataset.control_rate={true}"]))
    assert stated.dataset is not None and stated.dataset.control_rate == true
    same = checked_plan(compose_run([*words, f"dataset.control_rate={true}.0"]))
    assert plain.config_hash != stated.config_hash == same.config_hash
    for value in ("0", "-5", "inf", "fast"):
        with pytest.raises(TrimtabError, match="dataset.control_rate=.*: must be"):
            checked_plan(compose_run([*words, f"dataset.control_rate={value}"]))


def test_every_suites_data_is_of_its_task() -> None:
    """Only the arena's mazes learn from demonstrations of another one, whose doors are open."""
    checked, others, seen = set(), set(), set()
    suites = [load_suite(name, "runs", [0]) for name in group_options("suite")]
    # Whose other tasks are not in the first scale.
    for name, run in (("offline", "*-td3_bc"), ("offline_to_online", "*-td3_bc"), ("arena", "*")):
        suites.append(load_suite(name, "runs", [0], scale="gpu", only=[run]))
    for suite in suites:
        name = suite.name
        for job in suite.jobs:
            words = [word for word in job.overrides if word != "device=cuda"]
            if not any(word.startswith("dataset=") for word in words):
                continue
            # Runs that differ in neither are composed once: that is what takes the time.
            decides = ("env=", "env_options", "dataset", "other_task", "act_steps")
            of_data = tuple(word for word in words if word.startswith(decides))
            if of_data in seen:
                continue
            seen.add(of_data)
            base = ["base=a/b"] if job.base else []
            config = compose_run([*words, *base])
            if config["dataset"] is None or "env" not in config["dataset"]:
                continue
            spec = get_spec(config["env"], **checked_names(config["env_options"]))
            if config["other_task"]:
                others.add((name, config["env"]))
                continue
            matching.check_recipe_fits(config["dataset"], spec, other_task=False)
            checked.add((config["env"], config.dataset))
    assert {data for _, data in checked} == {
        "two_routes", "two_doors", "push_noisy", "hopper_replay", "maze_medium_mixed",
        "metaworld_expert", "metaworld_mixed", "ogbench_cube", "push_t", "robosuite_lift",
        *(f"{robot}_{tier}" for robot in ("hopper", "halfcheetah", "walker2d")
          for tier in ("medium", "medium_replay", "medium_expert")),
    }  # fmt: skip
    mazes = ("PointMaze-TwoDoors-v0", "PointMaze-TwoRoutes-Blocked-v0")
    assert others == {("arena", f"robotics/{maze}") for maze in mazes}
