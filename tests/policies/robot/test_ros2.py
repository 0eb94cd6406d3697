"""The example of ``docs/ros2.md``: messages as they are on the wire, and a controller's life.

Messages are serialised and read again by rosbags, as CDR, which is what ROS 2 sends.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from loading import load_module
from onnx import TensorProto, helper
from rosbags.typesys import Stores, get_typestore

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.files import Contract
from trimtab.policies.runtime import Hold, Limits, PolicyRunner, RealTimeChunking, RecedingHorizon

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "ros2"
joint_policy = load_module(EXAMPLE / "joint_policy.py")
controller = load_module(EXAMPLE / "policy_controller.py")
_numbers = load_module(Path(__file__).with_name("numbered.py"))
model_of, numbered = _numbers.model_of, _numbers.numbered
JOINTS = ["shoulder", "elbow"]
HORIZON, MS = 8, 10**6
STEADY, ROS = 5_000 * MS, 1_700_000_000_000 * MS  # what the two clocks say at first
STORE = get_typestore(Stores.ROS2_HUMBLE)
ERROR, OK = controller.ReturnType.ERROR, controller.ReturnType.OK


VELOCITIES = Limits(acceleration=1.0, of_velocities=True)


def policy(**settings: Any) -> PolicyRunner:
    """Return a policy with 50 Hz whose entry i is position + velocity + i, of two joints."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in (("obs", [4]), ("noise", [1]), ("action", [HORIZON, 2]))
    ]
    constants = {
        "steps": np.arange(HORIZON, dtype=np.float32).reshape(1, HORIZON, 1),
        "sum": np.float32([[1, 0], [0, 1], [1, 0], [0, 1]]),
        "zero": np.float32([0.0]),
        "axes": np.int64([1]),
    }
    nodes = [
        helper.make_node("Mul", ["noise", "zero"], ["nothing"]),
        helper.make_node("MatMul", ["obs", "sum"], ["both"]),
        helper.make_node("Add", ["both", "nothing"], ["first"]),
        helper.make_node("Unsqueeze", ["first", "axes"], ["wide"]),
        helper.make_node("Add", ["wide", "steps"], ["action"]),
    ]
    contract = Contract(4, HORIZON, 4, 2, (1,), (-99.0,) * 2, (99.0,) * 2, 50.0, True)
    told = {"mode": RecedingHorizon(4), "fallback": Hold(patience=1), **settings}
    return PolicyRunner(contract, model_of(nodes, ports, constants), "here", **told)


def sent(message: Any) -> Any:
    """Return a message as it is read from its bytes."""
    return STORE.deserialize_cdr(
        STORE.serialize_cdr(message, message.__msgtype__), message.__msgtype__
    )


def state(
    ros: int, names: list[str], position: list[float], velocity: list[float] | None = None
) -> Any:
    """Return a joint state as a driver would send it."""
    types = STORE.types
    stamp = types["builtin_interfaces/msg/Time"](*divmod(ros, 10**9))
    return sent(
        types["sensor_msgs/msg/JointState"](
            header=types["std_msgs/msg/Header"](stamp=stamp, frame_id="base"),
            name=names,
            position=np.array(position, np.float64),
            velocity=np.array([0.0] * len(names) if velocity is None else velocity, np.float64),
            effort=np.zeros(0),
        )
    )


def message_types(names: set[str]) -> SimpleNamespace:
    """Return message classes that take lists of numbers, as ROS's do; rosbags' take arrays."""

    def of(kind: Any) -> Any:
        arrays = {"positions", "velocities", "accelerations", "effort", "data"}
        return lambda **fields: kind(
            **{
                name: np.array(value, np.float64) if name in arrays else value
                for name, value in fields.items()
            }
        )

    known = {full.split("/")[-1]: full for full in STORE.types if "_interfaces/" in full}
    known |= {name.split("/")[-1]: name for name in STORE.types if name.startswith("std_msgs/")}
    known |= {name.split("/")[-1]: name for name in STORE.types if name.startswith("trajectory")}
    return SimpleNamespace(**{name: of(STORE.types[known[name]]) for name in names})


def node_types() -> set[str]:
    """Return the names of the message classes that the node gives to the logic."""
    tree = ast.parse((EXAMPLE / "policy_node.py").read_text(encoding="utf-8"))
    (call,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    )
    return {str(word.arg) for word in call.keywords}


class Side:
    """The logic with its two clocks, which move a tick of 20 ms a step."""

    def __init__(self, commanded: list[str] | None = None, stale: float = 0.05) -> None:
        names = node_types() if commanded is None else {"Float64MultiArray", "MultiArrayLayout"}
        self.logic = joint_policy.JointPolicy(
            policy(), JOINTS, message_types(names), stale=stale, commanded=commanded
        )
        self.steady, self.ros = STEADY, ROS

    def step(self, *messages: Any, milliseconds: int = 20) -> list[Any]:
        found = self.logic.step(joint_policy.Now(self.steady, self.ros), messages)
        self.steady += milliseconds * MS
        self.ros += milliseconds * MS
        return [sent(one) for one in found]

    def see(self, position: float) -> Any:
        return state(self.ros, JOINTS, [position, -position])

    def position(self, *messages: Any) -> float:
        """Step; return the shoulder's position that was commanded."""
        (command,) = self.step(*messages)
        return float(command.points[0].positions[0])


