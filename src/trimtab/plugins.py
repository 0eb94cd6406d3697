"""What users bring: Python packages that are laid out as this one is.

A plug-in is a package whose folders have the names of this package's rooms: ``conf/algorithm/`` for
settings of methods, ``envs/families/`` for tasks, ``policies/kinds/`` for kinds of policy. What is
found there is used as if it lay here. It is named by its folder in ``TRIMTAB_PLUGINS``, or by the
entry point ``trimtab.plugins`` of an installed distribution.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.files import sha256_file, sha256_json

__all__ = [
    "ENTRY_POINTS",
    "VARIABLE",
    "Plugin",
    "add_plugin",
    "command_line",
    "named_plugins",
    "plugins",
]

VARIABLE = "TRIMTAB_PLUGINS"
"""Environment variable with the folders of plug-ins, with ``:`` between them as in ``PATH``."""
ENTRY_POINTS = "trimtab.plugins"
"""Group of the entry points whose values are the names of installed plug-ins."""


@dataclass(frozen=True)
class Plugin:
    """One plug-in.

    Attributes:
        package: name that it is imported by.
        folder: where it lies.
        version: of its distribution; of a folder, a digest of its Python and YAML files.
    """

    package: str
    folder: Path
    version: str


def plugins() -> tuple[Plugin, ...]:
    """Return every plug-in, those of ``TRIMTAB_PLUGINS`` first; their packages can be imported.

    Raises:
        TrimtabError: if a folder is none, or has a name that cannot be imported or is taken.
    """
    return _plugins(os.environ.get(VARIABLE, ""))


def add_plugin(folder: str | os.PathLike[str]) -> None:
    """Use a plug-in in this process and in those that it starts.

    Call it before tasks, methods or settings are looked for.

    Args:
        folder: that of the plug-in.

    Raises:
        TrimtabError: as :func:`plugins`.
    """
    before = os.environ.get(VARIABLE, "")
    path = str(Path(folder).expanduser().absolute())
    if path in before.split(os.pathsep):
        return
    after = os.pathsep.join([*filter(None, [before]), path])
    _plugins(after)
    os.environ[VARIABLE] = after


def named_plugins() -> tuple[str, ...]:
    """Return the folders of the plug-ins that were named for this process, absolute."""
    folders = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return tuple(dict.fromkeys(str(Path(folder).expanduser().absolute()) for folder in folders))


def command_line(*words: str, named: Sequence[str] | None = None) -> str:
    """Return a command of ``trimtab`` as a shell takes it here, with the plug-ins that it needs.

    Args:
        words: the command and its words.
        named: folders of plug-ins, absolute; by default those named for this process.
    """
    options: list[str] = []
    for folder in named_plugins() if named is None else named:
        path = Path(folder)
        below = path.is_relative_to(Path.cwd())
        options += ["--with", f"./{path.relative_to(Path.cwd())}" if below else folder]
    return shlex.join(["trimtab", *options, *words])


@functools.cache
def _plugins(folders: str) -> tuple[Plugin, ...]:
    found: dict[str, Plugin] = {}
    for text in dict.fromkeys(filter(None, folders.split(os.pathsep))):
        plugin = _of_folder(Path(text).expanduser().absolute())
        other = found[plugin.package].folder if plugin.package in found else plugin.folder
        if not other.samefile(plugin.folder):
            raise TrimtabError(
                f"plug-in {plugin.folder}: {other} has the same name; give it another"
            )
        found[plugin.package] = plugin
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        spec = importlib.util.find_spec(point.value)
        places = spec.submodule_search_locations if spec is not None else None
        if not places:
            raise TrimtabError(
                f"the entry point {point.name} of {ENTRY_POINTS} names {point.value}, which is no "
                "package; name the package's folder"
            )
        version = point.dist.version if point.dist is not None else "unknown"
        found.setdefault(point.value, Plugin(point.value, Path(places[0]), version))
    return tuple(found.values())


def _of_folder(folder: Path) -> Plugin:
    """Return the plug-in in a folder, which can be imported from then on."""
    name = folder.name
    if not folder.is_dir():
        told = (
            "is no folder; name that of a package" if folder.exists() else "there is no such folder"
        )
        raise TrimtabError(f"plug-in {folder}: {told}")
    if not name.isidentifier():
        raise TrimtabError(
            f"plug-in {folder}: {name!r} cannot be imported; name the folder with letters, digits "
            "and _ alone"
        )
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))  # last, so that it hides nothing
        importlib.invalidate_caches()
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not any(Path(place).resolve() == folder.resolve() for place in places):
        raise TrimtabError(
            f"plug-in {folder}: another module is called {name} already; give the folder another "
            "name"
        )
    files = [path for kind in ("*.py", "*.yaml") for path in folder.rglob(kind)]
    if not files:
        raise TrimtabError(
            f"plug-in {folder}: has no .py and no .yaml file in it; name the folder of a package"
        )
    digest = sha256_json({str(p.relative_to(folder)): sha256_file(p) for p in sorted(files)})
    return Plugin(name, folder, f"files {digest[:10]}")
