"""From the words of a command line to the checked settings of a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trimtab.benchmarks.training.settings.composing import compose_words
from trimtab.benchmarks.training.settings.constructors import class_of, keywords
from trimtab.benchmarks.training.settings.groups import (
    CONSTRUCTED,
    GROUPS,
    conf_file,
    constructed_section,
    load_group,
)
from trimtab.benchmarks.training.settings.overrides import checked_words
from trimtab.benchmarks.training.settings.run_settings import RunSettings
from trimtab.benchmarks.training.settings.values import as_whole, check_values
from trimtab.benchmarks.training.settings.words import yaml_fault
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json
from trimtab.settings import check_settings

CIRCLE = "a file or a word is nested too deeply, or refers to itself; write it out"
__all__ = ["RunConfig", "compose_run", "recipe_with", "with_own_id"]


@dataclass(frozen=True)
class RunConfig:
    """The checked settings of one run.

    Attributes:
        settings: every setting by name, resolved to plain values.
        algorithm: name of the chosen method.
        policy: name of the chosen policy, or None.
        dataset: name of the chosen dataset, or None.
        base_follows_seed: whether ``base`` was written with ``${seed}`` in it, so that runs of one
            configuration start from as many bases as there are seeds.
        words: what the settings were asked for with, as the command line takes it.
        asked: settings as they were asked for, where ``settings`` has this machine's own paths.
        source: name of what makes the data that the method learns from, or None.
    """

    settings: Mapping[str, Any]
    algorithm: str
    policy: str | None
    dataset: str | None
    base_follows_seed: bool
    words: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


def compose_run(overrides: Sequence[str]) -> RunConfig:
    """Return the checked settings that ``overrides`` (``key=value`` words) ask for.

    Raises:
        TrimtabError: on a misspelt setting or value, with the nearest right one.
    """
    words = tuple(overrides)
    composed = _composed(words)
    with _in_a_line():
        return dataclasses.replace(_from_composed(composed), words=words)


def _composed(words: Sequence[str]) -> DictConfig:
    with _in_a_line():
        return compose_words(checked_words(words))


@contextmanager
def _in_a_line() -> Iterator[None]:
    """Tell in one line what Hydra, OmegaConf or a YAML reader says of words and files."""
    try:
        yield
    except yaml.YAMLError as error:
        raise TrimtabError(f"settings: a file of conf/ is no YAML ({yaml_fault(error)})") from error
    except RecursionError as error:
        raise TrimtabError(f"settings: {CIRCLE}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise TrimtabError(_fault_of(error)) from error


def _fault_of(error: Exception) -> str:
    """Return in one line what Hydra says of words, and what to do."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if found := re.match(r"You must specify '(\w+)'", line):
        return f"{found[1]} is not given: add {found[1]}=…; see trimtab list {found[1]}"
    return f"settings: {line}; see trimtab train --help"


def _from_composed(composed: DictConfig) -> RunConfig:
    """Return the checked settings of what Hydra composed (with its ``hydra`` node)."""
    choices = composed.hydra.runtime.choices
    for group in CONSTRUCTED:
        if choices.get(group):
            constructed_section(group, choices[group])  # it may be a user's own, and empty
    base = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(base, dict)
    composed = OmegaConf.masked_copy(composed, [str(k) for k in composed if k != "hydra"])
    missing = sorted(OmegaConf.missing_keys(composed))
    if missing:
        key = missing[0]
        listed = key if key in ("env", *GROUPS) else ""
        hint = f"; see trimtab list {listed}" if listed else ""
        raise TrimtabError(f"{key} is not given: add {key}=…{hint}")
    settings = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(settings, dict)
    if isinstance(settings.get("dataset"), dict) and choices.get("dataset"):
        settings["dataset"] = with_own_id(choices["dataset"], settings["dataset"])
    for group in CONSTRUCTED:
        if isinstance(settings.get(group), dict) and choices.get(group):
            settings[group] = _without_the_files(group, choices[group], settings[group])
    config = RunConfig(
        settings=as_whole({str(key): value for key, value in settings.items()}),
        algorithm=choices["algorithm"],
        policy=choices.get("policy"),
        dataset=choices.get("dataset"),
        base_follows_seed="${seed}" in str(base.get("base")),
        source=choices.get("source"),
    )
    _check_followers(base["algorithm"], config)
    check_values(config.settings)
    _check_task(config)
    if (policy := config["policy"]) is None:
        return config
    settled = class_of(policy["_target_"], "policy._target_").settled(policy)
    return dataclasses.replace(config, settings={**config.settings, "policy": settled})


