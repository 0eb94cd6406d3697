"""SimbaV2 beside its authors' agent and its two wrappers, run out of a checkout.

In the parts of agreement the authors' running statistics begin with nothing, as ours do, and count
an observation with the reward of its own decision. Of an end they are told one step late.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.dppo import doubled
from peer_checks.flash_sac import (
    ACTION,
    DECISIONS,
    DISCOUNT,
    ENVS,
    HORIZON,
    OBS,
    ROWS,
    UPDATES,
    batch_of,
    digits_of,
    returns_of,
)
from peer_checks.flow_q import FlowQ
from peer_checks.learners import start_of
from peer_sides.exchange import replaced
from torch import nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.simba_v2 import SimbaV2
from trimtab.types import PolicySpec

__all__ = ["PEERS"]

FILES = tuple(
    f"scale_rl/agents/{name}.py"
    for name in (
        "simbaV2/simbaV2_agent", "simbaV2/simbaV2_update", "simbaV2/simbaV2_network",
        "simbaV2/simbaV2_layer", "jax_utils/network", "jax_utils/tree_utils",
        "wrappers/normalization", "wrappers/utils",
    )
)  # fmt: skip
WORDS: dict[str, Any] = {
    "actor_width": 16, "actor_blocks": 1, "critic_width": 24, "critic_blocks": 2, "atoms": 21,
    "value_bound": 5.0, "learning_rate": 3e-3, "final_learning_rate": 1e-3, "tau": 0.05,
    "initial_temperature": 0.1, "entropy_per_dimension": -0.5,
}  # fmt: skip
DECAY = 20
"""Updates over which the rates fall."""
TOLERANCE = 1e-9
AGREE = {"late ends": True, "rows before": 0.0, "skipped": 0}
WHOLE = "a return that ends is counted whole (there, its last reward alone"
BEFORE = "before an update of its decision, not after it"
FIRST = "the first observation of a run is counted, too"
NOTHING = "running statistics begin with nothing, not with mean 0 and variance 1"
# Parts of a network: in ours, and in the authors'.
PLACES = {
    "body.0.linear": "embedder/w/hyper_dense/kernel",
    "body.0.scaler": "embedder/scaler/scaler",
    **{
        f"body.{block + 1}.{mine}": f"encoder/layers_{block}/{theirs}"
        for block in range(max(WORDS["actor_blocks"], WORDS["critic_blocks"]))
        for mine, theirs in (
            ("first", "mlp/w1/hyper_dense/kernel"), ("scaler", "mlp/scaler/scaler"),
            ("second", "mlp/w2/hyper_dense/kernel"), ("step", "alpha_scaler/scaler"),
        )
    },
    **{
        f"{head}.{mine}": f"predictor/{before}{theirs}"
        for head, before in (("mean_head", "mean_"), ("log_std_head", "std_"), ("head", ""))
        for mine, theirs in (
            ("first", "w1/hyper_dense/kernel"), ("scaler", "scaler/scaler"),
            ("second", "w2/hyper_dense/kernel"),
        )
    },
    "mean_head.bias": "predictor/mean_bias",
    "log_std_head.bias": "predictor/std_bias",
    "head.bias": "predictor/value_bias",
}  # fmt: skip


def network_weights(group: str, network: nn.Module) -> dict[str, Any]:
    """Return weights under the authors' names, behind that of their group."""
    return {
        f"{group} {PLACES[name.removesuffix('.weight')]}": weight.detach().numpy().copy()
        for name, weight in network.named_parameters()
    }


def weights_of(ours: SimbaV2) -> dict[str, Any]:
    """Return every weight that an update moves."""
    return {
        **network_weights("actor", ours.actor),
        **network_weights("critics", ours.critic),
        **network_weights("targets", ours.target),
        "temperature log_temp": ours.temperature.log.detach().numpy().reshape(1).copy(),
    }


