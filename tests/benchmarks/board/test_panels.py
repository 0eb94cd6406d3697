"""Panels of figures: one budget each, no two methods alike, no line hidden, all of them named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trimtab.benchmarks.board import curves, pictures
from trimtab.benchmarks.board.arena import figure
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest, CurvePoint
from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.report.looks import COLOURS, colours_of, dashes, turns
from trimtab.benchmarks.board.report.panels import Panel, panels_of
from trimtab.benchmarks.board.stats import Interval

Synthetic = Callable[[Sequence[Any]], pa.Table]
STEPS = [(k * 5000, k * 100) for k in range(1, 5)]


_BOARDS: list[Leaderboard] = []


@pytest.fixture
def crowded(synthetic: Synthetic, method: Any) -> Leaderboard:
    """Twenty methods in two tasks: ten learn, two learn for twice as long, the rest do not."""
    if not _BOARDS:
        found = []
        for env, number in itertools.product(("gym/X-v0", "gym/Y-v0"), range(20)):
            levels = tuple(0.1 + (0.03 + 0.01 * number) * k for k in range(4))
            points = [(2 * a, 2 * b) for a, b in STEPS] if number < 2 else STEPS
            if number >= 12:
                levels, points = (0.2 + 0.02 * number,), [(0, 0)]
            found.append(
                replace(
                    method, env=env, algorithm=f"method_{number:02}", levels=levels,
                    points=points, config_hash=f"{number:04x}", episodes=20,
                )
            )  # fmt: skip
        _BOARDS.append(build(synthetic(found)))
    return _BOARDS[0]


def ends(panel: Panel) -> set[int]:
    return {max(run.env_steps for run in entry.runs) for entry in panel.everyone} - {0}


def test_a_panel_never_mixes_budgets_and_every_method_is_named_once_a_budget(
    crowded: Leaderboard,
) -> None:
    panels = panels_of(crowded)
    for table in crowded.tables:
        here = [panel for panel in panels if panel.table is table]
        assert [ends(panel) for panel in here] == [{20000}] * 3 + [{40000}] * 2
        for budget, learned in ((20000, 10), (40000, 2)):
            named = [e.label for p in here if p.budget == budget for e in p.entries]
            # Those that take no steps are levels of both.
            assert len(named) == len(set(named)) == learned + 8
            ranks = [entry.label for entry in table.entries if entry.label in named]
            assert named == ranks
    assert {panel.budgets for panel in panels} == {2}


def test_methods_that_stop_a_little_earlier_have_the_same_budget(
    synthetic: Synthetic, method: Any
) -> None:
    at = {"a": 10000, "b": 10004, "c": 8600, "d": 7000, "e": 3000}
    methods = [
        replace(method, algorithm=name, points=[(steps, 1)], config_hash=name * 4)
        for name, steps in at.items()
    ]
    # The seeds of one that stops by a rule of its own differ; it has no budget of 5,500 steps.
    methods += [
        replace(method, algorithm="rule", points=[(steps, 1)], seeds=(seed,), config_hash="ff")
        for seed, steps in enumerate((4000, 7000))
    ]
    panels = panels_of(build(synthetic(methods)))
    found = {panel.budget: sorted(entry.label for entry in panel.entries) for panel in panels}
    assert found == {10004: ["a", "b", "c"], 7000: ["d", "rule"], 3000: ["e"]}


def test_no_two_methods_of_a_panel_look_alike(crowded: Leaderboard) -> None:
    panels = panels_of(crowded)
    for panel in panels:
        numbers = [panel.colours[entry.label] for entry in panel.entries]
        assert len(set(numbers)) == len(numbers) <= COLOURS
    # With no more methods than colours, each has one colour in all panels.
    few = colours_of([["a", "b", "c"], ["c", "d"], ["b", "d", "e"], ["f", "a"]])
    for label in "abcdef":
        assert len({panel[label] for panel in few if label in panel}) == 1


@pytest.mark.parametrize("seed", range(5))
def test_colours_never_clash_whoever_meets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    panels = [
        [f"m{number}" for number in rng.permutation(40)[: rng.integers(1, COLOURS + 1)]]
        for _ in range(60)
    ]
    for labels, found in zip(panels, colours_of(panels), strict=True):
        assert list(found) == labels and len(set(found.values())) == len(labels)
        assert set(found.values()) <= set(range(COLOURS))


def test_lines_that_lie_on_one_another_fill_each_other_s_gaps() -> None:
    path = [(0.0, 50.0), (60.0, 20.0), (100.0, 80.0)]
    far = [(0.0, 150.0), (100.0, 150.0)]
    touching = [(0.0, 0.0), (100.0, 100.0)]  # crosses the path, but does not lie on it
    found = turns([path, far, path, touching, path])
    assert found == [(0, 3), (0, 1), (1, 3), (0, 1), (2, 3)]
    covered = np.zeros(240)
    for turn in (found[0], found[2], found[4]):
        style = dashes(turn)
        assert style is not None
        offset, (stroke, gap) = style
        # A dash is drawn where the pattern, begun at the offset, is within its first part.
        covered += (np.arange(240) + 0.5 + offset) % (stroke + gap) < stroke
    np.testing.assert_array_equal(covered, 1.0)
    assert dashes((0, 1)) is None


def test_a_chain_of_lines_needs_no_more_turns_than_meet() -> None:
    def level(left: float, right: float) -> list[tuple[float, float]]:
        return [(left, 0.0), (right, 0.0)]

    assert turns([level(0, 100), level(50, 150), level(100, 200)]) == [(0, 2), (1, 2), (0, 2)]
    assert turns([level(0, 10), level(20, 30)]) == [(0, 1), (0, 1)]
    assert turns([[(5.0, 0.0)], [(5.0, 0.5)]]) == [(0, 2), (1, 2)]  # single points


def axes_drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the axes of the next picture."""
    kept: list[Any] = []
    original = pictures.set_axes

    def keeping(axis: Any, *rest: Any) -> None:
        kept.append(axis)
        original(axis, *rest)

    for module in (curves, figure):
        monkeypatch.setattr(module, "set_axes", keeping)
    return kept


