"""Bundles of weight files that other libraries wrote.

Shapes are the file's. The rate and the limits of the actions are a task's or a contract's, and what
else the file does not say is the contract's: activation, what follows the last layer, statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.shapes import spec_of
from trimtab.benchmarks.training.without_task import (
    NO_TASK,
    described_by,
    limits_in,
    rate_in,
    read_contract,
)
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError
from trimtab.files import sha256_file
from trimtab.policies.bundle.adjusting import adjustable, adjusted
from trimtab.policies.bundle.bundle import check_bundle, save_bundle
from trimtab.policies.imports.actors import FILE, NONE, Actor, Unsaid
from trimtab.policies.imports.chunks import LEROBOT_MODEL, ChunkActor
from trimtab.policies.imports.weights import read_actor
from trimtab.types import PolicySpec

__all__ = ["export_weights"]

_UNSAID = tuple(field.name for field in fields(Unsaid))


def export_weights(
    model: Path, env: str, contract: str, out: Path, limits: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Write the actor of a weight file as a bundle with ONNX; return its replay errors.

    Args:
        model: the file, or the folder of LeRobot.
        env: the task that it was trained on; empty: the contract says rate and limits.
        contract: path of the file that says what the weight file does not; empty: there is none.
        out: folder of the bundle.
        limits: of a robot's commands; None for those of the contract.
        settings: of how the policy acts, that differ from the file's.

    Raises:
        TrimtabError: if the file cannot be read or does not fit the task, something is not said, or
            the bundle cannot be written.
    """
    place = Path(contract).expanduser()
    said = read_contract(place, _UNSAID) if contract else {}
    where = f"contract {place}"
    actor, library = read_actor(model, _unsaid(said, place))
    widths = {"observation": actor.obs_dim, "action": actor.action_dim}
    ends = limits_in(said.get("action", {}), actor.action_dim, where)
    rate = rate_in(said["control_rate"], where) if "control_rate" in said else None
    spec, task = _of_task(env, ends, rate, where) if env else _of_contract(actor, ends, rate, model)
    shapes = replace(spec, horizon=actor.horizon, every_tick=actor.history > 1)
    policy = actor.policy(shapes.with_history(actor.history))
    before, changed = adjustable(policy), dict[str, Any]()
    if settings:
        policy = adjusted(policy, settings)
        after = adjustable(policy)
        moved = [key for key in settings if after[key] != before[key]]
        changed = {key: {"from": before[key], "to": after[key]} for key in moved}
    names = {"observation": list(actor.obs_names)}
    training = {
        "algorithm": library,
        "policy": policy.label,
        "file_sha256": sha256_file(model / LEROBOT_MODEL if model.is_dir() else model),
    }
    described = described_by(said, widths, names, where)
    if limits is not None or said.get("limits") is not None:
        described["limits"] = said["limits"] if limits is None else limits
    contract_of_bundle = {
        **task, "act_steps": actor.act_steps, "training": training, "changed": changed, **described,
    }  # fmt: skip
    save_bundle(policy, out, contract=contract_of_bundle)
    return check_bundle(out)


def _unsaid(said: Mapping[str, Any], place: Path) -> Unsaid:
    """Return what a contract says of a weight file; its statistics are beside the contract."""
    given = {name: said[name] for name in _UNSAID if name in said}
    for name, value in given.items():
        if not isinstance(value, str):
            raise TrimtabError(f"contract {place}: {name} must be a word, got {value!r}")
    statistics = given.get("statistics")
    if statistics not in (None, NONE, FILE):
        given["statistics"] = str(place.parent / Path(statistics).expanduser())
    return Unsaid(**given)


def _of_task(
    env: str, limits: Mapping[str, tuple[float, ...]], rate: float | None, where: str
) -> tuple[PolicySpec, dict[str, Any]]:
    """Return the shapes of a task, which the contract must not contradict, and what it is."""
    task = get_spec(env)
    ours = {"low": task.action_low, "high": task.action_high}
    for key, value in limits.items():
        if len(value) != len(ours[key]) or not all(map(math.isclose, value, ours[key])):
            raise TrimtabError(f"{where}: action.{key} is {value}, and env has {ours[key]}")
    if rate is not None and task.control_rate is not None and rate != task.control_rate:
        raise TrimtabError(f"{where}: control_rate is {rate}, and env has {task.control_rate}")
    return spec_of(task, 1), {
        "env": task.id,
        "env_horizon": task.horizon,
        "env_options": dict(task.options),
        "fingerprint": task.fingerprint,
        "control_rate": task.control_rate,
    }


def _of_contract(
    actor: Actor | ChunkActor,
    limits: Mapping[str, tuple[float, ...]],
    rate: float | None,
    model: Path,
) -> tuple[PolicySpec, dict[str, Any]]:
    """Return the shapes of the file with the contract's limits and rate."""
    known = dict(zip(("low", "high"), actor.limits or (), strict=False)) | dict(limits)
    lacks = [f"action.{key}" for key in ("low", "high") if key not in known]
    if rate is None:
        lacks.append("control_rate")
    if lacks:
        raise TrimtabError(
            f"export: {model} does not say {', '.join(lacks)}: write that into the contract, or "
            "add env=<a task>"
        )
    spec = PolicySpec(actor.obs_dim, 1, actor.action_dim, known["low"], known["high"])
    return spec, {"env": f"{NO_TASK}:{model.name}", "control_rate": rate}
