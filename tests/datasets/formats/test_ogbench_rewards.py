"""The rewards of OGBench's single tasks, against OGBench's own relabelling of the same file."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from trimtab.benchmarks.training.data.offline_data import open_dataset
from trimtab.datasets.catalog import load_external
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.ogbench.rewards import numbered, same_scene
from trimtab.datasets.formats.registry import get_format
from trimtab.datasets.lint import check
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.registry import list_envs, make
from trimtab.errors import TrimtabError

TRAJECTORIES, ROWS = 3, 12
TASKS = (
    "pointmaze-medium-singletask-v0",
    "antmaze-large-singletask-task3-v0",
    "antsoccer-arena-singletask-v0",
    "cube-double-singletask-v0",
    "scene-singletask-task4-v0",
    "puzzle-3x3-singletask-v0",
)


@functools.cache
def environment(task: str) -> Any:
    return make(f"ogbench/{task}")


@pytest.fixture(autouse=True)
def global_generator() -> Iterator[None]:
    """OGBench draws from numpy's global generator; other tests are not to notice."""
    before = np.random.get_state(legacy=False)
    yield
    np.random.set_state(before)


def places_of_things(scene: Any) -> dict[str, npt.NDArray[Any]]:
    data = getattr(scene, "_data", None) or scene.data
    found = {"qpos": data.qpos.copy(), "qvel": data.qvel.copy()}
    if hasattr(scene, "_cur_button_states"):
        found["button_states"] = scene._cur_button_states.copy()
    return found


def put_near_goal(scene: Any, generator: np.random.Generator, share: float) -> None:
    """Move each thing to its goal with the chance ``share``, not always within the tolerance.

    Otherwise it is moved away from there, or left where it is.
    """
    if hasattr(scene, "cur_goal_xy"):
        qpos, qvel = scene.data.qpos.copy(), scene.data.qvel.copy()
        first = 15 if hasattr(scene, "get_agent_ball_xy") else 0
        if generator.random() < share:
            qpos[first : first + 2] = scene.cur_goal_xy + generator.normal(size=2) * 0.5
        scene.set_state(qpos, qvel)
        return
    states = places_of_things(scene)
    qpos, buttons = states["qpos"], states.get("button_states")
    cubes = scene._data.mocap_pos
    for index, goal in enumerate(cubes):
        first, away = 14 + 7 * index, 0.2 * (generator.random() >= share)
        qpos[first : first + 3] = goal + generator.normal(size=3) * 0.015 + away
    if buttons is not None:
        given = generator.random(len(buttons)) < share
        buttons = np.where(given, scene._target_button_states, 1 - scene._target_button_states)
    if hasattr(scene, "_target_drawer_pos"):
        drawer, window = scene._target_drawer_pos, scene._target_window_pos
        for column, goal in ((-2, drawer), (-1, window)):
            if generator.random() < share:
                qpos[column] = goal + generator.normal() * 0.02
    more = () if buttons is None else (buttons,)
    scene.set_state(qpos, states["qvel"], *more)


