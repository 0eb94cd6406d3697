"""Negative-aware tuning beside DiffusionNFT's own loop, run out of a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.dppo import REQUIREMENTS, doubled
from peer_checks.flow_q import ACTION, HIDDEN, OBS, STEPS, VectorField
from peer_checks.learners import linear_weights, start_of
from peer_sides.exchange import replaced

from trimtab.algorithms.base import Setup
from trimtab.algorithms.finetuning.nft import MOST, NFT
from trimtab.files import sha256_file
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import PolicySpec

__all__ = ["PEERS"]

FILE = "scripts/train_nft_sd3.py"
HORIZON, STATES, GROUP, UPDATES = 3, 8, 6, 5
RATE, STRENGTH, REFERENCE_WEIGHT = 1e-3, 0.4, 0.5
TOLERANCE = 1e-9
BOUNDED = "bounds the gradient's norm by 1"
DECAYED = "has a weight decay of 1e-4"
OWN = "A is divided by its own deviation over the batch (there: by that of all rewards)"
FREE = {"max_gradient_norm": 1e30, "weight_decay": 0.0}


def updated() -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the updates; return the arrays of the question, and our values."""
    with doubled():
        torch.manual_seed(0)
        spec = PolicySpec(OBS, HORIZON, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
        base = FlowPolicy(spec, sampling_steps=STEPS)
        base.network = VectorField(spec)  # type: ignore[assignment]
        words = {"strength": STRENGTH, "reference_weight": REFERENCE_WEIGHT}
        ours = NFT(Setup(spec, base=base), learning_rate=RATE, group=GROUP, **words)
        others = {"old": ours.slow.network, "reference": ours.reference}
        with torch.no_grad():
            for network in others.values():
                for weight in network.parameters():
                    weight.add_(0.4 * torch.randn_like(weight))
        arrays = start_of(linear_weights("default", ours.actor.network))
        for name, network in others.items():
            arrays |= start_of(linear_weights(name, network))
        rows = torch.randn(STATES, OBS).repeat_interleave(GROUP, dim=0)
        clean = ours.slow(rows, ours.slow.sample_noise(len(rows))).detach()
        rewards = torch.randn(STATES, GROUP) + torch.randn(STATES, 1)
        advantage = (rewards - rewards.mean(1, keepdim=True)).flatten()
        # Of six in a group none is beyond the bound; so one is.
        advantage[0] = 40.0
        worth = ours.worth(advantage)
        steps = torch.randint(STEPS, (UPDATES, len(rows)))
        noise = torch.randn(UPDATES, *clean.shape)
        losses = []
        for step in range(UPDATES):
            with (
                replaced(torch, "randint", lambda *a, step=step, **k: steps[step]),
                replaced(torch, "randn_like", lambda like, step=step: noise[step]),
            ):
                loss = ours.loss(rows, clean, worth)
            ours.actor_optimizer.step(loss)
            losses.append(loss.item())
        arrays |= {
            "obs": rows.numpy(), "clean": clean.numpy(), "noise": noise.numpy(),
            "level": (steps / STEPS).numpy(), "rewards": rewards.flatten().numpy(),
            "group": np.repeat(np.arange(STATES), GROUP),
            "advantages": (advantage / (advantage.std() + 1e-4)).numpy(),
        }  # fmt: skip
        plain = (rewards - rewards.mean(1, keepdim=True)).flatten()
        return arrays, {
            "loss": np.array(losses),
            "worth": ours.worth(plain).numpy(),
            **linear_weights("default", ours.actor.network),
        }


class Nft(Peer):
    """The authors' DiffusionNFT."""

    name, package, side, needs = "DiffusionNFT", "torch", "with_nft.py", "nft"
    requirements = REQUIREMENTS

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of the script, which has no version."""
        return f"train_nft_sd3.py {sha256_file(Path(settings['nft']) / FILE)[:10]}"

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, samples, levels and noise, and take our own updates."""
        arrays, ours = updated()
        common = {
            "checkout": str(Path(settings["nft"]).resolve()), "obs_dim": OBS, "hidden": HIDDEN,
            "action_dim": ACTION, "horizon": HORIZON, "strength": STRENGTH,
            "reference_weight": REFERENCE_WEIGHT, "advantage_limit": MOST, "learning_rate": RATE,
        }  # fmt: skip
        bounded, decayed = FREE | {"max_gradient_norm": 1.0}, FREE | {"weight_decay": 1e-4}
        for part, words in (("nft", FREE), ("nft, bounded", bounded), ("nft, decayed", decayed)):
            write_arrays(folder / part, arrays)
            write_settings(folder / part, common | words)
        weights = {name: array for name, array in ours.items() if name.startswith("default")}
        what = f"{UPDATES} updates from the same weights, samples, levels and noise"
        bound = f"weights after {UPDATES} updates with a bound of 1 on the norm of their gradient"
        decay = f"weights after {UPDATES} updates with a weight decay of 1e-4 in theirs"
        share = "worth of samples by their advantages over the deviation of all rewards"
        return [
            Check("nft", "loss", f"loss of {what}", {"loss": ours["loss"]}, TOLERANCE),
            Check("nft", "policy", f"weights after {what}", weights, TOLERANCE),
            Check("nft", "worth", share, {"worth": ours["worth"]}, 1e-4, OWN),
            Check("nft, bounded", "policy", bound, weights, 1e-8, BOUNDED),
            Check("nft, decayed", "policy", decay, weights, 1e-8, DECAYED),
        ]


PEERS: tuple[Peer, ...] = (Nft(),)
