"""One ONNX graph from a policy: normalisation inside, sampler unrolled, any batch size."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trimtab.policies.base import Policy
from trimtab.types import TrimtabError

_CHATTY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")


def export_onnx(policy: Policy, metadata: dict[str, str]) -> bytes:
    """Return ``policy`` as an ONNX model with its weights inside.

    Inputs are ``obs [batch, O]`` and ``noise [batch, *noise_shape]``, the output is
    ``action [batch, H, A]``, all float32 and in raw units.

    Args:
        policy: any policy; it is left as it is.
        metadata: what ``metadata_props`` of the model says.

    Raises:
        TrimtabError: if the policy's forward is not exportable.
    """
    # A copy, because exporting sets modes and devices that a policy in training must keep.
    frozen = copy.deepcopy(policy).cpu().eval().requires_grad_(False)
    # Two rows, because a batch of one would be traced as a fixed size.
    example = (torch.zeros(2, policy.spec.obs_dim), torch.zeros(2, *policy.noise_shape))
    batch = torch.export.Dim("batch")
    try:
        with _quiet():
            program = torch.onnx.export(
                frozen,
                example,
                dynamo=True,
                verbose=False,
                external_data=False,
                input_names=["obs", "noise"],
                output_names=["action"],
                dynamic_shapes={"obs": {0: batch}, "noise": {0: batch}},
            )
    except Exception as error:  # the exporter raises many unrelated types
        raise TrimtabError(f"export: a {policy.kind} policy cannot become ONNX: {error}") from error
    if program is None:
        raise TrimtabError(f"export: a {policy.kind} policy cannot become ONNX")
    model = program.model_proto
    # The exporter notes on every node which source line it came from; a bundle is no place for the
    # paths of the machine that made it, and without them the same policy gives the same bytes.
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    for tensor in graph.initializer:
        del tensor.metadata_props[:]
        tensor.ClearField("doc_string")
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's remarks, which concern nobody who exports a policy."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
