"""Put around a network of others what it needs to be a policy of a bundle, as one ONNX graph.

The result maps what the robot gives, in its order and units, to actions in its order and units. In
between are the order of joints and terms, offsets, clips and scales, the history, the last action
and recurrent states. What lasts from one decision to the next is one vector ``state``, zeros as an
episode begins; the graph's second output is the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.bundle.inlining import add_prefix
from trimtab.policies.imports.contract import ForeignContract, State, Term
from trimtab.policies.imports.onnx_file import (
    Port,
    float_port,
    inputs_of_graph,
    outputs_of_graph,
    seen,
    starts_of,
)
from trimtab.policies.memory import STATE, following

__all__ = ["Network", "action_port", "find_network", "wrap"]

_PREFIX = "network_"


@dataclass(frozen=True)
class Network:
    """The tensors of a network, told apart.

    Attributes:
        observation: input of the observation.
        action: output ``[.., A]`` or ``[.., H, A]``.
        noise: input of the noise, or None.
        states: recurrent states: what the contract says, input, output.
    """

    observation: Port
    action: Port
    noise: Port | None
    states: tuple[tuple[State, Port, Port], ...]

    @property
    def horizon(self) -> int:
        """Actions of one output."""
        return self.action.row[-2] if len(self.action.shape) > 2 else 1

    @property
    def actions(self) -> int:
        """Numbers of one action."""
        return self.action.row[-1]

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Of one row's noise; (0,) without."""
        return (0,) if self.noise is None else self.noise.row[1:]

    @property
    def any_batch(self) -> bool:
        """Whether it takes any number of rows as it is."""
        ports = (self.observation, self.action, *([] if self.noise is None else [self.noise]))
        return not self.states and all(isinstance(port.shape[0], str) for port in ports)


def action_port(model: onnx.ModelProto, named: str, handed_on: Sequence[str], where: str) -> Port:
    """Return the output that is the action.

    Args:
        model: of the file.
        named: what the contract calls it; empty where it does not.
        handed_on: names of outputs that are states.
        where: names the file.

    Raises:
        TrimtabError: if it cannot be told, or is no action.
    """
    inputs, outputs = inputs_of_graph(model.graph), outputs_of_graph(model.graph)
    left = [port for port in outputs if port.name not in handed_on]
    found = [port for port in left if not named or port.name == named]
    if len(found) != 1:
        raise TrimtabError(
            f"{where}: which output is the action? {seen(inputs, outputs)}; write it in the "
            f"contract: network: {{action: {left[0].name if left else '…'}}}"
        )
    (port,) = found
    if not port.number or len(port.shape) not in (2, 3) or not isinstance(port.shape[-1], int):
        raise TrimtabError(
            f"{where}: the action {port} must be float32, [rows, actions] or [rows, steps, actions]"
        )
    return port


def find_network(model: onnx.ModelProto, contract: ForeignContract, where: str) -> Network:
    """Tell the tensors of a model apart, by the contract and by nothing else.

    Raises:
        TrimtabError: if a tensor is missing, unclaimed or of another type; it says what was seen
            and what to write.
    """
    inputs, outputs = inputs_of_graph(model.graph), outputs_of_graph(model.graph)
    told = seen(inputs, outputs)
    ins, outs = ({port.name: port for port in ports} for ports in (inputs, outputs))

    def port(name: str, ports: dict[str, Port], entry: str) -> Port:
        if name not in ports:
            kind = "input" if ports is ins else "output"
            raise TrimtabError(f"{contract.where}: {entry}: there is no {kind} {name}; {told}")
        return ports[name]

    states = tuple(
        (one, port(one.name, ins, "network.states"), port(one.next, outs, "network.states"))
        for one in contract.states
    )
    noise = port(contract.noise, ins, "network.noise") if contract.noise else None
    claimed = {one.name for one, _, _ in states} | ({noise.name} if noise else set())
    left = [name for name in ins if name not in claimed]
    observation = contract.observation or (left[0] if len(left) == 1 else "")
    if not observation or [name for name in left if name != observation]:
        raise TrimtabError(f"{where}: {told}; {_advice(inputs, outputs, observation)}")
    network = Network(
        port(observation, ins, "network.observation"),
        action_port(model, contract.action, [one.next for one, _, _ in states], where),
        noise,
        states,
    )
    for one in (network.observation, network.action, noise, *(p for s in states for p in s[1:])):
        if one is not None and (not one.number or not one.shape):
            raise TrimtabError(f"{where}: {one} must be rows of float32")
    for one in (network.observation, network.action, noise):
        if one is not None and len(one.shape) > 1 and one.row[0] != 1:
            raise TrimtabError(
                f"{where}: {one} has {one.row[0]} rows in every call; export it for one row, or "
                "for an open number of them, as its first axis"
            )
    steps = network.action.shape[1:-1]
    if any(isinstance(n, str) and n not in network.observation.shape for n in steps):
        raise TrimtabError(
            f"{where}: {network.action} does not say how many actions it plans; export it with a "
            "fixed number of them"
        )
    for said, first, second in states:
        if first.row != second.row:
            raise TrimtabError(
                f"{contract.where}: network.states.{said.name}: {first} cannot become {second}"
            )
        if said.initial and len(said.initial) != int(np.prod(first.row)):
            raise TrimtabError(
                f"{contract.where}: network.states.{said.name}.initial: has {len(said.initial)} "
                f"numbers for {first}"
            )
    _check_width(network, contract, where)
    return network