def test_a_joint_state_in_any_order_becomes_a_trajectory() -> None:
    side = Side()
    names = ["gripper", "elbow", "shoulder"]
    (command,) = side.step(state(ROS - 3 * MS, names, [9.0, 0.25, 0.5], [9.0, 2.0, 1.0]))
    assert command.joint_names == JOINTS
    (point,) = command.points
    assert point.positions.tolist() == [1.5, 2.25]
    assert [point.velocities.size, point.accelerations.size, point.effort.size] == [0, 0, 0]
    assert (point.time_from_start.sec, point.time_from_start.nanosec) == (0, 20 * MS)
    assert command.header.stamp.sec * 10**9 + command.header.stamp.nanosec == ROS
    (command,) = side.step()  # the next entry of the plan
    assert command.points[0].positions.tolist() == [2.5, 3.25]


def test_an_array_has_the_order_of_its_controller() -> None:
    side = Side(commanded=["elbow", "shoulder"])
    (command,) = side.step(state(ROS, JOINTS, [0.5, 0.25]))
    assert command.data.tolist() == [0.25, 0.5] and command.layout.dim == []


def test_messages_of_other_joints_or_without_velocities_are_left_out() -> None:
    side = Side()
    wrong = [
        state(ROS, ["gripper"], [1.0]),
        state(ROS, [*JOINTS, "elbow"], [1.0, 2.0, 3.0]),
        state(ROS, JOINTS, [1.0, 2.0], []),
        state(ROS, JOINTS, [1.0], [0.0, 0.0]),
    ]
    assert side.step(*wrong) == []
    assert side.logic.counts == {"other": 4}
    assert side.position(side.see(3.0)) == 3.0


def test_without_new_states_the_plan_is_played_then_held_and_never_resumed() -> None:
    side = Side()
    played = [side.position(side.see(10.0))]
    # 60 ms after the state it is stale; one tick of patience follows.
    played += [side.position() for _ in range(6)]
    assert played == [10.0, 11.0, 12.0, 13.0, 13.0, 13.0, 13.0]
    assert side.position(side.see(50.0)) == 50.0  # the old plan has 17 here
    assert side.logic.policy.counts["fallback"] == 3


def test_a_state_that_is_repeated_or_late_is_none() -> None:
    side = Side()
    old = side.see(10.0)
    played = [side.position(old) for _ in range(6)]
    assert played == [10.0, 11.0, 12.0, 13.0, 13.0, 13.0]
    late = state(side.ros - 60 * MS, JOINTS, [70.0, 0.0])
    assert side.position(late) == 13.0
    assert side.logic.counts == {"old": 6}


def test_the_clock_of_the_messages_may_be_set() -> None:
    side = Side()
    assert side.position(side.see(10.0)) == 10.0
    side.ros -= 3600 * 10**9
    played = [side.position(side.see(10.0 + tick)) for tick in range(1, 9)]
    assert played == [10.0 + tick for tick in range(1, 9)]
    assert not side.logic.counts


def test_after_a_stop_nothing_is_sent_and_the_old_plan_is_gone() -> None:
    side = Side()
    assert side.position(side.see(10.0)) == 10.0
    side.logic.stop()
    assert side.logic.policy.plan().actions.shape == (0, 2)
    assert side.step(side.see(11.0)) == []
    side.logic.start()
    assert side.step() == []  # not even by the state that it knew before
    assert [side.position(side.see(30.0)), side.position()] == [30.0, 31.0]


def test_a_process_that_was_held_up_begins_anew() -> None:
    side = Side()
    assert len(side.step(side.see(10.0), milliseconds=100)) == 1
    assert side.step() == []  # the old plan has an entry for this tick
    assert side.position(side.see(30.0)) == 30.0


def test_a_timer_that_fires_late_and_early_shifts_nothing() -> None:
    side = Side()
    assert len(side.step(side.see(10.0), milliseconds=33)) == 1
    (late,) = side.step(milliseconds=7)  # tick 2; tick 1 was lost
    assert late.points[0].positions[0] == 12.0
    assert side.step(milliseconds=20) == []  # tick 2 again
    (command,) = side.step(side.see(13.0))
    assert command.points[0].positions[0] == 13.0


@pytest.mark.parametrize(
    ("settings", "joints", "commanded", "word"),
    [
        ({"fallback": None}, JOINTS, None, "needs a control rate and a fallback"),
        ({"limits": VELOCITIES}, JOINTS, None, "the policy has velocities"),
        ({}, ["shoulder"], None, "not one of 1 joints"),
        ({}, ["elbow", "elbow"], None, "missing or there twice"),
        ({}, JOINTS, ["elbow", "wrist"], "missing or there twice"),
    ],
)
def test_what_does_not_fit_is_refused(
    settings: dict[str, Any], joints: list[str], commanded: list[str] | None, word: str
) -> None:
    with pytest.raises(TrimtabError, match=word):
        joint_policy.JointPolicy(
            policy(**settings), joints, SimpleNamespace(), stale=0.1, commanded=commanded
        )


