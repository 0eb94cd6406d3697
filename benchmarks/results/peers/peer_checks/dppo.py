"""DPPO beside its authors' model and the loops of their agent, run out of a checkout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.flow_q import ACTION, HIDDEN, OBS, VectorField
from peer_checks.learners import linear_weights, start_of
from peer_sides.exchange import replaced
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common import returns
from trimtab.algorithms.finetuning.dppo import DPPO
from trimtab.files import sha256_file
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.normalizer import absorb
from trimtab.types import PolicySpec, Rollout

__all__ = ["PEERS", "REQUIREMENTS", "doubled"]

REQUIREMENTS = ("torch==2.13.0", "numpy==1.26.4", "einops==0.8.1")
"""Of the environment in which all codes of papers run that are in torch."""

FILE = "model/diffusion/diffusion_ppo.py"
STEPS, ENVS, HORIZON, EXECUTED, TRAIN_STEPS = 12, 4, 3, 2, 16
"""Decisions, environments, actions planned and executed, noise levels."""
COMMON = {
    "epochs": 2, "batch_size": 32, "gae_decay": 0.95, "clip": 0.05, "first_clip": 0.01,
    "denoising_discount": 0.9, "learning_rate": 3e-3, "critic_learning_rate": 1e-2,
}  # fmt: skip
FLOOR, DISCOUNT = 0.1, 0.99
TOLERANCE = 1e-9
SCALE = "the variance of all returns so far (there: a sample's, from a count of 1e-4 on)"
LIMIT = "a time limit ends the sum of advantages (there: only a true end does)"
PARTS = {
    "ancestral": {"sampler": "ddpm", "steps": 16, "tuned_steps": 10},
    "implicit": {"sampler": "ddim", "steps": 8, "tuned_steps": 5},
}


@contextlib.contextmanager
def doubled() -> Iterator[None]:
    """Make every new tensor in double precision."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def sample_variance(rows: Tensor, mean: Tensor, variance: Tensor, count: Tensor) -> None:
    """Join as ours does, with the variance of a sample: how the authors' scale counts."""
    absorb(rows, mean, variance, count)
    variance.mul_(count / (count - 1))


