"""CORL's TD3+BC, out of a checkout that the user names, updates from given weights and batches.

CORL's file needs d4rl, gym, pyrallis and wandb for its loop, and they do not install on today's
Python. The learner needs none of them: its definitions alone are taken out of the file.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional

WANTED = (
    "soft_update", "compute_mean_std", "normalize_states", "ReplayBuffer", "Actor", "Critic",
    "TD3_BC",
)  # fmt: skip
FILE = "algorithms/offline/td3_bc.py"


def answer(part: Path) -> exchange.Answers:
    """Return statistics, the first target, and the weights after every update."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    targets: list[Any] = []

    def mse_loss(value: Any, target: Any) -> Any:
        targets.append(target.detach().numpy().copy())
        return functional.mse_loss(value, target)

    noises = iter(torch.from_numpy(inputs["noise"]))
    # Where CORL says single precision it gets double: else rounding, which Adam blows up wherever
    # a gradient is nearly zero, would decide the weights.
    given = {"randn_like": lambda x: next(noises), "float32": torch.float64}
    modules = {
        "np": np,
        "nn": nn,
        "copy": copy,
        "torch": SimpleNamespace(**{**vars(torch), **given}),
        "F": SimpleNamespace(mse_loss=mse_loss),
    }
    theirs = exchange.definitions_of(Path(settings["checkout"]) / FILE, WANTED, modules)
    with h5py.File(part / "dataset.hdf5", "r") as file:
        names = ("observations", "actions", "rewards", "next_observations", "terminals")
        data = {name: file[name][()] for name in names}
    mean, std = theirs.compute_mean_std(data["observations"], eps=1e-3)
    for name in ("observations", "next_observations"):
        data[name] = theirs.normalize_states(data[name].astype(np.float64), mean, std)
    buffer = theirs.ReplayBuffer(*settings["sizes"], buffer_size=len(data["rewards"]))
    buffer.load_d4rl_dataset(data)
    trainer = trainer_of(theirs, settings["sizes"], settings["max_action"], inputs)
    for rows in inputs["rows"]:
        with exchange.replaced(np.random, "randint", lambda *a, rows=rows, **k: rows):
            trainer.train(buffer.sample(len(rows)))
    weights = {
        name: weight.detach().numpy()
        for kind, network in networks_of(trainer).items()
        for name, weight in named(kind, network).items()
    }
    return {"mean": mean, "standard deviation": std, "first target": targets[0][:, 0], **weights}


def trainer_of(theirs: Any, sizes: list[int], max_action: float, inputs: Any) -> Any:
    """Return CORL's learner with the settings of its ``train``, and with the given weights."""
    obs_dim, action_dim = sizes
    networks = {
        "actor": theirs.Actor(obs_dim, action_dim, max_action),
        "critic_1": theirs.Critic(obs_dim, action_dim),
        "critic_2": theirs.Critic(obs_dim, action_dim),
    }
    for kind, network in networks.items():
        network.double()
        with torch.no_grad():
            for name, weight in named(kind, network).items():
                weight.copy_(torch.from_numpy(inputs[f"start {name}"]))
    optimizers = {
        f"{kind}_optimizer": torch.optim.Adam(network.parameters(), lr=3e-4)
        for kind, network in networks.items()
    }
    return theirs.TD3_BC(
        max_action=max_action,
        **networks,
        **optimizers,
        policy_noise=0.2 * max_action,
        noise_clip=0.5 * max_action,
    )


def networks_of(trainer: Any) -> dict[str, nn.Module]:
    """Return the networks and their targets by name."""
    names = ("actor", "critic_1", "critic_2")
    return {name: getattr(trainer, name) for kind in names for name in (kind, f"{kind}_target")}


def named(kind: str, network: nn.Module) -> dict[str, Any]:
    """Return the weights of a network's linear layers by name, such as ``actor 0 weight``."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    return {
        f"{kind} {index} {name}": getattr(layer, name)
        for index, layer in enumerate(layers)
        for name in ("weight", "bias")
    }


if __name__ == "__main__":
    exchange.main(answer, "torch")
