"""ReinFlow beside its authors' model and the update of their agent, run out of a checkout.

Advantages and the scale of returns are those of DPPO in both codes, and are compared there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.dppo import REQUIREMENTS, doubled
from peer_checks.flow_q import ACTION, HIDDEN, OBS, VectorField
from peer_checks.learners import linear_weights, start_of
from peer_sides.exchange import replaced

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.rollouts import Decisions, mean_metrics
from trimtab.algorithms.finetuning import reinflow
from trimtab.algorithms.finetuning.reinflow import ReinFlow
from trimtab.files import sha256_file
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.chains import chain_noise
from trimtab.types import PolicySpec

__all__ = ["PEERS"]

FILE = "model/flow/ft_ppo/ppoflow.py"
ROWS, HORIZON, STEPS = 64, 3, 4
COMMON: dict[str, Any] = {
    "epochs": 3, "batch_size": 32, "clip": 0.01, "learning_rate": 3e-3,
    "critic_learning_rate": 1e-2, "least_noise": 0.1, "most_noise": 0.24, "entropy_weight": 0.03,
    "noise_hidden": [16, 16],
}  # fmt: skip
TOLERANCE = 1e-9
GRID = "times are k / K both when it acts and in the ratio (there: a grid up to 1 when it acts"
CLIPPED = "the density is that of the last point before it is clipped (there: after it)"


def weights_of(ours: ReinFlow) -> dict[str, Any]:
    """Return every weight that an update moves."""
    return {
        **linear_weights("flow", ours.policy.network),
        **linear_weights("noise", ours.noise),
        **linear_weights("critic", ours.critic),
    }


def learner() -> ReinFlow:
    """Return our method."""
    spec = PolicySpec(OBS, HORIZON, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
    base = FlowPolicy(spec, sampling_steps=STEPS)
    network = VectorField(spec)
    network.register_buffer("frequencies", base.network.frequencies.clone())
    base.network = network  # type: ignore[assignment]
    with torch.no_grad():  # so that many means are clipped
        network.network[-1].weight.mul_(8.0)
    return ReinFlow(Setup(spec, base=base), hidden=HIDDEN, **COMMON)


def updated() -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the updates; return the arrays of the question, and our values."""
    with doubled():
        torch.manual_seed(0)
        ours = learner()
        arrays = start_of(weights_of(ours))
        obs = torch.randn(ROWS, OBS)
        noise = chain_noise((ROWS, STEPS + 1, HORIZON, ACTION), obs.device)
        with replaced(reinflow, "chain_noise", lambda *shape: noise):
            _, stored = ours.explore(obs, warmup=False)
        chain = stored["chain"]
        with torch.no_grad():
            density, value = ours.density(obs, chain)[0], ours.critic(obs).squeeze(-1)
            ratio = ours.density(obs, chain)[0]
        advantage = torch.randn(ROWS)
        samples = Decisions(obs, chain, density, advantage, value + advantage)
        orders = [torch.randperm(ROWS) for _ in range(COMMON["epochs"])]
        steps = []
        for order in orders:
            steps += [ours.learn(samples[rows]) for rows in order.split(COMMON["batch_size"])]
        told = mean_metrics(steps)
        limited = chain.clone()
        limited[:, -1].clamp_(-1, 1)
        arrays |= {
            "obs": obs.numpy(), "noise": noise.numpy(), "chain": chain.numpy(),
            "frequencies": ours.noise.frequencies.numpy(), "value": value.numpy(),
            "advantage": advantage.numpy(), "target": samples.target.numpy(),
            "orders": torch.stack(orders).numpy(),
        }  # fmt: skip
        # Theirs counts the first point's entropy, too, which no weight changes.
        first = 0.5 * math.log(2 * math.pi * math.e) / (STEPS + 1)
        loss = np.asarray(told["policy_loss"].numpy() - COMMON["entropy_weight"] * first)
        return arrays, {
            "chain": limited.numpy(),
            "log-density": density.numpy(),
            "log-ratio": (ratio - density).numpy(),
            "policy loss": loss,
            "value loss": told["value_loss"].numpy(),
            **weights_of(ours),
        }


def checks_of(ours: Mapping[str, Any]) -> list[Check]:
    """Return what is compared."""
    words = {
        "chain": "points of paths from the same noise, the last one clipped",
        "log-density": "log-densities of these paths",
        "policy loss": "mean policy loss of three epochs of minibatches",
        "value loss": "mean value loss of three epochs of minibatches",
    }
    checks = [
        Check("reinflow", name, what, {name: ours[name]}, TOLERANCE) for name, what in words.items()
    ]
    for group in ("flow", "noise", "critic"):
        weights = {name: array for name, array in ours.items() if name.startswith(f"{group} ")}
        what = f"weights of the {group} after these updates"
        checks.append(Check("reinflow", group, what, weights, TOLERANCE))
    for name, mine, why in (
        ("chain on its own grid", "chain", GRID),
        ("log-ratio before the first step", "log-ratio", GRID),
        ("log-density of what was executed", "log-density", CLIPPED),
    ):
        checks.append(Check("reinflow", name, name, {name: ours[mine]}, 1e-3, why))
    return checks


class Reinflow(Peer):
    """The authors' ReinFlow."""

    name, package, side, needs = "ReinFlow", "torch", "with_reinflow.py", "reinflow"
    requirements = REQUIREMENTS

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of the model's file, which has no version."""
        return f"ppoflow.py {sha256_file(Path(settings['reinflow']) / FILE)[:10]}"

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, paths and the order of the rows, and take our own updates."""
        arrays, ours = updated()
        write_arrays(folder / "reinflow", arrays)
        sizes = {
            "checkout": str(Path(settings["reinflow"]).resolve()), "obs_dim": OBS,
            "action_dim": ACTION, "horizon": HORIZON, "hidden": HIDDEN, "steps": STEPS,
        }  # fmt: skip
        write_settings(folder / "reinflow", sizes | COMMON)
        return checks_of(ours)


PEERS: tuple[Peer, ...] = (Reinflow(),)
