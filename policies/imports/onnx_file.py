"""Open an ONNX file of others: standard operators alone, and no bytes from outside its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import onnx
from onnx import external_data_helper, helper

from trimtab.errors import TrimtabError
from trimtab.files import read_whole

__all__ = [
    "Port", "float_port", "inputs_of_graph", "outputs_of_graph", "read_onnx", "seen", "starts_of",
]  # fmt: skip

_OLDEST = 11
"""Version of the operators from which on all those of a wrapping mean what they do today."""
_STANDARD = ("", "ai.onnx")
_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip


@dataclass(frozen=True)
class Port:
    """An input or an output of a graph.

    Attributes:
        name: of the tensor.
        shape: a number, or the name of a size that is open.
        number: whether it is float32.
    """

    name: str
    shape: tuple[int | str, ...]
    number: bool

    @property
    def row(self) -> tuple[int, ...]:
        """The shape with 1 in the place of every open size."""
        return tuple(size if isinstance(size, int) else 1 for size in self.shape)

    def __str__(self) -> str:
        kind = "" if self.number else ", which is not float32"
        return f"{self.name} [{', '.join(map(str, self.shape))}]{kind}"


def float_port(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    """Return an input or output of float32; a size with a name is open."""
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def starts_of(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return where each of several rows begins, one after another."""
    return dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))


def read_onnx(path: str | Path) -> onnx.ModelProto:
    """Return the model of a file with all its weights inside.

    Its operators keep their version: a conversion changes what some of them compute (Hardmax).

    Raises:
        TrimtabError: if it is no ONNX file, has operators of another domain, functions of its own,
            sparse weights or random numbers, or names weights that are not in its folder.
    """
    path = Path(path)
    data = read_whole(path)
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's errors share no public base class
        raise TrimtabError(f"{path}: is no readable ONNX file ({str(error)[:80]})") from error
    if not model.graph.node:
        raise TrimtabError(f"{path}: is no ONNX file, or its graph is empty")
    _check_operators(model, path)
    _take_weights(model, path)
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # the checker raises several unrelated types
        raise TrimtabError(f"{path}: is no valid ONNX ({str(error)[:200]})") from error
    version = next((one.version for one in model.opset_import if one.domain in _STANDARD), 0)
    if version < _OLDEST:
        raise TrimtabError(
            f"{path}: has operators of version {version}; export it again with opset {_OLDEST} or "
            "later"
        )
    return model


def inputs_of_graph(graph: onnx.GraphProto) -> list[Port]:
    """Return what a graph is given; old files list their weights there too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [_port(value) for value in graph.input if value.name not in weights]


def outputs_of_graph(graph: onnx.GraphProto) -> list[Port]:
    """Return what a graph gives."""
    return [_port(value) for value in graph.output]


def seen(inputs: Sequence[Port], outputs: Sequence[Port]) -> str:
    """Return what a message says of a graph."""
    ins, outs = ("; ".join(map(str, ports)) for ports in (inputs, outputs))
    return f"its inputs are {ins or 'none'}; its outputs are {outs or 'none'}"


def _port(value: onnx.ValueInfoProto) -> Port:
    kind = value.type.tensor_type
    shape = tuple(
        size.dim_value if size.HasField("dim_value") else size.dim_param or "?"
        for size in kind.shape.dim
    )
    return Port(value.name, shape, kind.elem_type == onnx.TensorProto.FLOAT)


def _check_operators(model: onnx.ModelProto, path: Path) -> None:
    for function in model.functions:
        raise TrimtabError(
            f"{path}: has a function of its own, {function.domain}::{function.name}; inline it "
            "(onnx.inliner.inline_local_functions) and give the result"
        )
    for graph in _graphs(model.graph):
        if graph.sparse_initializer:
            raise TrimtabError(f"{path}: has sparse weights; export it again with dense ones")
    for node in (node for graph in _graphs(model.graph) for node in graph.node):
        if node.domain not in _STANDARD:
            raise TrimtabError(
                f"{path}: has the operator {node.domain}::{node.op_type}, which only its own "
                "library knows; export it again with standard operators"
            )
        if node.op_type in _RANDOM:
            raise TrimtabError(
                f"{path}: draws its own random numbers ({node.op_type}), so that no two runs of it "
                "are alike; export it with its noise as an input, or its mean alone"
            )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those of its branches and loops."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors that are written down in a graph, its branches and loops."""
    for one in _graphs(graph):
        yield from one.initializer
        for node in one.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)


def _take_weights(model: onnx.ModelProto, path: Path) -> None:
    """Read the weights that lie in other files, and only those of the model's own folder.

    Raises:
        TrimtabError: if one lies elsewhere, also by a link, or is missing.
    """
    folder = path.resolve().parent
    for tensor in _tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        said: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
        location = said.get("location", "")
        place = (folder / location).resolve()
        if not location or not place.is_relative_to(folder) or place == folder:
            raise TrimtabError(
                f"{path}: the weights {tensor.name} lie outside of its folder, at {location!r}; "
                "put the file beside it, or save the model with its weights inside"
            )
        if not place.is_file():
            raise TrimtabError(f"{path}: its weights {location} are not beside it; copy them too")
        try:
            external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # the helper raises several unrelated types
            raise TrimtabError(f"{path}: {location}: cannot be read ({error})") from error
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]
