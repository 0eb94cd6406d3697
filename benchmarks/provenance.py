"""What a run's numbers depend on, as ``provenance.json`` and ``config.yaml`` beside them say it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path

from omegaconf import OmegaConf

import trimtab
from trimtab.benchmarks.build import Components
from trimtab.benchmarks.config import RunConfig
from trimtab.files import atomic_write_text, read_json
from trimtab.policies.bundle import bundle_hash
from trimtab.types import TrimtabError

_PACKAGES = ("torch", "numpy", "mujoco", "gymnasium", "diffusers", "onnxruntime")


def versions() -> dict[str, str]:
    """Return the versions of this package and of those that decide its numbers."""
    return {
        "trimtab": trimtab.__version__,
        **{package: importlib.metadata.version(package) for package in _PACKAGES},
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
        "seed": config["seed"],
        "env": {
            "id": parts.env.id,
            "options": dict(parts.env.options),
            "physics": dict(parts.env.physics),
            "fingerprint": parts.env.fingerprint,
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


def _base_identity(parts: Components) -> str | None:
    return bundle_hash(parts.base.folder) if parts.base is not None else None
