"""Pictures of curves: a panel never mixes budgets, and names all of its lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from trimtab.benchmarks.board import curves, pictures
from trimtab.benchmarks.board.arena import figure
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest, CurvePoint
from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.stats import Interval

Synthetic = Callable[[Sequence[Any]], pa.Table]
STEPS = [(k * 5000, k * 100) for k in range(1, 5)]


@pytest.fixture
def crowded(synthetic: Synthetic, method: Any) -> Leaderboard:
    """Twenty methods: ten learn, two learn for twice as long, the rest do not."""
    found = []
    for number in range(20):
        levels = tuple(0.1 + (0.03 + 0.01 * number) * k for k in range(4))
        points = [(2 * a, 2 * b) for a, b in STEPS] if number < 2 else STEPS
        if number >= 12:
            levels, points = (0.2 + 0.02 * number,), [(0, 0)]
        found.append(
            replace(
                method, algorithm=f"method_{number:02}", levels=levels, points=points,
                config_hash=f"{number:04x}", episodes=20,
            )
        )  # fmt: skip
    return build(synthetic(found))


def test_methods_that_stop_a_little_earlier_have_the_same_budget(
    synthetic: Synthetic, method: Any
) -> None:
    at = {"a": 10000, "b": 10004, "c": 8600, "d": 7000, "e": 3000}
    methods = [
        replace(method, algorithm=name, points=[(steps, 1)], config_hash=name * 4)
        for name, steps in at.items()
    ]
    (table,) = build(synthetic(methods)).tables
    found = {
        end: sorted(entry.label for entry, _ in members)
        for end, members in curves.budgets_of(table)
    }
    assert found == {10004: ["a", "b", "c"], 7000: ["d"], 3000: ["e"]}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that gets the axes of the pictures that are drawn."""
    kept: list[Any] = []
    add = pictures.add_legend
    for module in (curves, figure):
        monkeypatch.setattr(module, "add_legend", lambda axis: (kept.append(axis), add(axis)))
    return kept


def named(axis: Any) -> set[str]:
    return {text.get_text() for text in axis.get_legend().get_texts()}


def test_a_panel_has_one_budget_and_names_its_methods_which_all_look_different(
    crowded: Leaderboard, tmp_path: Path, drawn: list[Any]
) -> None:
    (table,) = crowded.tables
    first, second, third = table.entries[:3]
    names = {first.config_hash: "mine", second.config_hash: "twice", third.config_hash: "twice"}
    curves.draw(crowded, tmp_path / "figure.png", names)
    assert [axis.get_xlim()[1] for axis in drawn] == [20000, 40000]
    for axis, learned in zip(drawn, (10, 2), strict=True):
        # Those that take no steps are levels of both.
        assert len(named(axis)) == len(axis.lines) == learned + 8
        looks = {(line.get_color(), line.get_linestyle()) for line in axis.lines}
        assert len(looks) == len(axis.lines) and axis.get_ylim() == (0.0, 1.0)
        assert f"{axis.get_xlim()[1]:,.0f}" in axis.get_title()
    shown = set(itertools.chain(*map(named, drawn)))
    assert "mine" in shown and first.label not in shown
    assert {second.label, third.label} <= shown and "twice" not in shown
    curves.draw(crowded, tmp_path / "again.png", names)
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "figure.png").read_bytes()


def test_levels_are_seen_where_nobody_takes_steps(
    synthetic: Synthetic, method: Any, tmp_path: Path, drawn: list[Any]
) -> None:
    curves.draw(build(synthetic([replace(method, points=[(0, 0)])])), tmp_path / "figure.png")
    (line,) = drawn[0].lines
    assert list(line.get_xdata()) == [0.0, 1.0] and drawn[0].get_xlim() == (0.0, 1.0)


def test_the_arena_s_picture_names_the_first_methods_the_base_and_the_best_control(
    tmp_path: Path, drawn: list[Any]
) -> None:
    def row(number: int) -> ArenaRow:
        score = number / 20
        curve = tuple(
            CurvePoint(k, k, k, Interval(score * k / 100, 0.0, 1.0), 0.0) for k in (50.0, 100.0)
        )
        return ArenaRow(
            "a", "flow", f"m{number:02}", None, "x", "h", 3, curve[-1].score, score, score, 0.0,
            0.0, None, None, None, 100.0, 1.0, 1, None, None, None, False, (), (), curve,
        )  # fmt: skip

    contest = Contest(
        "a", "a", "flow", "success", Interval(0.3, 0.2, 0.4), tuple(map(row, range(20)))
    )
    figure.draw(Arena((contest,), (), ("m19",)), tmp_path / "figure.png")
    (axis,) = drawn
    first = {f"m{number}" for number in range(11, 19)}
    assert named(axis) == {*first, "11 others", "frozen base", "best control: m19"}
    coloured = [line.get_color() for line in axis.lines if line.get_marker() == "o"]
    assert len(set(coloured)) == len(coloured) == 8
