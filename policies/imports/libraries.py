"""What other libraries' weight files look like, and where their actors are in them.

An entry of ``LAYOUTS`` says by which keys a library's file is recognised, and what reads the actor.
The formulas with which the libraries normalise observations are beside their readers.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trimtab.policies.imports.actors import (
    FILE,
    GYMNASIUM,
    NONE,
    TANH,
    Actor,
    Formula,
    Layer,
    Named,
    Scaler,
    Unsaid,
    deterministic,
    diagonal_gaussian,
    raw_units,
)
from trimtab.policies.imports.chunks import ChunkActor, diffusion_policy
from trimtab.policies.imports.torch_archive import Opaque, TensorArchive

__all__ = ["BRAX", "LAYOUTS", "RL_GAMES", "RSL_RL", "SKRL", "Layout"]

RSL_RL = Formula(lambda std: std + 0.01)
RL_GAMES = Formula(lambda std: np.sqrt(std**2 + 1e-5), 5.0)
SKRL = Formula(lambda std: std + 1e-8, 5.0)
BRAX = Formula(lambda std: np.clip(std, 1e-6, 1e6))


@dataclass(frozen=True)
class Layout:
    """One library's files.

    Attributes:
        library: its name.
        recognises: whether a file's content is in this layout.
        read: returns the actor.
        asks: which of ``output: tanh`` and an ``.npz`` of ``statistics`` it has a use for.
    """

    library: str
    recognises: Callable[[Any], bool]
    read: Callable[[TensorArchive, Unsaid], Actor | ChunkActor]
    asks: tuple[str, ...] = ()


def _at(content: Any, *place: str | int) -> Any:
    """Return what lies at a place in nested dictionaries and sequences, or None."""
    for key in place:
        if isinstance(content, dict):
            content = content.get(key)
        elif isinstance(content, list | tuple) and isinstance(key, int) and key < len(content):
            content = content[key]
        else:
            return None
    return content


def _has(*place: str | int) -> Callable[[Any], bool]:
    return lambda content: _at(content, *place) is not None


def _rsl_rl(
    archive: TensorArchive, unsaid: Unsaid, *, where: str, names: tuple[str, str, str, str]
) -> Actor:
    """Schwarke et al., "RSL-RL: A Learning Library for Robotics Research" (arXiv 2509.10771).

    The mean is the action, without a clip. A normaliser is in the file where it was used.

    Args:
        archive: the file.
        unsaid: what it does not say.
        where: the key of the actor's dictionary.
        names: of the body, the width, the logarithm of the width, and the normaliser.
    """
    tensors = Named(archive.within(_at(archive.content, where)))
    body, std, log_std, normalizer = names
    layers = tensors.perceptron(body)
    width = tensors.tensor(log_std, 1) if log_std in tensors else tensors.tensor(std, 1).log()
    beside = _at(archive.content, "obs_norm_state_dict")  # until version 2
    scaler = None
    if f"{normalizer}_mean" in tensors:
        scaler = tensors.statistics(RSL_RL, f"{normalizer}_mean", f"{normalizer}_std")
    elif beside:
        scaler = Named(archive.within(beside)).statistics(RSL_RL, "_mean", "_std")
    tensors.check_used("critic", normalizer)
    return tensors.actor(
        unsaid, layers, diagonal_gaussian, log_std=width, scaler=scaler,
        units=raw_units(len(width)),
    )  # fmt: skip


def _rl_games(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    """Makoviichuk and Makoviychuk, "rl-games" (2021): A2C and PPO with continuous actions.

    The mean is clamped to [-1, 1] and mapped to the limits of the actions; with ``clip_actions:
    False`` in its settings, which the contract says as ``output: none``, it is the action itself.
    ``sigma`` is read as the logarithm of the width, as ``continuous_a2c_logstd`` has it; the file
    does not say.
    """
    tensors = Named(archive.within(archive.content["model"]))
    net, seen, scaler = "a2c_network", "running_mean_std.running_", None
    layers = [*tensors.perceptron(f"{net}.actor_mlp"), tensors.layer(f"{net}.mu")]
    log_std = tensors.tensor(f"{net}.sigma", 1)
    if f"{seen}mean" in tensors:
        scaler = tensors.statistics(RL_GAMES, f"{seen}mean", f"{seen}var", variance=True)
    critic = (f"{net}.value.", f"{net}.critic_mlp.", "value_mean_std.")
    tensors.check_used("running_mean_std.count", *critic)
    return tensors.actor(
        unsaid, layers, diagonal_gaussian, log_std=log_std, scaler=scaler,
        units=raw_units(len(log_std)) if unsaid.output == NONE else None,
    )  # fmt: skip


def _skrl(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    """Serrano-Muñoz et al., "skrl" (Journal of Machine Learning Research 24(254), 2023).

    The names of the layers are the user's: the linear ones are taken in the order in which they are
    stored, without those of a value. What follows the last one is in the user's program.
    """
    tensors = Named(archive.within(archive.content["policy"]))
    log_std = tensors.tensor("log_std_parameter", 1)
    weights = [key for key in tensors.archive if key.endswith(".weight")]
    actors = [key.removesuffix(".weight") for key in weights if not key.startswith("value")]
    layers = [tensors.layer(prefix) for prefix in actors]
    tensors.check_used("value")
    if unsaid.output is None:
        raise tensors.refusal(
            "does not say what follows its last layer; write it into the contract: output: none or "
            "output: tanh"
        )
    scaler = None
    kept = [name for name in ("observation_preprocessor", "state_preprocessor")
            if _has(name, "running_mean")(archive.content)]  # fmt: skip
    if kept == ["state_preprocessor"] and unsaid.statistics is None:
        raise tensors.refusal(
            "has a state_preprocessor alone, which scales what the policy reads up to skrl 1, and "
            "only what the critic reads from skrl 2 on; write statistics: file (skrl 1) or "
            "statistics: none (skrl 2) into the contract"
        )
    if kept:
        apart = Named(archive.within(archive.content[kept[0]]))
        scaler = apart.statistics(SKRL, "running_mean", "running_variance", variance=True)
    make = deterministic if unsaid.output == TANH else diagonal_gaussian
    return tensors.actor(
        unsaid, layers, make, log_std=log_std, scaler=scaler, units=raw_units(len(log_std))
    )


def _cleanrl_ppo(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    """Huang et al., "CleanRL" (Journal of Machine Learning Research 23(274), 2022): PPO.

    It is trained behind Gymnasium's ``NormalizeObservation`` and a clip at 10, whose statistics its
    file does not have.
    """
    tensors = Named(archive)
    if unsaid.statistics in (None, FILE):
        raise tensors.refusal(
            "is a PPO of CleanRL without the statistics of its NormalizeObservation; save obs_rms "
            "of the environments as an .npz with mean and variance and write statistics: <file> "
            "into the contract, or statistics: none if it was trained without"
        )
    layers, log_std = tensors.perceptron("actor_mean"), tensors.tensor("actor_logstd", 2)[0]
    tensors.check_used("critic.")
    return tensors.actor(
        unsaid, layers, diagonal_gaussian, "tanh", log_std=log_std,
        scaler=GYMNASIUM.of_file(str(unsaid.statistics)) if unsaid.statistics != NONE else None,
        units=raw_units(len(log_std)),
    )  # fmt: skip


def _cleanrl_td3(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    """CleanRL's TD3 and DDPG: a tanh, scaled to limits that the file has."""
    tensors = Named(archive.within(archive.content[0]))
    layers = [tensors.layer(part) for part in ("fc1", "fc2", "fc_mu")]
    scale, shift = (tensors.tensor(part).flatten() for part in ("action_scale", "action_bias"))
    tensors.check_used()
    return tensors.actor(
        unsaid, layers, deterministic, "relu", units=(shift, scale),
        limits=(tuple((shift - scale).tolist()), tuple((shift + scale).tolist())),
    )  # fmt: skip


