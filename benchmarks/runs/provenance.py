"""What a run's numbers depend on, as ``provenance.json`` and ``config.yaml`` beside them say it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path

from omegaconf import OmegaConf

import trimtab
from trimtab.benchmarks.runs.build import Components
from trimtab.benchmarks.settings.config import RunConfig
from trimtab.envs.registry import confirm
from trimtab.files import atomic_write_text, read_json
from trimtab.plugins import plugins
from trimtab.policies.bundle.bundle import bundle_hash
from trimtab.types import TrimtabError

_PACKAGES = ("torch", "numpy", "mujoco", "gymnasium", "onnxruntime")


def versions() -> dict[str, str]:
    """Return the versions of this package, of those that decide its numbers, and of plug-ins."""
    return {
        "trimtab": trimtab.__version__,
        **{package: importlib.metadata.version(package) for package in _PACKAGES},
        **{plugin.package: plugin.version for plugin in plugins()},
    }


def machine() -> str:
    """Return what kind of machine this is."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def write_provenance(folder: Path, config: RunConfig, parts: Components) -> None:
    """Write what the run in ``folder`` is made of.

    Raises:
        TrimtabError: if the disk refuses.
    """
    atomic_write_text(folder / "config.yaml", OmegaConf.to_yaml(dict(config.settings)))
    dataset = parts.dataset
    document = {
        "python": platform.python_version(),
        "machine": machine(),
        "packages": versions(),
        "config_hash": parts.config_hash,
        "identity": dict(parts.identity),
        "device": config["device"],
        "seed": config["seed"],
        "env": {
            "id": parts.env.id,
            "options": dict(parts.env.options),
            "physics": dict(parts.env.physics),
            "fingerprint": parts.env.fingerprint,
            "confirmation": confirm(parts.env).to_json(),
        },
        "dataset": None
        if dataset is None
        else {
            "id": dataset.id,
            "content_hash": dataset.content_hash,
            "recipe": dict(dataset.recipe),
        },
        "base": _base_identity(parts),
    }
    atomic_write_text(folder / "provenance.json", json.dumps(document, indent=2) + "\n")


def check_same_base(folder: Path, parts: Components) -> None:
    """Refuse to go on from another base of the same settings, where a base follows the seed.

    Raises:
        TrimtabError: if the run in ``folder`` was started from another one.
    """
    started_from = read_json(folder / "provenance.json", "provenance").get("base")
    if started_from != _base_identity(parts):
        raise TrimtabError(
            f"{folder} was started from another base of the same configuration; "
            "give that one, or choose another out="
        )


def check_same_start(folder: Path, parts: Components) -> None:
    """Refuse to go on from another base, or with data of other bits, than a run was started with.

    The same recipe gives data that differs in last bits on another kind of processor. That is the
    same configuration, and no way to end in the same bits.

    Raises:
        TrimtabError: naming what differs.
    """
    check_same_base(folder, parts)
    started = read_json(folder / "provenance.json", "provenance").get("dataset")
    had = started.get("content_hash") if isinstance(started, dict) else None
    have = parts.dataset.content_hash if parts.dataset is not None else None
    if had != have:
        raise TrimtabError(
            f"{folder} was started with data of content {had}, which is {have} here; go on with "
            "the machine or the files that it was started with, or choose another out="
        )


def _base_identity(parts: Components) -> str | None:
    return bundle_hash(parts.base.folder) if parts.base is not None else None
