"""From the words of a command line to the checked settings of a run."""

from __future__ import annotations

import difflib
import importlib.resources
import inspect
import itertools
import pkgutil
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trimtab.benchmarks.settings.renamed import RENAMED
from trimtab.datasets.catalog import external_datasets
from trimtab.datasets.sources.weighting import SCORES
from trimtab.files import sha256_json
from trimtab.types import TrimtabError

MOST_THREADS = 256
"""More torch threads than this exhaust a machine rather than speed it up."""
MOST = {
    **dict.fromkeys(("seed", "eval_seed"), 2**32 - 1),  # NumPy's older generators take no more
    **dict.fromkeys(("num_envs", "act_steps", "eval_episodes"), 2**31 - 1),
}
"""The most that whole numbers may be; others fit into 64 bits."""
GROUPS = ("algorithm", "policy", "dataset", "experiment")
"""Settings that name a file of ``conf/<group>/``."""

CONSTRUCTED = ("algorithm", "policy")
"""Groups whose keys are the keywords of a constructor."""


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
    """

    settings: Mapping[str, Any]
    algorithm: str
    policy: str | None
    dataset: str | None
    base_follows_seed: bool

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


def group_options(group: str) -> list[str]:
    """Return the names that a group's setting can take."""
    with initialize_config_module("trimtab.conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return sorted(loader.get_group_options(group))


def load_group(group: str, name: str) -> dict[str, Any]:
    """Return one file of a group as plain values, such as a suite.

    Raises:
        TrimtabError: if there is no such file.
    """
    options = group_options(group)
    if name not in options:
        raise TrimtabError(f"{group}={name}: there is no such {group}; {nearest(name, options)}")
    loaded = OmegaConf.to_container(_conf_file(f"{group}/{name}.yaml"))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def recipe_with(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the recipe ``name`` with settings of its own changed: ``dataset.<key>=<value>``.

    Raises:
        TrimtabError: if there is no such recipe or setting, or a value is no YAML.
    """
    recipe = OmegaConf.create(load_group("dataset", name))
    for word in words:
        key, equals, _ = word.partition("=")
        if not equals:
            raise TrimtabError(f"{word}: give it a value, such as {word}=…")
        _dataset_override(word, key.removeprefix("dataset."), name)
    try:
        changes = OmegaConf.from_dotlist([word.removeprefix("dataset.") for word in words])
        merged = OmegaConf.to_container(OmegaConf.merge(recipe, changes), resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise TrimtabError(f"dataset={name}: {str(error).splitlines()[0]}") from error
    assert isinstance(merged, dict)
    return with_own_id(name, {str(key): value for key, value in merged.items()})


def with_own_id(name: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe, under an id of its own if its settings are others than its file's.

    Two contents never share an id: the own one has a digest of the settings in it, such as
    ``trimtab/two-routes-1a2b3c4d5e-v0``. An id that was given stays as it is.
    """
    file = OmegaConf.to_container(_conf_file(f"dataset/{name}.yaml"))
    assert isinstance(file, dict)
    stem, mark, version = str(recipe.get("id")).rpartition("-v")
    if recipe == file or recipe.get("id") != file.get("id") or not mark:
        return recipe
    try:
        digest = sha256_json(recipe)[:10]
    except (TypeError, ValueError):  # no JSON: who carries the recipe out says what is wrong
        return recipe
    return {**recipe, "id": f"{stem}-{digest}{mark}{version}"}


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest right word, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"


def class_of(target: Any, setting: str) -> type[Any]:
    """Return the class that ``target`` names by its dotted path.

    Args:
        target: such as ``trimtab.algorithms.off_policy.sac.SAC``; it may be a user's own.
        setting: what errors call it.

    Raises:
        TrimtabError: if there is no such class, or its module cannot be imported.
    """
    if not (isinstance(target, str) and "." in target):
        raise TrimtabError(f"{setting}={target}: must be a class, such as my_module.MyClass")
    try:
        found = pkgutil.resolve_name(target)
    except (Exception, SystemExit) as error:  # its module may be a user's and hold any fault
        line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise TrimtabError(f"{setting}={target}: cannot be imported ({line})") from error
    if not isinstance(found, type):
        raise TrimtabError(f"{setting}={target}: is no class")
    return found


def keywords(target: Any, setting: str = "_target_") -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of the constructor that ``target`` names.

    A constructor that hands ``**keywords`` on to its parent takes the parent's too, but for those
    that the class is ``without``. Annotations are resolved to types; ``object`` where there is none
    or it cannot be.

    Raises:
        TrimtabError: as :func:`class_of`.
    """
    found: dict[str, inspect.Parameter] = {}
    chosen = class_of(target, setting)
    without = getattr(chosen, "without", ())
    for kind in chosen.__mro__:
        constructor = vars(kind).get("__init__")
        if not isinstance(constructor, types.FunctionType):  # none of its own, or one in C
            continue
        try:
            hints = typing.get_type_hints(constructor)
        except (NameError, AttributeError, TypeError):  # a user's, written for type checkers alone
            hints = {}
        parameters = inspect.signature(constructor).parameters.values()
        for one in parameters:
            if one.kind is inspect.Parameter.KEYWORD_ONLY and one.name not in without:
                found.setdefault(one.name, one.replace(annotation=hints.get(one.name, object)))
        if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
            break
    return found


def registered_target(group: str, name: str) -> str | None:
    """Return the dotted path of the class that ``conf/<group>/<name>.yaml`` names, if it does."""
    section = _conf_file(f"{group}/{name}.yaml")
    found = section.get(group, section).get("_target_")
    return None if found is None else str(found)


def quoted(path: str) -> str:
    """Return a path as a Hydra override's value."""
    return "'" + path.replace("'", "\\'") + "'"


def spell_out(overrides: Sequence[str]) -> list[str]:
    """Return overrides with short forms written out: a dataset's folder, runs, or others' id."""
    spelt: list[str] = []
    for override in overrides:
        key, _, value = override.partition("=")
        is_folder = not value.startswith("[") and (
            "/" in value or value.startswith(".") or (value and Path(value).exists())
        )
        if key == "dataset" and value in external_datasets():
            spelt += ["dataset=external", f"dataset.name={value}"]
        elif key == "dataset" and is_folder:
            spelt += ["dataset=folder", f"dataset.path={value}"]
        elif key == "dataset" and value.startswith("["):
            spelt += ["dataset=runs", f"dataset.runs={value}"]
        else:
            spelt.append(override)
    return [_lexable(word) for word in spelt]


def _lexable(word: str) -> str:
    """Return a word with its value in quotes if Hydra would not read its letters without them."""
    key, _, value = word.partition("=")
    plain = value[:1] not in ("[", "{") and not set(value) & set("'\"(),")  # one piece of text
    return f"{key}={quoted(value)}" if plain and not value.isascii() else word


def compose_run(overrides: Sequence[str]) -> RunConfig:
    """Return the checked settings that ``overrides`` (``key=value`` words) ask for.

    Raises:
        TrimtabError: on a misspelt setting or value, with the nearest right one.
    """
    overrides = spell_out(overrides)
    try:
        with initialize_config_module("trimtab.conf", version_base="1.3"):
            overrides = check_overrides(overrides)
            composed = compose("config", overrides=list(overrides), return_hydra_config=True)
        return from_composed(composed)
    except (HydraException, OmegaConfBaseException) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TrimtabError(f"settings: {line}; see trimtab train --help") from error


def from_composed(composed: DictConfig) -> RunConfig:
    """Return the checked settings of what Hydra composed (with its ``hydra`` node)."""
    choices = composed.hydra.runtime.choices
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
    config = RunConfig(
        settings={str(key): value for key, value in settings.items()},
        algorithm=choices["algorithm"],
        policy=choices.get("policy"),
        dataset=choices.get("dataset"),
        base_follows_seed="${seed}" in str(base.get("base")),
    )
    check_values(config)
    return config


def check_overrides(overrides: Sequence[str]) -> list[str]:
    """Check names against what there is, and let every constructor keyword be set.

    Hydra only lets a key be set that some YAML has; a keyword that a YAML leaves at its default is
    as good, so its override gets Hydra's ``++``. Must be called inside an initialised Hydra.

    Raises:
        TrimtabError: with the nearest right name.
    """
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(config_loader=loader)
    top = compose_top_level()
    parsed = parser.parse_overrides(list(overrides))
    chosen = {p.key_or_group: p.value() for p in parsed if isinstance(p.value(), str)}
    checked: list[str] = []
    for text, override in zip(overrides, parsed, strict=True):
        key = override.key_or_group
        head, _, rest = key.partition(".")
        if head.startswith("hydra"):
            checked.append(text)
            continue
        if head not in top:
            raise TrimtabError(f"{key}: there is no such setting; {nearest(head, top)}")
        value = override.value()
        if not rest and override.is_delete() and head not in GROUPS:
            raise TrimtabError(f"{text}: a run needs it; leave the word out for its default")
        if not rest and head in GROUPS and not override.is_delete():
            options = sorted(loader.get_group_options(head))
            swept = override.is_sweep_override()
            for one in override.sweep_string_iterator() if swept else [value]:
                if one in (None, "null"):
                    raise TrimtabError(f"{text}: name one, or leave it out; {nearest('', options)}")
                if head == "algorithm" and isinstance(one, str) and one in RENAMED:
                    raise TrimtabError(
                        f"{head}={one}: is called {RENAMED[one]} now; write {head}={RENAMED[one]}"
                    )
                if isinstance(one, str) and one not in options:
                    raise TrimtabError(f"{head}={one}: {nearest(one, options)}")
        if rest and not override.is_delete():
            if head in CONSTRUCTED and head in chosen:
                text = _constructor_override(text, head, rest, str(chosen[head]))
            elif head == "dataset" and head in chosen:
                text = _dataset_override(text, rest, str(chosen[head]))
            elif head == "env_options":  # an open mapping: the task says what it takes
                text = _even_if_new(text)
        checked.append(text)
    return checked


def _constructor_override(text: str, group: str, key: str, choice: str) -> str:
    section = _conf_file(f"{group}/{choice}.yaml")
    section = section.get(group, section)  # a method's file also sets settings of the run
    known = keywords(section["_target_"], f"{group}._target_")
    head = key.partition(".")[0]
    if head not in known and head != "_target_":
        raise TrimtabError(f"{group}.{key}: {choice} has no such setting; {nearest(head, known)}")
    return _even_if_new(text)


def _dataset_override(text: str, key: str, choice: str) -> str:
    section = _conf_file(f"dataset/{choice}.yaml")
    head, _, rest = key.partition(".")
    listed = [str(key) for key in section]  # `in` would not see those that are still to be given
    if head not in listed:
        raise TrimtabError(f"dataset.{key}: {choice} has no such setting; {nearest(head, listed)}")
    if head == "controller" and rest:
        known = keywords(section[head]["_target_"], "dataset.controller._target_")
        word = rest.partition(".")[0]
        if word not in known and word != "_target_":
            raise TrimtabError(
                f"dataset.{key}: {choice}'s controller has no such setting; {nearest(word, known)}"
            )
    return _even_if_new(text) if rest else text


def _even_if_new(text: str) -> str:
    return text if text.startswith("+") else f"++{text}"


def compose_top_level() -> list[str]:
    """Return the names of all settings of ``conf/config.yaml``."""
    settings = [str(key) for key in _conf_file("config.yaml")]
    return [key for key in settings if key not in ("defaults", "hydra")] + ["experiment"]


def settings_help() -> list[str]:
    """Return the lines of ``conf/config.yaml`` that set and explain the settings of a run."""
    text = importlib.resources.files("trimtab.conf").joinpath("config.yaml").read_text("utf-8")
    lines = text.partition("experiment: null\n")[2].partition("\nhydra:")[0].splitlines()
    return [line for line in lines if line.strip()]


def heading(group: str, name: str) -> str:
    """Return the comment at the top of a group's file."""
    lines = _text(f"{group}/{name}.yaml").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(line[1:].strip() for line in comment if "@package" not in line)


def _text(name: str) -> str:
    return importlib.resources.files("trimtab.conf").joinpath(name).read_text(encoding="utf-8")


def _conf_file(name: str) -> DictConfig:
    loaded = OmegaConf.create(_text(name))
    assert isinstance(loaded, DictConfig)
    return loaded


def check_values(config: RunConfig) -> None:
    """Check the values that are wrong whatever the method is.

    Raises:
        TrimtabError: naming the setting.
    """
    whole = {
        "seed": 0,
        "num_envs": 1,
        "threads": 1,
        "act_steps": 1,
        "buffer_size": 1,
        "offline_steps": 0,
        "online_steps": 0,
        "eval_every": 1,
        "eval_episodes": 1,
        "eval_seed": 0,
        "checkpoint_every": 1,
        "stream_above": 0,
    }
    optional = {"act_steps", "eval_every", "stream_above"}
    for name, least in whole.items():
        value = config[name]
        if value is None and name in optional:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise TrimtabError(f"{name}={value}: must be a whole number of at least {least}")
        if value > MOST.get(name, 2**63 - 1):
            raise TrimtabError(f"{name}={value}: must be at most {MOST.get(name, 2**63 - 1)}")
    if config["threads"] > MOST_THREADS:
        raise TrimtabError(f"threads={config['threads']}: must be at most {MOST_THREADS}")
    for name in ("discount", "offline_share"):
        value = config[name]
        if not _fits(value, float) or not 0 <= value <= 1:
            raise TrimtabError(f"{name}={value}: must be a number from 0 to 1")
    _check_weighting(config)
    if not isinstance(config["env"], str):
        raise TrimtabError(f"env={config['env']}: must be the id of a task; see trimtab list env")
    for key, may_be_null in {
        "base": True,
        "device": False,
        "suite_name": True,
        "out": False,
    }.items():
        value = config[key]
        if not isinstance(value, str) and not (value is None and may_be_null):
            raise TrimtabError(f"{key}={value}: must be text; put a number in quotes")
        if value == "":
            raise TrimtabError(f"{key}=: is empty; give it a value, or leave it out")
    if not isinstance(config["eval_deterministic"], bool | None):
        value = config["eval_deterministic"]
        raise TrimtabError(f"eval_deterministic={value}: must be true, false or null")
    for key in ("keep_policies", "other_task"):
        if not isinstance(config[key], bool):
            raise TrimtabError(f"{key}={config[key]}: must be true or false")
    check_device(config["device"])
    if not isinstance(config["env_options"] or {}, Mapping):
        raise TrimtabError("env_options: must be a mapping, such as env_options.reward=sparse")
    for key in ("path", "name"):
        value = (config["dataset"] or {}).get(key, "x")
        if not (isinstance(value, str) and value):
            raise TrimtabError(f"dataset.{key}={value}: must be text; put a number in quotes")
    for key in ("mask", "keys"):
        value = (config["dataset"] or {}).get(key)
        if value is not None and not (isinstance(value, str) and value):
            raise TrimtabError(f"dataset.{key}={value}: must be text; quote what has a comma")
    value = (config["dataset"] or {}).get("horizon")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise TrimtabError(f"dataset.horizon={value}: must be a whole number of at least 1")
    for group in CONSTRUCTED:
        section = config[group]
        if section is None:
            continue
        known = check_keywords(group, section)
        for key in section:
            if key not in known and key != "_target_":
                raise TrimtabError(f"{group}.{key}: no such setting; {nearest(key, known)}")


def check_keywords(setting: str, section: Any) -> dict[str, inspect.Parameter]:
    """Return the keywords of the constructor that ``section`` names, and check those it gives.

    Args:
        setting: the section's name, such as ``algorithm`` or ``dataset.controller``.
        section: ``_target_`` and keywords.

    Raises:
        TrimtabError: if it names no class, or a value is of another type than it is annotated with.
    """
    if not isinstance(section, Mapping) or "_target_" not in section:
        raise TrimtabError(f"{setting}={section}: must name a class as {setting}._target_")
    known = keywords(section["_target_"], f"{setting}._target_")
    for key, value in section.items():
        if key in known and not _fits(value, known[key].annotation):
            kind = known[key].annotation
            wanted = str(kind.__name__ if isinstance(kind, type) else kind).replace(
                "collections.abc.", ""
            )
            raise TrimtabError(f"{setting}.{key}={value}: must be of type {wanted}")
    return known


def _check_weighting(config: RunConfig) -> None:
    by, temperature = config["dataset_weighting"], config["weighting_temperature"]
    if by is not None and not (isinstance(by, str) and by in SCORES):
        hint = nearest(str(by), SCORES)
        raise TrimtabError(f"dataset_weighting={by}: there is no such weighting; {hint}")
    if not _fits(temperature, float) or not temperature > 0:
        raise TrimtabError(f"weighting_temperature={temperature}: must be a number greater than 0")


def check_device(device: str) -> None:
    """Check that ``device`` is one that torch has here.

    Raises:
        TrimtabError: if it is not.
    """
    try:
        torch.ones(1, device=device).item()  # "meta" has tensors, but no numbers in them
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise TrimtabError(f"device={device}: torch has no such device here; use cpu") from error


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a plain value is of the type with which a keyword is annotated."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin in (Sequence, list, tuple):
        return isinstance(value, list | tuple) and all(_fits(one, arguments[0]) for one in value)
    if kind in (int, float):
        allowed = int if kind is int else int | float
        return isinstance(value, allowed) and not isinstance(value, bool)
    return not isinstance(origin or kind, type) or isinstance(value, origin or kind)