def _robomimic(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    """Mandlekar et al., "What Matters in Learning from Offline Human Demonstrations" (2108.03298).

    Behaviour cloning with a deterministic perceptron. The observation is the concatenation of the
    keys in ``shape_metadata``, in its order.
    """
    content = archive.content
    tensors = Named(archive.within(_at(content, "model", "nets") or content["model"]))
    head = tensors.layer("policy.nets.decoder.nets.action")
    layers = [*tensors.perceptron("policy.nets.mlp._model"), head]
    tensors.check_used()
    shapes = _at(content, "shape_metadata", "all_shapes")
    sizes = {str(key): math.prod(int(n) for n in shape) for key, shape in shapes.items()}
    if sum(sizes.values()) != layers[0][0].shape[1]:
        raise tensors.refusal(
            f"reads {layers[0][0].shape[1]} numbers, and its observations {', '.join(sizes)[:200]} "
            f"have {sum(sizes.values())}: goals or pictures, which are not read; export it as ONNX"
        )
    observed = content.get("obs_normalization_stats")
    commanded = content.get("action_normalization_stats")
    shift, scale = raw_units(len(head[1]))
    if commanded:
        trained = _at(json.loads(content["config"]), "train") or {}
        keys = trained.get("action_keys") or list(commanded)
        if len(commanded) > 1 and "action_keys" not in trained:
            raise tensors.refusal("has no action_keys in its config, the order of its actions")
        turned = [key for key in keys if _at(trained, "action_config", key, "format") == "rot_6d"]
        if turned:
            raise tensors.refusal(
                f"gives a rotation of six numbers, {', '.join(turned)}, which robomimic makes an "
                "axis and an angle of; export it as ONNX with that in it"
            )
        shift, scale = (torch.from_numpy(v).float() for v in _joined(archive, commanded, keys))
    return tensors.actor(
        unsaid, layers, deterministic, "relu",
        scaler=Scaler(*_joined(archive, observed, sizes)) if observed else None,
        units=(shift, scale),
        obs_names=[f"{key}_{index}" for key, size in sizes.items() for index in range(size)],
    )  # fmt: skip


def _joined(archive: TensorArchive, by_key: Any, keys: Any) -> tuple[Any, Any]:
    """Return offsets and scales of all keys one after another; their names changed with 0.4."""
    kept = [archive.within(_at(by_key, key)) for key in keys]
    offsets, scales = (
        np.concatenate([one[old if old in one else new].astype("f8").reshape(-1) for one in kept])
        for old, new in (("mean", "offset"), ("std", "scale"))
    )
    return offsets, scales


def _brax(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    """Freeman et al., "Brax" (arXiv 2106.13281): ``model.save_params`` of PPO, as Playground's.

    The layers are flax's, inputs first. Half of the outputs are the mean, whose tanh is the action;
    the others are a width by a softplus, which no kind of policy here has, so that the import acts
    at its mode. Of an observation of several parts, the policy reads ``state``.
    """
    named = Named(archive)
    if unsaid.statistics not in (NONE, FILE):
        raise named.refusal(
            "has statistics of observations whether they were used or not; write statistics: file "
            "into the contract if normalize_observations was on, or statistics: none"
        )
    if unsaid.activation == "gelu":
        raise named.refusal(
            "is of flax, whose gelu is an approximation by a tanh, which no policy here has; "
            "export it as ONNX"
        )
    seen = archive.content[0].state
    kept = _thawed(_at(_thawed(archive.content[1]), "params"))
    layers: list[Layer] = []
    while f"hidden_{len(layers)}" in kept:
        part = Named(archive.within(_thawed(kept[f"hidden_{len(layers)}"])))
        layers.append((part.tensor("kernel", 2).T.contiguous(), part.tensor("bias", 1)))
        part.check_used()
    if not layers or len(layers) != len(kept) or len(layers[-1][1]) % 2:
        raise named.refusal(
            f"has a policy of {', '.join(map(str, kept))[:200] or 'nothing'}, and only perceptrons "
            "with a tanh_normal distribution are read; export it as ONNX"
        )
    actions = len(layers[-1][1]) // 2
    layers[-1] = layers[-1][0][:actions], layers[-1][1][:actions]
    parts = {key: _thawed(_at(seen, key)) for key in ("mean", "std")}
    stored = {key: part if (state := _at(part, "state")) is None else state
              for key, part in parts.items()}  # fmt: skip
    return named.actor(
        unsaid, layers, deterministic,
        scaler=Named(archive.within(stored)).statistics(BRAX, "mean", "std"),
        limits=((-1.0,) * actions, (1.0,) * actions),
    )  # fmt: skip


def _thawed(value: Any) -> Any:
    """Return the dictionary in a ``FrozenDict`` of flax, which older versions saved."""
    frozen = isinstance(value, Opaque) and value.class_name.endswith(" FrozenDict")
    return value.arguments[0] if frozen else value


def _is_brax(content: Any) -> bool:
    first = _at(content, 0) if isinstance(content, tuple) else None
    return isinstance(first, Opaque) and first.class_name.startswith("brax.training.acme.running_")


LAYOUTS = (
    Layout("rsl_rl", _has("model_state_dict", "actor.0.weight"), functools.partial(
        _rsl_rl, where="model_state_dict",
        names=("actor", "std", "log_std", "actor_obs_normalizer."),
    )),  # until version 3
    Layout("rsl_rl", _has("actor_state_dict", "mlp.0.weight"), functools.partial(
        _rsl_rl, where="actor_state_dict",
        names=("mlp", "distribution.std_param", "distribution.log_std_param", "obs_normalizer."),
    )),
    Layout("rl_games", _has("model", "a2c_network.mu.weight"), _rl_games),
    Layout("skrl", _has("policy", "log_std_parameter"), _skrl, ("output",)),
    Layout("CleanRL", _has("actor_mean.0.weight"), _cleanrl_ppo, ("statistics",)),
    Layout("CleanRL", _has(0, "fc_mu.weight"), _cleanrl_td3),
    Layout("robomimic", _has("shape_metadata", "all_shapes"), _robomimic),
    Layout("Brax", _is_brax, _brax),
    Layout("Diffusion Policy", _has("state_dicts"), diffusion_policy),
)  # fmt: skip
