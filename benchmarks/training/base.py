"""The base policy that a run starts from: a finished run's, or a bundle."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.folder import RESULT, find_runs, is_run, named_runs
from trimtab.benchmarks.training.locking import remedy
from trimtab.benchmarks.training.rows import STOPPED_EARLY
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import Bundle, open_bundle
from trimtab.policies.serving.protocol import is_server
from trimtab.policies.serving.remote import open_remote

__all__ = [
    "base_identity",
    "base_label",
    "load_base",
    "policy_folder",
    "training",
]


def load_base(path: str) -> Bundle:
    """Open a run's policy, a bundle, or the policy of a server at ``ws://host:port``.

    Raises:
        TrimtabError: if there is none at ``path``, or it is damaged.
    """
    if is_server(path):
        return open_remote(path)
    folder = policy_folder(path)
    try:
        return open_bundle(folder)
    except TrimtabError as error:
        if is_run(folder.parent):
            what = str(error).split("; ")[0]  # its advice is for a bundle that stands alone
            raise TrimtabError(f"{what}; {remedy(folder.parent)}") from error
        raise


def policy_folder(path: str) -> Path:
    """Return the bundle's folder that ``path`` (a run or a bundle) names.

    Raises:
        TrimtabError: if ``path`` is neither.
    """
    folder = Path(path)
    if (folder / "policy" / "config.json").is_file():
        return folder / "policy"
    if (folder / RESULT).is_file() and is_run(folder):
        raise TrimtabError(f"{folder} is a run that has lost its policy; {remedy(folder)}")
    if is_run(folder):
        raise TrimtabError(
            f"{folder} is a run that has not finished; run it again to finish it (trimtab runs "
            f"{shlex.quote(str(folder))} shows the command)"
        )
    if not folder.exists():
        raise TrimtabError(f"{folder} does not exist; give the folder of a run or of a bundle")
    if folder.is_file():
        raise TrimtabError(
            f"{folder} is a file; give the folder of a run or of a bundle (trimtab export makes a "
            "bundle of a .zip of Stable-Baselines3)"
        )
    if not (folder / "config.json").exists() and (runs := find_runs(folder)):
        raise TrimtabError(f"{folder} holds runs; give the folder of one: {named_runs(runs)}")
    return folder


def training(base: Bundle) -> Mapping[str, Any]:
    """Return what a bundle says of how it was trained."""
    return dict(base.config.get("training") or {})


def base_label(base: Bundle) -> str:
    """Return what the ``base`` column of result rows calls a base: method, kind, configuration."""
    parts = [training(base).get(key) for key in ("algorithm", "policy", "config_hash")]
    known = [str(part) for part in parts if part]
    return "-".join(known) if known else base.hash[:10]


def base_identity(config: RunConfig, base: Bundle) -> str:
    """Return what a base is known by.

    A base that follows the seed is known by the configuration that trained it, so that the runs of
    one configuration share a hash; a single base, and one whose training a callback ended early, is
    known by its files.
    """
    said = training(base)
    known = config.base_follows_seed and said.get("config_hash") and STOPPED_EARLY not in said
    return str(said["config_hash"]) if known else base.hash