def updated(critics: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Act and count, then take the updates; return the arrays of the question, and our values.

    Args:
        critics: how many there are.
    """
    flat = HORIZON * ACTION
    with doubled():
        torch.manual_seed(0)
        spec = PolicySpec(OBS, HORIZON, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
        ours = SimbaV2(
            Setup(spec, num_envs=ENVS, discount=DISCOUNT),
            critics=critics, decay_steps=DECAY * HORIZON, updates_per_decision=1.0, **WORDS,
        )  # fmt: skip
        start = start_of(weights_of(ours))
        rewards, ended = returns_of()
        columns = {
            "observation": 2 * torch.randn(UPDATES, ROWS, OBS) + 1,
            "action": 2 * torch.rand(UPDATES, ROWS, flat) - 1,
            "reward": 20 * torch.randn(UPDATES, ROWS),
            "next_observation": 2 * torch.randn(UPDATES, ROWS, OBS) + 1,
            "terminated": (torch.rand(UPDATES, ROWS) < 0.3).double(),
            "noise": torch.randn(UPDATES, 2, ROWS, flat),
            "acting noise": torch.randn(DECISIONS, ENVS, flat),
            "acted on": 2 * torch.randn(DECISIONS, ENVS, OBS) + 1,
        }
        arrays = {name: column.numpy() for name, column in columns.items()}
        found: dict[str, list[Any]] = {}

        def note(**values: Any) -> None:
            for name, value in values.items():
                found.setdefault(name.replace("_", " "), []).append(value.numpy())

        for obs, noise, reward, end in zip(
            columns["acted on"], columns["acting noise"], rewards, ended, strict=True
        ):
            drawn = noise.reshape(ENVS, HORIZON, ACTION)
            with replaced(ours.actor, "sample_noise", lambda count, drawn=drawn: drawn):
                action = ours.explore(obs, warmup=False)[0]
            ours.on_transition(reward, end, end)
            seen = ours.actor.normalizer.obs(columns["observation"][0])
            note(
                actions=action.detach().flatten(1),
                observations=seen,
                scaled_rewards=ours.reward_scale(rewards[0]),
            )
        for step in range(UPDATES):
            both = iter(columns["noise"][step].reshape(2, ROWS, HORIZON, ACTION))
            with replaced(ours.actor, "sample_noise", lambda count, both=both: next(both)):
                told = ours.update(batch_of(arrays, step))
            note(**{name: told[name] for name in ("critic_loss", "actor_loss", "entropy")})
        arrays |= start | {"seen rewards": rewards.numpy(), "ended": ended.numpy()}
        return arrays, {name: np.stack(values) for name, values in found.items()} | weights_of(ours)


class Simba(Peer):
    """The authors' SimbaV2."""

    name, package, side, needs = "SimbaV2", "jax", "with_simba_v2.py", "simba_v2"
    requirements = FlowQ.requirements

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return digits of the SHA-256 of the agent's files, which have no version."""
        return digits_of(settings[self.needs], FILES)

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, batches, what is seen in acting, and noise, and take our own updates."""
        common = {
            "checkout": str(Path(settings[self.needs]).resolve()), "obs_dim": OBS,
            "action_dim": HORIZON * ACTION, "discount": DISCOUNT, "decay": DECAY, **WORDS, **AGREE,
        }  # fmt: skip
        what = f"of {UPDATES} updates from the same weights, batches and noise"
        counted = {
            "scaled rewards": f"rewards scaled by the returns of each of {DECISIONS} steps",
            "observations": f"observations normalised after each of {DECISIONS} decisions",
            "actions": f"actions of {DECISIONS} decisions before these updates",
        }
        checks: list[Check] = []
        # The part of two critics comes last; what deviates is compared beside it.
        for part, critics in (("simba_v2 of one critic", 1), ("simba_v2", 2)):
            arrays, ours = updated(critics)
            write_arrays(folder / part, arrays)
            write_settings(folder / part, common | {"critics": critics})
            said = {loss: f"{loss} {what}" for loss in ("critic loss", "actor loss", "entropy")}
            for name, text in (said | counted).items():
                checks.append(Check(part, name, text, {name: ours[name]}, TOLERANCE))
            for group in ("actor", "critics", "targets", "temperature"):
                found = {name: ours[name] for name in ours if name.startswith(f"{group} ")}
                found.pop("actor loss", None)
                text = f"{group} after {UPDATES} such updates"
                checks.append(Check(part, group, text, found, TOLERANCE))
        deviations: tuple[tuple[str, dict[str, Any], str, str, float], ...] = (
            ("ends", {"late ends": False}, "scaled rewards", WHOLE, 1e-4),
            ("from the second step", {"skipped": 1}, "scaled rewards", BEFORE, 1e-4),
            ("from the second step", {"skipped": 1}, "observations", FIRST, 1e-4),
            ("first row", {"rows before": 1e-4}, "scaled rewards", NOTHING, 1e-7),
            ("first row", {"rows before": 1e-4}, "observations", NOTHING, 1e-7),
        )
        for words, other, name, deviation, least in deviations:
            part = f"simba_v2, {words}"
            write_arrays(folder / part, arrays | {"noise": arrays["noise"][:0]})  # no updates
            write_settings(folder / part, common | {"critics": 2} | other)
            rows = ours[name][other.get("skipped", 0) :]
            checks.append(Check(part, name, counted[name], {name: rows}, least, deviation))
        return checks


PEERS: tuple[Peer, ...] = (Simba(),)
