"""The table of modes: entropies with known answers, rows read as written, contests by place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.benchmarks.board.modes import (
    COLUMNS,
    contests_of_modes,
    entropy,
    read_modes,
    to_markdown,
)
from trimtab.benchmarks.board.tables import csv_table
from trimtab.errors import TrimtabError

FOUR, TWO = "robotics/PointMaze-FourGoals-v0", "robotics/PointMaze-TwoRoutes-v0"
RECORDS = [
    {"config_hash": "a", "place": {"task": "four", "method": "sdac"}},
    {"config_hash": "b", "place": {"task": "four", "method": "sac"}},
    {"config_hash": "c", "place": {"task": "two", "method": "sac"}},
]


def test_the_entropy_of_counts() -> None:
    assert entropy(np.array([25.0, 0.0, 0.0, 0.0])) == 0.0
    assert entropy(np.zeros(4)) == 0.0
    assert entropy(np.full(4, 1e6)) == pytest.approx(1.0, abs=1e-5)
    assert entropy(np.full(2, 50.0)) == 1.0  # never more than there is
    # Over many draws the corrected mean is the true entropy; without it, it is too small by 0.05.
    generator = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    drawn = [entropy(one) for one in generator.multinomial(25, shares, 4000).astype(float)]
    assert np.mean(drawn) == pytest.approx(-(shares * np.log2(shares)).sum() / 2, abs=0.015)


def row(env: str, digest: str, seed: int, start: int, ways: str, closed: object) -> dict[str, Any]:
    values = (env, digest, seed, start, 10, ways, closed)
    return dict(zip(COLUMNS, values, strict=True))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two starts of two runs of one method, and of one run each of two others."""
    rows = [
        row(FOUR, digest, seed, start, ways, closed)
        for digest, seed, ways, closed in (
            ("a", 1, "5 5 0 0", 6), ("a", 0, "3 3 2 2", 8), ("b", 0, "2 2 2 2", 0),
        )
        for start in (0, 1)
    ]  # fmt: skip
    rows += [row(TWO, "c", 0, start, "10 0", "") for start in (0, 1)]
    (tmp_path / "modes.csv").write_text(csv_table(rows), encoding="utf-8")
    return tmp_path / "modes.csv"


def test_rows_are_read_as_written(file: Path) -> None:
    runs = read_modes(file)
    assert [(one.config_hash, one.seed) for one in runs] == [("a", 1), ("a", 0), ("b", 0), ("c", 0)]
    assert runs[0].success == (1.0, 1.0) and runs[2].success == (0.8, 0.8)
    assert runs[0].ways == (2, 2) and runs[1].ways == (4, 4)
    assert runs[0].closed == (0.6, 0.6) and runs[3].closed == ()
    # Draws that succeed by chance keep nothing: 8 of 10 are too few.
    assert runs[2].entropy == (0.0, 0.0) and runs[2].ways == (0, 0)
    assert [one.reliable for one in runs] == [1.0, 1.0, 0.0, 1.0]
    assert runs[2].of_successes == (1.0, 1.0) and runs[0].of_successes == runs[0].entropy
    assert read_modes(file)[3].ways == (1, 1)
    # Two ways of four alike: one bit of two, and the correction of 1 / 20 nat.
    assert runs[0].entropy[0] == pytest.approx((np.log(2) + 1 / 20) / np.log(4))


def test_contests_have_a_value_a_start_for_each_seed(file: Path) -> None:
    four, two = contests_of_modes(read_modes(file), RECORDS, "modes")
    assert (four.task, two.task) == ("four", "two")
    assert four.methods["sdac"].seeds == (0, 1) and four.methods["sac"].score == (0.0,)
    assert [one.size for one in four.methods["sdac"].episode_scores] == [2, 2]
    (closed,) = contests_of_modes(read_modes(file), RECORDS, "closed")
    assert closed.methods["sdac"].score == (0.8, 0.6)


def test_the_table_has_the_most_modes_first(file: Path) -> None:
    text = to_markdown(read_modes(file), RECORDS)
    assert text.index("| sdac | 2 |") < text.index("| sac | 1 |") < text.index("## two")
    assert "| 3.0 | 1.00 | " in text
    # Of successes sac goes all ways alike, and no start of it is reliable.
    assert "| 0.0 | 0.00 | 1.00 | 0.00" in text


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", ",".join(COLUMNS) + "\nx,y,0,0,ten,1 2,\n"])
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "modes.csv").write_text(text, encoding="utf-8")
    with pytest.raises(TrimtabError, match=r"modes\.csv: cannot be read"):
        read_modes(tmp_path / "modes.csv")
