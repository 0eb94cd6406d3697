"""One's own task, by Gymnasium's id: what it is good for, and wrong names and options of it.

``toys.py`` has a right task, and wrong ones for ``test_wrong_tasks.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from loading import load_module

from trimtab.benchmarks.cli.main import run as carry_out
from trimtab.benchmarks.training.data.dataset_replay import check_replay, not_replayed
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.envs.registry import get_spec, make
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError

checking = load_module(Path(__file__).with_name("checking.py"))
SAC: list[str] = checking.SAC
SUCCESS: str = checking.SUCCESS
forget, said, refused = checking.forget, checking.said, checking.refused
toys = checking.toys  # a fixture


# ---- right tasks ---------------------------------------------------------------------------------


def test_a_task_trains_evaluates_and_is_ranked_by_gymnasiums_id(
    toys: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    id, out = "gymnasium:toys/Right-v0", tmp_path / "runs"
    words = ["train", f"env={id}", SUCCESS, "env_options.gain=2", *SAC, f"out={out}"]
    assert carry_out([*words, "checkpoint_every=8"]) == 0
    (result,) = out.rglob("result.json")
    first = json.loads(result.read_text())
    assert carry_out(["evaluate", f"policy={result.parent}", "episodes=2"]) == 0
    assert carry_out(["leaderboard", f"runs={out}"]) == 0
    assert id in capfd.readouterr().out
    # Again from the last checkpoint: the task is found, its state restored, its numbers the same.
    result.unlink()
    assert carry_out([*words, "checkpoint_every=8"]) == 0
    again = json.loads(result.read_text())
    assert again["return"] == first["return"] and again["updates"] == first["updates"]


def test_a_worker_finds_it_too(toys: ModuleType, tmp_path: Path) -> None:
    words = ["env=gymnasium:toys:toys/Right-v0", *SAC, f"out={tmp_path}", "-m", "seed=0,1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(str(toys.__file__)).parent), prepend=":")
        assert carry_out(["train", *words, "workers=1"]) == 0
    assert len(list(tmp_path.rglob("result.json"))) == 2


def test_its_episodes_are_recorded_and_played_again(
    toys: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["dataset", "make", "dataset=hopper_random", f"out={tmp_path}", "dataset.steps=60"]
    words += ["dataset.env=gymnasium:toys/Right-v0", "dataset.controller.low=[-1,-1]"]
    assert carry_out([*words, "dataset.controller.high=[1,1]"]) == 0
    (folder,) = (path.parent for path in tmp_path.rglob("data"))
    assert not_replayed(load_minari(folder)) == ""
    assert check_replay(load_minari(folder)) == []
    document = json.loads((folder / "data" / "metadata.json").read_text())
    env = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(document["env_spec"]))
    np.testing.assert_array_equal(
        env.reset(seed=4)[0], make("gymnasium:toys/Right-v0").reset(seed=4)[0]
    )


def test_parts_are_laid_flat_in_the_order_of_the_space(toys: ModuleType) -> None:
    id = "gymnasium:toys/Parts-v0"
    spec = get_spec(id)
    assert spec.obs_dim == 3 and spec.obs_parts == {"at": (0,), "speed": (1, 2)}
    env, bare = make(id), toys.Parts()
    obs, _ = env.reset(seed=3)
    theirs, _ = bare.reset(seed=3)
    np.testing.assert_array_equal(obs, np.float32([theirs["at"], *theirs["speed"].ravel()]))
    parts, _ = make(id, observations="dict").reset(seed=3)
    np.testing.assert_array_equal(parts["speed"], theirs["speed"].ravel().astype(np.float32))
    envs = make_vec(id, 2, seed=0, observations="dict")
    assert {name: part.shape for name, part in envs.reset()[0].items()} == {
        "at": (2, 1), "speed": (2, 2),
    }  # fmt: skip
    assert get_spec("toys/Parts").obs_parts == spec.obs_parts  # a family's too


def test_actions_of_another_shape_are_laid_flat(toys: ModuleType) -> None:
    one, other = make("gymnasium:toys/FlatBoxOfActions-v0"), make("gymnasium:toys/Right-v0")
    assert one.action_space == other.action_space
    one.reset(seed=1)
    other.reset(seed=1)
    action = np.float32([0.5, -1])
    np.testing.assert_array_equal(one.step(action)[0], other.step(action)[0])


@pytest.mark.parametrize(("low", "high"), [(-0.3, 0.7), (1e6 + 0.1, 1e6 + 0.3)])
def test_limits_that_float32_has_not_are_kept(
    low: float, high: float, toys: ModuleType, tmp_path: Path
) -> None:
    words = ["env=gymnasium:toys/Strict-v0", f"env_options.low={low}", f"env_options.high={high}"]
    assert carry_out(["check", *words]) == 0
    words += ["algorithm=ppo", "algorithm.rollout_steps=64", "algorithm.hidden=[8]"]
    words += ["online_steps=128", "num_envs=1", "eval_episodes=1", f"out={tmp_path}"]
    assert carry_out(["train", *words]) == 0  # a third of its actions are beyond a limit
    (result,) = tmp_path.rglob("result.json")
    contract = json.loads((result.parent / "policy" / "config.json").read_text())
    action = contract["outputs"]["action"]
    assert low <= action["low"][0] < action["high"][0] <= high


def test_what_cannot_be_drawn_says_why(toys: ModuleType) -> None:
    with pytest.raises(TrimtabError, match="cannot be drawn: its constructor takes no render_mode"):
        make("gymnasium:toys/Right-v0", render=True)


def test_the_episode_is_gymnasiums(toys: ModuleType) -> None:
    ours, theirs = make("gymnasium:Pendulum-v1"), gymnasium.make("Pendulum-v1")
    np.testing.assert_array_equal(ours.reset(seed=2)[0], theirs.reset(seed=2)[0])
    for step in range(200):
        action = np.float32([np.sin(step)])
        got, expected = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(got[0], expected[0])
        assert got[1:4] == expected[1:4]
    assert got[3]  # both cut it at the same step


def test_the_horizon_is_gymnasiums_or_given(toys: ModuleType, tmp_path: Path) -> None:
    assert get_spec("gymnasium:toys/Right-v0").horizon == toys.STEPS
    longer = get_spec("gymnasium:toys/Right-v0", horizon=80)
    assert longer.horizon == 80 and longer.options == {"horizon": 80}
    env = make("gymnasium:toys/Right-v0", horizon=80)
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[3] for _ in range(80)]
    assert ends == [False] * 79 + [True]
    line = refused(tmp_path / "out", "env=gymnasium:toys/NoLimit-v0")
    assert "says no length of its episodes; add env_options.horizon=<steps>" in line
    assert get_spec("gymnasium:toys/NoLimit-v0", horizon=9).options == {"horizon": 9}


def test_physics_is_known_by_versions_source_and_spec(toys: ModuleType) -> None:
    id = "gymnasium:toys/Right-v0"
    spec = get_spec(id)
    assert spec.physics["gymnasium"] == gymnasium.__version__
    assert spec.physics["timestep"] == 0.1 and spec.control_rate == 10.0
    assert get_spec("gymnasium:MountainCarContinuous-v0").control_rate == 30.0  # its pictures'
    names = {spec.fingerprint, get_spec(id, gain=2.0).fingerprint}
    names.add(get_spec(id, horizon=7).fingerprint)
    names.add(get_spec("gymnasium:toys/Parts-v0").fingerprint)
    file = Path(str(toys.__file__))
    text = file.read_text()
    try:
        file.write_text(text + "\n# a reward that was edited\n")
        forget()
        names.add(get_spec(id).fingerprint)
        file.write_text(text)
        forget()
        assert get_spec(id).fingerprint == spec.fingerprint
    finally:
        file.write_text(text)
        forget()
    gymnasium.registry["toys/Right-v0"].kwargs["gain"] = 3.0
    try:
        forget()
        names.add(get_spec(id).fingerprint)
    finally:
        gymnasium.registry["toys/Right-v0"].kwargs.clear()
        forget()
    assert len(names) == 6
    assert {"mujoco", "gymnasium"} < get_spec("gymnasium:Reacher-v5").physics.keys()


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "told"),
    [
        ("Pendulum-v1", "the nearest is 'gymnasium:Pendulum-v1'"),
        ("toys:toys/Right-v0", "the nearest is 'gymnasium:toys:toys/Right-v0'"),
        ("mine/Task", "a task of your own is named gymnasium:<id> if Gymnasium knows it"),
        ("mine/Task", "or <family>/<task> with TRIMTAB_FAMILIES=<your module>"),
        ("gymnasium:Pendulum", "nearest is gymnasium:Pendulum-v1; if a package registers it, name"),
        ("gymnasium:nowhere:A-v0", "the package 'nowhere' cannot be imported (ModuleNotFoundError"),
        ("gymnasium:nowhere/A-v0", "name the package before it: gymnasium:<package>:nowhere/A-v0"),
        ("gymnasium::A-v0", "the package '' cannot be imported"),
        ("gymnasium:", "Gymnasium knows no environment ''"),
    ],
)
def test_an_unknown_task_is_told_how_ones_own_is_named(
    id: str, told: str, toys: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(tmp_path / "out", f"env={id}")
    code, lines = said(capfd, "check", f"env={id}")
    assert code == 2 and len(lines) == 1 and told in lines[0]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("env_options.gan=1", "cannot be made (TypeError"),
        ("env_options.max_episode_steps=9", "its length is env_options.horizon"),
        ("env_options.render_mode=human", "render_mode is no option of a task"),
        ("env_options.success_key=3", "success_key=3 must be the name of an entry of info"),
        ("env_options.seed=3", "env_options: 'seed' is no option of an environment"),
        ("env_options.threads=true", "give the argument of its constructor another name"),
        ("env_options.horizon=-5", "horizon must be a whole number of steps >= 1"),
        ("env_options.horizon=x", "horizon must be a whole number of steps >= 1"),
        ("env_options.reward=sparse", "has no notion of success"),
    ],
)
def test_a_wrong_option_is_named(
    word: str, told: str, toys: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(tmp_path / "out", "env=gymnasium:toys/Right-v0", word)
    code, lines = said(capfd, "check", "env=gymnasium:toys/Right-v0", word)
    assert code == 2 and len(lines) == 1 and told in lines[0]
