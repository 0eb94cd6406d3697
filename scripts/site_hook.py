"""What the documentation site shows besides ``docs/``: called by mkdocs, as mkdocs.yml says.

Pages of methods, tasks and modules are generated from the registries when the site is built, and
committed nowhere. ``SITE_FIRST=2`` in the environment generates the first two pages of each family
alone, which a test of the build does.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as SitePage

sys.path.insert(0, str(Path(__file__).resolve().parent))

from site_pages import interface, methods, repository, tasks  # noqa: E402
from site_pages.text import Page  # noqa: E402

_FILE = re.compile(r"^```(\w+) file=(\S+)$", re.MULTILINE)
_METHOD = re.compile(r"^### `(\w+)`$", re.MULTILINE)
_LINKED = re.compile(r"/methods/(\w+)\.md")
_GENERATED: dict[str, Page] = {}
_PLACES: dict[str, str] = {}


@event_priority(100)  # before mkdocstrings reads where the source lies
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Generate the pages, put them into the contents, and say where the modules' source lies."""
    first = int(os.environ["SITE_FIRST"]) if "SITE_FIRST" in os.environ else None
    _GENERATED.clear()
    of_tasks = list(tasks.pages(first))
    linked = {name for page in of_tasks for name in _LINKED.findall(page.text)}
    of_methods = methods.pages(first, also=linked)
    for page in (*of_methods, *of_tasks, *interface.pages(), *repository.pages()):
        _GENERATED[page.uri] = page
    _PLACES.clear()
    _PLACES.update(repository.places())
    folder = tempfile.mkdtemp(prefix="site-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    interface.lay_out(Path(folder))
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [folder]
    config.nav = [_filled(entry) for entry in config.nav or ()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the files that are copied."""
    for page in _GENERATED.values():
        files.append(File.generated(config, page.uri, content=page.text))
    for path, uri in repository.copied():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: SitePage, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into links of the site, and name files above their code."""
    uri = page.file.src_uri
    generated = _GENERATED.get(uri)
    origin = f"docs/{uri}" if generated is None else generated.origin
    if origin is None:
        return markdown
    if uri == "methods.md":
        markdown = _METHOD.sub(_with_its_page, markdown)
    markdown = _FILE.sub(r'```\1 title="\2"', markdown)
    return repository.in_site(markdown, uri, origin, _PLACES)


def _with_its_page(heading: re.Match[str]) -> str:
    uri = f"methods/{heading[1]}.md"
    if uri not in _GENERATED:
        return heading[0]
    return f"{heading[0]}\n\n[Settings, commands, results and docstring]({uri})"


def _filled(entry: Any) -> Any:
    """Return an entry of the contents in which generated pages stand for the words ``all …``."""
    lists = {
        "all methods": _methods,
        "all tasks": lambda: [u for u in _GENERATED if u.startswith("tasks/") and u.count("/") < 2],
        "all modules": lambda: [uri for uri in _GENERATED if uri.startswith("api/")],
    }
    if isinstance(entry, dict):
        return {title: _filled(inner) for title, inner in entry.items()}
    if isinstance(entry, list):
        filled: list[Any] = []
        for one in entry:
            filled += lists[one]() if isinstance(one, str) and one in lists else [_filled(one)]
        return filled
    return entry


def _methods() -> list[dict[str, list[str]]]:
    """Return the pages of the methods below the names of their families."""
    found = []
    for family, names in methods.families().items():
        uris = [f"methods/{name}.md" for name in names if f"methods/{name}.md" in _GENERATED]
        found.append({family.replace("_", " ").capitalize(): uris})
    return found
