"""Files of Brax: ``model.save_params`` of PPO, a pickle of normaliser, policy and value.

Freeman et al., "Brax: A Differentiable Physics Engine for Large Scale Rigid Body Simulation" (arXiv
2106.13281), as MuJoCo Playground trains with it. The layers are flax's, inputs first. Half of the
outputs are the mean, whose tanh is the action in [-1, 1]; the others are a width by a softplus,
which no kind of policy here has, so that the import acts at its mode. Brax keeps statistics of
observations also where ``normalize_observations`` was off: the contract says ``statistics: file``
or ``statistics: none``. Of an observation of several parts, the policy's part is ``state``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.policies.imports.actors import (
    FILE,
    NONE,
    Actor,
    Formula,
    Layer,
    Named,
    Scaler,
    Unsaid,
    deterministic,
)
from trimtab.policies.imports.layouts import Layout, at
from trimtab.policies.imports.torch_archive import Opaque, TensorArchive

__all__ = ["FORMULA", "LAYOUTS"]

FORMULA = Formula(lambda std: np.clip(std, 1e-6, 1e6))
_STATE = "state"


def _thawed(value: Any) -> Any:
    """Return the dictionary in a ``FrozenDict`` of flax, which older versions saved."""
    while isinstance(value, Opaque) and value.class_name.endswith(" FrozenDict"):
        value = value.arguments[0] if value.arguments else None
    return value


def _layer(tensors: TensorArchive, name: str, layer: Any) -> Layer:
    named = Named(tensors.within(_thawed(layer)))
    weight, bias = named.tensor("kernel", 2).T.contiguous(), named.tensor("bias", 1)
    named.check_used()
    return named.checked_layer(name, weight, bias)


def _read(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    named = Named(archive)
    if unsaid.statistics not in (NONE, FILE):
        raise named.refusal(
            "has statistics of observations whether they were used or not; write statistics: file "
            "into the contract if normalize_observations was on, or statistics: none"
        )
    kept = _thawed(at(_thawed(archive.content[1]), "params"))
    layers: list[Layer] = []
    while isinstance(kept, dict) and f"hidden_{len(layers)}" in kept:
        name = f"hidden_{len(layers)}"
        layers.append(_layer(archive, name, kept[name]))
    if not layers or len(layers) != len(kept) or len(layers[-1][1]) % 2:
        raise named.refusal(
            f"has a policy of {', '.join(map(str, kept or ()))[:200] or 'nothing'}, and only "
            "perceptrons with a tanh_normal distribution are read; export it as ONNX"
        )
    weight, bias = layers[-1]
    actions = len(bias) // 2
    layers[-1] = weight[:actions], bias[:actions]
    return Actor(
        where=archive.where,
        library="brax",
        layers=layers,
        activation=unsaid.hidden_activation(archive.where),
        action_dim=actions,
        make=deterministic,
        scaler=_scaler(archive) if unsaid.statistics == FILE else None,
        limits=((-1.0,) * actions, (1.0,) * actions),
    )


def _scaler(archive: TensorArchive) -> Scaler:
    state = archive.content[0].state
    part = {name: _of_state(at(state, name)) for name in ("mean", "std")}
    tensors = archive.within(part)
    return FORMULA.scaler(tensors["mean"], tensors["std"])


def _of_state(value: Any) -> Any:
    value = _thawed(value)
    return value.get(_STATE) if isinstance(value, dict) else value


def _recognises(content: Any) -> bool:
    first = at(content, 0) if isinstance(content, list | tuple) else None
    return (
        isinstance(first, Opaque)
        and first.class_name.startswith("brax.training.acme.running_statistics ")
        and len(content) > 1
    )


LAYOUTS = (Layout("Brax", _recognises, _read),)
