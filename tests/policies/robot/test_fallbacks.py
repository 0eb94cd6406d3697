"""What is played without an observation, a plan or a finite action."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module
from onnx import TensorProto, helper

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.files import Contract
from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.policies.runtime import Damp, Fallback, Hold, Limits, PlayOut, PolicyRunner, SafeAction

numbered = load_module(Path(__file__).with_name("numbered.py")).numbered


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        (Hold(patience=2), [3, 4, 5, 5, 5, 5, 5]),
        (PlayOut(patience=2), [3, 4, 5, 6, 7, 7, 7]),
        (SafeAction(patience=2, safe=(-1.0,)), [3, 4, 5, -1, -1, -1, -1]),
        (Damp(patience=2, safe=(1.0,), keep=0.5), [3, 4, 5, 3, 2, 1.5, 1.25]),
        (Hold(), [3, 3, 3, 3, 3, 3, 3]),
    ],
)
def test_without_observations_the_plan_is_played_and_then_the_fallback(
    fallback: Fallback, expected: list[float]
) -> None:
    runner = numbered(mode=RecedingHorizon(8), fallback=fallback)
    for tick in range(3):
        runner.step([float(tick)])
    played = [runner.step([3.0] if tick == 3 else None).item() for tick in range(3, 10)]
    assert played == expected
    assert runner.counts["missing"] == 6
    assert runner.counts["fallback"] == 6 - fallback.patience


def test_after_a_fallback_the_old_plan_never_resumes() -> None:
    runner = numbered(mode=RecedingHorizon(8), fallback=Hold(patience=1))
    runner.step([0.0])
    assert [runner.step(None).item() for _ in range(3)] == [1.0, 1.0, 1.0]
    assert runner.step([500.0]).item() == 500.0  # within patience it would have been 4
    assert runner.step(None).item() == 501.0
    assert runner.step([600.0]).item() == 502.0


def test_without_patience_one_missing_observation_drops_the_plan() -> None:
    played = {}
    for patience in (0, 1):
        fallback = SafeAction(safe=(-1.0,), patience=patience)
        runner = numbered(mode=RecedingHorizon(8), fallback=fallback)
        seen: list[Any] = [[0.0], None, [50.0], [60.0]]
        played[patience] = [runner.step(obs).item() for obs in seen]
    assert played == {0: [0.0, -1.0, 50.0, 51.0], 1: [0.0, 1.0, 2.0, 3.0]}


def test_ticks_that_were_left_out_had_no_observation_either() -> None:
    runner = numbered(mode=RecedingHorizon(8), fallback=SafeAction(safe=(-1.0,), patience=3))
    runner.step([0.0])
    assert [runner.step(None, tick=tick).item() for tick in (1, 3, 6)] == [1.0, 3.0, -1.0]
    assert runner.step([50.0], tick=7).item() == 50.0  # of a new plan
    assert runner.counts["missing"] == 3


def test_what_the_caller_does_with_an_action_does_not_change_what_is_held() -> None:
    runner = numbered(fallback=Hold())
    action = runner.step([3.0])
    action *= 57.3  # such as to degrees
    assert runner.step(None).item() == 3.0


def test_an_answer_from_before_the_fallback_is_thrown_away_too() -> None:
    runner = numbered(chain([0, 5], repeat(0)), mode=RecedingHorizon(2), fallback=Hold())
    for tick in range(3):
        runner.step([100.0 * tick])  # the second chunk is asked for at tick 2, and comes at tick 7
    for _ in range(2):
        runner.step(None)
    played = [runner.step([100.0 * tick]).item() for tick in range(5, 9)]
    assert played == [2.0, 2.0, 700.0, 701.0]
    assert runner.counts["thrown_away"] == 1


def test_an_observation_that_is_not_finite_is_none() -> None:
    runner = numbered(mode=RecedingHorizon(8), fallback=SafeAction(safe=(-3.0,), patience=1))
    seen = [0.0, float("nan"), float("inf"), 50.0]
    assert [runner.step([one]).item() for one in seen] == [0.0, 1.0, -3.0, 50.0]
    assert (runner.counts["refused"], runner.counts["missing"]) == (2, 2)
    with pytest.raises(TrimtabError, match=r"has shape \(2,\)"):  # no sensor's failure
        runner.step([0.0, 1.0])


def test_an_action_that_is_not_finite_is_never_played() -> None:
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("obs", [1]), ("noise", [1]), ("action", [1, 1]))
    ]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [2])
    nodes = [
        helper.make_node("Div", ["noise", "obs"], ["flat"]),  # NaN where both are 0
        helper.make_node("Unsqueeze", ["flat", "axes"], ["action"]),
    ]
    graph = helper.make_graph(nodes, "policy", ports[:2], ports[2:], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    contract = Contract(1, 1, 1, 1, (1,), (-1.0,), (1.0,), None, True)
    runner = PolicyRunner(
        contract, model.SerializeToString(), "here", fallback=SafeAction(safe=(0.5,))
    )
    assert [runner.step([one]).item() for one in (1.0, 0.0, 2.0)] == [0.0, 0.5, 0.0]
    assert (runner.counts["failed"], runner.counts["fallback"]) == (1, 1)
    assert not runner.counts["missing"]


def test_without_a_fallback_a_missing_observation_raises_and_moves_nothing() -> None:
    runner = numbered()
    assert runner.step([0.0]).item() == 0.0
    with pytest.raises(TrimtabError, match="fallback=Hold"):
        runner.step(None)
    assert runner.step([1.0]).item() == 1.0 and runner.tick == 1


def test_nothing_is_held_before_a_command_is_known() -> None:
    runner = numbered(fallback=Hold())
    with pytest.raises(TrimtabError, match="no command to hold"):
        runner.step(None)
    runner.reset(action=[0.25])
    assert runner.step(None).item() == 0.25
    for wrong in ([np.nan], [1.0, 2.0]):
        with pytest.raises(TrimtabError, match="^action"):
            runner.reset(action=wrong)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Hold(patience=-1), "patience=-1"),
        (lambda: Hold(patience=1.5), "patience=1.5"),  # type: ignore[arg-type]
        (lambda: numbered(fallback=SafeAction(safe=(1.0, 2.0))), "give 1 numbers"),
        (lambda: numbered(fallback=SafeAction(safe=(2e6,))), "within the limits"),
        (lambda: numbered(fallback=SafeAction(safe=(float("nan"),))), "each a number"),
        (
            lambda: numbered(fallback=SafeAction(safe=(1.0,)), limits=Limits(high=0.5)),
            r"commands, \[-1000000.0\] to \[0.5\]",
        ),
        (lambda: Damp(safe=(0.0,), keep=1.0), "keep=1.0"),
        (lambda: Damp(safe=(0.0,), keep=False), "keep=False"),
        (lambda: Damp(safe=(0.0,), keep="half"), "keep=half"),  # type: ignore[arg-type]
        (lambda: SafeAction(safe=0.0), "tuple of numbers"),  # type: ignore[arg-type]
        (lambda: SafeAction(safe="ab"), "tuple of numbers"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_fallback_is_refused(make: Any, word: str) -> None:
    with pytest.raises(TrimtabError, match=word):
        make()