def _advice(inputs: Sequence[Port], outputs: Sequence[Port], observation: str) -> str:
    """Return what to write where inputs are left over."""
    pairs = [
        f"{one.name}: {other.name}"
        for one in inputs
        for other in outputs
        if one.name != observation and one.row == other.row and one.name[:1] == other.name[:1]
    ]
    guess = f", states: {{{', '.join(pairs)}}}" if pairs else ", noise: …, states: {…: …}"
    first = observation or (inputs[0].name if inputs else "…")
    return (
        f"say what each input is, in the contract: network: {{observation: {first}{guess}}}. A "
        "state names the input, and the output that it becomes at the next decision. An input that "
        "is neither, such as a clock, has to be made one of them in the file "
        "(docs/foreign-policies.md)"
    )


def _check_width(network: Network, contract: ForeignContract, where: str) -> None:
    reads = int(np.prod(network.observation.row[1:] or network.observation.row))
    if reads != contract.width:
        terms = ", ".join(
            f"{term.name} {term.size}"
            + (f" x {contract.frames_of(term)}" if contract.frames_of(term) > 1 else "")
            for term in contract.terms
        )
        raise TrimtabError(
            f"{where}: reads {reads} numbers ({network.observation}), and the contract's terms "
            f"have {contract.width} ({terms})"
        )
    if contract.act_steps > network.horizon:
        raise TrimtabError(
            f"{contract.where}: action.act_steps={contract.act_steps}: the network gives "
            f"{network.horizon} actions"
        )


def wrap(model: onnx.ModelProto, network: Network, contract: ForeignContract) -> tuple[bytes, int]:
    """Return the graph of a bundle around a model, and the length of its state (0 for none)."""
    return _Wrapping(model, network, contract).build()


