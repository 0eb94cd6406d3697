"""The documentation site: its pages follow from the registries, and no link of it is broken."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.groups import group_options
from trimtab.envs.registry import list_envs

LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```[ ]*$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def scripts(root: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "scripts")
        yield


def pages_of(module: str) -> dict[str, str]:
    found: Any = importlib.import_module(f"site_pages.{module}")
    return {page.uri: page.text for page in found.pages()}


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as forges and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        plain = unicodedata.normalize("NFC", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found.add(name if name not in found else f"{name}-1")
    return found


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of one."""
    found = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        meant = page.parent / path if path else page
        if not meant.exists() or (anchor and anchor not in anchors(meant.read_text("utf-8"))):
            found.append(target)
    return found


def test_links_and_their_anchors_lead_somewhere(root: Path) -> None:
    pages = [*root.glob("*.md"), *(root / "docs").glob("*.md")]
    pages += (root / "benchmarks" / "results").rglob("*.md")
    assert len(pages) > 30
    assert {page.name: found for page in pages if (found := broken(page))} == {}


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` and c\n\n[x](gone.md) [y](#a-b-and-c) [z](#d)\n```\n[n](n.md)\n```\n")
    assert broken(page) == ["gone.md", "#d"]


def test_the_readme_stays_short(root: Path) -> None:
    assert len((root / "README.md").read_text().splitlines()) <= 120


def test_every_method_has_a_page_and_its_command_is_understood() -> None:
    pages = pages_of("methods")
    assert pages.keys() == {f"methods/{name}.md" for name in group_options("algorithm")}
    chosen = {f"methods/{name}.md" for name in ("bc", "iql", "sac", "dsrl_sac", "diffusion_awr")}
    for uri, text in pages.items():
        (command,) = re.findall(r"^trimtab train (env=.*)$", text, re.MULTILINE)
        words = shlex.split(command.replace("<a run or a bundle>", "a-run"))
        assert f"algorithm={Path(uri).stem}" in words
        if uri in chosen:
            compose_run(words)
    steered = pages["methods/dsrl_sac.md"]
    assert "| `algorithm.magnitude` | `1.5` | half width b of the box of latents |" in steered
    assert "| `online_steps` | `30000` |" in steered and "results/quickstart/index.md" in steered


def test_every_task_has_a_page(root: Path) -> None:
    pages = pages_of("tasks")
    tasks = {uri for uri in pages if uri.count("/") > 1}
    assert tasks == {f"tasks/{id}.md" for id in list_envs()}
    hopper = pages["tasks/gym/Hopper-v5.md"]
    names = json.loads((root / "envs" / "physics" / "names.json").read_text())
    for told in ("1,000 environment steps", "125 actions", names["gym/Hopper-v5"][-1]["name"]):
        assert told in hopper
    for told in ("`dataset=hopper_medium`", "3,234.30", "[`sac`](../../methods/sac.md)"):
        assert told in hopper


def test_docstrings_become_text_that_says_the_same() -> None:
    text: Any = importlib.import_module("site_pages.text")
    told = (
        "Acts.\n\nWith a*b, s_t and <x>, see :class:`a.B`:\n- one ``c*d``\n- two\n\n    x = [1]\n"
    )
    assert text.from_docstring(told) == (
        "Acts.\n\nWith a\\*b, s\\_t and &lt;x>, see ``a.B``:\n\n- one ``c*d``\n- two\n\n    x = [1]"
    )
    assert text.code("a|b") == "`a\u2502b`"


def test_a_small_site_is_built_and_asks_no_other_machine(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strict: a broken link, or a page that is missing in the contents, ends it."""
    monkeypatch.setenv("SITE_FIRST", "1")
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    config = load_config(str(root / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
    assert config.strict
    build(config)
    site = tmp_path / "site"
    loaded = re.compile(r'(?:src|<link [^>]*href)="(?:https?:)?//[^"]*"')
    for page in site.rglob("*.html"):
        assert not loaded.findall(page.read_text(encoding="utf-8")), page
    robot = (site / "api" / "trimtab.policies.runtime.html").read_text()
    assert 'id="trimtab.policies.runtime.load_policy"' in robot
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"] for entry in index["docs"] if "golden vectors" in entry["text"]}
    assert any(location.startswith("robots.html") for location in found)
    assert (site / "results" / "quickstart" / "figure.png").is_file()
