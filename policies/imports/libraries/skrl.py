"""Files of skrl: agents with a Gaussian policy whose width does not depend on the state.

Serrano-Muñoz et al., "skrl: Modular and Flexible Library for Reinforcement Learning" (Journal of
Machine Learning Research 24(254), 2023). The names of the layers are the user's, so the linear ones
are taken in the order in which they are stored, without those of a value. What follows the last one
is in the user's program, so the contract says it: ``output: none`` or ``output: tanh``.
"""

from __future__ import annotations

from trimtab.policies.imports.actors import (
    NONE,
    TANH,
    Actor,
    Formula,
    Named,
    Unsaid,
    deterministic,
    diagonal_gaussian,
    raw_units,
)
from trimtab.policies.imports.layouts import Layout, at
from trimtab.policies.imports.torch_archive import TensorArchive

__all__ = ["FORMULA", "LAYOUTS"]

FORMULA = Formula(lambda std: std + 1e-8, 5.0)
_PREPROCESSORS = ("observation_preprocessor", "state_preprocessor")  # from 2 on, and before


def _read(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    tensors = Named(archive.within(at(archive.content, "policy")))
    log_std = tensors.tensor("log_std_parameter", 1)
    prefixes = [
        key.removesuffix(".weight")
        for key in tensors.archive
        if key.endswith(".weight") and not key.startswith("value")
    ]
    layers = [tensors.layer(prefix) for prefix in prefixes]
    tensors.check_used("value")
    if unsaid.output is None or not layers:
        raise tensors.refusal(
            "does not say what follows its last layer; write it into the contract: output: none or "
            "output: tanh"
        )
    kept = [name for name in _PREPROCESSORS if at(archive.content, name, "running_mean")]
    scaler = None
    if kept and unsaid.statistics != NONE:
        apart = Named(archive.within(at(archive.content, kept[0])))
        scaler = apart.statistics(FORMULA, "running_mean", "running_variance", variance=True)
    squashed = unsaid.output == TANH
    return Actor(
        where=tensors.where,
        library="skrl",
        layers=layers,
        activation=unsaid.hidden_activation(tensors.where),
        action_dim=len(log_std),
        make=deterministic if squashed else diagonal_gaussian,
        log_std=log_std,
        scaler=scaler,
        units=raw_units(len(log_std)),
    )


LAYOUTS = (
    Layout(
        "skrl",
        lambda content: at(content, "policy", "log_std_parameter") is not None,
        _read,
    ),
)
