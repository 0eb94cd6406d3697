"""Settings that users bring: ``conf/`` folders of plug-ins, and single files of their own."""

from __future__ import annotations

import atexit
import codecs
import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from trimtab.benchmarks.training.settings.yaml_text import plain_yaml
from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory, decoded, read_bytes
from trimtab.plugins import plugins

__all__ = [
    "adopted", "check_placed", "folders_for_hydra", "folders_outside", "is_file_of_settings",
    "outside_file",
]  # fmt: skip


_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def folders_outside() -> list[Path]:
    """Return the folders with settings that users bring."""
    found = [plugin.folder / "conf" for plugin in plugins()]
    return [folder for folder in [*found, *_adopting()] if folder.is_dir()]


def folders_for_hydra() -> list[Path]:
    """Return the folders with settings that users bring, as Hydra is to search them.

    Behind a byte order mark it does not find a file's first line, so before the folder of such a
    file it is given one with a copy without the mark.
    """
    found = folders_outside()
    marked = {
        str(file.relative_to(folder)): text
        for folder in found
        for file in folder.glob("*/*.yaml")
        if (text := _without_mark(file)) is not None
    }
    if not marked:
        return found
    named = hashlib.sha256(repr(marked).encode()).hexdigest()  # a file may change meanwhile
    copies = _adopting(make=True)[0] / named
    if not copies.is_dir():
        with atomic_directory(copies) as folder:
            for name, text in marked.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
    return [copies, *found]


def _without_mark(file: Path) -> str | None:
    """Return the text of a file that begins with a byte order mark; None for any other file."""
    try:
        text = read_bytes(file)
        return decoded(text) if text.startswith(_MARKS) else None
    except (OSError, ValueError, TrimtabError):  # told by what needs the file
        return None


def outside_file(name: str) -> Path | None:
    """Return a users' file of settings, such as ``algorithm/awr.yaml``; None if there is none.

    Raises:
        TrimtabError: if two of them have the name.
    """
    found = [folder / name for folder in folders_outside() if (folder / name).is_file()]
    if len(found) > 1:
        raise TrimtabError(f"{found[0]} and {found[1]} have the same name; rename one")
    return found[0] if found else None


def is_file_of_settings(value: str) -> bool:
    """Return whether a group's setting is a file of the user's own, such as ``./awr.yaml``."""
    return value.endswith((".yaml", ".yml"))


_PLACED = re.compile(r"\s*#\s*@package\s+_global_")
"""First line of a file whose settings are a run's."""


def check_placed(file: str, group: str, text: str) -> None:
    """Check the first line of a file that has its group's section inside.

    Args:
        file: how a message names it.
        group: such as ``algorithm``.
        text: the file's.

    Raises:
        TrimtabError: if Hydra would put its settings below the group a second time.
    """
    if not _PLACED.match(text):
        raise TrimtabError(
            f"{file}it has {group}: itself, so its first line must be '# @package _global_', as in "
            "the files of trimtab's own"
        )


def adopted(group: str, path: str, own: list[str]) -> str:
    """Make a file of the user's own one of a group's; return the name that it has there.

    Modules beside the file can be imported from then on.

    Args:
        group: such as ``algorithm``.
        path: the file.
        own: names of the group's other files.

    Raises:
        TrimtabError: if it cannot be read, is no mapping in YAML, or its name is taken.
    """
    file = Path(path).expanduser().absolute()
    try:
        text = read_bytes(file)
    except OSError as error:
        raise TrimtabError(f"{group}={path}: cannot be read ({error.strerror})") from error
    found = plain_yaml(text, f"{group}={path}")
    if not isinstance(found, Mapping):
        raise TrimtabError(f"{group}={path}: must be a mapping, as the files of conf/{group}/ are")
    plain = decoded(text)  # Hydra looks for the first line behind no byte order mark
    if group in found:
        check_placed(f"{group}={path}: ", group, plain)
    place = _adopting(make=True)[0] / group / f"{file.stem}.yaml"
    if file.stem in own and not place.is_file():
        raise TrimtabError(
            f"{group}={path}: the name {file.stem} is taken already; rename the file"
        )
    place.parent.mkdir(exist_ok=True)
    place.write_text(plain, encoding="utf-8")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    return file.stem


_made: list[Path] = []


def _adopting(*, make: bool = False) -> list[Path]:
    """Return the folder of this process in which adopted files lie, if there are any."""
    if make and not _made:
        folder = Path(tempfile.mkdtemp(prefix="trimtab-settings-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _made.append(folder)
    return _made
