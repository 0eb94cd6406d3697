"""The page: self-contained, well formed, honest about what it draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from trimtab.benchmarks.board import curves
from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.report.labels import short_names, spread
from trimtab.benchmarks.board.report.page import FIGURE, render
from trimtab.benchmarks.board.report.style import STYLE
from trimtab.benchmarks.board.wording import GLOSSES

Synthetic = Callable[[Sequence[Any]], pa.Table]
VOID = {"meta", "link", "img", "br"}


class Checker(HTMLParser):
    """Collects tags and attributes, and asserts that what is opened is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def board(quickstart_table: pa.Table) -> Leaderboard:
    return build(quickstart_table, command="trimtab leaderboard runs=runs", repetitions=100)


@pytest.fixture(scope="module")
def page(board: Leaderboard) -> str:
    return render(board)


def test_page_is_well_formed_and_the_same_each_time(board: Leaderboard, page: str) -> None:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert render(board) == page


def test_page_needs_nothing_but_the_figure_beside_it(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    assert not {tag for tag, _ in checker.seen} & {"script", "link", "iframe", "object"}
    assert [values["src"] for _, values in checker.seen if "src" in values] == [FIGURE]
    targets = [str(values["href"]) for _, values in checker.seen if "href" in values]
    targets.remove(FIGURE)
    places = {values.get("id") for _, values in checker.seen}
    assert targets and all(target[0] == "#" and target[1:] in places for target in targets)
    assert "http" not in page and "@import" not in page and "url(" not in page


def test_page_is_ready_for_phones_and_for_both_schemes(page: str) -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "@media(prefers-color-scheme:dark)" in page and "overflow-x:auto" in page


def test_the_order_of_methods_is_told_and_kept(board: Leaderboard, page: str) -> None:
    assert "Methods stand in its order, and in that of the mean where it is equal." in page
    for table in board.tables:
        ranks = [(row.iqm.value, row.mean.value) for row in table.entries]
        assert ranks == sorted(ranks, reverse=True)


def test_provenance_is_printed(page: str) -> None:
    assert "trimtab leaderboard runs=runs" in page and "81d2c07e5a90" in page


def test_the_headline_and_the_contents_stand_before_the_environments(
    board: Leaderboard, page: str
) -> None:
    first = page.index("<section")
    words = re.sub(r"<[^>]+>", "", page[page.index("<body>") : first])
    for table in board.tables:
        assert table.env in words and table.entries[0].label in words
        assert table.entries[0].mean.text() in words
    # Of three environments with several methods, bc (flow) and dsrl_sac (flow) head one each.
    leaders = [table.entries[0].label for table in board.tables]
    assert leaders == ["dsrl_sac (flow)", "dsrl_sac (flow)", "bc (flow)"]
    assert "dsrl_sac (flow) is first most often, in 2 of 3 environments." in words
    assert page.index('class="headline"') < page.index("<nav") < first


def test_every_heading_has_a_gloss_that_needs_no_mouse(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    headings = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert headings
    glosses = {values["id"] for tag, values in checker.seen if "popover" in values}
    for heading in headings:
        found = re.fullmatch(
            r'<button type="button" popovertarget="([^"]+)" title="([^"]+)">([^<]+)</button>',
            heading,
        )
        assert found is not None, heading
        assert found[1] in glosses and found[3] in GLOSSES
        assert f'id="{found[1]}"><strong>{found[3]}</strong><p>{found[2]}</p>' in page
    assert len(glosses) == len(GLOSSES)


def test_tables_say_that_they_scroll(page: str) -> None:
    tables = page.count("<table>")
    assert page.count('<p class="hint"') == page.count('<div class="scroll" tabindex="0"') == tables
    # A shade at the edge that scrolls away at the end, and a line of words on narrow screens.
    assert re.search(r"\.scroll\{[^}]*no-repeat local[^}]*var\(--shade\)[^}]*scroll\}", STYLE)
    assert "@media(max-width:1100px){.hint{display:block}}" in STYLE


def test_methods_over_unequal_sets_of_environments_share_no_table(page: str) -> None:
    """Known answer: the fixture's clones are in the maze and in push, two methods in push and in
    the blocked maze, and the others in one task."""
    section = page[page.index('<section id="across">') :]
    tables = re.findall(r"<table>.*?</table>", section, re.S)
    rows = [re.findall(r'<th scope="row">(.*?)</th>', table) for table in tables]
    assert [sorted(names) for names in rows] == [
        ["dsrl_sac (flow)", "frozen (flow)"],
        ["bc (diffusion)", "bc (flow)", "bc (gaussian)"],
    ]
    assert "(one method only, so nothing compares)" not in section
    left = re.findall(r"<li>(\S+): (.*?)</li>", section[: section.index("<footer")])
    blocked = ["dsrl_na (diffusion)", "dsrl_na (flow)", "dsrl_sac (diffusion)"]
    assert [(env, sorted(names.split(", "))) for env, names in left] == [
        ("robotics/PointMaze-TwoRoutes-Blocked-v0", [*blocked, "frozen (diffusion)", "sac"])
    ]


def test_names_are_escaped(synthetic: Synthetic, method: Any) -> None:
    page = render(
        build(synthetic([replace(method, algorithm="<b>&")]), command="a<b", repetitions=20)
    )
    assert "<b>" not in page and "&lt;b&gt;&amp;" in page and "a&lt;b" in page


def test_labels_are_spread_without_leaving_the_figure() -> None:
    places = spread([10.0, 11.0, 12.0, 99.0, 100.0], 15.0, 10.0, 100.0)
    assert all(b - a >= 15.0 - 1e-9 for a, b in zip(places, places[1:], strict=False))
    assert places[0] >= 10.0 and places[-1] <= 100.0


def test_short_names_are_short_and_never_alike() -> None:
    labels = [f"dsrl_sac (diffusion, {mark})" for mark in ("9c5fa782", "e8814d6e")]
    labels += ["golden_ticket", "a" * 40 + "x", "a" * 40 + "y", "b" * 20 + "1" + "b" * 20,
               "b" * 20 + "2" + "b" * 20]  # fmt: skip
    for limit in (15, 24):
        names = short_names(labels, limit)
        assert len(set(names)) == len(labels)
        assert all(len(name) <= 2 and max(map(len, name)) <= limit for name in names)
    assert short_names(labels, 24)[:3] == [
        ("dsrl_sac (diffusion,", "9c5fa782)"), ("dsrl_sac (diffusion,", "e8814d6e)"),
        ("golden_ticket",),
    ]  # fmt: skip


def light_of(colour: str) -> float:
    """Return a colour's relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_letters_and_lines_stand_out_from_their_ground() -> None:
    assert light_of("#ffffff") == pytest.approx(1.0) and light_of("#000000") == 0.0
    light, dark = STYLE.split("@media", 1)
    for scheme in (light, dark.split("*{")[0]):
        values = dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", scheme))
        values = {k: "#" + 2 * v[1:] if len(v) == 4 else v for k, v in values.items()}
        for ground in ("ground", "panel"):
            for name in ("ink", "muted", "link"):
                pair = sorted([light_of(values[name]), light_of(values[ground])])
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, ground)


def test_curves_are_a_picture_that_is_the_same_each_time(
    board: Leaderboard, tmp_path: Path
) -> None:
    from matplotlib import image

    for name in ("one.png", "two.png"):
        curves.draw(replace(board, tables=board.tables[:1]), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    picture = image.imread(tmp_path / "one.png")
    colours = {tuple(pixel) for pixel in picture[::2, ::2, :3].reshape(-1, 3).round(2)}
    blue, vermilion = (0.0, 0.4, 0.65), (0.84, 0.37, 0.0)
    for wanted in (blue, vermilion):
        assert any(max(abs(a - b) for a, b in zip(wanted, c, strict=True)) < 0.02 for c in colours)
