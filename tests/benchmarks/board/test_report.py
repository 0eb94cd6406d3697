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
from trimtab.benchmarks.board.report.figures import last_evaluations, learning_curves, spread
from trimtab.benchmarks.board.report.page import render
from trimtab.benchmarks.board.report.series import colours_of

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
    assert not any(name in values for _, values in checker.seen for name in ("src", "href"))
    assert "http" not in page and "@import" not in page and "url(" not in page


def test_page_is_ready_for_phones_and_for_both_schemes(page: str) -> None:
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "@media(prefers-color-scheme:dark)" in page and "overflow-x:auto" in page
    assert page.count('<div class="wide">') == page.count('<div class="narrow">') > 0


def test_every_method_stands_in_tables_and_figures(board: Leaderboard, page: str) -> None:
    words = {text.text for svg in figures(page) for text in svg.iter("text")}
    for table in board.tables:
        assert f"<h2>{table.env}</h2>" in page
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


def test_curves_stand_where_the_numbers_say(board: Leaderboard) -> None:
    table = next(table for table in board.tables if "Blocked" in table.env)
    svg = ElementTree.fromstring(learning_curves(table, colours_of(board), 548, 300))
    groups = [g for g in svg.iter("g") if g.find("polyline") is not None]
    assert len(groups) == len(table.entries)
    for entry, group in zip(table.entries, groups, strict=True):
        line = group.find("polyline")
        assert line is not None
        heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
        expected = [p.score.value for p in entry.curve] if entry.online else [entry.mean.value] * 2
        # The axis runs from height 260 for 0 to height 26 for 1.
        np.testing.assert_allclose(heights, 260 - 234 * np.array(expected), atol=0.06)
        assert ("flat" in line.attrib["class"]) == (not entry.online)
        assert (group.find("polygon") is None) == (not entry.online)


def test_dots_and_bars_stand_where_the_numbers_say(board: Leaderboard) -> None:
    table = board.tables[0]
    svg = ElementTree.fromstring(last_evaluations(table, colours_of(board), 350, beside=False))
    for entry, group in zip(table.entries, svg.iter("g"), strict=True):
        bar, dot = group.find("line[@class='bar']"), group.find("circle")
        assert bar is not None and dot is not None
        drawn = [float(dot.attrib["cx"]), float(bar.attrib["x1"]), float(bar.attrib["x2"])]
        np.testing.assert_allclose(drawn, 10 + 328 * np.array(entry.mean), atol=0.06)
        assert len(group.findall("line[@class='seed']")) == len(entry.runs)


def test_methods_that_meet_have_different_colours(board: Leaderboard) -> None:
    colours = colours_of(board)
    for table in board.tables:
        assert len({colours[entry.label] for entry in table.entries}) == len(table.entries)


def test_an_environment_without_curves_has_no_curve_figure(
    synthetic: Synthetic, method: Any
) -> None:
    page = render(build(synthetic([method]), repetitions=20))
    assert "Learning curves" not in page and "Last evaluation" in page


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
        curves.draw(board, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    picture = image.imread(tmp_path / "one.png")
    colours = {tuple(pixel) for pixel in picture[::2, ::2, :3].reshape(-1, 3).round(2)}
    blue, vermilion = (0.0, 0.45, 0.7), (0.84, 0.37, 0.0)
    for wanted in (blue, vermilion):
        assert any(max(abs(a - b) for a, b in zip(wanted, c, strict=True)) < 0.02 for c in colours)