def _check_followers(written: Any, config: RunConfig) -> None:
    """Check the method's settings that follow one of the run that is 0, as ``${online_steps}``.

    Args:
        written: the method's section before its references are resolved.
        config: settings of the run.

    Raises:
        TrimtabError: if one cannot be 0; it names the setting that was given.
    """
    section = config["algorithm"]
    for key, text in written.items() if isinstance(written, Mapping) else ():
        found = re.fullmatch(r"\$\{(\w+)\}", str(text))
        if found and key in section and config[found[1]] == 0:
            try:
                check_settings(
                    class_of(section["_target_"], "algorithm._target_"), {key: 0}, "algorithm"
                )
            except TrimtabError as error:
                reason = str(error).rpartition(": ")[2]
                raise TrimtabError(
                    f"{found[1]}=0: algorithm.{key} follows it, and {reason}; raise {found[1]}, or "
                    f"set algorithm.{key}=…"
                ) from error


def _check_task(config: RunConfig) -> None:
    """Check that a run has a task, or a file of data that stands in its place.

    Raises:
        TrimtabError: if it has neither, or both a task and a contract.
    """
    data = config["dataset"] or {}
    if config["env"] is None and "path" not in data:
        known = f"{config.dataset} is recorded in {data['env']}; " if "env" in data else ""
        raise TrimtabError(
            f"env is not given: add env=…; see trimtab list env ({known}without a task a run "
            "learns from dataset=<a file or folder> alone)"
        )
    if config["env"] is None and config["env_options"] != dict(RunSettings().env_options):
        raise TrimtabError("env_options: are of a task, and this run has none; add env=…")
    if config["env"] is not None and config["contract"] is not None:
        raise TrimtabError(
            f"contract={config['contract']}: {config['env']} says itself what a contract would; "
            "leave it out, or env="
        )


def _without_the_files(group: str, choice: str, section: dict[Any, Any]) -> dict[Any, Any]:
    """Return a section without the keywords of its file that the class does not take.

    It does not take them where another class is named than the file's, ``algorithm._target_=…``.
    """
    file = constructed_section(group, choice)
    if section.get("_target_") == file["_target_"]:
        return section
    known = keywords(section.get("_target_"), f"{group}._target_")
    return {key: x for key, x in section.items() if key not in file or key in {"_target_", *known}}


def recipe_with(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the recipe ``name`` with settings of its own changed: ``dataset.<key>=<value>``.

    Raises:
        TrimtabError: if there is no such recipe or setting, or a value is no YAML.
    """
    for word in words:
        if "=" not in word:
            raise TrimtabError(f"{word}: give it a value, such as {word}=…")
    load_group("dataset", name)  # it is one
    composed = _composed([f"dataset={name}", "algorithm=frozen", *words])
    with _in_a_line():
        recipe = OmegaConf.to_container(composed.dataset, resolve=True)
    assert isinstance(recipe, dict)
    return with_own_id(name, {str(key): value for key, value in recipe.items()})


def with_own_id(name: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe, under an id of its own if its settings are others than its file's.

    Two contents never share an id: the own one has a digest of the settings in it, such as
    ``trimtab/two-routes-1a2b3c4d5e-v0``. An id that was given stays as it is.
    """
    file = OmegaConf.to_container(conf_file(f"dataset/{name}.yaml"))
    assert isinstance(file, dict)
    stem, mark, version = str(recipe.get("id")).rpartition("-v")
    if recipe == file or recipe.get("id") != file.get("id") or not mark:
        return recipe
    try:
        digest = sha256_json(recipe)[:10]
    except (TypeError, ValueError):  # no JSON: the recipe's kind says what is wrong
        return recipe
    return {**recipe, "id": f"{stem}-{digest}{mark}{version}"}
