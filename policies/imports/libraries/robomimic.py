"""Files of robomimic: behaviour cloning with a deterministic perceptron over low dimensions.

Mandlekar et al., "What Matters in Learning from Offline Human Demonstrations for Robot
Manipulation" (arXiv 2108.03298): ``algo: bc`` with neither Gaussian, mixture, VAE, recurrence nor
transformer. The observation is the concatenation of the keys in ``shape_metadata``, in its order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from trimtab.policies.imports.actors import (
    Actor,
    Named,
    Scaler,
    Unsaid,
    deterministic,
    raw_units,
)
from trimtab.policies.imports.layouts import Layout, at
from trimtab.policies.imports.torch_archive import TensorArchive

__all__ = ["LAYOUTS"]

_BODY, _HEAD = "policy.nets.mlp._model", "policy.nets.decoder.nets.action"
_OFFSETS, _SCALES = ("mean", "offset"), ("std", "scale")  # before and from 0.4 on


def _read(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    content = archive.content
    networks = at(content, "model", "nets")
    tensors = Named(archive.within(networks if isinstance(networks, dict) else content["model"]))
    if f"{_HEAD}.weight" not in tensors:
        raise tensors.refusal(
            f"is {str(content['algo_name'])[:40]} of robomimic without a deterministic perceptron; "
            f"it has {', '.join(list(tensors.archive)[:8])[:300]}; export it as ONNX"
        )
    layers = [*tensors.perceptron(_BODY), tensors.layer(_HEAD)]
    tensors.check_used()
    shapes = at(content, "shape_metadata", "all_shapes")
    sizes = {
        str(name): math.prod(int(size) for size in shape)
        for name, shape in (shapes if isinstance(shapes, dict) else {}).items()
    }
    if sum(sizes.values()) != layers[0][0].shape[1]:
        raise tensors.refusal(
            f"reads {layers[0][0].shape[1]} numbers, and its observations {', '.join(sizes)[:200]} "
            f"have {sum(sizes.values())}: goals or pictures, which are not read; export it as ONNX"
        )
    actions = len(layers[-1][1])
    shift, scale = raw_units(actions)
    by_key = content.get("action_normalization_stats")
    if by_key:
        shift, scale = (torch.from_numpy(v).float() for v in _joined(archive, by_key, list(by_key)))
    if not len(shift) == len(scale) == actions:
        raise tensors.refusal(f"has statistics of {len(shift)} for {actions} actions")
    observed = content.get("obs_normalization_stats")
    return Actor(
        where=tensors.where,
        library="robomimic",
        layers=layers,
        activation=unsaid.hidden_activation(tensors.where, "relu"),
        action_dim=actions,
        make=deterministic,
        scaler=Scaler(*_joined(archive, observed, list(sizes))) if observed else None,
        units=(shift, scale),
        obs_names=[
            name if size == 1 else f"{name}_{index}"
            for name, size in sizes.items()
            for index in range(size)
        ],
    )


def _joined(archive: TensorArchive, by_key: Any, keys: list[str]) -> tuple[Any, Any]:
    """Return offsets and scales of all keys one after another, in double precision."""
    found = []
    for names in (_OFFSETS, _SCALES):
        parts = []
        for key in keys:
            kept = archive.within(at(by_key, key))
            name = next((name for name in names if name in kept), names[-1])
            parts.append(kept[name].astype(np.float64).reshape(-1))
        found.append(np.concatenate(parts))
    return found[0], found[1]


LAYOUTS = (
    Layout(
        "robomimic",
        lambda content: (
            isinstance(at(content, "model"), dict)
            and at(content, "algo_name") is not None
            and at(content, "shape_metadata") is not None
        ),
        _read,
    ),
)
