"""One's own task: by Gymnasium's id or in a family, and what is wrong with it in one line each.

``toys.py`` has a right task and wrong ones; each line is met three times: by ``trimtab check``, by
a run before it writes anything, and where an evaluation meets it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from trimtab.benchmarks.cli.commands import check as checks
from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.cli.main import run as carry_out
from trimtab.benchmarks.data.dataset_replay import check_replay, not_replayed
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.envs import registry
from trimtab.envs.check import Episode
from trimtab.envs.core import spec as specs
from trimtab.envs.registry import get_spec, make
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError

SAC = ["algorithm=sac", "algorithm.warmup_steps=8", "algorithm.hidden=[8]", "eval_episodes=2"]
SAC += ["algorithm.batch_size=8", "online_steps=24"]
SUCCESS = "env_options.success_key=success"


def forget() -> None:
    registry._families.cache_clear()
    registry._spec.cache_clear()


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of wrong tasks, on the path as a user's is, and named as a family's."""
    folder = tmp_path_factory.mktemp("toys")
    shutil.copy(Path(__file__).with_name("toys.py"), folder / "toys.py")
    before = {**gymnasium.registry}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv(registry.OUTSIDE, "toys")
        forget()
        yield __import__("toys")
    gymnasium.registry.clear()
    gymnasium.registry.update(before)
    sys.modules.pop("toys", None)
    forget()


