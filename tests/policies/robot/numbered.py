"""A policy whose every entry says for which tick it is, and an inference that answers late.

Where a mode tells it of the plan, it plays that instead, as far as the weights go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from trimtab.observations import Part
from trimtab.policies.agent import PREVIOUS, RESTART, WEIGHTS, ArrayObs
from trimtab.policies.bundle.files import Array, Contract
from trimtab.policies.robot.inference import Inference
from trimtab.policies.runtime import PolicyRunner

HORIZON = 8


def model_of(
    nodes: list[NodeProto],
    ports: list[ValueInfoProto],
    constants: Mapping[str, NDArray[Any] | np.generic],
) -> bytes:
    """Return an ONNX file whose output is the last of the ports."""
    made = helper.make_graph(
        nodes, "policy", ports[:-1], ports[-1:],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def graph(horizon: int = HORIZON, told: bool = False) -> bytes:
    """Return a graph: entry i of the chunk is obs + i + 0 noise, so a tick makes its numbers.

    Where it is told of the plan p with weights w, that is x and the entry is x + w (p - x).
    """
    planned = {PREVIOUS: [horizon, 1], WEIGHTS: [horizon], RESTART: [1]} if told else {}
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
        for name, shape in {"obs": [1], "noise": [1], **planned, "action": [horizon, 1]}.items()
    ]
    steps = np.arange(horizon, dtype=np.float32).reshape(1, horizon, 1)
    constants = {"steps": steps, "zero": np.float32([0.0]), "axes": np.int64([2])}
    nodes = [
        helper.make_node("Mul", ["noise", "zero"], ["nothing"]),
        helper.make_node("Add", ["obs", "nothing"], ["first"]),
        helper.make_node("Unsqueeze", ["first", "axes"], ["wide"]),
        helper.make_node("Add", ["wide", "steps"], ["own" if told else "action"]),
    ]
    if told:
        nodes += [
            helper.make_node("Sub", [PREVIOUS, "own"], ["differs"]),
            helper.make_node("Unsqueeze", [WEIGHTS, "axes"], ["weight"]),
            helper.make_node("Mul", ["weight", "differs"], ["drawn"]),
            helper.make_node("Add", ["own", "drawn"], ["action"]),
        ]
    return model_of(nodes, ports, constants)


def contract(
    horizon: int = HORIZON, act_steps: int = 4, limit: float = 1e6, told: bool = False
) -> Contract:
    shapes = {PREVIOUS: (horizon, 1), WEIGHTS: (horizon,), RESTART: (1,)} if told else {}
    parts = {name: Part(shape, given=0.0) for name, shape in shapes.items()}
    size = 1 + sum(part.size for part in parts.values())
    parts = {"obs": Part((1,)), **parts} if told else {}
    return Contract(
        size, horizon, act_steps, 1, (1,), (-limit,), (limit,), 50.0, True, parts,
        obs_names=("x",), obs_units=("m",),
    )  # fmt: skip


class Late(Inference):
    """Answers each request a given number of ticks later; the numbers follow one another.

    Args:
        infer: the policy.
        delays: of the requests in ticks; None for an answer that is a failure of the policy.
    """

    def __init__(self, delays: Iterable[int]) -> None:
        self.infer: Callable[[ArrayObs, Array], Array] | None = None
        self._delays = iter(delays)
        self._answer: Array | None = None
        self._left = 0
        self.begun = 0

    def begin(self, read: ArrayObs, noise: Array) -> None:
        assert self.infer is not None and self._answer is None, "one request at a time"
        self.begun += 1
        self._answer, self._left = self.infer(read, noise), next(self._delays)

    def poll(self) -> Array | None:
        if self._answer is None or self._left > 0:
            self._left -= 1
            return None
        answer, self._answer = self._answer, None
        return answer


def numbered(delays: Iterable[int] | None = None, **settings: Any) -> PolicyRunner:
    """Return the policy as a robot runs it; its answers come late by ``delays`` ticks."""
    late = settings.pop("inference", None) if delays is None else Late(delays)
    of_policy = {k: settings.pop(k) for k in ("horizon", "act_steps", "limit") if k in settings}
    horizon, mode = of_policy.get("horizon", HORIZON), settings.get("mode")
    told = mode is not None and bool(mode.needs[0])
    runner = PolicyRunner(
        contract(**of_policy, told=told), graph(horizon, told), "here", inference=late, **settings
    )
    if late is not None:
        late.infer = runner.infer
    return runner
