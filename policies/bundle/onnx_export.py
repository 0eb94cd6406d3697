"""One ONNX graph from a policy: normalisation inside, sampler unrolled, any batch size."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.base import Policy
from trimtab.policies.bundle.inlining import inline
from trimtab.policies.features import observations
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.policies.kinds.choice import ChoicePolicy

_CHATTY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")


def export_onnx(policy: Policy, metadata: dict[str, str]) -> bytes:
    """Return ``policy`` as an ONNX model with its weights inside.

    Inputs are ``obs [batch, O]``, or each part of an observation by its name, and ``noise [batch,
    *noise_shape]``; the output is ``action [batch, H, A]``. All are in raw units, and float32 but
    for parts of bytes.

    Args:
        policy: any policy; it is left as it is.
        metadata: what ``metadata_props`` of the model says.

    Raises:
        TrimtabError: if the policy's forward is not exportable, or ``no_graph`` says why not.
    """
    frozen = frozen_copy(policy)
    boxes = [one for one in frozen.modules() if isinstance(one, BlackBoxPolicy)]
    for number, box in enumerate(boxes):
        box.number = number
    graphs = [box.graph_bytes() for box in boxes]
    for one in frozen.modules():
        if isinstance(one, ChoicePolicy):
            one.first_graph = len(graphs)
            graphs += [export_onnx(variant, {}) for variant in one.variants]
    # Two rows, because a batch of one would be traced as a fixed size.
    obs = observations(torch.zeros(2, policy.spec.obs_dim), policy.spec)
    parts = dict(obs) if isinstance(obs, Mapping) else {FLAT: obs}
    example = (*parts.values(), torch.zeros(2, *policy.noise_shape))
    graph_of = frozen if isinstance(obs, Tensor) else Positional(frozen, tuple(parts))
    batch = torch.export.Dim("batch")
    sizes = {"obs": {0: batch}, "noise": {0: batch}}
    try:
        with quiet():
            program = torch.onnx.export(
                graph_of,
                example,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=[*parts, "noise"],
                output_names=["action"],
                dynamic_shapes=sizes if graph_of is frozen else (({0: batch},) * len(example),),
            )
    except Exception as error:  # the exporter raises many unrelated types
        raise TrimtabError(f"export: a {policy.kind} policy cannot become ONNX: {error}") from error
    if program is None:
        raise TrimtabError(f"export: a {policy.kind} policy cannot become ONNX")
    model = program.model_proto
    inline(model, graphs)
    # The exporter notes on every node which source line it came from; a bundle is no place for the
    # paths of the machine that made it, and without them the same policy gives the same bytes.
    _forget(model)
    for graph in _graphs(model.graph):
        for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
            _forget(part)
        for tensor in graph.initializer:
            _forget(tensor)
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def frozen_copy(policy: Policy) -> Policy:
    """Return a copy to be traced: exporting sets modes that a policy in training must keep.

    Raises:
        TrimtabError: if the policy has no graph.
    """
    frozen = copy.deepcopy(policy).cpu().eval().requires_grad_(False)
    for one in frozen.modules():
        if isinstance(one, Policy):
            one.input_check = None  # no part of a graph
            if one.no_graph:
                raise TrimtabError(f"export: {one.no_graph}")
    return frozen


def _forget(part: Any) -> None:
    del part.metadata_props[:]
    part.ClearField("doc_string")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those of its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's remarks, which concern no user."""
    levels = {logger: logger.level for logger in map(logging.getLogger, _CHATTY)}
    with warnings.catch_warnings(action="ignore"):
        try:
            for logger in levels:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)


class Positional(nn.Module):
    """A policy whose inputs are tensors one after another, as a graph has them.

    Args:
        policy: any.
        names: of the parts of its observation, in order; the noise comes last.
    """

    def __init__(self, policy: Policy, names: tuple[str, ...]) -> None:
        super().__init__()
        self.policy, self.names = policy, names

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        *parts, noise = tensors
        action: Tensor = self.policy(dict(zip(self.names, parts, strict=True)), noise)
        return action