def said(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    """Carry words out; return the exit code and the lines on both outputs."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, (shown.out + shown.err).splitlines()


def refused(out: Path, *words: str) -> str:
    """Return the one line that a run is refused with, before it has written anything."""
    with pytest.raises(TrimtabError) as error:
        carry_out(["train", *SAC, f"out={out}", *words])
    assert error.value.exit_code == 2 and "\n" not in str(error.value)
    assert len(str(error.value)) < 600 and not out.exists()
    return str(error.value)


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


def test_workers_find_it_too(toys: ModuleType, tmp_path: Path) -> None:
    words = ["env=gymnasium:toys:toys/Right-v0", *SAC, f"out={tmp_path}", "-m", "seed=0,1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(str(toys.__file__)).parent), prepend=":")
        assert carry_out(["train", *words, "workers=2"]) == 0
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


# ---- wrong tasks ---------------------------------------------------------------------------------

AT_ONCE = {
    "Discrete": "its action_space is Discrete(3); Trimtab's policies act in a Box of real numbers",
    "DiscreteState": "its observation_space is Discrete(3); Trimtab reads a Box of numbers",
    "Infinite": "its action_space has the limits -inf to inf in entry 0; give finite limits",
    "Picture": "its observation_space is a picture, Box(0, 255, (8, 8, 3), uint8)",
    "OtherShape": "reset() returned an observation of shape (2,), but observation_space has (3,)",
    "Words": "reset() returned an observation of one array of shape (3,) and type <U1",
    "NotFinite": "reset() returned an observation that is not finite (entry 0)",
    "MissingPart": "reset() returned an observation with the keys at, but observation_space has",
    "OldReset": "reset() returned one array of shape (3,) and type float64; return (observation,",
    "OldestReset": "reset() does not take seed= and options=, as in Gym's old interface",
    "OldStep": "step() returned 4 values, as in Gym's old interface; return (observation, reward",
    "NoReward": "step() returned the reward None; return a finite number",
    "TextReward": "step() returned the reward '1.0'; return a finite number",
    "NanReward": "step() returned the reward nan; return a finite number",
    "HugeReward": "step() returned the reward 100000",
    "ArrayReward": "step() returned the reward array([0.]); return a finite number",
    "TooLarge": "reset() returned an observation with 1e+300 in entry 0, which float32 cannot hold",
    "FarLimits": "its action_space has the limits -3e+38 to 3e+38 in entry 0; give finite limits",
    "NeedsAnArgument": "); give what it needs as env_options.<name>=…",
    "CountedSuccess": "step() returned 7 as info['success']; return True or False",
    "NoSuccess": "step() returned an info without 'success', the task's success_key (it has other)",
    "TextSuccess": "step() returned 'yes' as info['success']; return True or False",
    "NoInfo": "step() returned None as info; return a dictionary",
    "WrongParts": "its obs_parts are {'observation': (0, 1, 2, 3)}; give a dictionary from names",
    "Raises": "IndexError: a mistake of mine, toys.py line",
    "RaisesItsOwnKind": "OwnKind: a mistake of mine, toys.py line",
    "Exits": "SystemExit: no licence, toys.py line",
    "ExitsWhenMade": "cannot be made (SystemExit",
}
"""What a run is refused with before anything is written, and what a check says."""
LATER = {
    "OtherShapeLater": "step() returned an observation of shape (2,), but observation_space has (3",
    "OtherShapeAgain": "reset() returned an observation of shape (2,), but observation_space has (",
    "TextRewardLater": "step() returned the reward '1.0'; return a finite number",
}
"""What a run meets after some steps."""
BY_PLAYING = {
    "Truncates": "step() truncated the episode after 25 steps, inside the horizon of 30",
    "UnseededStart": "reset(seed=11) a second time gives another observation: take all that is",
    "UnseededStep": "reset(seed=11) a second time gives another observation after 1 steps",
    "ChangesTheAction": "step() changes the array of the action that it is given, which is the pol",
    "LeavesItsProcess": "it ends the process that plays it, without a word: see what reset() an",
    "OfTheProcess": "reset(seed=…) in another process gives another observation: something of the",
}
"""What only a check sees."""


@pytest.mark.parametrize("name", [*AT_ONCE, *LATER, *BY_PLAYING])
@pytest.mark.parametrize("id", ["gymnasium:toys/{}-v0", "toys/{}"])
def test_a_check_says_each_fault_in_one_line(
    id: str,
    name: str,
    toys: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "process" not in BY_PLAYING.get(name, ""):  # to start one takes longer than all the rest
        there = Episode(faults=["as here"])
        monkeypatch.setattr(checks, "_play_elsewhere", lambda *found: (there, []))
    id = id.format(name)
    words = [SUCCESS] if ":" in id else []
    code, lines = said(capfd, "check", f"env={id}", *words)
    assert (code, len(lines)) == (2, 1), lines
    assert {**AT_ONCE, **LATER, **BY_PLAYING}[name] in lines[0] and lines[0].startswith(f"{id}: ")


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_run_is_refused_with_the_same_line(name: str, toys: ModuleType, tmp_path: Path) -> None:
    for words in (
        [f"env=toys/{name}"],
        [f"env=gymnasium:toys/{name}-v0", SUCCESS],
    ):
        assert AT_ONCE[name] in refused(tmp_path / "out", *words)


@pytest.mark.parametrize("name", LATER)
def test_what_comes_later_ends_a_run_in_one_line(
    name: str, toys: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *SAC, f"out={tmp_path}", f"env=gymnasium:toys/{name}-v0"]
    code, lines = said(capfd, *words)
    assert code == 2 and LATER[name] in lines[-1] and "Traceback" not in "".join(lines)
    assert not list(tmp_path.rglob("result.json")) and not list(tmp_path.rglob("*.tmp"))


def test_an_evaluation_meets_the_same_line(toys: ModuleType, tmp_path: Path) -> None:
    assert carry_out(["train", *SAC, f"out={tmp_path}", "env=gymnasium:toys/Right-v0"]) == 0
    (result,) = tmp_path.rglob("result.json")
    for name, told in {**AT_ONCE, **LATER}.items():
        words = [f"policy={result.parent}", f"env=toys/{name}", "episodes=2"]
        with pytest.raises(TrimtabError) as error:
            carry_out(["evaluate", *words])
        assert told in str(error.value) and "\n" not in str(error.value)


def test_a_check_lists_several_faults(toys: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    class Both(toys.Right):  # type: ignore[name-defined, misc]
        observation_space = gymnasium.spaces.Discrete(2)
        action_space = gymnasium.spaces.Discrete(2)

    class Worse(toys.TextSuccess):  # type: ignore[name-defined, misc]
        reward = toys.NoReward.reward
        start = toys.UnseededStart.start

    gymnasium.register("toys/Both-v0", entry_point=Both, max_episode_steps=9)
    gymnasium.register("toys/Worse-v0", entry_point=Worse, max_episode_steps=9)
    code, lines = said(capfd, "check", "env=gymnasium:toys/Both-v0")
    assert code == 2 and ["observation_space" in line for line in lines] == [True, False]
    code, lines = said(capfd, "check", "env=gymnasium:toys/Worse-v0", SUCCESS)
    told = ("the reward None", "'yes' as info", "gives another observation", "in a worker process")
    assert code == 2 and len(lines) == 4
    for part, line in zip(told, lines, strict=True):
        assert part in line
    code, shown = said(capfd, "check", "env=gymnasium:toys/Worse-v0", SUCCESS, "format=json")
    assert code == 2 and len(json.loads("\n".join(shown))["faults"]) == 4


def test_a_task_that_another_process_does_not_find(
    toys: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register("OnlyHere-v0", entry_point=toys.Right, max_episode_steps=9)
    code, (line,) = said(capfd, "check", "env=gymnasium:OnlyHere-v0")
    assert code == 2 and "cannot be made in a worker process (" in line
    assert "register it in a package, and name the package" in line


@pytest.mark.parametrize("id", ["toys/Right", "gymnasium:toys/Parts-v0", "gym/Reacher-v5"])
def test_a_right_task_has_no_fault(
    id: str, toys: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    code, (line,) = said(capfd, "check", f"env={id}", "env_options={horizon: 25}")
    assert code == 0 and line.startswith(f"{id}: no fault found (observation ")
    assert f"horizon 25, physics {get_spec(id, horizon=25).fingerprint})" in line


def test_a_task_that_waits_is_said_to(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "SILENCE", 1.0)
    code, lines = said(capfd, "check", "env=toys/Waits")
    assert code == 0 and "no fault found" in lines[0]
    assert "toys/Waits: its first 20 steps are not over after 1 s; see whether its" in lines[1]


# ---- wrong families ------------------------------------------------------------------------------


def test_gymnasiums_own_limit_inside_the_horizon(
    toys: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = "TimeLimit around it ends episodes after 30 steps, inside the horizon of 50"
    assert told in refused(tmp_path / "out", "env=toys/Limited")
    code, (line,) = said(capfd, "check", "env=toys/Limited")
    assert code == 2 and told in line
    assert make("toys/Limited", horizon=30).horizon == 30


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"packages": ("nowhere-to-be-found",)}, "names 'nowhere-to-be-found' in its packages"),
        ({"frames": lambda env: None}, "frames of its FAMILY returned None; return (time step in"),
        ({"frames": lambda env: (0.0, 1, "x")}, "frames of its FAMILY returned (0.0, 1, 'x')"),
        ({"frames": lambda env: env.model.opt}, "frames of its FAMILY raises AttributeError"),
        ({"frames": None}, "its FAMILY has frames=None"),
        ({"tasks": {"Right": specs.Task(-5)}}, "task 'Right' has horizon=-5; give a whole number"),
        ({"tasks": {"Right": specs.Task("x")}}, "task 'Right' has horizon='x'; give a whole"),  # type: ignore[arg-type]
        ({"tasks": {"Right": specs.Task(5, 3)}}, "task 'Right' has success_key=3"),  # type: ignore[arg-type]
        ({"build": lambda task, render: object()}, "returned object, no gymnasium.Env; return one"),
    ],
)
def test_a_wrong_family_is_told_in_one_line(
    change: dict[str, Any],
    told: str,
    toys: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(toys, "FAMILY", dataclasses.replace(toys.FAMILY, **change))
    forget()
    try:
        assert told in refused(tmp_path / "out", "env=toys/Right")
        code, lines = said(capfd, "check", "env=toys/Right")
        assert code == 2 and told in lines[0] and "Traceback" not in "".join(lines)
    finally:
        monkeypatch.undo()
        forget()


def test_a_task_without_a_clock(toys: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys, "FRAMES", lambda env: (None, 1, "none"))
    forget()
    assert get_spec("toys/Right").control_rate is None
    monkeypatch.undo()
    forget()