def record(task: str, path: Path, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[np.float32]:
    """Play a few seeded steps of the real environment; return the rewards that it gave.

    The file is laid out as OGBench publishes it: T+1 rows a trajectory, and the states.
    """
    env = environment(task)
    generator = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {}
    rewards = []
    for trajectory in range(TRAJECTORIES):
        obs, _ = env.reset(seed=trajectory)
        scene = env.raw.scene
        for row in range(ROWS):
            if row % 3:
                put_near_goal(scene, generator, (0.5, 1.0)[row % 2])
            states = places_of_things(scene)
            action = generator.uniform(-1, 1, size=env.action_space.shape)
            values = {"observations": obs, "actions": action, "terminals": row == ROWS - 1}
            for name, value in {**values, **states}.items():
                rows.setdefault(name, []).append(value)
            obs, reward, *_ = env.raw.step(action)
            if row < ROWS - 1:
                rewards.append(reward)
    arrays = {name: np.array(values) for name, values in rows.items()}
    for name in ("observations", "actions", "terminals"):
        arrays[name] = arrays[name].astype(np.float32)
    for name in ("qpos", "qvel"):
        arrays[name] = arrays[name].astype(dtype)
    np.savez_compressed(path, **arrays)
    return np.array(rewards, np.float32)


def relabelled(task: str, path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return what OGBench's own loader makes of the file for the task."""
    from ogbench.relabel_utils import relabel_dataset
    from ogbench.utils import load_dataset

    arrays: dict[str, npt.NDArray[Any]] = load_dataset(path, add_info=True)
    relabel_dataset(task, environment(task).raw.scene, arrays)
    return arrays


def joined(dataset: Dataset, get: Callable[[Any], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([get(episode) for episode in dataset.episodes])


@pytest.mark.parametrize("task", TASKS)
def test_rewards_and_masks_are_those_of_ogbench(task: str, tmp_path: Path) -> None:
    path = tmp_path / "x-play-v0.npz"
    given = record(task, path)
    theirs = relabelled(task, path)
    dataset = get_format("ogbench").load(path, env=f"ogbench/{task}")
    assert [len(episode) for episode in dataset.episodes] == [ROWS - 1] * TRAJECTORIES
    rewards = joined(dataset, lambda e: e.rewards)
    terminations = joined(dataset, lambda e: e.terminations)
    np.testing.assert_array_equal(rewards, theirs["rewards"])
    np.testing.assert_array_equal(1 - terminations, theirs["masks"])
    for name, part in (("observations", slice(-1)), ("next_observations", slice(1, None))):
        seen = np.concatenate([episode.observations[part] for episode in dataset.episodes])
        np.testing.assert_array_equal(seen, theirs[name])
    np.testing.assert_array_equal(joined(dataset, lambda e: e.infos["success"]), terminations)
    np.testing.assert_array_equal(
        joined(dataset, lambda e: e.terminations | e.truncations),
        (theirs["masks"] == 0) | (theirs["terminals"] == 1),
    )
    # It says something: some rows are solved and some are not, also in parts, and it is what the
    # environment itself gave for acting in these states.
    assert 0 < terminations.sum() < len(terminations)
    parts = {"pointmaze": 2, "antmaze": 2, "antsoccer": 2}
    assert len(set(rewards)) >= parts.get(task.partition("-")[0], 3)
    np.testing.assert_array_equal(rewards, given)


@pytest.mark.parametrize("task", TASKS[:1])
def test_targets_of_q_learning_are_those_of_ogbench(task: str, tmp_path: Path) -> None:
    record(task, tmp_path / "x.npz")
    theirs = relabelled(task, tmp_path / "x.npz")
    dataset = get_format("ogbench").load(tmp_path / "x.npz", env=f"ogbench/{task}")
    batch = ReplayBuffer.from_dataset(dataset, discount=0.9).sample(500)
    rows = {row.tobytes(): index for index, row in enumerate(theirs["observations"])}
    index = np.array([rows[row.tobytes()] for row in batch.obs.numpy()])
    assert len(set(index)) == len(rows)
    np.testing.assert_array_equal(batch.reward, theirs["rewards"][index])
    np.testing.assert_array_equal(batch.next_obs, theirs["next_observations"][index])
    np.testing.assert_array_equal(batch.discount, np.float32(0.9) * theirs["masks"][index])
    # A longer window goes no further than a solved row or a trajectory's end.
    windows = ReplayBuffer.from_dataset(dataset, discount=0.9, window=3).sample(500)
    drawn = (windows.obs.numpy(), windows.reward, windows.discount)
    for first, reward, discount in zip(*drawn, strict=True):
        start = rows[first.tobytes()]
        used, total = 0, 0.0
        while True:
            row = start + used
            total += 0.9**used * theirs["rewards"][row]
            used += 1
            if used == 3 or not theirs["masks"][row] or theirs["terminals"][row]:
                break
        assert reward.item() == pytest.approx(total, abs=1e-6)
        assert discount.item() == pytest.approx(0.9**used * theirs["masks"][row], abs=1e-6)


@functools.cache
def committed() -> dict[str, dict[str, Any]]:
    import trimtab

    file = Path(next(iter(trimtab.__path__))) / "datasets/formats/ogbench/goals.yaml"
    return dict(yaml.safe_load(file.read_text()))


def goals() -> dict[str, dict[str, Any]]:
    return copy.deepcopy(committed())


def test_every_single_task_of_ours_has_its_goal() -> None:
    single = [name for name in list_envs() if "-singletask" in name]
    assert len(single) == 6 * len(goals())
    assert len({numbered(name) for name in single} - {None}) == 5 * len(goals())
    assert numbered("ogbench/cube-double-v0") is None
    assert same_scene("ogbench/scene-singletask-v0", "ogbench/scene-singletask-task5-v0")
    assert not same_scene("", "gym/Hopper-v5")
    assert not same_scene("ogbench/scene-singletask-v0", "ogbench/cube-single-singletask-v0")


@pytest.mark.parametrize("scene", [name for name in goals() if "places" in goals()[name]])
def test_goals_of_mazes_are_those_of_ogbench(scene: str) -> None:
    with contextlib.closing(make(f"ogbench/{scene}-singletask-v0")) as env:
        env.reset(seed=0)
        theirs, ours = env.raw.scene, goals()[scene]
        places = [theirs.ij_to_xy(info["goal_ij"]) for info in theirs.task_infos]
        np.testing.assert_array_equal(places, ours["places"])
        np.testing.assert_array_equal(theirs.cur_goal_xy, ours["places"][ours["default"] - 1])
        assert theirs._reward_task_id == ours["default"]
        assert (theirs._goal_tol, theirs.model.nq) == (ours["tolerance"], ours["columns"])


@pytest.mark.parametrize("scene", [name for name in goals() if "places" not in goals()[name]])
def test_goals_of_manipulation_are_those_of_ogbench(scene: str) -> None:
    from ogbench.manipspace.envs.cube_env import CubeEnv
    from ogbench.manipspace.envs.puzzle_env import PuzzleEnv
    from ogbench.manipspace.envs.scene_env import SceneEnv

    family, _, kind = scene.partition("-")
    rows, columns = (int(part) if part.isdecimal() else 0 for part in (kind + "xx").split("x")[:2])
    # Its tasks are set before anything of a scene is made, which would take seconds.
    bare = SimpleNamespace(_env_type=kind, _reward_task_id=0, _num_rows=rows, _num_cols=columns)
    {"cube": CubeEnv, "scene": SceneEnv, "puzzle": PuzzleEnv}[family].set_tasks(bare)
    names = {
        "cubes": ("goal_xyzs", "block_xyzs"), "buttons": ("goal_button_states", "button_states"),
        "drawer": ("drawer_pos",), "window": ("window_pos",),
    }  # fmt: skip
    ours = goals()[scene]
    assert ours.pop("default") == bare._reward_task_id
    kinds = {"cube": {"cubes"}, "puzzle": {"buttons"}, "scene": set(names)}
    assert set(ours) == kinds[family]
    for name, values in ours.items():
        for value, info in zip(values, bare.task_infos, strict=True):
            goal = info.get("goal", info)
            np.testing.assert_array_equal(value, next(goal[k] for k in names[name] if k in goal))


def test_the_validation_file_and_other_formats_keep_the_rewards(
    foreign: Any, tmp_path: Path
) -> None:
    places = np.array([[0, 0], [19.5, 20.5], [20, 20], [5, 5], [0, 0], [1, 1], [20, 20.9]])
    foreign.ogbench(tmp_path / "x.npz", qpos=places)
    foreign.ogbench(tmp_path / "x-val.npz", (2,), qpos=places[:3] + 20)
    task = "ogbench/pointmaze-medium-singletask-v0"
    dataset = get_format("ogbench").load(tmp_path / "x.npz", env=task)
    assert dataset.recipe["rewards_of"] == "ogbench/pointmaze-medium-singletask-task1-v0"
    assert [e.rewards.tolist() for e in dataset.episodes] == [[-1, 0, 0], [-1, -1], [0, -1]]
    one, two, three = dataset.episodes
    assert one.terminations.tolist() == [False, True, True] and not one.truncations.any()
    assert two.truncations.tolist() == [False, True] and not two.terminations.any()
    assert (three.terminations.tolist(), three.truncations.tolist()) == (
        [True, False],
        [False, True],
    )
    assert "flag-inside-episode" not in [finding.code for finding in check(dataset)]
    for name, file in (("minari", "m"), ("d4rl", "d.hdf5"), ("ogbench", "o.npz"), ("lerobot", "l")):
        format = get_format(name)
        assert format.save is not None
        format.save(dataset, tmp_path / file)
        assert format.load(tmp_path / file).content_hash == dataset.content_hash
    # A validation file whose rewards cannot be told leaves nothing that one could trust.
    foreign.ogbench(tmp_path / "x-val.npz", (2,), qpos=places[:3, :1])
    with pytest.raises(TrimtabError, match="states of one of it and x-val.npz alone"):
        get_format("ogbench").load(tmp_path / "x.npz", env=task)


@pytest.mark.parametrize(
    ("env", "more", "why"),
    [
        (None, {}, "read it with env=<a single task> to have that task's"),
        ("ogbench/pointmaze-medium-v0", {}, "ogbench/pointmaze-medium-v0 is no single task"),
        ("ogbench/mars-singletask-v0", {}, "ogbench/mars-singletask-v0 is no single task"),
        ("ogbench/antmaze-medium-singletask-v0", {}, r"qpos has the shape (7, 2), not (N, 15)"),
        ("ogbench/puzzle-3x3-singletask-v0", {}, "it has no button_states"),
        ("ogbench/scene-singletask-v0", {"qpos": np.zeros((7, 25))}, "it has no button_states"),
        ("ogbench/cube-single-singletask-v0", {"qpos": np.zeros(7)}, "qpos has the shape (7,)"),
    ],
)
def test_what_cannot_be_told_is_zero_and_says_why(
    env: str | None,
    more: dict[str, Any],
    why: str,
    foreign: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    foreign.ogbench(tmp_path / "x.npz", **more)
    dataset = get_format("ogbench").load(tmp_path / "x.npz", **({"env": env} if env else {}))
    assert not joined(dataset, lambda e: e.rewards).any()
    assert not joined(dataset, lambda e: e.terminations).any()
    assert "rewards_of" not in dataset.recipe
    (line,) = [record.getMessage() for record in caplog.records]
    assert "it has no rewards; they are zero (" in line and why in line


def test_stored_rewards_stay(foreign: Any, tmp_path: Path) -> None:
    foreign.ogbench(tmp_path / "x.npz", rewards=np.arange(7.0))
    task = "ogbench/pointmaze-medium-singletask-v0"
    dataset = get_format("ogbench").load(tmp_path / "x.npz", env=task)
    assert dataset.episodes[1].rewards.tolist() == [4, 5]
    assert "rewards_of" not in dataset.recipe


def test_a_listed_file_serves_every_single_task_of_its_scene(
    foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_DATASETS", str(tmp_path))
    (tmp_path / "ogbench").mkdir()
    places = np.array([[0.0, 0], [20, 20], [20, 0], [5, 5], [0, 0], [1, 1], [20, 20]])
    foreign.ogbench(tmp_path / "ogbench/pointmaze-medium-navigate-v0.npz", qpos=places)
    listed, task1 = (f"ogbench/pointmaze-medium-{n}-v0" for n in ("navigate", "singletask"))
    expected = {
        "": [-1, 0, -1],
        "ogbench/pointmaze-medium-singletask-task2-v0": [-1, -1, 0],
        "ogbench/cube-single-singletask-v0": [-1, 0, -1],  # the catalogue's own task
    }
    for task, rewards in expected.items():
        dataset = load_external(listed, task)
        assert dataset.episodes[0].rewards.tolist() == rewards
        assert dataset.env == (task if "task2" in task else task1)


def test_a_run_has_its_own_tasks_rewards_of_a_file(foreign: Any, tmp_path: Path) -> None:
    places = np.array([[0.0, 0], [20, 20], [20, 0], [5, 5], [0, 0], [1, 1], [20, 20]])
    foreign.ogbench(tmp_path / "x.npz", qpos=places)
    tasks = [f"ogbench/pointmaze-medium-singletask{number}-v0" for number in ("", "-task2")]
    for task, rewards in zip(tasks, ([-1, 0, -1], [-1, -1, 0]), strict=True):
        dataset = open_dataset(tmp_path / "x.npz", tmp_path, None, task=task)
        assert dataset.env == task
        assert dataset.episodes[0].rewards.tolist() == rewards
    dataset = open_dataset(tmp_path / "x.npz", tmp_path, None, task="gym/Hopper-v5")
    assert dataset.env == "unknown" and "rewards_of" not in dataset.recipe
