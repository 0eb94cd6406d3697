"""REPPO beside its authors' first code, run out of a checkout.

There the next action is drawn anew. It gets the noise of the action that was taken next, so that
both are the same inside an episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.dppo import doubled
from peer_checks.flow_q import FlowQ
from peer_checks.fpo import digits_of
from peer_checks.learners import linear_weights, start_of
from peer_sides.exchange import replaced
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common import adam
from trimtab.algorithms.on_policy.reppo import REPPO
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.types import PolicySpec, Rollout

__all__ = ["PEERS"]

FILES = ("src/jaxrl/reppo.py", "src/networks/jax_models.py", "src/jaxrl/utils.py")
OBS, HORIZON, ACTION, ENVS, STEPS = 5, 2, 2, 4, 12
MINIBATCHES, EPOCHS, KL_SAMPLES = 3, 3, 16
WIDTH, RATE, DISCOUNT, DECAY, REWARD_SCALE = 32, 1e-2, 0.97, 0.9, 2.0
LOW, HIGH, BINS, BOUND, NORM = -5, 20, 26, 0.1, 0.5
TEMPERATURE, KL_WEIGHT = 0.1, 0.2
TOLERANCE = 1e-9
ANEW = "Their first code draws all of them anew"
ENTROPY = "There the entropy of the next action counts after a true end, too"
LEFT_OUT = "There a row at a time limit is left out of the critic's loss"
LEAST = "their first code: the deviation is at least 0.1"
CLIPPED = "none is clipped to 0.999"
LAST = "first code takes Q of the next state in the last row of a rollout after a true end"


@dataclass(frozen=True)
class Part:
    """A rollout, and what their code does with it.

    Attributes:
        name: name of the part.
        anew: whether their next actions have noise of their own.
        entropy: whether our targets have the entropy after a true end, as theirs.
        time_limit: whether two episodes end by the clock.
        end: whether an episode ends in the last row.
        least: least deviation of their actor.
        spread: what noise is multiplied by, once it is cut at 1.5.
    """

    name: str
    anew: bool = False
    entropy: bool = True
    time_limit: bool = False
    end: bool = False
    least: float = 0.0
    spread: float = 1.0


AGREEING = Part("reppo")
DEVIATING = (
    (Part("reppo of fresh next actions", anew=True), "targets", ANEW),
    (Part("reppo of true ends without entropy", entropy=False), "targets", ENTROPY),
    (Part("reppo of time limits", time_limit=True), "critic losses", LEFT_OUT),
    (Part("reppo of an end in the last row", end=True), "targets", LAST),
    (Part("reppo of their least deviation", least=0.1), "entropies", LEAST),
    (Part("reppo of wide actions", spread=4.0), "divergences", CLIPPED),
)


def learner() -> REPPO:
    """Return our method, with values that depend on actions from the start."""
    torch.manual_seed(0)
    spec = PolicySpec(OBS, HORIZON, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
    ours = REPPO(
        Setup(spec, num_envs=ENVS, discount=DISCOUNT),
        hidden=[WIDTH, WIDTH], embedding=WIDTH, normalize_observations=False,
        reward_scale=REWARD_SCALE, value_low=LOW, value_high=HIGH, bins=BINS, learning_rate=RATE,
        rollout_steps=STEPS, trace_decay=DECAY, kl_bound=BOUND, kl_samples=KL_SAMPLES,
        initial_kl_weight=KL_WEIGHT, initial_temperature=TEMPERATURE, max_gradient_norm=NORM,
    )  # fmt: skip
    with torch.no_grad():
        ours.critic.start.mul_(0.05)
        last = ours.critic.value_head[-1]
        assert isinstance(last, nn.Linear)
        last.weight.mul_(3.0)
    return ours


def norm_weights(name: str, network: nn.Module) -> dict[str, Any]:
    """Return the scales of normalisations by name, such as ``actor 0 norm``."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.RMSNorm)]
    return {
        f"{name} {index} norm": layer.weight.detach().numpy().copy()
        for index, layer in enumerate(layers)
    }


