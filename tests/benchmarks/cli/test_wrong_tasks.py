"""Wrong tasks of one's own, by Gymnasium's id or in a family: what is wrong, in one line each.

``toys.py`` has them; each line is met three times: by ``trimtab check``, by a run before it writes
anything, and where an evaluation meets it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pyarrow.parquet as pq
import pytest
from loading import load_module

from trimtab.benchmarks.api import evaluate, train
from trimtab.benchmarks.cli.commands import check as checks
from trimtab.benchmarks.cli.main import run as carry_out
from trimtab.envs.check import Episode
from trimtab.envs.core import spec as specs
from trimtab.envs.registry import get_spec, make
from trimtab.errors import TrimtabError

pytestmark = pytest.mark.slow

checking = load_module(Path(__file__).with_name("checking.py"))
SAC: list[str] = checking.SAC
SUCCESS: str = checking.SUCCESS
forget, said, refused = checking.forget, checking.said, checking.refused
toys = checking.toys  # a fixture


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
    "NarrowLimits": "has the limits 1000000.1 to 1000000.11 in entry 0; give finite limits, th",
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
    "UnseededStart": "reset(seed=11) a second time gives another observation: take all that is",
    "UnseededStep": "reset(seed=11) a second time gives another observation after 1 steps",
    "ChangesTheAction": "step() changes the array of the action that it is given, which is the pol",
    "RefusesItsLimits": "step() at the limits of action_space raises AssertionError: too far, toys",
    "SeedsTorch": "reset() seeds torch's global random generator, or draws from it, which the",
    "DrawsFromNumPys": "step() seeds NumPy's global random generator, or draws from it, which the",
    "SeedsPythonsWhenMade": "its constructor seeds Python's global random generator, or draws from",
    "LeavesItsProcess": "it ends the process that plays it, without a word: see what reset() an",
    "OfTheProcess": "reset(seed=…) in another process gives another observation: something of the",
}
"""What only a check sees."""
AS_HERE = Episode(faults=["as here"])
"""What is found in another process, where that is not tested: to start one takes seconds."""


@pytest.mark.parametrize("name", [*AT_ONCE, *LATER, *BY_PLAYING])
@pytest.mark.parametrize("id", ["gymnasium:toys/{}-v0", "toys/{}"])
def test_a_check_says_each_fault_in_one_line(
    id: str,
    name: str,
    toys: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "process" not in BY_PLAYING.get(name, ""):
        monkeypatch.setattr(checks, "_play_elsewhere", lambda *found: (AS_HERE, []))
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
    code, shown = said(capfd, "check", "env=gymnasium:toys/Both-v0", "format=json")
    faults = json.loads("\n".join(shown))["faults"]
    assert code == 2 and [f"gymnasium:toys/Both-v0: {fault}" for fault in faults] == lines
    code, lines = said(capfd, "check", "env=gymnasium:toys/Worse-v0", SUCCESS)
    told = ("the reward None", "'yes' as info", "gives another observation", "in a worker process")
    assert code == 2 and len(lines) == 4
    for part, line in zip(told, lines, strict=True):
        assert part in line


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


# ---- wrong families ------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [21, 29])
def test_a_task_that_truncates_inside_the_horizon_is_taken_by_all_alike(
    after: int, toys: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(toys.Truncates, "after", after)
    code, lines = said(capfd, "check", "env=toys/Truncates")  # of 20 steps, elsewhere too
    assert code == 0, lines
    result = train({"env": "toys/Truncates", "algorithm": "sac", "algorithm.hidden": [8],
                    "algorithm.warmup_steps": 40, "online_steps": 60, "eval_episodes": 2,
                    "out": str(tmp_path)})  # fmt: skip
    rows = pq.read_table(result.folder / "episodes.parquet").to_pylist()
    assert [row["length"] for row in rows] == [after, after]
    scores = evaluate(result.folder, episodes=2)
    assert [one.length for one in scores.episodes] == [after, after]


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
        ({"frames": lambda env: None}, "frames of its FAMILY, which returns (time step in"),
        ({"frames": lambda env: (0.0, 1, "x")}, "it returned (0.0, 1, 'x')"),
        ({"frames": lambda env: env.model.opt}, "raises AttributeError"),
        ({"frames": None}, "its FAMILY has frames=None"),
        ({"tasks": {"Right": specs.Task(-5)}}, "task 'Right' has horizon=-5; give a whole number"),
        ({"tasks": {"Right": specs.Task("x")}}, "task 'Right' has horizon='x'; give a whole"),  # type: ignore[arg-type]
        ({"tasks": {"Right": specs.Task(5, 3)}}, "task 'Right' has success_key=3"),  # type: ignore[arg-type]
        ({"build": lambda task, render: object()}, "returned object; return a gymnasium.Env"),
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
    monkeypatch.setattr(checks, "_play_elsewhere", lambda *found: (AS_HERE, []))
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
