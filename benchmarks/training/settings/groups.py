"""The files of ``conf/``: groups of named settings, and the settings of every run."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trimtab.benchmarks.training.settings.outside import (
    adopted,
    check_placed,
    folders_outside,
    is_file_of_settings,
    outside_file,
)
from trimtab.benchmarks.training.settings.words import nearest, yaml_fault
from trimtab.errors import TrimtabError

__all__ = [
    "CONSTRUCTED",
    "GROUPS",
    "conf_file",
    "constructed_section",
    "group_options",
    "heading",
    "load_group",
    "name_in_group",
    "registered_target",
    "settings_help",
    "top_level",
]

GROUPS = ("algorithm", "policy", "dataset", "source", "experiment")
"""Settings that name a file of ``conf/<group>/``."""
CONSTRUCTED = ("algorithm", "policy", "source")
"""Groups whose keys are the keywords of a constructor."""


def group_options(group: str) -> list[str]:
    """Return the names that a group's setting can take; none for what is no group."""
    own = importlib.resources.files("trimtab.conf")
    folders = [place.joinpath(group) for place in (own, *folders_outside())]
    files = [file for folder in folders if folder.is_dir() for file in folder.iterdir()]
    names = {file.name for file in files if file.name.endswith(".yaml") and file.is_file()}
    return sorted(name.removesuffix(".yaml") for name in names)


def name_in_group(group: str, value: str) -> str:
    """Return the name in a group that a value stands for: itself, or that of a user's own file.

    Raises:
        TrimtabError: if it is a file of settings that cannot be read, or whose name is taken.
    """
    return adopted(group, value, group_options(group)) if is_file_of_settings(value) else value


def load_group(group: str, name: str) -> dict[str, Any]:
    """Return one file of a group as plain values, such as a suite.

    Raises:
        TrimtabError: if there is no such file.
    """
    options = group_options(group)
    if name not in options:
        raise TrimtabError(f"{group}={name}: there is no such {group}; {nearest(name, options)}")
    loaded = OmegaConf.to_container(conf_file(f"{group}/{name}.yaml"))
    assert isinstance(loaded, dict)
    return {str(key): value for key, value in loaded.items()}


def registered_target(group: str, name: str) -> str | None:
    """Return the dotted path of the class that ``conf/<group>/<name>.yaml`` names, if it does."""
    file = conf_file(f"{group}/{name}.yaml")
    section = file.get(group, file)
    found = section.get("_target_") if isinstance(section, DictConfig) else None
    return None if found is None else str(found)


def constructed_section(group: str, name: str) -> DictConfig:
    """Return the part of a method's or a policy's file that names its class, and its keywords.

    A method's file may also set settings of the run, beside that part.

    Args:
        group: one of :data:`CONSTRUCTED`.
        name: of one of the group's files.

    Raises:
        TrimtabError: if the file is no YAML, or names no class.
    """
    file = conf_file(f"{group}/{name}.yaml")
    section = file.get(group, file)
    if not isinstance(section, DictConfig) or not isinstance(section.get("_target_"), str):
        raise TrimtabError(f"{group}={name}: its file must name a class, as _target_ below {group}")
    return section


def heading(group: str, name: str) -> str:
    """Return the comment at the top of a group's file."""
    lines = _text(f"{group}/{name}.yaml").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(line[1:].strip() for line in comment if "@package" not in line)


def top_level() -> list[str]:
    """Return the names of all settings of ``conf/config.yaml``."""
    settings = [str(key) for key in conf_file("config.yaml")]
    return [key for key in settings if key != "defaults"] + ["experiment"]


def settings_help() -> list[str]:
    """Return the lines of ``conf/config.yaml`` that set and explain the settings of a run."""
    text = importlib.resources.files("trimtab.conf").joinpath("config.yaml").read_text("utf-8")
    settings = text.partition("\n\n")[2]  # after the defaults
    return [line for line in settings.splitlines() if line.strip()]


def conf_file(name: str) -> DictConfig:
    """Return a file of ``conf/``, such as ``dataset/two_routes.yaml``, as it is written; read-only.

    Raises:
        TrimtabError: if it is no YAML, or no mapping; or if it is a user's, and Hydra would take
            its settings for those of another place.
    """
    users = outside_file(name)
    file = f"conf/{name}" if users is None else str(users)
    try:
        loaded = _parsed(_text(name))
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise TrimtabError(f"{file}: is no YAML ({yaml_fault(error)}); correct it") from error
    except RecursionError as error:
        raise TrimtabError(f"{file}: refers to itself; write it out") from error
    except AssertionError as error:  # what OmegaConf raises of a single value
        raise TrimtabError(f"{file}: must be a mapping") from error
    if not isinstance(loaded, DictConfig):
        raise TrimtabError(f"{file}: must be a mapping")
    group = name.partition("/")[0]
    if users is not None and group in loaded:
        check_placed(f"{users}: ", group, _text(name))
    return loaded


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    """Return what a file's text says; the same text always gives the same object.

    A suite's words and every leaderboard ask for the same files again and again, and to parse one
    takes milliseconds. By the text and not by the name, because a user's file may change.
    """
    loaded = OmegaConf.create(text)
    OmegaConf.set_readonly(loaded, True)
    return loaded


def _text(name: str) -> str:
    own, users = importlib.resources.files("trimtab.conf").joinpath(name), outside_file(name)
    if users is not None and own.is_file():
        raise TrimtabError(f"{users}: Trimtab has a file of this name itself; rename yours")
    found = own if users is None else users
    return found.read_text(encoding="utf-8-sig")
