"""Markdown from names, values and docstrings, and the one kind of thing that pages are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ROLE = re.compile(r":(?:class|func|mod|data|meth|attr|exc|const):`[~!]?([^`]+)`")
_CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
_MARKED = re.compile(r"([*_\[\]|])")
_LIST = re.compile(r"- |\d+\. ")


@dataclass(frozen=True)
class Page:
    """A page that is written when the site is built.

    Attributes:
        uri: its place in the site, such as ``methods/dsrl_sac.md``.
        text: Markdown.
        origin: file of the repository that it shows, by which the links in it are meant.
    """

    uri: str
    text: str
    origin: str | None = None


def code(value: object) -> str:
    """Return a value as code that is safe in a table."""
    return f"`{str(value).replace('|', chr(0x2502))}`"


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as a table."""
    lines = [heading, [":--"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def roles_as_code(text: str) -> str:
    """Return text with the names in Sphinx's roles as code."""
    return _ROLE.sub(r"``\1``", text)


def from_docstring(docstring: str) -> str:
    """Return a docstring as Markdown: its marks stay marks of code, and all else stays as written.

    What is indented by four columns or more after an empty line is shown as code.
    """
    text = roles_as_code(inspect.cleandoc(docstring))
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text))


def sections_of(docstring: str) -> str:
    """Return a class's docstring up to its first section, such as ``Args:``."""
    return re.split(r"\n\s*(?:Args|Attributes|Raises|Returns):\n", docstring)[0]


def escaped(text: str) -> str:
    """Return text in which only code is marked."""
    parts = _CODE.split(text)
    for place in range(0, len(parts), 2):
        plain = parts[place].replace("&", "&amp;").replace("<", "&lt;")
        parts[place] = _MARKED.sub(r"\\\1", plain)
    return "".join(parts)


def _paragraph(part: str) -> str:
    """Return one paragraph; a list gets the empty line before it that Markdown wants."""
    lines = part.split("\n")
    if all(line.startswith("    ") for line in lines):
        return part
    starts = [place for place, line in enumerate(lines) if _LIST.match(line)]
    if not starts:
        return escaped(part)
    before, items = lines[: starts[0]], lines[starts[0] :]
    shown = [escaped("\n".join(items))]
    return "\n\n".join([escaped("\n".join(before)), *shown] if before else shown)
