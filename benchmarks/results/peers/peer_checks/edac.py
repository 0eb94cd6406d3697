"""EDAC and SAC-N beside CORL's files, which are run out of a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.dppo import REQUIREMENTS, doubled
from peer_checks.flow_q import critic_weights
from peer_checks.learners import linear_weights, start_of
from peer_sides.exchange import replaced

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.edac import EDAC
from trimtab.files import sha256_file
from trimtab.types import Batch, PolicySpec

__all__ = ["PEERS"]

FOLDER = "algorithms/offline"
OBS, ACTION, ROWS, UPDATES, WIDTH, CRITICS = 5, 2, 32, 5, 32, 5
RATE, TAU, DISCOUNT = 3e-3, 0.05, 0.97
TOLERANCE = 1e-9
EXACT = "the density of a squashed action is exact (there: 1e-6 is added within its logarithm)"
ONE_PASS = "one pass of the actor serves temperature and actor (there: a sample each"
PARTS: dict[str, dict[str, Any]] = {
    "edac": {"file": f"{FOLDER}/edac.py", "class": "EDAC", "diversity": 1.0},
    "sac-n": {"file": f"{FOLDER}/sac_n.py", "class": "SACN", "diversity": 0.0},
}


def weights_of(ours: EDAC) -> dict[str, Any]:
    """Return every weight that an update moves; the two heads of the actor are one layer here."""
    actor = linear_weights("actor", ours.actor)
    for kind in ("weight", "bias"):
        both = actor.pop(f"actor 3 {kind}")
        actor[f"mean 0 {kind}"], actor[f"log std 0 {kind}"] = np.split(both, 2)
    return {
        **actor,
        **critic_weights("critics", ours.critic),
        **critic_weights("targets", ours.target),
        "temperature": ours.temperature.log.detach().numpy().reshape(1).copy(),
    }


def updated(diversity: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the updates; return the arrays of the question, and our values."""
    with doubled():
        torch.manual_seed(0)
        limits = (-1.0,) * ACTION, (1.0,) * ACTION
        ours = EDAC(
            Setup(PolicySpec(OBS, 1, ACTION, *limits), discount=DISCOUNT),
            diversity=diversity,
            critics=CRITICS,
            hidden=[WIDTH] * 3,
            learning_rate=RATE,
            tau=TAU,
        )
        arrays = start_of(weights_of(ours))
        obs, next_obs = torch.randn(2, UPDATES, ROWS, OBS)
        columns = {
            "obs": obs,
            "next_obs": next_obs,
            "action": 2 * torch.rand(UPDATES, ROWS, ACTION) - 1,
            "reward": torch.randn(UPDATES, ROWS, 1),
            "done": (torch.rand(UPDATES, ROWS, 1) < 0.3).double(),
        }
        noise = torch.randn(UPDATES, 2, ROWS, ACTION)
        losses: dict[str, list[Any]] = {"critic loss": [], "actor loss": []}
        for step in range(UPDATES):
            given = {name: column[step] for name, column in columns.items()}
            batch = Batch(
                obs=given["obs"],
                action=given["action"][:, None],
                reward=given["reward"][:, 0],
                next_obs=given["next_obs"],
                discount=DISCOUNT * (1 - given["done"][:, 0]),
                valid=torch.ones(ROWS, 1, dtype=torch.bool),
                whole=True,
            )
            drawn = iter(noise[step][:, :, None])
            with replaced(ours.actor, "sample_noise", lambda count, drawn=drawn: next(drawn)):
                told = ours.update(batch)
            losses["critic loss"].append(told["critic_loss"].numpy())
            losses["actor loss"].append(told["actor_loss"].numpy())
        # CORL draws for the temperature, for the actor, and for the next action.
        arrays |= {name: column.numpy() for name, column in columns.items()}
        arrays["noise"] = noise[:, [0, 0, 1]].flatten(0, 1).numpy()
        arrays["own draws"] = torch.randn(UPDATES, ROWS, ACTION).numpy()
    return arrays, {name: np.array(loss) for name, loss in losses.items()} | weights_of(ours)


class Edac(Peer):
    """CORL's EDAC and SAC-N."""

    name, package, side, needs = "EDAC", "torch", "with_edac.py", "corl"
    requirements = REQUIREMENTS

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of EDAC's file, which has no version."""
        return f"CORL edac.py {sha256_file(Path(settings['corl']) / FOLDER / 'edac.py')[:10]}"

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, batches and noise, and take our own updates."""
        common = {
            "checkout": str(Path(settings["corl"]).resolve()), "obs_dim": OBS,
            "action_dim": ACTION, "hidden": WIDTH, "critics": CRITICS, "learning_rate": RATE,
            "tau": TAU, "discount": DISCOUNT,
        }  # fmt: skip
        checks: list[Check] = []
        for name, words in PARTS.items():
            arrays, ours = updated(words["diversity"])
            moved = {key: value for key, value in ours.items() if "loss" not in key}
            write_arrays(folder / name, arrays)
            write_settings(folder / name, common | words | {"as published": False})
            for loss in ("critic loss", "actor loss"):
                what = f"{loss} of {UPDATES} updates"
                checks.append(Check(name, loss, what, {loss: ours[loss]}, TOLERANCE))
            for group in ("actor", "mean", "log std", "critics", "targets", "temperature"):
                found = {key: value for key, value in moved.items() if key.startswith(group)}
                what = f"{group} after {UPDATES} updates from the same weights and noise"
                checks.append(Check(name, group, what, found, TOLERANCE))
            part = f"{name}, its own density"
            write_arrays(folder / part, arrays)
            write_settings(folder / part, common | words | {"as published": True})
            what = f"all weights after {UPDATES} updates, with 1e-6 within CORL's logarithm"
            checks.append(Check(part, "all weights", what, moved, 1e-7, EXACT))
            part = f"{name}, two draws"
            noise = arrays["noise"].copy()
            noise[::3] = arrays["own draws"]
            write_arrays(folder / part, arrays | {"noise": noise})
            write_settings(folder / part, common | words | {"as published": False})
            what = f"all weights after {UPDATES} updates, with a draw of CORL's temperature's own"
            checks.append(Check(part, "all weights", what, moved, 1e-6, ONE_PASS))
        return checks


PEERS: tuple[Peer, ...] = (Edac(),)
