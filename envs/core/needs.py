"""What a family of tasks needs, what of it is not there, and why a task of it cannot be made."""

from __future__ import annotations

import importlib.metadata
import re

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from trimtab.envs.core.faults import in_a_line
from trimtab.envs.core.fingerprint import known_versions, versions
from trimtab.envs.core.spec import Family

__all__ = ["LIBRARIES", "unmet", "why_not_made"]

LIBRARIES = "install it (Debian and Ubuntu: apt install libgl1 libglib2.0-0)"
"""What to do about a library of the system's that OpenCV does not find."""
_LIBRARY = re.compile(r"(\S+\.so[.\d]*): cannot open shared object file")


def unmet(family: Family) -> list[str]:
    """Return what a family needs and does not find, each in words; nothing is imported.

    It needs the packages that it names. Of our own families, pyproject.toml says more: an extra
    holds the versions that the family runs with, MuJoCo's among them.
    """
    missing: dict[str, str] = {}
    needs = [(name, SpecifierSet()) for name in family.packages]
    needs += [(need.name, need.specifier) for need in _of_the_extra(family)]
    for name, allowed in needs:
        key = canonicalize_name(name)
        try:
            found = importlib.metadata.version(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            missing.setdefault(key, name)
            continue
        if not allowed.contains(found, prereleases=True):
            missing[key] = f"{name}{allowed} ({found} is installed)"
    return list(missing.values())


def _of_the_extra(family: Family) -> list[Requirement]:
    try:
        wanted = Requirement(family.install)
        lines = importlib.metadata.requires(wanted.name) or []
    except (InvalidRequirement, importlib.metadata.PackageNotFoundError):
        return []  # a plug-in may say it in other words
    needs = [Requirement(line) for line in lines]
    return [
        need
        for need in needs
        for extra in wanted.extras
        if need.marker is not None and need.marker.evaluate({"extra": extra})
    ]


def why_not_made(id: str, family: Family, error: BaseException) -> str:
    """Return the line on a task that its family fails to make: what is missing, and the remedy.

    Args:
        id: the task's.
        family: whose task it is.
        error: what was raised.
    """
    library = _LIBRARY.search(str(error))
    line = in_a_line(error)
    if isinstance(error, ImportError) and library:
        return f"{id} needs the system's library {library[1]}: {LIBRARIES}"
    if missing := unmet(family):
        return f"{id} needs {', '.join(missing)}: pip install '{family.install}' ({line})"
    if isinstance(error, ImportError):
        return f"{id} needs the extra: pip install '{family.install}' ({error})"
    here = versions(family)
    other = {name: it for name, it in known_versions(id).items() if here.get(name) != it}
    hint = "; give what it needs as env_options.<name>=…" if _lacks_argument(error) else ""
    if other:
        known = ", ".join(f"{name} {it} (here {here.get(name)})" for name, it in other.items())
        hint = f"; it is known to run with {known}"
    return f"{id} cannot be made ({line}){hint}"


def _lacks_argument(error: BaseException) -> bool:
    return isinstance(error, TypeError) and "required" in str(error)
