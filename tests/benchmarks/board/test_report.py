"""The page: self-contained, well formed, honest about what it draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from trimtab.benchmarks.board import curves
from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.report.axes import nice_ticks, tick_text
from trimtab.benchmarks.board.report.bars import last_evaluations
from trimtab.benchmarks.board.report.figures import learning_curves
from trimtab.benchmarks.board.report.labels import short_names, spread
from trimtab.benchmarks.board.report.page import render
from trimtab.benchmarks.board.report.panels import Panel, panels_of
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


def figures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]


def test_page_is_well_formed_and_the_same_each_time(board: Leaderboard, page: str) -> None:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert render(board) == page


def test_page_needs_nothing_from_elsewhere(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    assert not {tag for tag, _ in checker.seen} & {"script", "link", "img", "iframe", "object"}
    assert not any("src" in values for _, values in checker.seen)
    targets = [str(values["href"]) for _, values in checker.seen if "href" in values]
    places = {values.get("id") for _, values in checker.seen}
    assert targets and all(target[0] == "#" and target[1:] in places for target in targets)
    assert "http" not in page and "@import" not in page and "url(" not in page


def test_page_is_ready_for_phones_and_for_both_schemes(page: str) -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "@media(prefers-color-scheme:dark)" in page and "overflow-x:auto" in page
    assert page.count('<div class="wide">') == page.count('<div class="narrow">') > 0


def test_every_method_stands_in_tables_and_figures(board: Leaderboard, page: str) -> None:
    words = {text.text for svg in figures(page) for text in svg.iter("text")}
    for table in board.tables:
        assert f"<h2>{table.env}</h2>" in page and f">{table.env}</a>" in page
        for entry in table.entries:
            assert entry.label in words and entry.mean.text() in words
    assert {"environment steps", "gradient updates", "success rate"} <= words


def test_the_order_of_methods_is_told_and_kept(board: Leaderboard, page: str) -> None:
    assert "Methods stand in its order, and in that of the mean where it is equal." in page
    for table in board.tables:
        ranks = [(row.iqm.value, row.mean.value) for row in table.entries]
        assert ranks == sorted(ranks, reverse=True)


def test_provenance_is_printed(page: str) -> None:
    assert "trimtab leaderboard runs=runs" in page and "81d2c07e5a90" in page


def panel_of(board: Leaderboard, env: str) -> Panel:
    return next(panel for panel in panels_of(board) if env in panel.table.env)


def lines_of(panel: Panel) -> dict[str, ElementTree.Element]:
    """Return the drawn group of each method that a panel names."""
    svg = ElementTree.fromstring(learning_curves(panel, 548, 300, 24))
    return {g.attrib["data-method"]: g for g in svg.iter("g") if "data-method" in g.attrib}


def heights(group: ElementTree.Element) -> list[float]:
    line = group.find("polyline")
    assert line is not None
    return [float(point.split(",")[1]) for point in line.attrib["points"].split()]


def test_curves_stand_where_the_numbers_say(board: Leaderboard) -> None:
    panel = panel_of(board, "Blocked")
    groups = lines_of(panel)
    assert list(groups) == [entry.label for entry in panel.entries][::-1]  # the best above all
    for entry in panel.entries:
        expected = [p.score.value for p in entry.curve] if entry.online else [entry.mean.value] * 2
        # The axis runs from height 260 for 0 to height 26 for 1.
        drawn = heights(groups[entry.label])
        np.testing.assert_allclose(drawn, 260 - 234 * np.array(expected), atol=0.06)
        line = groups[entry.label].find("polyline")
        assert line is not None and ("flat" in line.attrib["class"]) == (not entry.online)
        assert (groups[entry.label].find("circle") is None) == (not entry.online)
    bands = learning_curves(panel, 548, 300, 24).count('class="band')
    assert bands == sum(entry.online for entry in panel.entries)


def test_dots_and_bars_stand_where_the_numbers_say(board: Leaderboard) -> None:
    panel = panels_of(board)[0]
    svg = ElementTree.fromstring(last_evaluations(panel, 350, beside=False))
    for entry, group in zip(panel.entries, svg.iter("g"), strict=True):
        bar, dot = group.find("line[@class='bar']"), group.find("circle")
        assert bar is not None and dot is not None
        drawn = [float(dot.attrib["cx"]), float(bar.attrib["x1"]), float(bar.attrib["x2"])]
        np.testing.assert_allclose(drawn, 10 + 328 * np.array(entry.mean), atol=0.06)
        assert len(group.findall("line[@class='seed']")) == len(entry.runs)


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
    rows = [re.findall(r'<th scope="row">.*?</svg>(.*?)</span>', table) for table in tables]
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


@pytest.mark.parametrize("level", [0.0, 1.0, -3000.0, 250000.0])
def test_returns_of_any_size_are_drawn_inside_the_figure(
    synthetic: Synthetic, method: Any, level: float
) -> None:
    points = ((0, 0), (5000, 10), (10000, 20))
    run = replace(method, scored_by_return=True, levels=(0.0, level / 2, level), points=points)
    for svg in figures(render(build(synthetic([run]), repetitions=20))):
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for line in svg.iter("polyline"):
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= width and 0 <= y <= height
        for dot in svg.iter("circle"):
            assert 0 <= float(dot.attrib["cx"]) <= width


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
            for name, least in [("ink", 4.5), ("muted", 4.5), ("link", 4.5)] + [
                (f"s{number}", 3.0) for number in range(8)
            ]:
                pair = sorted([light_of(values[name]), light_of(values[ground])])
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= least, (name, ground)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-280, 11000), (3, 3), (0, 0), (1e-4, 2e-4)])
def test_ticks_are_round_and_enclose_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 5)
    assert ticks[0] <= low and ticks[-1] >= high and 2 <= len(ticks) <= 8
    texts = [tick_text(tick, ticks) for tick in ticks]
    assert len(set(texts)) == len(texts)


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
