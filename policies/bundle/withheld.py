"""Bundles without weights: a policy that others may run, steer and judge, and not look into.

Such a bundle has ``policy.onnx`` and no ``model.safetensors``. It opens as a black box
(:mod:`trimtab.policies.kinds.black_box`), on a robot as any other bundle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory, resolved
from trimtab.observations import tree_map
from trimtab.policies.bundle.files import (
    GOLDEN,
    ONNX,
    Contract,
    inputs_of,
    read_files,
    sealed,
    write_files,
)
from trimtab.policies.bundle.model_card import model_card
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.types import PolicySpec

__all__ = ["black_box", "spec_of", "withhold_weights", "write_black_box"]


def black_box(
    contract: Contract, graph: bytes, golden: Mapping[str, NDArray[Any]], where: str
) -> BlackBoxPolicy:
    """Return the policy of a bundle without weights.

    Args:
        contract: of the bundle.
        graph: the bytes of its ONNX file.
        golden: its golden rows; observations are taken to lie in the range of theirs.
        where: the ONNX file.

    Raises:
        TrimtabError: if the graph cannot be opened.
    """
    try:
        policy = BlackBoxPolicy.of(spec_of(contract), contract.noise_shape, graph)
    except TrimtabError as error:
        raise TrimtabError(f"{where}: {error}") from error
    obs, _ = inputs_of(golden, contract)
    policy.normalizer.take_range(tree_map(torch.tensor, obs))
    return policy


def spec_of(contract: Contract) -> PolicySpec:
    """Return the shapes and limits that a contract states."""
    return PolicySpec(
        contract.obs_dim, contract.horizon, contract.action_dim, contract.action_low,
        contract.action_high, contract.parts, contract.history, contract.every_tick,
    )  # fmt: skip


def withhold_weights(
    source: str | Path, folder: str | Path, limits: Mapping[str, Any] | None = None
) -> Path:
    """Write a copy of a bundle that has its graph and not its weights; return its folder.

    The graph has the weights in it, as numbers that nothing here reads.

    Args:
        source: a bundle with ``policy.onnx``.
        folder: where the copy goes.
        limits: of a robot's commands; None for those that the bundle states.

    Raises:
        TrimtabError: if ``source`` is no such bundle, the limits do not fit it, or ``folder``
            cannot be written or exists.
    """
    config, files = read_files(source)
    folder = resolved(folder)
    if ONNX not in files:
        raise TrimtabError(f"bundle {source}: has no {ONNX}; make a complete one by trimtab export")
    if folder.exists():
        raise TrimtabError(f"bundle {folder}: exists; choose another folder")
    config.pop("warning", None)  # which is calibrated last
    if limits is not None:
        config["limits"] = dict(limits)
        Contract.parse(config, f"bundle {source}")  # refuses those that do not fit
    return write_black_box(config, files[ONNX], files[GOLDEN], folder)


def write_black_box(
    config: Mapping[str, Any], graph_bytes: bytes, golden: bytes, folder: Path
) -> Path:
    """Write a bundle of a graph alone; return its folder.

    Args:
        config: of the bundle; its hashes and its policy are replaced.
        graph_bytes: of its graph.
        golden: bytes of its golden rows.
        folder: where it goes.

    Raises:
        TrimtabError: if ``folder`` cannot be written.
    """
    described = {**config, "policy": {"kind": "black_box"}}
    graph = onnx.load_from_string(graph_bytes)
    del graph.metadata_props[:]  # it repeats what the policy was made of
    body = {key: value for key, value in described.items() if key not in ("files", "sha256")}
    graph.metadata_props.add(key="trimtab", value=json.dumps(body, sort_keys=True))
    kept = {GOLDEN: golden, ONNX: graph.SerializeToString(deterministic=True)}
    described = sealed(described, kept)
    with atomic_directory(folder) as draft:
        write_files(draft, described, kept, model_card(described))
    return folder
