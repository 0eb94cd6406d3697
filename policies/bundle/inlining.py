"""Put the graphs of black boxes, or of choices, into the graph of a policy that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import compose, helper, version_converter

from trimtab.errors import TrimtabError
from trimtab.policies.kinds.black_box import OPERATOR

__all__ = ["add_prefix", "inline"]

_DOMAIN, _TYPE = OPERATOR.split("::")


def inline(model: onnx.ModelProto, graphs: Sequence[bytes]) -> None:
    """Replace every node that stands for a black box by the graph of that black box, in place.

    Args:
        model: what was exported.
        graphs: those of the policy's black boxes by their numbers, each a whole ONNX model. Where
            a node is ``optional``, its graph is the branch of an ``If``: the first input says
            whether it is carried out, and the second is what stands there otherwise.

    Raises:
        TrimtabError: if a graph needs other operators than ``model`` can have beside it.
    """
    boxes = [onnx.load_from_string(graph) for graph in graphs]
    newest = max([_version(model), *map(_version, boxes)])
    model.CopyFrom(_converted(model, newest))  # newer operators have no older form
    nodes, found = [], 0
    for node in model.graph.node:
        if (node.domain, node.op_type) != (_DOMAIN, _TYPE):
            nodes.append(node)
            continue
        told = {attribute.name: attribute.i for attribute in node.attribute}
        replace = _branch if "optional" in told else _nodes
        nodes += replace(model, node, boxes[told["number"]], f"black_box_{found}_")
        found += 1
    if not found:
        return
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    kept = [one for one in model.opset_import if one.domain != _DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    onnx.checker.check_model(model)


def _nodes(
    model: onnx.ModelProto, node: onnx.NodeProto, box: onnx.ModelProto, prefix: str
) -> list[onnx.NodeProto]:
    """Return the nodes that take the place of ``node``; their weights go to ``model``."""
    part = _fitting(box, model)
    part = compose.add_prefix(part, prefix, *[False] * 6)  # of functions; it misses names in loops
    add_prefix(part.graph, prefix)
    wires = dict(zip([port.name for port in part.graph.input], node.input, strict=True))
    action, *handed_on = sorted(part.graph.output, key=lambda port: port.name != f"{prefix}action")
    wires |= dict(zip([action.name], node.output, strict=True))
    for port in handed_on:  # to the next decision: an output of the whole, too
        wires[port.name] = port.name.removeprefix(prefix)
        port.name = wires[port.name]
        model.graph.output.append(port)
    # Choices have the same weights; one copy of them is enough.
    known = {_numbers(one): one.name for one in model.graph.initializer}
    for one in part.graph.initializer:
        if (name := known.setdefault(_numbers(one), one.name)) == one.name:
            model.graph.initializer.append(one)
        wires[one.name] = name
    _rename(part.graph, wires)
    model.graph.value_info.extend(part.graph.value_info)
    model.functions.extend(part.functions)
    model.ir_version = max(model.ir_version, part.ir_version)
    return list(part.graph.node)


def _branch(
    model: onnx.ModelProto, node: onnx.NodeProto, box: onnx.ModelProto, prefix: str
) -> list[onnx.NodeProto]:
    """Return an ``If`` that takes the place of ``node``."""
    condition, other, *inputs = node.input
    (output,) = node.output
    names = [f"{prefix}{which}" for which in ("chosen", "other")]
    asked = helper.make_node("", inputs, names[:1])
    bodies = [_nodes(model, asked, box, prefix), [helper.make_node("Identity", [other], names[1:])]]
    kind = onnx.TensorProto.FLOAT
    then, otherwise = (
        helper.make_graph(body, name, [], [helper.make_tensor_value_info(name, kind, None)])
        for body, name in zip(bodies, names, strict=True)
    )
    return [helper.make_node("If", [condition], [output], then_branch=then, else_branch=otherwise)]


def _numbers(tensor: onnx.TensorProto) -> bytes:
    """Return what an initializer holds, without its name."""
    bare = onnx.TensorProto()
    bare.CopyFrom(tensor)
    bare.ClearField("name")
    data: bytes = bare.SerializeToString(deterministic=True)
    return data


def _version(model: onnx.ModelProto) -> int:
    """Return the version of a model's standard operators."""
    return max((one.version for one in model.opset_import if one.domain == ""), default=1)


def _converted(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Return a model with standard operators of a version that is not below its own."""
    if _version(model) == version:
        return model
    try:
        return version_converter.convert_version(model, version)
    except Exception as error:  # the converter raises many unrelated types
        raise TrimtabError(
            f"export: operators of version {_version(model)} cannot become those of version "
            f"{version}, beside which they are to stand; export the black box again with a newer "
            "ONNX"
        ) from error


def _fitting(part: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``part`` with the operators' versions of ``model``, which gets those it lacks."""
    versions = {one.domain: one.version for one in model.opset_import}
    part = _converted(part, versions[""])
    for one in part.opset_import:
        if one.domain not in versions:
            model.opset_import.append(one)
        elif versions[one.domain] != one.version:
            raise TrimtabError(
                f"export: the black box has operators {one.domain} of version {one.version}, the "
                f"graph around it those of version {versions[one.domain]}"
            )
    return part


def add_prefix(graph: onnx.GraphProto, prefix: str) -> None:
    """Put a prefix before every name of a graph, also inside of branches and loops, in place."""
    ports = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for named in ports:
        named.name = prefix + named.name
    for node in graph.node:
        node.name = prefix + node.name if node.name else ""
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = prefix + name if name else ""  # an input that is left out has none
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                add_prefix(inner, prefix)


def _rename(graph: onnx.GraphProto, wires: Mapping[str, str]) -> None:
    """Give what nodes read and write other names, also inside of branches and loops."""
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                names[place] = wires.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, wires)
