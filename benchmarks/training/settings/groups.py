"""The files of ``conf/``: groups of named settings, those of plug-ins and of single files too."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import sys
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from trimtab.benchmarks.training.settings.words import nearest, yaml_fault
from trimtab.errors import TrimtabError
from trimtab.files import decoded, read_bytes
from trimtab.plugins import plugins

__all__ = [
    "CONSTRUCTED",
    "GROUPS",
    "adopted",
    "conf_file",
    "constructed_section",
    "group_options",
    "heading",
    "is_file_of_settings",
    "load_group",
    "load_yaml",
    "name_in_group",
    "outside_file",
    "outside_files",
    "registered_target",
]

GROUPS = ("algorithm", "policy", "dataset", "source", "experiment")
"""Settings that name a file of ``conf/<group>/``."""
CONSTRUCTED = ("algorithm", "policy", "source")
"""Groups whose keys are the keywords of a constructor."""

adopted: dict[str, Path] = {}
"""Single files of users that a word of this process has named, by their names in ``conf/``."""


def outside_files() -> list[tuple[str, Path]]:
    """Return the files of settings that users bring, with their names in ``conf/``."""
    folders = [plugin.folder / "conf" for plugin in plugins()]
    found = [(file, folder) for folder in folders for file in sorted(folder.glob("*/*.yaml"))]
    of_plugins = [(str(file.relative_to(folder)), file) for file, folder in found if file.is_file()]
    return [*of_plugins, *adopted.items()]


def outside_file(name: str) -> Path | None:
    """Return a users' file of settings, such as ``algorithm/awr.yaml``; None if there is none.

    Raises:
        TrimtabError: if two of them have the name.
    """
    found = [file for known, file in outside_files() if known == name]
    if len(found) > 1:
        raise TrimtabError(f"{found[0]} and {found[1]} have the same name; rename one")
    return found[0] if found else None


def group_options(group: str) -> list[str]:
    """Return the names that a group's setting can take; none for what is no group."""
    own = importlib.resources.files("trimtab.conf").joinpath(group)
    names = {file.name for file in own.iterdir()} if own.is_dir() else set()
    names |= {Path(name).name for name, _ in outside_files() if Path(name).parent.name == group}
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def is_file_of_settings(value: str) -> bool:
    """Return whether a group's setting is a file of the user's own, such as ``./awr.yaml``."""
    return value.endswith((".yaml", ".yml"))


def name_in_group(group: str, value: str) -> str:
    """Return the name in a group that a value stands for: itself, or that of a user's own file.

    Such a file is one of the group's from then on, and modules beside it can be imported.

    Raises:
        TrimtabError: if it is a file of settings that cannot be read, or whose name is taken.
    """
    if not is_file_of_settings(value):
        return value
    file = Path(value).expanduser().absolute()
    name = f"{group}/{file.stem}.yaml"
    try:
        found = load_yaml(read_bytes(file), f"{group}={value}")
    except OSError as error:
        raise TrimtabError(f"{group}={value}: cannot be read ({error.strerror})") from error
    if not isinstance(found, DictConfig):
        raise TrimtabError(f"{group}={value}: must be a mapping, as the files of conf/{group}/ are")
    if file.stem in group_options(group) and name not in adopted:
        raise TrimtabError(
            f"{group}={value}: the name {file.stem} is taken already; rename the file"
        )
    adopted[name] = file
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    return file.stem


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
    lines = decoded(_bytes(f"{group}/{name}.yaml")).splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(line[1:].strip() for line in comment if "@package" not in line)


def conf_file(name: str) -> DictConfig:
    """Return a file of ``conf/``, such as ``dataset/two_routes.yaml``, as it is written; read-only.

    Raises:
        TrimtabError: if it is no YAML, or no mapping.
    """
    file = f"conf/{name}" if (users := outside_file(name)) is None else str(users)
    loaded = load_yaml(_bytes(name), file)
    if not isinstance(loaded, DictConfig):
        raise TrimtabError(f"{file}: must be a mapping")
    return loaded


def load_yaml(text: bytes, name: str) -> Any:
    """Return what a YAML text says, as OmegaConf reads it; read-only. No key may be there twice.

    Args:
        text: in UTF-8, or as its byte order mark says.
        name: what errors call it.

    Raises:
        TrimtabError: if it is no YAML, or one single value.
    """
    try:
        return _parsed(decoded(text))
    except RecursionError as error:
        raise TrimtabError(f"{name}: refers to itself; write it out") from error
    except AssertionError as error:  # what OmegaConf raises of a single value
        raise TrimtabError(f"{name}: must be a mapping") from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise TrimtabError(f"{name}: is no YAML ({yaml_fault(error)}); correct it") from error


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    """Return what a text says; the same text always gives the same object.

    A suite's words and every leaderboard ask for the same files again and again, and to parse one
    takes milliseconds. By the text and not by the name, because a user's file may change.
    """
    loaded = OmegaConf.create(text)
    OmegaConf.set_readonly(loaded, True)
    return loaded


def _bytes(name: str) -> bytes:
    own, users = importlib.resources.files("trimtab.conf").joinpath(name), outside_file(name)
    if users is not None and own.is_file():
        raise TrimtabError(f"{users}: Trimtab has a file of this name itself; rename yours")
    return own.read_bytes() if users is None else read_bytes(users)