def test_a_policy_that_reads_its_plan_too_is_driven_too() -> None:
    """Its graph reads the plan besides what the robot observes."""
    runner = numbered(mode=RealTimeChunking(4), fallback=Hold())
    logic = joint_policy.JointPolicy(runner, ["lift"], message_types(node_types()), stale=0.05)
    for tick in range(6):
        now = joint_policy.Now(STEADY + 20 * MS * tick, ROS + 20 * MS * tick)
        (command,) = logic.step(now, [state(now.ros, ["lift"], [100.0 + tick], [])])
        assert command.points[0].positions.tolist() == [100.0 + tick]
    assert runner.obs_dim == 1 and len(runner.contract.parts) > 1


class HoldController:
    """Holds where it was activated, as a joint_trajectory_controller does."""

    def __init__(self, states: dict[str, float], commands: dict[str, float]) -> None:
        self.states, self.commands = states, commands

    def on_activate(self) -> None:
        self.held = {name: self.states[name] for name in self.commands}

    def update(self, time: float, period: float) -> Any:
        self.commands.update(self.held)
        return OK

    def on_deactivate(self) -> None:
        return


class Manager:
    """Updates what is active, and after an error starts the fallback instead.

    So does ``ControllerManager::update`` of ros2_control: deactivation and activation are in the
    update that failed, and the fallback is updated in the next one.
    """

    def __init__(self, controllers: dict[str, Any], active: str) -> None:
        told = yaml.safe_load((EXAMPLE / "controllers.yaml").read_text(encoding="utf-8"))
        self.told = told["controller_manager"]["ros__parameters"]
        self.controllers, self.active = controllers, active
        controllers[active].on_activate()

    def update(self, period: float = 0.02) -> None:
        if self.controllers[self.active].update(0.0, period) is ERROR:
            self.controllers[self.active].on_deactivate()
            (self.active,) = self.told[self.active]["fallback_controllers"]
            self.controllers[self.active].on_activate()


def arm(**settings: Any) -> Any:
    made = controller.PolicyController(policy(**settings), JOINTS)
    assert made.on_activate() is controller.CallbackReturn.FAILURE  # no position is known yet
    made.states.update(dict.fromkeys(made.states, 0.0), **{"shoulder/position": 10.0})
    return made


def test_an_error_of_the_policy_switches_to_the_controller_that_holds() -> None:
    one = arm()
    hold = HoldController(one.states, one.commands)
    manager = Manager({"policy_controller": one, "hold_controller": hold}, "policy_controller")
    commanded = []
    for tick in range(9):
        if tick >= 3:
            one.states["elbow/velocity"] = math.nan  # a sensor fails
        manager.update()
        commanded.append(one.commands["shoulder/position"])
        one.states["shoulder/position"] = commanded[-1] - 0.5  # the arm lags behind
    # A tick of patience; in the update of the error the command stays; then the arm is held.
    assert commanded == [10.0, 11.0, 12.0, 13.0, 13.0, 12.5, 12.5, 12.5, 12.5]
    assert manager.active == "hold_controller" and one.policy.plan().actions.shape == (0, 2)


def test_a_controller_that_is_activated_again_has_no_old_plan() -> None:
    one = arm()
    hold = HoldController(one.states, one.commands)
    manager = Manager({"policy_controller": one, "hold_controller": hold}, "policy_controller")
    manager.update()
    del one.states["elbow/velocity"]
    manager.update()
    assert manager.active == "hold_controller"
    one.states["elbow/velocity"] = 0.0
    one.states["shoulder/position"] = 40.0
    manager = Manager(manager.controllers, "policy_controller")
    manager.update()
    assert one.commands["shoulder/position"] == 40.0


def test_an_update_that_was_left_out_shifts_nothing() -> None:
    one = arm()
    assert one.on_activate() is controller.CallbackReturn.SUCCESS
    assert [one.update(0.0, period) for period in (0.02, 0.021, 0.061, 0.004)] == [OK] * 4
    assert one.policy.tick == 5


def test_a_controller_needs_the_rate_of_its_policy() -> None:
    one = arm()
    assert one.on_configure(50.0) is controller.CallbackReturn.SUCCESS
    assert one.on_configure(500.0) is controller.CallbackReturn.FAILURE


def test_the_controllers_of_the_example_fit_one_another() -> None:
    told = yaml.safe_load((EXAMPLE / "controllers.yaml").read_text(encoding="utf-8"))
    manager = told["controller_manager"]["ros__parameters"]
    for name in ("arm_controller", "hold_controller", "policy_controller"):
        assert manager[name]["type"] and told[name]["ros__parameters"]["joints"] == JOINTS
    (fallback,) = manager["policy_controller"]["fallback_controllers"]
    assert "fallback_controllers" not in manager[fallback]
    text = (EXAMPLE / "controllers.yaml").read_text(encoding="utf-8")
    assert not {"&", "*"} & set(text)  # ROS reads no anchors