class _Wrapping:
    """Builds one graph.

    Args:
        model: of the file.
        network: its tensors.
        contract: what they mean.
    """

    def __init__(self, model: onnx.ModelProto, network: Network, contract: ForeignContract) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        add_prefix(self.model.graph, _PREFIX)
        self.network, self.contract = network, contract
        self.nodes: list[onnx.NodeProto] = []
        self.numbers = itertools.count()  # names are unique, also within the graph of a loop
        self.constants: list[onnx.TensorProto] = []

    # Small steps: each appends a node, and returns the name of its output.

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}_{next(self.numbers)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: NDArray[np.generic] | Sequence[float]) -> str:
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def columns(self, tensor: str, index: Sequence[int]) -> str:
        """Return columns of ``[B, n]``, or of the last axis of ``[B, H, n]``."""
        return self.node("Gather", tensor, self.constant(np.array(index, np.int64)), axis=-1)

    def affine(self, tensor: str, factor: Sequence[float], offset: Sequence[float]) -> str:
        """Return ``tensor * factor + offset`` over the last axis, without what changes nothing."""
        if set(factor) != {1.0}:
            tensor = self.node("Mul", tensor, self.constant(factor))
        if set(offset) != {0.0}:
            tensor = self.node("Add", tensor, self.constant(offset))
        return tensor

    def clipped(self, tensor: str, low: Sequence[float], high: Sequence[float]) -> str:
        if np.isfinite(low).any():
            tensor = self.node("Max", tensor, self.constant(np.array(low)))
        if np.isfinite(high).any():
            tensor = self.node("Min", tensor, self.constant(np.array(high)))
        return tensor

    def shaped(self, tensor: str, *shape: int) -> str:
        return self.node("Reshape", tensor, self.constant(np.array(shape, np.int64)))

    # The parts of the graph, from what the robot gives to what it is sent.

    def build(self) -> tuple[bytes, int]:
        contract, network = self.contract, self.network
        states = [int(np.prod(one.row)) for _, one, _ in network.states]
        last = network.actions if contract.remembers_last else 0
        frame = sum(term.size for term in contract.terms)
        frames = max(contract.frames_of(term) for term in contract.terms)
        begun = frames > 1 and contract.history.fill == "first"
        lengths = [*states, last, (frames - 1) * frame, int(begun)]
        starts = np.cumsum([0, *lengths])
        size = int(starts[-1])

        def kept(index: int) -> str:
            return self.columns(STATE, range(int(starts[index]), int(starts[index + 1])))

        n = len(states)
        current = self.frame(kept(n) if last else "")
        vector, past = current, ""
        if frames > 1:
            past = kept(n + 1)
            if begun:  # before an episode's first observation stands that one itself
                flag = self.node("Greater", kept(n + 2), self.constant(np.array([0.5])))
                repeated = self.node("Concat", *[current] * (frames - 1), axis=1)
                past = self.node("Where", flag, past, repeated)
            every = self.node("Concat", past, current, axis=1)
            vector = self.columns(every, self.history(frame, frames))
            past = self.columns(every, range(frame, frames * frame))
        raw, following_states = self.network_output(vector, [kept(i) for i in range(n)])
        action, remembered = self.action(raw)
        handed = [*following_states, *([remembered] if last else []), *([past] if past else [])]
        if begun:
            handed.append(self.affine(self.columns(STATE, [int(starts[n + 2])]), [0.0], [1.0]))
        return self.finished(action, handed, size), size

    def frame(self, last: str) -> str:
        """Return one observation as the network reads it, ``[B, F]``."""
        contract = self.contract
        sizes = {term.name: term.size for term in contract.observed}
        places, first = starts_of(sizes), sum(sizes.values())
        source = self.node("Concat", FLAT, last, axis=1) if last else FLAT
        robot, order = list(contract.robot), list(contract.network)
        to_network = [robot.index(name) for name in order]
        index: list[int] = []
        entries: list[tuple[float, ...]] = []
        nothing = (-np.inf, np.inf)
        for name in contract.order:
            term = contract.term(name)
            per_joint = (term.joints or term.last_action) and bool(robot)
            # The last output is in the network's order already; its numbers are in the robot's.
            own = to_network if per_joint else list(range(term.size))
            at = first if term.last_action else places[name]
            index += [at + i for i in (range(term.size) if term.last_action else own)]
            ends = term.clip or nothing
            clips = (*ends, *nothing) if term.clip_first else (*nothing, *ends)
            entries += [(-term.subtract[i], term.scale[i], *clips) for i in own]
        offset, scale, low, high, after_low, after_high = map(list, zip(*entries, strict=True))
        found = self.columns(source, index)
        found = self.clipped(self.affine(found, [1.0], offset), low, high)
        return self.clipped(self.affine(found, scale, [0.0]), after_low, after_high)

    def history(self, frame: int, frames: int) -> list[int]:
        """Return where each number that the network reads stands among frames, oldest first."""
        contract = self.contract
        newest = contract.history.order == "newest_first"
        terms = [contract.term(name) for name in contract.order]
        places = starts_of({term.name: term.size for term in terms})

        def past(count: int) -> range:
            ages = range(frames - count, frames)
            return ages[::-1] if newest else ages

        def entries(term: Term, at: int) -> range:
            start = at * frame + places[term.name]
            return range(start, start + term.size)

        if contract.history.layout == "terms":
            frames_of_terms = ((t, at) for t in terms for at in past(contract.frames_of(t)))
        else:
            frames_of_terms = (
                (t, at) for at in past(frames) for t in terms
                if at >= frames - contract.frames_of(t)
            )  # fmt: skip
        return [i for term, at in frames_of_terms for i in entries(term, at)]

    def network_output(self, vector: str, states: Sequence[str]) -> tuple[str, list[str]]:
        """Return the network's output ``[B, H, A]`` and its next states ``[B, n]``."""
        network = self.network
        given = [(network.observation, vector)]
        if network.noise is not None:
            given.append((network.noise, "noise"))
        begins: dict[str, str] = {}  # what is kept is the distance from the beginning
        for (said, port, _), tensor in zip(network.states, states, strict=True):
            if said.initial:
                begins[port.name] = self.constant(said.initial)
                tensor = self.node("Add", tensor, begins[port.name])
            given.append((port, tensor))
        inputs = {port.name: tensor for port, tensor in given}
        shapes = {port.name: port.row for port, _ in given}
        outputs = [network.action.name, *(port.name for _, _, port in network.states)]
        horizon, actions = network.horizon, network.actions
        if network.any_batch:
            wires = {
                name: self.shaped(tensor, -1, *shapes[name][1:]) for name, tensor in inputs.items()
            }
            found = self.inside(wires)
            return self.shaped(found[network.action.name], -1, horizon, actions), []
        rows = self.rows(inputs, shapes, outputs)
        raw = self.shaped(rows[0], -1, horizon, actions)
        handed = [
            self.node("Sub", tensor, begins[port.name]) if port.name in begins else tensor
            for (_, port, _), tensor in zip(network.states, rows[1:], strict=True)
        ]
        return raw, handed

    def inside(self, wires: dict[str, str]) -> dict[str, str]:
        """Put the network's nodes here; return its outputs by the names that the file has."""
        graph = self.model.graph
        for name, tensor in wires.items():
            self.nodes.append(helper.make_node("Identity", [tensor], [_PREFIX + name]))
        self.nodes += list(graph.node)
        return {port.name.removeprefix(_PREFIX): port.name for port in graph.output}

    def rows(
        self, inputs: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]],
        outputs: Sequence[str],
    ) -> list[str]:  # fmt: skip
        """Run a network of one row on each row in turn; return its outputs ``[B, n]``."""
        outer, self.nodes = self.nodes, []
        ports, wires = [], {}
        for number, name in enumerate(inputs):
            noise = self.network.noise is not None and name == self.network.noise.name
            size = self.network.noise_shape if noise else [int(np.prod(shapes[name]))]
            ports.append(float_port(f"row_{number}", size))
            wires[name] = self.shaped(f"row_{number}", *shapes[name])
        found = self.inside(wires)
        sizes = {port.name: int(np.prod(port.row)) for port in outputs_of_graph(self.model.graph)}
        results = [
            float_port(self.shaped(found[name], -1), [sizes[found[name]]]) for name in outputs
        ]
        body = helper.make_graph(self.nodes, "one_row", ports, results)
        self.nodes = outer
        names = [f"rows_{number}" for number in range(len(outputs))]
        scan = helper.make_node(
            "Scan", list(inputs.values()), names, body=body, num_scan_inputs=len(inputs)
        )
        self.nodes.append(scan)
        return names

    def action(self, raw: str) -> tuple[str, str]:
        """Return actions ``[B, H, A]`` of the robot, and the last action that is remembered."""
        contract, network = self.contract, self.network
        robot, order = list(contract.robot), list(contract.network)
        to_network = [robot.index(name) for name in order] or list(range(network.actions))
        to_robot = [order.index(name) for name in robot] or list(range(network.actions))
        low, high = ([end] * network.actions for end in contract.clip or (-np.inf, np.inf))
        clipped = self.clipped(raw, low, high)
        scaled = self.affine(clipped, [contract.scale[i] for i in to_network], [0.0])
        target = self.affine(scaled, [1.0], [contract.pose[i] for i in to_network])
        action = self.columns(target, to_robot)
        found = {"raw": raw, "clipped": clipped, "scaled": scaled}
        if not contract.remembers_last:
            return action, ""
        played = self.node(
            "Gather", found[contract.remembers_last],
            self.constant(np.array(contract.act_steps - 1, np.int64)), axis=1,
        )  # fmt: skip
        return action, played

    def finished(self, action: str, handed: Sequence[str], size: int) -> bytes:
        """Return the graph, its inputs and outputs named as a bundle's."""
        contract, network = self.contract, self.network
        self.nodes.append(helper.make_node("Identity", [action], ["action"]))
        observed = sum(term.size for term in contract.observed)
        ports = {FLAT: [observed]} | ({STATE: [size]} if size else {})
        ports["noise"] = list(network.noise_shape)
        results = {"action": [network.horizon, network.actions]}
        if size:
            self.nodes.append(helper.make_node("Concat", list(handed), [following(STATE)], axis=1))
            results[following(STATE)] = [size]
        graph = helper.make_graph(
            self.nodes,
            "policy",
            [float_port(name, ["batch", *shape]) for name, shape in ports.items()],
            [float_port(name, ["batch", *shape]) for name, shape in results.items()],
            [*self.model.graph.initializer, *self.constants],
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=max(self.model.ir_version, 8)
        )
        onnx.checker.check_model(model)
        data: bytes = model.SerializeToString(deterministic=True)
        return data