def rollout_of(ours: Any, *, time_limit: bool) -> Rollout:
    """Return a rollout of random numbers, in which the policy has acted and episodes end.

    Args:
        ours: a method that stores chains.
        time_limit: whether some of the episodes end by the clock.
    """
    obs, next_obs = torch.randn(2, STEPS, ENVS, OBS)
    ended = torch.rand(STEPS, ENVS) < 0.2
    ended[-1] = torch.tensor([True, False, False, False])
    truncated = torch.zeros_like(ended)
    truncated[STEPS // 2, 1] = truncated[STEPS // 3, 2] = time_limit
    ended, truncated = ended & ~truncated, truncated
    cut = ended | truncated
    next_obs[:-1] = torch.where(cut[:-1, :, None], next_obs[:-1], obs[1:])
    action, stored = ours.explore(obs.flatten(0, 1), warmup=False)
    return Rollout(
        obs=obs,
        action=action.unflatten(0, (STEPS, ENVS)),
        reward=torch.randn(STEPS, ENVS) + 1.0,
        next_obs=next_obs,
        discount=DISCOUNT * (~ended).double(),
        cut=cut,
        aux={name: array.unflatten(0, (STEPS, ENVS)) for name, array in stored.items()},
    )


def arrays_of(data: Rollout) -> dict[str, Any]:
    """Return a rollout as the authors' agent has it."""
    firsts = np.zeros((STEPS, ENVS))
    firsts[0], firsts[1:] = 1.0, data.cut[:-1].numpy()
    return {
        "obs": data.obs.numpy(), "chain": data.aux["chain"].numpy(), "rewards": data.reward.numpy(),
        "terminated": (data.discount == 0).double().numpy(), "firsts": firsts,
        "last": data.next_obs[-1].numpy(),
    }  # fmt: skip


def learner(words: Mapping[str, Any]) -> DPPO:
    """Return our method."""
    torch.manual_seed(0)
    limits = (-1.0,) * ACTION, (1.0,) * ACTION
    spec = PolicySpec(OBS, HORIZON, ACTION, *limits)
    base = DiffusionPolicy(
        spec, train_steps=TRAIN_STEPS, sampler=words["sampler"], sampling_steps=words["steps"]
    )
    base.network = VectorField(spec)  # type: ignore[assignment]
    acting = PolicySpec(OBS, EXECUTED, ACTION, *limits)
    return DPPO(
        Setup(acting, base=base, num_envs=ENVS, discount=DISCOUNT),
        tuned_steps=words["tuned_steps"], hidden=HIDDEN, rollout_steps=STEPS,
        likelihood_floor=FLOOR, **COMMON,
    )  # fmt: skip


def weights_of(ours: DPPO) -> dict[str, Any]:
    """Return every weight that an update moves."""
    actor = linear_weights("actor", ours.policy.tuned)
    return actor | linear_weights("critic", ours.critic)


def signal_of(policy: Any) -> Any:
    """Return the share of the signal at each noise level, ``[T]``."""
    return policy.alpha.numpy()


def updated(
    words: Mapping[str, Any], *, sample: bool = True, time_limit: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the updates of a rollout; return the arrays of the question, and our values.

    Args:
        words: sampler and steps.
        sample: whether rewards are scaled by the variance of a sample.
        time_limit: whether some episodes end by the clock.
    """
    with doubled():
        ours = learner(words)
        start = start_of(weights_of(ours))
        data = rollout_of(ours, time_limit=time_limit)
        pairs = STEPS * ENVS * words["tuned_steps"]
        orders = [torch.randperm(pairs) for _ in range(COMMON["epochs"])]
        signal = signal_of(ours.policy.base)
        alpha = np.append(1.0, signal)
        arrays = arrays_of(data) | start
        arrays |= {"orders": torch.stack(orders).numpy(), "betas": 1 - alpha[1:] / alpha[:-1]}
        given, seen = iter(orders), []
        decisions = ours.decisions

        def watched(*inputs: Any) -> Any:
            seen.append(decisions(*inputs))
            return seen[-1]

        if sample and ours.reward_scale is not None:
            ours.reward_scale.count.fill_(1e-4)
        with (
            replaced(returns, "absorb", sample_variance if sample else absorb),
            replaced(ours, "decisions", watched),
            replaced(torch, "randperm", lambda *a, **k: next(given)),
        ):
            told = ours.update(data)
        assert ours.reward_scale is not None
        return arrays, {
            "signal": signal,
            "scaled rewards": ours.reward_scale.scale(data.reward).numpy(),
            "advantages": seen[0].advantage.reshape(STEPS, ENVS).numpy(),
            "policy loss": told["policy_loss"].numpy(),
            "value loss": told["value_loss"].numpy(),
            **weights_of(ours),
        }


class Dppo(Peer):
    """The authors' DPPO."""

    name, package, side, needs = "DPPO", "torch", "with_dppo.py", "dppo"
    requirements = REQUIREMENTS

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of the model's file, which has no version."""
        return f"diffusion_ppo.py {sha256_file(Path(settings['dppo']) / FILE)[:10]}"

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, a rollout and the order of its pairs, and take our own updates."""
        checks: list[Check] = []
        for name, words in PARTS.items():
            arrays, ours = updated(words)
            self.write(folder / name, arrays, words, settings)
            checks += checks_of(name, ours, updated(words, sample=False)[1])
        name, words = "time limits", PARTS["ancestral"]
        arrays, ours = updated(words, time_limit=True)
        self.write(folder / name, arrays, words, settings)
        what = "advantages of a rollout in which two episodes end by the clock"
        found = {"advantages": ours["advantages"]}
        checks.append(Check(name, "advantages", what, found, 1e-3, LIMIT))
        return checks

    def write(
        self, part: Path, arrays: Mapping[str, Any], words: Mapping[str, Any], settings: Settings
    ) -> None:
        """Write the question of a part."""
        write_arrays(part, arrays)
        sizes = {
            "obs_dim": OBS, "action_dim": ACTION, "horizon": HORIZON, "executed": EXECUTED,
            "hidden": HIDDEN, "train_steps": TRAIN_STEPS, "discount": DISCOUNT, "floor": FLOOR,
        }  # fmt: skip
        checkout = str(Path(settings["dppo"]).resolve())
        write_settings(part, {"checkout": checkout, **sizes, **COMMON, **words})


def checks_of(part: str, ours: Mapping[str, Any], own: Mapping[str, Any]) -> list[Check]:
    """Return what is compared of a part.

    Args:
        part: its name.
        ours: our values with the authors' scale of returns.
        own: the same with our own.
    """
    checks = [
        Check(part, "signal", "share of the signal at each noise level", ours["signal"], 1e-6)
    ]
    for name in ("scaled rewards", "advantages"):
        what = f"{name} of a rollout in which episodes end"
        checks.append(Check(part, name, what, {name: ours[name]}, TOLERANCE))
    for name in ("policy loss", "value loss"):
        what = f"mean {name} of two epochs of minibatches of one rollout"
        checks.append(Check(part, name, what, {name: ours[name]}, TOLERANCE))
    for group in ("actor", "critic"):
        weights = {name: array for name, array in ours.items() if name.startswith(f"{group} ")}
        what = f"weights of the {group} after these updates"
        checks.append(Check(part, group, what, weights, TOLERANCE))
    what = "scaled rewards by the variance of all returns"
    found = {"scaled rewards": own["scaled rewards"]}
    checks.append(Check(part, "scaled rewards, own scale", what, found, 1e-4, SCALE))
    return checks


PEERS: tuple[Peer, ...] = (Dppo(),)
