"""Hydra's composition of Trimtab's files, also in a program that uses Hydra itself.

It calls ``compose`` and not Hydra's decorator: a run needs no output folder of Hydra's, and an
error must be one line.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

from trimtab.benchmarks.training.settings.groups import conf_file, outside_files
from trimtab.benchmarks.training.settings.run_settings import RunSettings
from trimtab.errors import TrimtabError
from trimtab.turns import in_turn

__all__ = ["compose_words"]


def compose_words(overrides: Sequence[str]) -> DictConfig:
    """Return what Hydra composes of Trimtab's files and words, with its ``hydra`` node.

    Args:
        overrides: words as Hydra takes them.

    Raises:
        HydraException: if they do not fit the files.
    """
    with _without_the_callers_hydra(), initialize_config_module("trimtab.conf", version_base="1.3"):
        store = ConfigStore.instance()
        store.store("run_settings", vars(RunSettings()))
        for name, _ in outside_files():
            group, _, file = name.partition("/")
            try:
                node = OmegaConf.to_container(conf_file(name))
            except TrimtabError:  # told where a word names the file
                continue
            assert isinstance(node, dict)
            # A file of settings of the run has the section of its group inside.
            place = "_global_" if group == "experiment" or group in node else None
            store.store(file, node, group, place)
        return compose("config", overrides=[*overrides], return_hydra_config=True)


@contextmanager
def _without_the_callers_hydra() -> Iterator[None]:
    """Set aside, in turn, what a caller's program has told Hydra; it is the process's.

    That is its initialisation, its structured configurations (Hydra would match one called
    ``config`` to our file of this name), its ``version_base`` and its job's name.
    """
    with in_turn() as note:
        callers, store = GlobalHydra.instance(), ConfigStore.instance()
        version, job = VersionBase.instance(), JobRuntime.instance()
        note(functools.partial(GlobalHydra.set_instance, callers))
        note(functools.partial(setattr, store, "repo", store.repo))
        note(functools.partial(setattr, version, "version_base", version.version_base))
        note(functools.partial(setattr, job, "conf", job.conf))
        ours = copy.copy(callers)
        ours.clear()
        GlobalHydra.set_instance(ours)
        store.repo = {"hydra": store.repo["hydra"]}
        job.conf = job.conf.copy()
        yield
