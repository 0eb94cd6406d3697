"""Hydra's composition of Trimtab's files, also in a program that uses Hydra itself.

It calls ``compose`` and not Hydra's decorator: a run needs no output folder of Hydra's, and an
error must be one line.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf import DictConfig

from trimtab.benchmarks.training.settings.outside import folders_for_hydra
from trimtab.benchmarks.training.settings.words import quoted

__all__ = ["compose_words"]

_lock = threading.RLock()


def compose_words(overrides: Sequence[str]) -> DictConfig:
    """Return what Hydra composes of Trimtab's files and words, with its ``hydra`` node.

    Args:
        overrides: words as Hydra takes them.

    Raises:
        HydraException: if they do not fit the files.
    """
    folders = ",".join(quoted(f"file://{folder}") for folder in folders_for_hydra())
    with _without_the_callers_hydra(), initialize_config_module("trimtab.conf", version_base="1.3"):
        return compose(
            "config",
            overrides=[*overrides, f"hydra.searchpath=[{folders}]"],
            return_hydra_config=True,
        )


@contextmanager
def _without_the_callers_hydra() -> Iterator[None]:
    """Set aside, one thread at a time, what a caller's program has told Hydra.

    That is its initialisation, its structured configurations (Hydra would match one called
    ``config`` to our file of this name), its ``version_base`` and its job's name.
    """
    with _lock:
        callers, store = GlobalHydra.instance(), ConfigStore.instance()
        version, job = VersionBase.instance(), JobRuntime.instance()
        repo, version_base, conf = store.repo, version.version_base, job.conf
        ours = copy.copy(callers)
        ours.clear()
        try:
            GlobalHydra.set_instance(ours)
            store.repo = {"hydra": repo["hydra"]}
            job.conf = conf.copy()
            yield
        finally:
            GlobalHydra.set_instance(callers)
            store.repo, version.version_base, job.conf = repo, version_base, conf