def weights_of(ours: REPPO) -> dict[str, Any]:
    """Return every weight that an update moves; the reward comes first in their prediction."""
    critic = ours.critic
    found: dict[str, Any] = {"critic start": critic.start.detach().numpy().copy()}
    for name, network in (
        ("actor", ours.policy.network),
        ("critic encoder", critic.encoder),
        ("critic value", critic.value_head),
        ("critic prediction", critic.prediction_head),
    ):
        found |= linear_weights(name, network) | norm_weights(name, network)
    for kind in ("weight", "bias"):
        last = f"critic prediction 1 {kind}"
        found[last] = np.roll(found[last], 1, axis=0)
    for name, weight in (("temperature", ours.temperature), ("KL weight", ours.kl_weight)):
        found[name] = weight.log.detach().numpy().reshape(1).copy()
    return found


def clip_exactly(gradients: tuple[Tensor, ...], most: float) -> None:
    """Bound the norm of gradients, without the 1e-6 that ours adds to the norm."""
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (most / norm).clamp_(max=1.0))


def rollout_of(ours: REPPO, part: Part) -> tuple[Rollout, Tensor, dict[str, Any]]:
    """Return a rollout of random numbers, the noise of actions at its ends, and their view of it.

    What follows the end of an episode is the first observation of the next, as in their code.
    """
    obs = torch.randn(STEPS + 1, ENVS, OBS)
    noise = part.spread * torch.randn(STEPS + 1, ENVS, HORIZON, ACTION).clamp(-1.5, 1.5)
    ended = torch.rand(STEPS, ENVS) < 0.2
    ended[-1] = torch.tensor([part.end, False, False, False])
    limit = torch.zeros_like(ended)
    limit[STEPS // 2, 1] = limit[STEPS // 3, 2] = part.time_limit
    ended &= ~limit
    cut = ended | limit
    mean, log_std = ours.policy.head(obs.flatten(0, 1))
    unsquashed = mean + log_std.exp() * noise.flatten(0, 1)
    action, log_prob = squashed_sample(mean, log_std, noise.flatten(0, 1))
    reward = torch.randn(STEPS, ENVS) + 1.0
    question = {
        "obs": obs.numpy(), "reward": REWARD_SCALE * reward.numpy(), "done": cut.numpy(),
        "truncated": limit.double().numpy(),
        "noise": noise.flatten(2).numpy(), "next noise": noise[1:].flatten(2).numpy(),
    }  # fmt: skip
    if part.anew:
        question["next noise"] = torch.randn(STEPS, ENVS, HORIZON * ACTION).numpy()
    if part.entropy:
        after = log_prob.detach().reshape(STEPS + 1, ENVS)[1:] * TEMPERATURE
        reward = reward - ended * DISCOUNT * after / REWARD_SCALE

    def rows(array: Tensor) -> Tensor:
        return array.detach().unflatten(0, (STEPS + 1, ENVS))[:-1]

    data = Rollout(
        obs=obs[:-1],
        action=rows(action),
        reward=reward,
        next_obs=obs[1:],
        discount=DISCOUNT * (~ended).double(),
        cut=cut,
        aux={"unsquashed": rows(unsquashed)},
    )
    ends = noise[1:].flatten(0, 1)[data.cuts]
    return data, torch.cat([noise[-1], ends]), question


def updated(part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the updates of a rollout; return the arrays of the question, and our values."""
    with doubled():
        ours = learner()
        arrays = start_of(weights_of(ours))
        data, end_noise, question = rollout_of(ours, part)
        size = STEPS * ENVS // MINIBATCHES
        orders = torch.stack([torch.randperm(STEPS * ENVS) for _ in range(EPOCHS)])
        chosen = orders.reshape(-1, size)
        shape = (len(chosen), size, HORIZON, ACTION)
        drawn = torch.randn(shape).clamp(-1.5, 1.5)
        compared = part.spread * torch.randn(shape[0], KL_SAMPLES, *shape[1:]).clamp(-1.5, 1.5)
        arrays |= question | {
            "orders": orders.numpy(), "drawn": drawn.flatten(2).numpy(),
            "compared": compared.flatten(3).numpy(),
        }  # fmt: skip
        with replaced(ours.policy, "sample_noise", lambda count: end_noise):
            samples = ours.samples(data)
        told = []
        for rows, noise, others in zip(chosen, drawn, compared, strict=True):
            with (
                replaced(torch, "randn_like", lambda like, noise=noise: noise),
                replaced(torch, "randn", lambda *size, others=others, **words: others),
                replaced(adam, "clip_gradients", clip_exactly),
            ):
                told.append(ours.learn(samples[rows]))
        names = {
            "critic losses": "critic_loss", "auxiliary losses": "auxiliary_loss",
            "actor losses": "actor_loss", "entropies": "entropy", "divergences": "kl",
            "temperatures": "temperature", "KL weights": "kl_weight",
        }  # fmt: skip
        return arrays, {
            "targets": samples.target.numpy(),
            "next embeddings": samples.next_embedding.numpy(),
            **{name: np.stack([one[word].numpy() for one in told]) for name, word in names.items()},
            "near": np.stack([one["near"].numpy() for one in told]),
            **weights_of(ours),
        }


class Reppo(Peer):
    """The authors' REPPO."""

    name, package, side, needs = "REPPO", "jax", "with_reppo.py", "reppo"
    requirements = FlowQ.requirements

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of each file that runs; none has a version."""
        return digits_of(Path(settings["reppo"]), FILES)

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, a rollout, noise and the order of its rows, and take our own updates."""
        checks = agreeing(AGREEING, self.asked(AGREEING, folder, settings))
        for part, name, why in DEVIATING:
            found = {name: self.asked(part, folder, settings)[name]}
            checks.append(Check(part.name, name, f"{name} of a rollout", found, 1e-3, why))
        return checks

    def asked(self, part: Part, folder: Path, settings: Settings) -> dict[str, Any]:
        """Write the question of a part, and return our values."""
        arrays, ours = updated(part)
        write_arrays(folder / part.name, arrays)
        config = {
            "lr": RATE, "gamma": DISCOUNT, "lmbda": DECAY, "num_steps": STEPS, "num_envs": ENVS,
            "num_mini_batches": MINIBATCHES, "num_epochs": EPOCHS, "max_grad_norm": NORM,
            "ent_start": TEMPERATURE, "kl_start": KL_WEIGHT, "kl_bound": BOUND, "vmin": LOW,
            "vmax": HIGH, "num_bins": BINS, "critic_hidden_dim": WIDTH, "actor_hidden_dim": WIDTH,
        }  # fmt: skip
        sizes = {"obs_dim": OBS, "action_dim": HORIZON * ACTION, "least": part.least}
        checkout = {"checkout": str(Path(settings["reppo"]).resolve())}
        write_settings(folder / part.name, {**checkout, **sizes, "config": config})
        return ours


def agreeing(part: Part, ours: Mapping[str, Any]) -> list[Check]:
    """Return what is compared where the deviations are switched off."""
    each = f"of each minibatch of {EPOCHS} epochs on one rollout"
    words = {
        "targets": "targets of Q in a rollout in which episodes end",
        "next embeddings": "embeddings of the next observations and actions",
        "critic losses": f"cross-entropy {each}",
        "auxiliary losses": f"auxiliary loss {each}",
        "actor losses": f"actor loss {each}, without those of the two weights",
        "entropies": f"entropy {each}",
        "divergences": f"divergence from the old policy {each}",
        "temperatures": f"temperature before the step {each}",
        "KL weights": f"weight of the divergence before the step {each}",
    }
    checks = [
        Check(part.name, name, what, {name: ours[name]}, TOLERANCE) for name, what in words.items()
    ]
    for group in ("actor", "critic", "temperature", "KL weight"):
        weights = {
            name: array for name, array in ours.items()
            if name == group or name.startswith(f"{group} ")
        }  # fmt: skip
        what = f"weights of the {group} after these updates"
        if len(weights) == 1:
            what = f"logarithm of the {group} after these updates"
        checks.append(Check(part.name, group, what, weights, TOLERANCE))
    return checks


PEERS: tuple[Peer, ...] = (Reppo(),)
