"""TD3+BC beside CORL's ``td3_bc.py``, which is run out of a checkout that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.data import recorded
from peer_checks.learners import ensemble_weights, linear_weights, start_of, widen
from peer_sides.exchange import replaced

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.datasets.formats.registry import get_format
from trimtab.files import sha256_file
from trimtab.types import Batch, PolicySpec

__all__ = ["PEERS"]

FILE = "algorithms/offline/td3_bc.py"
UPDATES, BATCH, DISCOUNT = 500, 256, 0.99


class Corl(Peer):
    """CORL's TD3+BC, from the same data, weights, batches and noise."""

    name, package, side, needs = "CORL", "torch", "with_corl.py", "corl"
    requirements = ("torch==2.13.0", "numpy==1.26.4", "h5py==3.16.0")

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of CORL's file, which has no version."""
        return f"td3_bc.py {sha256_file(Path(settings['corl']) / FILE)[:10]}"

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Write a D4RL file, give weights, batches and noise, and take our own updates.

        First with our own statistics of the observations, to the first target; then with those
        that CORL takes (means and standard deviations over the file's ``observations``, in single
        precision), to the weights after all updates.
        """
        recipe = recorded("hopper")
        checkout = str(Path(settings["corl"]).resolve())
        checks: list[Check] = []
        for words in ("own statistics", "the same statistics"):
            part = folder / words
            part.mkdir(parents=True)
            get_format("d4rl").save(recipe, part / "dataset.hdf5")
            dataset = get_format("d4rl").load(part / "dataset.hdf5")
            columns = columns_of(dataset)
            sizes = [dataset.obs_dim, dataset.action_dim]
            spec = PolicySpec(sizes[0], 1, sizes[1], dataset.action_low, dataset.action_high)
            # As the harness does it.
            statistics = dataset.statistics(transitions_only=TD3BC.needs.transitions_only)
            torch.manual_seed(0)
            ours = TD3BC(Setup(spec, statistics=statistics, discount=DISCOUNT))
            imposed = bool(checks)
            if imposed:
                impose(ours, columns["obs"].float().numpy())
            normalizer = ours.policy.normalizer
            mean, std = normalizer.obs_shift.numpy().copy(), normalizer.obs_scale.numpy().copy()
            arrays, target = updated(ours, columns, UPDATES if imposed else 1)
            write_arrays(part, arrays)
            limits = {"checkout": checkout, "sizes": sizes, "max_action": spec.action_high[0]}
            write_settings(part, limits)
            if not imposed:
                what = "of the observations, by which they are normalised"
                checks += [
                    Check(words, "mean", f"mean {what}", mean, 1e-6),
                    Check(words, "standard deviation", f"standard deviation {what}", std, 1e-6),
                ]
            what = f"target values of the first {BATCH} transitions"
            checks.append(Check(words, "first target", what, target, 5e-7))
            if imposed:
                what = f"weights after {UPDATES} updates from the same weights, batches and noise"
                for group, weights in grouped(weights_of(ours)):
                    checks.append(Check(words, group, what, weights, 6e-8))
        return checks


def impose(ours: TD3BC, observations: Any) -> None:
    """Let a fresh learner normalise by CORL's statistics of ``observations`` ``[N, O]``."""
    for policy in (ours.policy, ours.policy_target):
        policy.normalizer.obs_shift.copy_(torch.from_numpy(observations.mean(0)))
        policy.normalizer.obs_scale.copy_(torch.from_numpy(observations.std(0) + 1e-3))


def updated(
    ours: TD3BC, columns: Mapping[str, torch.Tensor], updates: int
) -> tuple[dict[str, Any], Any]:
    """Take the updates; return the arrays of the question and the first target."""
    widen(ours)
    start = start_of(weights_of(ours))
    rng = np.random.default_rng(0)
    rows = rng.integers(len(columns["reward"]), size=(updates, BATCH))
    noise = torch.from_numpy(rng.standard_normal((updates, BATCH, columns["action"].shape[-1])))
    target = np.empty(0)
    for step in range(updates):
        batch = Batch(**{name: column[rows[step]] for name, column in columns.items()})
        drawn = noise[step]
        with replaced(torch, "randn_like", lambda x, drawn=drawn: drawn.reshape(x.shape)):
            if step == 0:
                with torch.no_grad():
                    target = (batch.reward + batch.discount * ours.next_value(batch)).numpy()
            ours.update(batch)
    return {"rows": rows, "noise": noise.numpy()} | start, target


def grouped(weights: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return weights as those of the actor, of the critics, and of their targets."""
    groups: dict[str, dict[str, Any]] = {"actor": {}, "critics": {}, "targets": {}}
    for name, weight in weights.items():
        network = name.partition(" ")[0]
        group = "actor" if network.startswith("actor") else "critics"
        groups["targets" if network.endswith("_target") else group][name] = weight
    return list(groups.items())


def weights_of(ours: TD3BC) -> dict[str, Any]:
    """Return every weight that an update moves, under CORL's names."""
    return {
        **linear_weights("actor", ours.policy),
        **linear_weights("actor_target", ours.policy_target),
        **ensemble_weights(("critic_1", "critic_2"), ours.critic),
        **ensemble_weights(("critic_1_target", "critic_2_target"), ours.critic_target),
    }


def columns_of(dataset: Any) -> dict[str, torch.Tensor]:
    """Return the columns of a dataset's transitions, in double precision where they are numbers."""

    def joined(parts: list[Any]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts))

    episodes = dataset.episodes
    terminated = joined([e.terminations for e in episodes])
    actions = joined([e.actions for e in episodes]).double()
    return {
        "obs": joined([e.observations[:-1] for e in episodes]).double(),
        "next_obs": joined([e.observations[1:] for e in episodes]).double(),
        "action": actions[:, None],
        "reward": joined([e.rewards for e in episodes]).double(),
        "discount": DISCOUNT * (~terminated).double(),
        "valid": torch.ones(len(actions), 1, dtype=torch.bool),
    }


PEERS: tuple[Peer, ...] = (Corl(),)
