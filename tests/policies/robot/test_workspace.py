"""A workspace: a robot that measures itself outside of it goes to its fallback, and stays there."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.benchmarks.cli.main import run as command
from trimtab.benchmarks.cli.options import command_limits
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.robot.log import Played, read_log
from trimtab.policies.robot.replay import replay
from trimtab.policies.runtime import (
    NO_LIMITS,
    Damp,
    Fallback,
    Hold,
    Limits,
    PlayOut,
    RecedingHorizon,
    SafeAction,
    Workspace,
    control_loop,
    load_policy,
)

numbered = load_module(Path(__file__).with_name("numbered.py")).numbered
BundleOf = Callable[[str], Path]
BOX: Any = {"position": "x", "low": -1.0, "high": 2.5}
NAMES = ["tool_x", "tool_y", "tool_z", "a", "b", "tool_x_goal"]
UNITS = ["m", "m", "m", "rad", "rad", "not told"]


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        (Hold(patience=5), [2, 2, 2, 2]),
        (PlayOut(patience=5), [2, 2, 2, 2]),  # the plan led out: it is not played on
        (SafeAction(patience=5, safe=(-1.0,)), [-1, -1, -1, -1]),
        (Damp(safe=(1.0,), keep=0.5), [1.5, 1.25, 1.125, 1.0625]),
    ],
)
def test_outside_the_fallback_is_played_until_a_reset(
    fallback: Fallback, expected: list[float]
) -> None:
    runner = numbered(mode=RecedingHorizon(8), fallback=fallback, limits=Limits(workspace=BOX))
    assert [runner.step([float(tick)]).item() for tick in range(3)] == [0, 1, 2]
    assert runner.outside == "" and not runner.counts["outside"]
    seen: list[Any] = [[2.75], None, [0.0], [0.5]]  # out, unseen, and in again
    assert [runner.step(one).item() for one in seen] == expected
    assert runner.outside == "x is 2.75 m, and its workspace is -1 to 2.5 m"
    assert (runner.counts["outside"], runner.counts["fallback"]) == (4, 4)
    assert len(runner.plan().actions) == 0
    runner.reset()
    assert runner.step([0.5]).item() == 0.5 and runner.outside == ""


def test_numbers_whose_units_are_not_told_have_none() -> None:
    box = Workspace((0,), high=5.0)
    for unit, said in (("", "x is 5.5, and its workspace is -inf to 5"), ("m", "x is 5.5 m, and")):
        assert box.box({"obs": 1}, ["x"], [unit]).left_by(np.float32([5.5])).startswith(said)


def test_the_edge_is_inside_and_no_entry_changes_nothing() -> None:
    limits = Limits(workspace=Workspace((0,), 0.1, 0.3))
    runner = numbered(fallback=Hold(), limits=limits)
    for seen in (0.1, 0.3, np.float32(0.1), np.float32(0.3)):
        runner.step([seen])
    assert not runner.outside
    free = numbered(fallback=Hold(), limits=Limits(low=-9.0))
    assert free.step([1e5]).item() == 1e5 and "outside" not in free.counts


def test_without_a_fallback_it_raises_until_a_reset() -> None:
    runner = numbered(limits=Limits(workspace=BOX))
    runner.step([0.0])
    for seen in (-1.5, 0.0):
        with pytest.raises(TrimtabError, match=r"workspace: x is -1\.5 m, .* fallback=Hold"):
            runner.step([seen])
    runner.reset()
    assert runner.step([0.0]).item() == 0.0


class Instant:
    """A clock on which waiting takes no time."""

    def __init__(self) -> None:
        self._moment = 0.0

    def now(self) -> float:
        return self._moment

    def sleep_until(self, moment: float) -> None:
        self._moment = max(self._moment, moment)


def test_the_report_of_a_loop_says_what_has_left() -> None:
    runner = numbered(fallback=Hold(), limits=Limits(workspace=BOX))
    seen = iter([0.0, 1.0, 2.75, 9.0, 0.0])
    report = control_loop(runner, lambda: [next(seen)], lambda _: None, ticks=5, clock=Instant())
    assert report.counts["outside"] == 3
    assert "left the workspace: x is 2.75 m" in str(report) and runner.outside == ""
    runner.reset()
    quiet = control_loop(runner, lambda: [0.0], lambda _: None, ticks=5, clock=Instant())
    assert quiet.outside == "" and "workspace" not in str(quiet)


def test_nothing_is_asked_outside_and_what_was_asked_is_thrown_away() -> None:
    runner = numbered(
        chain([0, 3], repeat(0)), mode=RecedingHorizon(2), fallback=Hold(),
        limits=Limits(workspace=BOX),
    )  # fmt: skip
    for seen in (0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0):
        runner.step([seen])
    assert runner._inference.begun == 2
    assert runner.counts["thrown_away"] == 1
    runner.reset()
    assert runner.step([1.0]).item() == 1.0


@pytest.fixture
def boxed(copy_of: BundleOf, reseal: Any, tmp_path: Path) -> Path:
    """A bundle with names, in metres, and a copy of it that states a workspace."""
    plain = copy_of("gaussian")
    named = json.loads((plain / "config.json").read_text())["inputs"]
    named["obs"] |= {"order": NAMES, "units": UNITS}
    reseal(plain, config={"inputs": named})
    (tmp_path / "limits.yaml").write_text(
        "velocity: 50\n"
        "workspace: {position: [tool_x, tool_y, tool_z], low: [-1, -1e0, 0], high: 1}\n"
    )
    limits = command_limits("export", str(tmp_path / "limits.yaml"))
    return withhold_weights(plain, tmp_path / "boxed", limits)


def test_a_log_has_it_and_is_played_again_to_the_same_bits(
    boxed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tighter: Any = {"position": ["tool_x", "tool_y", "tool_z"], "high": [0.75, 1, 1]}
    runner = load_policy(
        boxed, seed=3, deterministic=False, fallback=Damp(safe=(0.5, 0.25)), log=tmp_path / "log",
        limits=Limits(workspace=tighter),
    )  # fmt: skip
    inside = np.float32([0.1, -0.1, 0.2, 9.0, 9.0, 9.0])
    for episode in range(2):
        runner.reset(action=[0.0, 0.0])
        for tick in range(20):
            runner.step(inside + np.float32([0.05 * tick * episode, 0, 0, 0, 0, 0]))
    runner.close()
    found = replay(tmp_path / "log")
    assert found.equal and found.same_processor and found.ticks == 40
    assert found.outside.startswith("tick 14 after reset 3: tool_x is 0.8 m")
    assert command(["replay", f"log={tmp_path / 'log'}"]) == 0
    assert "left its workspace at tick 14 after reset 3: tool_x" in capsys.readouterr().out
    steps = read_log(tmp_path / "log").steps(runner.contract)
    outside = [step.outside for step in steps if isinstance(step, Played)]
    assert outside == [False] * 34 + [True] * 6


def test_a_call_tightens_a_workspace_and_never_loosens_it(boxed: Path) -> None:
    stated = load_policy(boxed).limits.workspace
    assert stated is not None and stated.high == 1 and stated.low == (-1.0, -1.0, 0.0)
    tool = ("tool_x", "tool_y", "tool_z")
    wide = Limits(workspace=Workspace(tool, (-5, 0.5, -5)))
    both = load_policy(boxed, limits=wide).limits.workspace
    assert both is not None and (both.low, both.high) == ((-1.0, 0.5, 0.0), 1)
    with pytest.raises(TrimtabError, match=r"position=\['tool_z'\]: that of the bundle is"):
        load_policy(boxed, limits=Limits(workspace=Workspace(("tool_z",), 0.0)))
    with pytest.raises(TrimtabError, match="the bundle states"):
        load_policy(boxed, limits=Limits(workspace=Workspace(tool, (0.0, 1.0))))
    card = (boxed / "README.md").read_text()
    assert '"workspace": {"position": ["tool_x", "tool_y", "tool_z"]' in card


def test_a_workspace_alone_limits_no_command(boxed: Path, tmp_path: Path) -> None:
    alone = withhold_weights(boxed, tmp_path / "alone", {"workspace": {"position": 0, "low": -1}})
    with pytest.raises(TrimtabError, match="states no limits of the robot's commands"):
        load_policy(alone)
    assert load_policy(alone, limits=NO_LIMITS).limits.workspace == Workspace((0,), -1)
    # It does not say what the commands are either.
    both = load_policy(alone, limits=Limits(velocity=0.5, of_velocities=True)).limits
    assert both == Limits(velocity=0.5, of_velocities=True, workspace=Workspace((0,), -1))
    table: Any = Limits(workspace=Workspace((0,), np.float64(-0.5), np.array([0.5])))
    assert load_policy(alone, limits=table).limits.workspace == Workspace((0,), -0.5, (0.5,))


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ([0, 1], "workspace must be a mapping, such as"),
        ({"low": 0.0}, "workspace must be a mapping, such as"),
        ({"position": "tool_x", "lower": 0}, "no entry 'lower'; did you mean low"),
        ({"position": "tool_x"}, "has no low and no high"),
        ({"position": [], "low": 0}, "name entries of the observation"),
        ({"position": [True], "low": 0}, "name entries of the observation"),
        ({"position": "tool_q", "low": 0}, "'tool_q': there are: tool_x"),
        ({"position": ["a"], "low": 0}, "a is observed in rad, and a workspace is in metres"),
        ({"position": ["tool_x", 0], "low": 0}, "has an entry twice"),
        ({"position": 6, "low": 0}, "no entry 6; the observation has 6"),
        ({"position": ["tool_x", "tool_y"], "low": [0, 0, 0]}, "give one number, or 2"),
        ({"position": "tool_x", "low": 1, "high": 1}, "is not below"),
        ({"position": "tool_x", "low": "a"}, "workspace.low='a': give a finite number"),
        ({"position": "tool_x", "high": float("nan")}, "workspace.high=nan: give a finite"),
    ],
)
def test_a_workspace_that_does_not_fit_is_refused(
    stated: Any, told: str, bundle_of: BundleOf
) -> None:
    config = json.loads((bundle_of("gaussian") / "config.json").read_text())
    config["inputs"]["obs"] |= {"order": NAMES, "units": UNITS}
    with pytest.raises(TrimtabError, match=told) as raised:
        Contract.parse({**config, "limits": {"workspace": stated}}, "here")
    assert "\n" not in str(raised.value) and str(raised.value).startswith("here: limits: workspace")


def test_a_part_of_an_observation_may_be_the_position(bundle_of: BundleOf) -> None:
    config = json.loads((bundle_of("gaussian") / "config.json").read_text())
    whole, sizes = config["inputs"].pop("obs"), {"picture": 2, "arm": 2, "tool": 3}
    for name, size in sizes.items():
        kind = "uint8" if name == "picture" else "float32"
        config["inputs"][name] = {**whole, "shape": ["batch", size], "dtype": kind, "order": None}
    stated = {"workspace": {"position": "tool", "low": [0.0, 0.0, 0.02]}}
    contract = Contract.parse({**config, "limits": stated}, "here")
    assert contract.limits is not None and contract.limits.workspace is not None
    box = contract.box(contract.limits.workspace)
    assert (box.places, box.names) == ((2, 3, 4), ("tool[0]", "tool[1]", "tool[2]"))
    with pytest.raises(TrimtabError, match="no entry 0; the observation has the parts"):
        Contract.parse({**config, "limits": {"workspace": {"position": 0, "low": 0}}}, "here")
