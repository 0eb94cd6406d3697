"""Files of CleanRL: its PPO with continuous actions, TD3 and DDPG.

Huang et al., "CleanRL: High-quality Single-file Implementations of Deep Reinforcement Learning
Algorithms" (Journal of Machine Learning Research 23(274), 2022). PPO is trained behind Gymnasium's
``NormalizeObservation`` and a clip at 10, whose statistics its file does not have: the contract
names an ``.npz`` of them, or says ``statistics: none``. The activations are those of the scripts.
"""

from __future__ import annotations

import torch

from trimtab.policies.imports.actors import (
    FILE,
    GYMNASIUM,
    NONE,
    Actor,
    Named,
    Unsaid,
    deterministic,
    diagonal_gaussian,
    raw_units,
)
from trimtab.policies.imports.layouts import Layout, at
from trimtab.policies.imports.torch_archive import TensorArchive

__all__ = ["LAYOUTS"]


def _ppo(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    tensors = Named(archive)
    if unsaid.statistics in (None, FILE):
        raise tensors.refusal(
            "is a PPO of CleanRL without the statistics of its NormalizeObservation; save obs_rms "
            "of the environments as an .npz with mean and variance and write statistics: <file> "
            "into the contract, or statistics: none if it was trained without"
        )
    layers, log_std = tensors.perceptron("actor_mean"), tensors.tensor("actor_logstd", 2)[0]
    tensors.check_used("critic.")
    named = None if unsaid.statistics == NONE else unsaid.statistics
    return Actor(
        where=tensors.where,
        library="cleanrl",
        layers=layers,
        activation=unsaid.hidden_activation(tensors.where, "tanh"),
        action_dim=len(log_std),
        make=diagonal_gaussian,
        log_std=log_std,
        scaler=None if named is None else GYMNASIUM.of_file(named),
        units=raw_units(len(log_std)),
    )


def _td3(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    tensors = Named(archive.within(at(archive.content, 0)))
    layers = [tensors.layer(name) for name in ("fc1", "fc2", "fc_mu")]
    scale, shift = (
        torch.from_numpy(tensors.archive[name]).float().flatten()
        for name in ("action_scale", "action_bias")
    )
    tensors.used |= {"action_scale", "action_bias"}
    tensors.check_used()
    if not len(scale) == len(shift) == len(layers[-1][1]):
        raise tensors.refusal(f"has {len(scale)} action scales for {len(layers[-1][1])} actions")
    limits = (tuple((shift - scale).tolist()), tuple((shift + scale).tolist()))
    return Actor(
        where=tensors.where,
        library="cleanrl",
        layers=layers,
        activation=unsaid.hidden_activation(tensors.where, "relu"),
        action_dim=len(scale),
        make=deterministic,
        units=(shift, scale),
        limits=limits,
    )


LAYOUTS = (
    Layout(
        "CleanRL's PPO",
        lambda content: at(content, "actor_mean.0.weight") is not None,
        _ppo,
    ),
    Layout(
        "CleanRL's TD3 or DDPG",
        lambda content: isinstance(content, tuple) and at(content, 0, "fc_mu.weight") is not None,
        _td3,
    ),
)
