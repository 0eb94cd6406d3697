"""Files of rl_games: actors of its A2C and PPO with continuous actions.

Makoviichuk and Makoviychuk, "rl-games: A High-performance Framework for Reinforcement Learning"
(2021). The mean is clamped to [-1, 1] and mapped to the limits of the actions. ``sigma`` is read as
the logarithm of the width, as ``continuous_a2c_logstd`` has it; the file does not say.
"""

from __future__ import annotations

import numpy as np

from trimtab.policies.imports.actors import (
    NONE,
    Actor,
    Formula,
    Named,
    Unsaid,
    diagonal_gaussian,
)
from trimtab.policies.imports.layouts import Layout, at
from trimtab.policies.imports.torch_archive import TensorArchive

__all__ = ["FORMULA", "LAYOUTS"]

FORMULA = Formula(lambda std: np.sqrt(std**2 + 1e-5), 5.0)


def _read(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    tensors = Named(archive.within(at(archive.content, "model")))
    net, statistics = "a2c_network", "running_mean_std"
    layers = [*tensors.perceptron(f"{net}.actor_mlp"), tensors.layer(f"{net}.mu")]
    if f"{net}.sigma" not in tensors:
        raise tensors.refusal("has a width that depends on the state; export it as ONNX")
    log_std, scaler = tensors.tensor(f"{net}.sigma", 1), None
    if f"{statistics}.running_mean" in tensors:
        names = (f"{statistics}.running_mean", f"{statistics}.running_var")
        scaler = tensors.statistics(FORMULA, *names, variance=True)
    tensors.check_used(
        f"{net}.value.", f"{net}.critic_mlp.", f"{statistics}.count", "value_mean_std."
    )
    return Actor(
        where=tensors.where,
        library="rl_games",
        layers=layers,
        activation=unsaid.hidden_activation(tensors.where),
        action_dim=len(log_std),
        make=diagonal_gaussian,
        log_std=log_std,
        scaler=None if unsaid.statistics == NONE else scaler,
    )


LAYOUTS = (
    Layout(
        "rl_games",
        lambda content: at(content, "model", "a2c_network.mu.weight") is not None,
        _read,
    ),
)
