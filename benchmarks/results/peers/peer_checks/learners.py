"""Updates of Trimtab's methods beside those of Stable-Baselines3, from the same weights and noise.

Weights are compared in double precision: Adam divides a gradient by its own size, so that rounding
would decide the sign of a step wherever a gradient is nearly zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_sides.exchange import replaced
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.policies.networks.critic import EnsembleCritic, EnsembleLinear
from trimtab.types import Batch, PolicySpec, Rollout

__all__ = ["PEERS", "ensemble_weights", "linear_weights", "start_of", "widen"]

# Two actions of two dimensions to us are one action of four to Stable-Baselines3.
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
BATCH, DISCOUNT, TAU, HIDDEN, RATE = 64, 0.97, 0.05, [32, 32], 3e-3
TOLERANCE = 1e-9
SETTINGS = {
    "obs_dim": 5, "action_dim": 4, "discount": DISCOUNT, "tau": TAU, "hidden": HIDDEN,
    "learning_rate": RATE,
}  # fmt: skip

Weights = dict[str, Any]


def widen(method: Algorithm) -> None:
    """Turn a fresh method to double precision."""
    for part in method.state().values():
        if isinstance(part, Adam):
            part.first_moment = [moment.double() for moment in part.first_moment]
            part.second_moment = [moment.double() for moment in part.second_moment]
        else:
            assert isinstance(part, nn.Module)
            part.double()


def linear_weights(name: str, network: nn.Module) -> Weights:
    """Return the weights of linear layers by name, such as ``actor 0 weight``."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    return {
        f"{name} {index} {kind}": getattr(layer, kind).detach().numpy().copy()
        for index, layer in enumerate(layers)
        for kind in ("weight", "bias")
    }


def ensemble_weights(names: tuple[str, str], critic: EnsembleCritic) -> Weights:
    """Return the weights of an ensemble's members, each under its own name, as linear layers."""
    layers = [layer for layer in critic.network if isinstance(layer, EnsembleLinear)]
    found = {}
    for member, name in enumerate(names):
        for index, layer in enumerate(layers):
            found[f"{name} {index} weight"] = layer.weight[member].T.detach().numpy().copy()
            found[f"{name} {index} bias"] = layer.bias[member, 0].detach().numpy().copy()
    return found


def sac_weights(ours: SAC) -> Weights:
    """Return every weight that an update moves; the two heads of the actor are one layer here."""
    actor = linear_weights("actor", ours.actor.network)
    last = len(HIDDEN)
    for kind in ("weight", "bias"):
        both = actor.pop(f"actor {last} {kind}")
        actor[f"mean 0 {kind}"], actor[f"log std 0 {kind}"] = np.split(both, 2)
    return {
        **actor,
        **ensemble_weights(("critic 0", "critic 1"), ours.critic),
        **ensemble_weights(("target 0", "target 1"), ours.target),
        "temperature": ours.temperature.log.detach().numpy().reshape(1).copy(),
    }


def td3_weights(ours: TD3) -> Weights:
    """Return every weight that an update moves."""
    return {
        **linear_weights("actor", ours.policy),
        **linear_weights("actor target", ours.policy_target),
        **ensemble_weights(("critic 0", "critic 1"), ours.critic),
        **ensemble_weights(("target 0", "target 1"), ours.critic_target),
    }


def ppo_weights(ours: PPO) -> Weights:
    """Return every weight that an update moves."""
    return {
        **linear_weights("actor", ours.policy.network),
        **linear_weights("critic", ours.critic),
        "log std": ours.policy.log_std.detach().numpy().flatten(),
    }


def start_of(weights: Weights) -> Weights:
    """Return weights under the names of a question."""
    return {f"start {name}": weight for name, weight in weights.items()}


def batches(updates: int, kinds: int) -> tuple[Weights, list[tuple[Batch, Tensor]]]:
    """Return the batches of some updates with ``kinds`` of noise: as arrays, and as ours."""
    obs, next_obs = torch.randn(2, updates, BATCH, 5).double()
    scaled = 2 * torch.rand(updates, BATCH, 4).double() - 1
    reward = torch.randn(updates, BATCH).double()
    done = (torch.rand(updates, BATCH) < 0.3).double()
    noise = torch.randn(updates, kinds, BATCH, 4).double()
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    columns = {
        "obs": obs, "action": scaled, "next_obs": next_obs, "done": done[..., None],
        "reward": reward[..., None], "noise": noise,
    }  # fmt: skip
    ours = [
        Batch(
            obs=obs[i],
            action=low + (high - low) * (scaled[i].reshape(-1, 2, 2) + 1) / 2,
            reward=reward[i],
            next_obs=next_obs[i],
            discount=DISCOUNT * (1 - done[i]),
            valid=torch.ones(BATCH, 2, dtype=torch.bool),
            whole=True,
        )
        for i in range(updates)
    ]
    return {name: column.numpy() for name, column in columns.items()}, list(
        zip(ours, noise, strict=True)
    )


def sac(folder: Path) -> tuple[str, Weights]:
    """Take three updates of SAC; the temperature moves too."""
    torch.manual_seed(1)
    ours = SAC(Setup(SPEC), hidden=HIDDEN, learning_rate=RATE, tau=TAU)
    widen(ours)
    start = start_of(sac_weights(ours))
    arrays, given = batches(3, 2)
    for batch, (actor_noise, next_noise) in given:
        # Stable-Baselines3 samples the actor's action first, and we the next action.
        wanted = iter([next_noise.reshape(-1, 2, 2), actor_noise.reshape(-1, 2, 2)])
        with replaced(ours.actor, "sample_noise", lambda n, wanted=wanted: next(wanted)):
            ours.update(batch)
    write_arrays(folder, arrays | start)
    write_settings(folder, SETTINGS)
    return "three updates of SAC", sac_weights(ours)


