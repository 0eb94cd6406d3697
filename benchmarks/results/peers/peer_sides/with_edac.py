"""CORL's EDAC and SAC-N, out of a checkout, update from given weights, batches and noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import torch
from torch import Tensor, nn

WANTED = ("soft_update", "VectorizedLinear", "Actor", "VectorizedCritic")


def trainer_of(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Return CORL's learner with the given weights, in double precision."""

    class Noise(torch.distributions.Normal):
        """A normal distribution whose draws are given, one after another."""

        drawn = iter(torch.from_numpy(inputs["noise"]))

        def rsample(self, sample_shape: Any = ()) -> Tensor:
            """Return the next sample."""
            return self.loc + self.scale * next(self.drawn)

    # Inside the logarithm of a squashed density 1e-6 is added; it is taken off where asked.
    added = 0.0 if settings["as published"] else 1e-6
    given = {"float32": torch.float64, "log": lambda value: torch.log(value - added)}
    modules = {
        "math": math, "nn": nn, "deepcopy": deepcopy, "Normal": Noise,
        "torch": SimpleNamespace(**{**vars(torch), **given}),
    }  # fmt: skip
    path = Path(settings["checkout"]) / settings["file"]
    theirs = exchange.definitions_of(path, (*WANTED, settings["class"]), modules)
    actor = theirs.Actor(settings["obs_dim"], settings["action_dim"], settings["hidden"])
    critic = theirs.VectorizedCritic(
        settings["obs_dim"], settings["action_dim"], settings["hidden"], settings["critics"]
    )
    take(actor_weights(actor) | critic_weights("critics", critic), inputs)
    rate = settings["learning_rate"]
    more = {"eta": settings["diversity"]} if settings["diversity"] else {}
    return getattr(theirs, settings["class"])(
        actor=actor,
        actor_optimizer=torch.optim.Adam(actor.parameters(), lr=rate),
        critic=critic,
        critic_optimizer=torch.optim.Adam(critic.parameters(), lr=rate),
        gamma=settings["discount"],
        tau=settings["tau"],
        alpha_learning_rate=rate,
        **more,
    )


@torch.no_grad()
def take(weights: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> None:
    """Take the weights that the question gives."""
    for name, weight in weights.items():
        weight.copy_(torch.from_numpy(inputs[f"start {name}"]).reshape(weight.shape))


def actor_weights(actor: Any) -> dict[str, Tensor]:
    """Return the weights of an actor by name."""
    layers = [layer for layer in actor.trunk if isinstance(layer, nn.Linear)]
    named = {f"actor {index}": layer for index, layer in enumerate(layers)}
    named |= {"mean 0": actor.mu, "log std 0": actor.log_sigma}
    return {
        f"{name} {kind}": getattr(layer, kind)
        for name, layer in named.items()
        for kind in ("weight", "bias")
    }


def critic_weights(name: str, critic: Any) -> dict[str, Tensor]:
    """Return the weights of all critics by name, each ``[E, ...]``."""
    layers = [layer for layer in critic.critic if hasattr(layer, "weight")]
    return {
        f"{name} {index} {kind}": getattr(layer, kind)
        for index, layer in enumerate(layers)
        for kind in ("weight", "bias")
    }


def answer(part: Path) -> exchange.Answers:
    """Return the losses of every update, and the weights after the last."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    torch.set_default_dtype(torch.float64)
    trainer = trainer_of(settings, inputs)
    losses: dict[str, list[float]] = {"critic loss": [], "actor loss": []}
    columns = [
        torch.from_numpy(inputs[name]) for name in ("obs", "action", "reward", "next_obs", "done")
    ]
    for batch in zip(*columns, strict=True):
        told = trainer.update(list(batch))
        losses["critic loss"].append(told["critic_loss"])
        losses["actor loss"].append(told["actor_loss"])
    weights = {
        **actor_weights(trainer.actor),
        **critic_weights("critics", trainer.critic),
        **critic_weights("targets", trainer.target_critic),
        "temperature": trainer.log_alpha,
    }
    return losses | {name: weight.detach().numpy() for name, weight in weights.items()}


if __name__ == "__main__":
    exchange.main(answer, "torch")
