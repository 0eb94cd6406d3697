"""Small ONNX networks as other people's tools write them, and their contracts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.float32]


def port(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """Return an input or an output of a graph."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def saved(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, NDArray[Any]] | None = None,
    *,
    opset: int = 13,
    domain: str = "",
) -> Path:
    """Write a model; return its path."""
    tensors = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "others", list(inputs), list(outputs), tensors)
    versions = [helper.make_opsetid("", opset)]
    versions += [helper.make_opsetid(domain, 1)] if domain else []
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=8), path)
    return path


def linear(path: Path, weight: Array, *, batch: int | str = 1, opset: int = 13) -> Path:
    """Write ``action = obs W``, for one row as most tools do."""
    return saved(
        path,
        [helper.make_node("MatMul", ["obs", "weight"], ["action"])],
        [port("obs", batch, len(weight))],
        [port("action", batch, weight.shape[1])],
        {"weight": weight},
        opset=opset,
    )


def recurrent(path: Path, kind: str, weights: Mapping[str, Array], hidden: int) -> Path:
    """Write an LSTM or GRU as IsaacLab does: ``obs, h_in[, c_in] -> actions, h_out[, c_out]``."""
    cells = kind == "LSTM"
    width, actions = weights["w"].shape[2], weights["out"].shape[1]
    gates = [] if cells else [("linear_before_reset", 1)]
    nodes = [
        helper.make_node("Unsqueeze", ["obs", "zero"], ["steps"]),
        helper.make_node(
            kind, ["steps", "w", "r", "b", "", "h_in", *(["c_in"] if cells else [])],
            ["every", "h_out", *(["c_out"] if cells else [])], hidden_size=hidden, **dict(gates),
        ),
        helper.make_node("Squeeze", ["h_out", "zero"], ["last"]),
        helper.make_node("MatMul", ["last", "out"], ["actions"]),
    ]  # fmt: skip
    names = ["h", "c"] if cells else ["h"]
    return saved(
        path,
        nodes,
        [port("obs", 1, width), *(port(f"{name}_in", 1, 1, hidden) for name in names)],
        [port("actions", 1, actions), *(port(f"{name}_out", 1, 1, hidden) for name in names)],
        {**weights, "zero": np.array([0], np.int64)},
        opset=14,
    )


def contract(path: Path, **entries: Any) -> Path:
    """Write a contract; return its path."""
    told = {"control_rate": 50, **entries}
    path.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
    return path