def check_names(axis: Any) -> None:
    """Check that names stand at the ends of their lines, apart from one another."""
    lines = {line.get_label(): line for line in axis.lines}
    for text in axis.texts:
        line = lines[text.get_text().replace("\n", " ")]
        assert tuple(text.xy) == (line.get_xdata()[-1], line.get_ydata()[-1])
    places = sorted(text.get_position()[1] for text in axis.texts)
    assert all(b - a > 0.03 for a, b in itertools.pairwise(places))


def test_pictures_of_success_go_from_0_to_1_and_name_the_ends(
    crowded: Leaderboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = axes_drawn(monkeypatch)
    board = replace(crowded, tables=crowded.tables[:1])
    curves.draw(board, tmp_path / "figure.png")
    panels = panels_of(board)
    assert len(kept) == len(panels) == 5
    for axis, panel in zip(kept, panels, strict=True):
        check_names(axis)
        assert axis.get_ylim() == (0.0, 1.0)
        assert sorted(text.get_text() for text in axis.texts) == sorted(panel.colours)
        assert axis.get_xlim() == (0.0, panel.budget) and f"{panel.budget:,}" in axis.get_title()


def test_curves_have_the_names_of_a_suite_where_they_tell_rows_apart(
    crowded: Leaderboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = axes_drawn(monkeypatch)
    table = crowded.tables[0]
    first, second, third = table.entries[:3]
    names = {first.config_hash: "mine", second.config_hash: "twice", third.config_hash: "twice"}
    assert len(names) == 3
    curves.draw(replace(crowded, tables=(table,)), tmp_path / "figure.png", names)
    shown = {text.get_text().replace("\n", " ") for axis in kept for text in axis.texts}
    assert "mine" in shown and first.label not in shown
    assert {second.label, third.label} <= shown and "twice" not in shown


def test_levels_are_seen_where_nobody_takes_steps(
    synthetic: Synthetic, method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = axes_drawn(monkeypatch)
    curves.draw(build(synthetic([replace(method, points=[(0, 0)])])), tmp_path / "figure.png")
    (line,) = kept[0].lines
    assert list(line.get_xdata()) == [0.0, 1.0] and kept[0].get_xlim() == (0.0, 1.0)


def test_the_arena_s_picture_has_no_colour_twice_in_a_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(task: str, number: int) -> ArenaRow:
        score = (number * 7 % 20) / 20 if task == "b" else number / 20
        curve = tuple(
            CurvePoint(k, k, k, Interval(score * k / 100, 0.0, 1.0), 0.0) for k in (50.0, 100.0)
        )
        return ArenaRow(
            task, "flow", f"m{number:02}", None, "x", "h", 3, curve[-1].score, score, score, 0.0,
            0.0, None, None, None, 100.0, 1.0, 1, None, None, None, False, (), (), curve,
        )  # fmt: skip

    contests = [
        Contest(task, task, "flow", "success", Interval(0.3, 0.2, 0.4),
                tuple(row(task, number) for number in range(20)))
        for task in "ab"
    ]  # fmt: skip
    kept = axes_drawn(monkeypatch)
    figure.draw(Arena(tuple(contests), (), ("m19",)), tmp_path / "figure.png")
    for axis in kept:
        check_names(axis)
        assert axis.get_ylim() == (0.0, 1.0)
        colours = [line.get_color() for line in axis.lines if line.get_marker() == "o"]
        assert len(colours) == len(set(colours)) == 6
        words = {text.get_text() for text in axis.texts}
        assert {"frozen base", "best control: m19"} <= words and len(words) == 21
