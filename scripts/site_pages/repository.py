"""Files of the repository outside ``docs/`` that the site shows, and where each stands in it.

A link in a page is written for the repository. :func:`in_site` turns it into one of the site.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from site_pages.results import ROOT
from site_pages.text import Page

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_FENCE = re.compile(r"^```.*?^```[ ]*$", re.MULTILINE | re.DOTALL)
_SHOWN = (".png", ".csv")
"""Endings of result files that the site carries as they are."""
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".cff": "yaml"}
_NOTEBOOK = "docs/examples/from_python.ipynb"
_EXAMPLES = (
    "docs/examples/my-lab", "docs/examples/ros2", "docs/examples/lerobot_policy_trimtab",
)  # fmt: skip
_RESULTS = "benchmarks/results"


def places() -> dict[str, str]:
    """Return where the files of the repository stand in the site, by their paths there."""
    found = {
        "README.md": "index.md",
        "CHANGELOG.md": "changelog.md",
        "LICENSE": "licence.md",
        "CITATION.cff": "citation.md",
        _NOTEBOOK: "examples/from_python.md",
        **{path: f"{path.removeprefix('docs/')}.md" for path in _EXAMPLES},
        _RESULTS: "results/index.md",
    }
    for path in (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*.png")):
        found[f"docs/{path.name}"] = path.name
    # No deeper: what a result keeps in folders of its own, such as frozen bases, is no page.
    for path in sorted([*(ROOT / _RESULTS).glob("*"), *(ROOT / _RESULTS).glob("*/*")]):
        inside = path.relative_to(ROOT / _RESULTS).as_posix()
        if path.is_dir() and "/" not in inside:
            found[f"{_RESULTS}/{inside}"] = f"results/{inside}/index.md"
        elif path.suffix == ".md" or path.suffix in _SHOWN:
            place = inside.replace("README.md", "index.md")
            found[f"{_RESULTS}/{inside}"] = f"results/{place}"
    return found


def pages() -> Iterator[Page]:
    """Yield the pages that are files outside ``docs/``, and those that show several files."""
    for path, uri in places().items():
        file = ROOT / path
        if path == _NOTEBOOK:
            yield Page(uri, _notebook(file), path)
        elif path in _EXAMPLES:
            yield Page(uri, _folder(file), f"{path}/README.md")
        elif path == _RESULTS:
            yield Page(uri, _overview(file))
        elif file.is_file() and not path.startswith("docs/"):
            text = _page(file)
            if text is not None:
                yield Page(uri, text, path)


def copied() -> Iterator[tuple[Path, str]]:
    """Yield the files that the site carries as they are, with their places in it."""
    for path, uri in places().items():
        if path.startswith(_RESULTS) and (ROOT / path).suffix in _SHOWN:
            yield ROOT / path, uri


def in_site(text: str, uri: str, origin: str, known: Mapping[str, str]) -> str:
    """Return a page with those of its links changed that lead elsewhere in the site.

    Args:
        text: the page, whose links are those of the repository.
        uri: its place in the site.
        origin: its path in the repository.
        known: as :func:`places`.
    """

    def changed(match: re.Match[str]) -> str:
        shown, target = match.groups()
        path, mark, anchor = target.partition("#")
        if not path or "://" in path:
            return match[0]
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if meant not in known:
            return match[0]
        there = os.path.relpath(known[meant], posixpath.dirname(uri) or ".")
        return f"{shown}({there}{mark}{anchor})"

    parts, place = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(changed, text[place : fence.start()]), fence[0]]
        place = fence.end()
    return "".join([*parts, _LINK.sub(changed, text[place:])])


def _page(file: Path) -> str | None:
    """Return what a file's page shows; None if it is copied instead."""
    if file.suffix in _SHOWN:
        return None
    text = file.read_text(encoding="utf-8")
    if file.name == "README.md" and file.parent != ROOT:
        return text + _beside(file.parent)
    if file.suffix == ".md":
        return text
    return f"# {file.name}\n\n{_fence(file, text)}\n"


def _beside(folder: Path) -> str:
    """Return links to the other files of a result that the site has."""
    names = {
        "leaderboard.md": "the whole leaderboard",
        "leaderboard.csv": "as a table for programs",
    }
    links = [f"- [{what}]({name})" for name, what in names.items() if (folder / name).is_file()]
    return "\n\n## Its tables\n\n" + "\n".join(links) + "\n" if links else ""


def _overview(folder: Path) -> str:
    """Return the page that leads to every result."""
    lines = []
    for file in sorted(folder.glob("*/README.md")):
        title = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({file.parent.name}/index.md)")
    lines.append("- [Papers' claims, held against committed rows](claims.md)")
    return (
        "# Committed results\n\nEvery table here is computed anew from committed rows, one for "
        "each evaluated episode; a test compares them.\n\n" + "\n".join(lines) + "\n"
    )


def _fence(file: Path, text: str) -> str:
    return f"````{_LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n````"


def _folder(folder: Path) -> str:
    """Return a page with every file of an example that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "--", str(folder)], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    names = listed or [
        str(path.relative_to(ROOT))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    parts = [f"# The example `{folder.name}`", f"It lies in `{folder.relative_to(ROOT)}`."]
    for name in names:
        file = ROOT / name
        text = file.read_text(encoding="utf-8")
        if text.strip():
            parts += [f"## `{file.relative_to(folder).as_posix()}`", _fence(file, text)]
    return "\n\n".join(parts) + "\n"


def _notebook(file: Path) -> str:
    """Return a notebook as a page; what its cells printed is not in it."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).rstrip()
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts) + "\n"
