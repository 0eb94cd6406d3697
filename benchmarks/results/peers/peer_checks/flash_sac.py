"""FlashSAC beside its authors' agent, run out of a checkout.

Episodes end in what the agents see. In the part of agreement the authors' normaliser of rewards is
told of an end one step late: then it counts as ours does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.dppo import REQUIREMENTS, doubled
from peer_checks.learners import start_of
from peer_sides.exchange import replaced
from torch import nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.flash_sac import FlashSAC
from trimtab.files import sha256_file
from trimtab.types import Batch, PolicySpec

__all__ = ["PEERS", "batch_of", "digits_of", "returns_of", "seen_rewards"]

FILES = tuple(
    f"flash_rl/agents/{name}.py"
    for name in (
        "flashSAC/agent", "flashSAC/update", "flashSAC/network", "flashSAC/layer",
        "utils/network", "utils/reward_normalization", "utils/distribution", "utils/scheduler",
    )
)  # fmt: skip
# Two actions of two dimensions to us are one action of four to the authors.
OBS, HORIZON, ACTION, ROWS, UPDATES = 5, 2, 2, 32, 5
ENVS, DECISIONS, DISCOUNT, BOUND = 3, 40, 0.97, 5.0
WORDS: dict[str, Any] = {
    "actor_width": 16, "critic_width": 24, "blocks": 2, "atoms": 21, "bound": BOUND, "tau": 0.05,
    "learning_rate": 3e-3, "final_learning_rate": 1e-3, "initial_temperature": 0.1,
    "target_std": 0.15, "actor_every": 2, "hold_exponent": 2.0, "longest_hold": 16,
}  # fmt: skip
COLUMNS = ("observation", "action", "reward", "next_observation", "terminated")
DECAY = 20
"""Updates over which the rates fall."""
TOLERANCE = 1e-9
AGREE = {"warm-up": 0, "imitation": 0.0, "late": True, "extra rows": 0.0}
WARM = "no warm-up of the learning rates, which there is one update long"
FREE = "no imitation term"
WHOLE = "a return that ends is counted whole (there, its last reward alone"
ROW = "the variance of earlier returns counts for their number (there, for a ten-thousandth more)"
# Parts of a network: in ours, in the authors' actor, and in their critics.
PLACES = {
    "first_norm": ("embedder.norm", "embedder.norm"),
    "embedding": ("embedder.w.w", "embedder.w"),
    **{
        f"blocks.{block}.{mine}": (f"encoder.{block}.{actor}", f"encoder.{block}.{critic}")
        for block in range(WORDS["blocks"])
        for mine, actor, critic in (
            ("first", "w1.w", "w1"), ("first_norm", "norm1", "norm1"),
            ("second", "w2.w", "w2"), ("second_norm", "norm2", "norm2"),
        )
    },
    "last_norm": ("post_norm", "post_norm"),
}  # fmt: skip


def digits_of(checkout: str, files: tuple[str, ...]) -> str:
    """Return the names of executed files, which have no version, with digits of their SHA-256."""
    found = {"/".join(Path(file).parts[-2:]): Path(checkout) / file for file in files}
    return ", ".join(f"{name} {sha256_file(path)[:10]}" for name, path in found.items())


def network_weights(network: nn.Module, kind: int) -> dict[str, Any]:
    """Return weights and running statistics under the authors' names.

    Args:
        network: one of ours.
        kind: 0 for the authors' actor, 1 for their critics.
    """
    found = {}
    for name, tensor in network.state_dict().items():
        place, _, leaf = name.rpartition(".")
        array = tensor.numpy().copy()
        if leaf == "num_batches_tracked":
            continue
        if place != "output":
            found[f"{PLACES[place][kind]}.{leaf}"] = array
        elif kind:
            found["predictor.w.weight" if leaf == "weight" else "predictor.bias"] = array
        else:
            for head, half in zip(("mean", "std"), np.split(array, 2), strict=True):
                found[f"predictor.{head}_{'w.w.weight' if leaf == 'weight' else leaf}"] = half
    return found


def weights_of(ours: FlashSAC) -> dict[str, Any]:
    """Return every weight and running statistic that an update moves."""
    found = {f"actor {name}": w for name, w in network_weights(ours.actor.network, 0).items()}
    for group, critic in (("critics", ours.critic), ("targets", ours.target)):
        members = [network_weights(member, 1) for member in critic.members]
        found |= {f"{group} {name}": np.stack([m[name] for m in members]) for name in members[0]}
    return found | {"temperature": ours.temperature.log.detach().numpy().reshape(1).copy()}


def returns_of() -> tuple[torch.Tensor, torch.Tensor]:
    """Return rewards and ends of some steps of the environments, each ``[T, N]``.

    The last reward is so large that the bound of returns decides the scale, and not their
    deviation.
    """
    rewards = torch.randn(DECISIONS, ENVS) + 1.0
    rewards[-1, 0] = 300.0
    return rewards, torch.rand(DECISIONS, ENVS) < 0.1


def seen_rewards(ours: Any, rewards: torch.Tensor, ended: torch.Tensor) -> Any:
    """Let a method count returns; return what it makes of one row of rewards after each step."""
    found = []
    for reward, end in zip(rewards, ended, strict=True):
        ours.on_transition(reward, end, end)
        found.append(ours.reward_scale(rewards[0]).numpy())
    return np.stack(found)


def batch_of(arrays: Mapping[str, Any], step: int) -> Batch:
    """Return the batch of an update as ours has it."""
    given = {name: torch.from_numpy(arrays[name][step]) for name in arrays if name in COLUMNS}
    return Batch(
        obs=given["observation"],
        action=given["action"].reshape(ROWS, HORIZON, ACTION),
        reward=given["reward"],
        next_obs=given["next_observation"],
        discount=DISCOUNT * (1 - given["terminated"]),
        valid=torch.ones(ROWS, HORIZON, dtype=torch.bool),
        whole=True,
    )


def updated() -> tuple[dict[str, Any], dict[str, Any]]:
    """Count returns, take the updates, and act; return the arrays of the question, and our values.

    Our values are single numbers and arrays, and weights by their names.
    """
    flat = HORIZON * ACTION
    with doubled():
        torch.manual_seed(0)
        spec = PolicySpec(OBS, HORIZON, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
        ours = FlashSAC(
            Setup(spec, num_envs=ENVS, discount=DISCOUNT), decay_steps=DECAY * HORIZON, **WORDS
        )
        start = start_of(weights_of(ours))
        rewards, ended = returns_of()
        scaled = seen_rewards(ours, rewards, ended)
        columns = {
            "observation": torch.randn(UPDATES, ROWS, OBS),
            "action": 2 * torch.rand(UPDATES, ROWS, flat) - 1,
            "reward": 20 * torch.randn(UPDATES, ROWS),
            "next_observation": torch.randn(UPDATES, ROWS, OBS),
            "terminated": (torch.rand(UPDATES, ROWS) < 0.3).double(),
            "actor noise": torch.randn(UPDATES, 2 * ROWS, flat),
            "next noise": torch.randn(UPDATES, ROWS, flat),
            "held noise": torch.randn(DECISIONS, ENVS, flat),
            "held for": torch.rand(DECISIONS),
            "acted on": torch.randn(DECISIONS, ENVS, OBS),
        }
        arrays = {name: column.numpy() for name, column in columns.items()}
        losses: dict[str, list[Any]] = {"critic loss": [], "actor loss": [], "entropy": []}
        for step in range(UPDATES):
            due = ours.actor_due
            drawn = iter([columns["actor noise"][step]] * due + [columns["next noise"][step]])
            with replaced(
                ours.actor,
                "sample_noise",
                lambda count, drawn=drawn: next(drawn).reshape(count, HORIZON, ACTION),
            ):
                told = ours.update(batch_of(arrays, step))
            for name in losses:
                if due or name == "critic loss":
                    losses[name].append(told[name.replace(" ", "_")].numpy())
        fresh, uniform = iter(columns["held noise"]), iter(columns["held for"])
        with (
            replaced(torch, "randn_like", lambda like: next(fresh).reshape(like.shape)),
            replaced(torch, "rand", lambda *size, **words: next(uniform)),
        ):
            acted = [ours.explore(obs, warmup=False)[0].numpy() for obs in columns["acted on"]]
        arrays |= start | {"seen rewards": rewards.numpy(), "ended": ended.numpy()}
        values = {name: np.stack(loss) for name, loss in losses.items()}
        values |= {"scaled rewards": scaled, "actions": np.stack(acted).reshape(-1, ENVS, flat)}
        return arrays, values | weights_of(ours)


class FlashSac(Peer):
    """The authors' FlashSAC."""

    name, package, side, needs = "FlashSAC", "torch", "with_flash_sac.py", "flash_sac"
    requirements = REQUIREMENTS

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return digits of the SHA-256 of the agent's files, which have no version."""
        return digits_of(settings[self.needs], FILES)

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, batches, rewards and noise, and take our own updates."""
        arrays, ours = updated()
        common = {
            "checkout": str(Path(settings[self.needs]).resolve()), "obs_dim": OBS,
            "action_dim": HORIZON * ACTION, "discount": DISCOUNT, "decay": DECAY, **WORDS, **AGREE,
        }  # fmt: skip
        parts = {
            "flash_sac": {},
            "flash_sac, warm-up": {"warm-up": 1},
            "flash_sac, imitation": {"imitation": 0.1},
            "flash_sac, ends": {"late": False},
            "flash_sac, first row": {"extra rows": 1e-4},
        }
        for part, words in parts.items():
            write_arrays(folder / part, arrays)
            write_settings(folder / part, common | words)
        name = "flash_sac"
        what = f"of {UPDATES} updates from the same weights, batches and noise"
        checks = [
            Check(name, loss, f"{loss} {what}", {loss: ours[loss]}, TOLERANCE)
            for loss in ("critic loss", "actor loss", "entropy")
        ]
        groups = {
            group: {key: array for key, array in ours.items() if key.startswith(group)}
            for group in ("actor ", "critics ", "targets ", "temperature")
        }
        groups["actor "].pop("actor loss")
        for group, found in groups.items():
            said = f"{group.strip()}, with running statistics, after {UPDATES} such updates"
            checks.append(Check(name, group.strip(), said, found, TOLERANCE))
        acting = f"actions of {DECISIONS} decisions after these updates, with held noise"
        checks.append(Check(name, "actions", acting, {"actions": ours["actions"]}, TOLERANCE))
        scaled = {"scaled rewards": ours["scaled rewards"]}
        counted = f"rewards scaled by the returns of each of {DECISIONS} steps"
        checks.append(Check(name, "scaled rewards", counted, scaled, TOLERANCE))
        weights = groups["actor "]
        said = f"actor after {UPDATES} updates, with a warm-up of one update in theirs"
        checks.append(Check("flash_sac, warm-up", "actor", said, weights, 1e-6, WARM))
        said = f"actor after {UPDATES} updates, with a weight of 0.1 on imitation in theirs"
        checks.append(Check("flash_sac, imitation", "actor", said, weights, 1e-6, FREE))
        said = f"{counted}, where episodes end"
        checks.append(Check("flash_sac, ends", "scaled rewards", said, scaled, 1e-4, WHOLE))
        said = f"{counted}, with what their running variance adds to its count"
        checks.append(Check("flash_sac, first row", "scaled rewards", said, scaled, 1e-7, ROW))
        return checks


PEERS: tuple[Peer, ...] = (FlashSac(),)
