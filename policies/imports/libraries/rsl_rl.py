"""Files of rsl_rl: actors of PPO and of distillation, as IsaacLab and mjlab train them.

Schwarke et al., "RSL-RL: A Learning Library for Robotics Research" (arXiv 2509.10771). Until
version 3 a file has one ``model_state_dict`` of actor and critic, from version 4 on an
``actor_state_dict``. The mean is the action, without a clip: the limits are the contract's. A
normaliser that divides by the deviation plus 0.01 is in the file where it was used.
"""

from __future__ import annotations

from torch import Tensor

from trimtab.policies.imports.actors import (
    NONE,
    Actor,
    Formula,
    Layer,
    Named,
    Scaler,
    Unsaid,
    diagonal_gaussian,
    raw_units,
)
from trimtab.policies.imports.layouts import Layout, at
from trimtab.policies.imports.torch_archive import TensorArchive

__all__ = ["FORMULA", "LAYOUTS"]

FORMULA = Formula(lambda std: std + 0.01)


def _actor(
    tensors: Named, layers: list[Layer], log_std: Tensor, scaler: Scaler | None, unsaid: Unsaid
) -> Actor:
    if not layers:
        raise tensors.refusal("has no layers of an actor")
    return Actor(
        where=tensors.where,
        library="rsl_rl",
        layers=layers,
        activation=unsaid.hidden_activation(tensors.where),
        action_dim=len(log_std),
        make=diagonal_gaussian,
        log_std=log_std,
        scaler=None if unsaid.statistics == NONE else scaler,
        units=raw_units(len(log_std)),
    )


def _log_std(tensors: Named, scalar: str, logarithm: str) -> Tensor:
    """Return the logarithm of the width, of which either the width or its logarithm is stored."""
    if logarithm in tensors:
        return tensors.tensor(logarithm, 1)
    if scalar not in tensors:
        raise tensors.refusal(
            f"has no {scalar}: its width depends on the state, or it has none; export it as ONNX"
        )
    return tensors.tensor(scalar, 1).log()


def _until_3(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    tensors = Named(archive.within(at(archive.content, "model_state_dict")))
    layers, log_std = tensors.perceptron("actor"), _log_std(tensors, "std", "log_std")
    inside, beside = "actor_obs_normalizer.", at(archive.content, "obs_norm_state_dict")
    scaler = None
    if f"{inside}_mean" in tensors:
        scaler = tensors.statistics(FORMULA, f"{inside}_mean", f"{inside}_std", variance=False)
    elif isinstance(beside, dict):
        apart = Named(archive.within(beside))
        scaler = apart.statistics(FORMULA, "_mean", "_std", variance=False)
    tensors.check_used("critic", inside)
    return _actor(tensors, layers, log_std, scaler, unsaid)


def _from_4(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    tensors = Named(archive.within(at(archive.content, "actor_state_dict")))
    layers = tensors.perceptron("mlp")
    log_std = _log_std(tensors, "distribution.std_param", "distribution.log_std_param")
    inside, scaler = "obs_normalizer.", None
    if f"{inside}_mean" in tensors:
        scaler = tensors.statistics(FORMULA, f"{inside}_mean", f"{inside}_std", variance=False)
    tensors.check_used(inside)
    return _actor(tensors, layers, log_std, scaler, unsaid)


LAYOUTS = (
    Layout(
        "rsl_rl until 3",
        lambda content: at(content, "model_state_dict", "actor.0.weight") is not None,
        _until_3,
    ),
    Layout(
        "rsl_rl from 4 on",
        lambda content: at(content, "actor_state_dict", "mlp.0.weight") is not None,
        _from_4,
    ),
)
