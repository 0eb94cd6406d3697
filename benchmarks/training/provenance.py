"""What a run's numbers depend on, as ``provenance.json`` and ``config.yaml`` beside them say it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from trimtab.benchmarks.training.folder import CONFIG, PROVENANCE, read_provenance
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.without_task import has_task
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import confirm
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text
from trimtab.plugins import command_line, named_plugins, plugins
from trimtab.processor import processor_kind
from trimtab.version import __version__

_PACKAGES = ("torch", "numpy", "mujoco", "gymnasium", "onnxruntime")


def versions() -> dict[str, str]:
    """Return the versions of this package, of those that decide its numbers, and of plug-ins."""
    return {
        "trimtab": __version__,
        **{package: importlib.metadata.version(package) for package in _PACKAGES},
        **{plugin.package: plugin.version for plugin in plugins()},
    }


def machine() -> str:
    """Return what kind of machine this is."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def write_provenance(folder: Path, plan: Plan) -> None:
    """Write what the run in ``folder`` is made of, and the words that ask for it.

    Args:
        folder: of the run.
        plan: what it is made of.

    Raises:
        TrimtabError: if the disk refuses.
    """
    write_config(folder, config := plan.config)
    dataset = plan.dataset
    document = {
        "python": platform.python_version(),
        "machine": machine(),
        "packages": versions(),
        "command": list(config.words),
        **({"plugins": list(named_plugins())} if named_plugins() else {}),
        "config_hash": plan.config_hash,
        "identity": dict(plan.identity),
        "device": config["device"],
        "seed": config["seed"],
        "env": {
            "id": plan.env.id,
            "options": dict(plan.env.options),
            "physics": dict(plan.env.physics),
            "fingerprint": plan.env.fingerprint,
            **(_confirmed(plan.env) if has_task(plan.env.id) else {}),
        },
        "dataset": None
        if dataset is None
        else {
            "id": dataset.id,
            "content_hash": dataset.content_hash,
            "recipe": dict(dataset.recipe),
        },
        "base": plan.base_hash,
    }
    atomic_write_text(folder / PROVENANCE, json.dumps(document, indent=2) + "\n")


def _confirmed(env: EnvSpec) -> dict[str, Any]:
    return {"confirmation": {**confirm(env).to_json(), "processor": processor_kind()}}


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the settings of a run, below the words that ask for them.

    Raises:
        TrimtabError: if the disk refuses.
    """
    command = " ".join(command_line("train", *config.words).split())
    settings = OmegaConf.to_yaml({**config.settings, **config.asked})
    atomic_write_text(folder / CONFIG, f"# {command}\n{settings}")


def check_same_start(folder: Path, plan: Plan, *, data: bool = True) -> None:
    """Refuse to go on from another base, or with data of other bits, than a run was started with.

    Where a base follows the seed, another one may have the same settings. The same recipe gives
    data that differs in last bits on another kind of processor. That is the same configuration,
    and no way to end in the same bits.

    Args:
        folder: of the run.
        plan: what it is to go on with.
        data: whether data are compared, which have to be loaded for it.

    Raises:
        TrimtabError: naming what differs.
    """
    found = read_provenance(folder)
    if found.get("base") != plan.base_hash:
        raise TrimtabError(
            f"{folder} was started from another base of the same configuration; "
            "give that one, or choose another out="
        )
    if not data:
        return
    had = (found.get("dataset") or {}).get("content_hash")
    have = None if plan.dataset is None else plan.dataset.content_hash
    if had != have:
        raise TrimtabError(
            f"{folder} was started with data of content {had}, which is {have} here; go on with "
            "the machine or the files that it was started with, or choose another out="
        )