def td3(folder: Path) -> tuple[str, Weights]:
    """Take five updates of TD3; actor and targets move at the second and the fourth."""
    torch.manual_seed(1)
    ours = TD3(Setup(SPEC), hidden=HIDDEN, learning_rate=RATE, tau=TAU)
    widen(ours)
    start = start_of(td3_weights(ours))
    arrays, given = batches(5, 1)
    arrays["noise"] *= 3  # much of it beyond the bound
    for batch, noises in given:
        noise = noises[0]
        with replaced(torch, "randn_like", lambda x, noise=noise: noise.reshape(x.shape)):
            ours.update(batch)
    write_arrays(folder, arrays | start)
    write_settings(folder, SETTINGS)
    return "five updates of TD3", td3_weights(ours)


STEPS, ENVS, MINIBATCH, EPOCHS, ENTROPY = 40, 3, 40, 3, 0.01


def rollout() -> Rollout:
    """Return a rollout of random numbers, in which episodes end by themselves."""
    obs, next_obs = torch.randn(2, STEPS, ENVS, 5).double()
    ended = torch.rand(STEPS, ENVS) < 0.15
    next_obs[:-1] = torch.where(ended[:-1, :, None], next_obs[:-1], obs[1:])
    # Stable-Baselines3 makes actions single.
    unclipped = 1.2 * torch.randn(STEPS, ENVS, 2, 2)
    return Rollout(
        obs=obs,
        action=unclipped.double().clamp(-1, 1),
        reward=torch.randn(STEPS, ENVS).double(),
        next_obs=next_obs,
        discount=DISCOUNT * (~ended).double(),
        cut=ended,
        aux={"unclipped": unclipped.double()},
    )


@torch.no_grad()
def ppo(folder: Path) -> tuple[str, Weights]:
    """Take nine gradient steps of PPO: three epochs of three minibatches of one rollout."""
    torch.manual_seed(1)
    ours = PPO(
        Setup(SPEC, num_envs=ENVS, discount=DISCOUNT),
        hidden=HIDDEN,
        normalize_observations=False,
        normalize_rewards=False,
        learning_rate=RATE,
        rollout_steps=STEPS,
        batch_size=MINIBATCH,
        epochs=EPOCHS,
        entropy_weight=ENTROPY,
    )
    widen(ours)
    start = start_of(ppo_weights(ours))
    data = rollout()
    samples = ours.samples(data)
    orders = [torch.randperm(STEPS * ENVS) for _ in range(EPOCHS)]
    column = {
        "observations": samples.obs, "actions": samples.action.flatten(1), "values": samples.value,
        "log_probs": samples.log_prob, "rewards": data.reward.flatten(),
    }  # fmt: skip
    arrays = {n: x.numpy().reshape(STEPS, ENVS, *x.shape[1:]) for n, x in column.items()}
    starts = np.zeros((STEPS, ENVS))
    starts[1:] = data.cut[:-1]
    arrays |= {
        "episode_starts": starts,
        "last_dones": data.cut[-1].numpy(),
        "last_values": ours.critic(data.next_obs[-1]).squeeze(-1).numpy(),
        # Their rows go environment by environment, ours in time.
        "orders": np.stack([((o % ENVS) * STEPS + o // ENVS).numpy() for o in orders]),
    }
    shapes = {name: x.numpy().reshape(STEPS, ENVS) for name, x in (
        ("advantages", samples.advantage), ("returns", samples.target),
    )}  # fmt: skip
    given = iter(orders)
    with replaced(torch, "randperm", lambda *a, **k: next(given)), torch.enable_grad():
        ours.improve(samples)
    write_arrays(folder, arrays | start)
    further = {
        "steps": STEPS, "envs": ENVS, "batch_size": MINIBATCH, "epochs": EPOCHS,
        "entropy_weight": ENTROPY,
    }  # fmt: skip
    write_settings(folder, SETTINGS | further)
    return "nine gradient steps of PPO on one rollout", shapes | ppo_weights(ours)


def grouped(weights: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of weights by the network that they belong to."""
    groups: dict[str, list[str]] = {}
    for name in weights:
        words = [w for w in name.split() if not w.isdigit() and w not in ("weight", "bias")]
        groups.setdefault(" ".join(words), []).append(name)
    yield from groups.items()


class StableBaselines3(Peer):
    """Stable-Baselines3's SAC, TD3 and PPO, updated from the same weights, batches and noise."""

    name, package, side = "Stable-Baselines3", "stable-baselines3", "with_sb3.py"
    requirements = ("torch==2.13.0", "numpy==1.26.4", "stable-baselines3==2.9.2")

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, batches and noise, and take our own updates."""
        checks = []
        for part, method in (("sac", sac), ("td3", td3), ("ppo", ppo)):
            words, weights = method(folder / part)
            for group, names in grouped(weights):
                what = f"{group} after {words}, from the same weights and noise"
                if group in ("advantages", "returns"):
                    what = f"{group} of a rollout in which episodes end"
                ours = {name: weights[name] for name in names}
                checks.append(Check(part, group, what, ours, TOLERANCE))
        return checks


PEERS: tuple[Peer, ...] = (StableBaselines3(),)
