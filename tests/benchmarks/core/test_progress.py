"""Lines that say how far work is, where there is no terminal."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from trimtab.benchmarks.cli import screen
from trimtab.benchmarks.core import progress
from trimtab.benchmarks.core.progress import Pace, telling
from trimtab.benchmarks.suites.bars import Bars


def test_what_is_left_follows_from_what_was_done_here() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert pace.left(0.5) == ""  # by an earlier process
    now = 60.0
    assert pace.left(0.5) == ""
    assert pace.left(0.75) == "60 s left"
    now = 600.0
    assert pace.left(0.75) == "10 min left"
    now = 7200.0
    assert pace.left(0.75) == "2.0 h left"
    assert pace.left(1.0) == "0 s left"


def test_lines_come_until_the_end_and_empty_ones_do_not() -> None:
    lines: list[str] = []
    came = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        came.set()

    with telling(lambda: "", write, every=0.001):
        assert not came.wait(0.05)
    with telling(lambda: "half", write, every=0.001):
        assert came.wait(10.0)
    assert set(lines) == {"half"}
    assert not [one for one in threading.enumerate() if "telling" in one.name]


def test_a_run_without_a_terminal_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.01)
    told, text = threading.Event(), ""
    with screen.progress_bar("bc") as tell:
        tell(0.25, "25 of 100 steps, success 0.50")
        while "bc: 25%, 25 of 100 steps, success 0.50\n" not in text:
            told.wait(0.02)
            text += capfd.readouterr().err
    assert set(text.splitlines()) == {"bc: 25%, 25 of 100 steps, success 0.50"}


def test_a_suite_without_a_terminal_says_how_far_its_runs_are() -> None:
    text = io.StringIO()
    weights = {"clone seed 0": 1.0, "clone seed 1": 1.0}
    with Bars("mine", weights, Console(file=text)) as bars:
        bars.tell("clone seed 0", 0.5, "50 of 100 steps, return 3.00")
        line = bars._line()
        assert line.startswith("mine: 25%, 0 of 2 runs, ")
        assert line.endswith(" left; clone seed 0 50%, 50 of 100 steps, return 3.00")
        bars.finished("clone seed 0")
        assert "clone seed 0" not in bars._line()
    assert text.getvalue() == "1/2 clone seed 0 done\n"
