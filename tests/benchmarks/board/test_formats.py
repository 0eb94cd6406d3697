"""A leaderboard of several folders, and as CSV and LaTeX for a paper."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trimtab as package
from trimtab.benchmarks.board.latex import _escaped, to_latex
from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.training.rows import write_episodes
from trimtab.errors import TrimtabError

Synthetic = Callable[[Sequence[Any]], pa.Table]


@pytest.fixture
def three(synthetic: Synthetic, method: Any, tmp_path: Path) -> str:
    """Rows of three people: two methods, and a seed that two of them have."""
    for name, changes in (
        ("anna", {"seeds": (0, 1)}),
        ("bert", {"seeds": (0, 1), "episodes": 50}),
        ("carl, the third", {"algorithm": "td3", "config_hash": "bb", "seeds": (0,)}),
    ):
        (tmp_path / name).mkdir()
        write_episodes(
            tmp_path / name / "episodes.parquet", synthetic([replace(method, **changes)])
        )
    return ",".join(str(tmp_path / name) for name in ("anna", "bert"))


def test_rows_of_several_folders_are_one_table(
    three: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = tmp_path / "carl"
    (tmp_path / "carl, the third").rename(rest)
    assert trimtab(["leaderboard", f"runs={three},{rest}", "format=csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    seeds = {line["method"]: line["seeds"] for line in lines}
    assert seeds == {"sac": "2", "td3": "1"}  # what two people have counts once
    assert len(package.leaderboard(f"{three},{rest}").tables[0].entries) == 2
    with pytest.raises(TrimtabError, match="nowhere does not exist"):
        trimtab(["leaderboard", f"runs={three},{tmp_path / 'nowhere'}"])


def test_a_comma_in_the_name_of_a_folder_is_no_list(three: str, tmp_path: Path) -> None:
    board = package.leaderboard(tmp_path / "carl, the third")
    assert [entry.label for entry in board.tables[0].entries] == ["td3"]


def test_two_copies_of_a_run_that_disagree_are_refused(
    synthetic: Synthetic, method: Any, tmp_path: Path
) -> None:
    for name, level in (("a", 0.1), ("b", 0.9)):
        (tmp_path / name).mkdir()
        rows = synthetic([replace(method, levels=(level,))])
        write_episodes(tmp_path / name / "episodes.parquet", rows)
    with pytest.raises(TrimtabError, match="has two values of"):
        package.leaderboard(f"{tmp_path / 'a'},{tmp_path / 'b'}")


def test_latex_has_a_table_a_task_and_escapes_names(synthetic: Synthetic, method: Any) -> None:
    names = ["my_sac", "50% {new}", "a&b #1 $x^2~", "[best]", r"back\slash"]
    methods = [
        replace(method, algorithm=name, config_hash=f"{number:02x}", levels=(0.1 * number,))
        for number, name in enumerate(names)
    ]
    board = build(synthetic([*methods, replace(methods[0], env="gym/Y_2-v0")]), baselines="my_sac")
    text = to_latex(board)
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    for word in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(word) == 2
    for name in (
        r"my\_sac", r"50\% \{new\}", r"a\&b \#1 \$x\textasciicircum{}2\textasciitilde{}",
        r"{}[best]", r"back\textbackslash{}slash", r"gym/Y\_2-v0",
    ):  # fmt: skip
        assert name in text
    rows = [line for line in text.splitlines() if line.endswith(r" \\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {6}
    assert re.search(r"\$\+0\.\d\d\$ \[\$[+-]\d\.\d\d\$, \$[+-]\d\.\d\d\$\]", text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("-1,234.5 [-2, +3]", "$-1{,}234.5$ [$-2$, $+3$]"),
        ("Hopper-v5", "Hopper-v5"),
        ("lr=1e-3", "lr=1e-3"),
        ("–", "--"),
        ("10–20", "10--20"),
    ],
)
def test_a_number_with_a_sign_gets_its_minus(text: str, written: str) -> None:
    assert _escaped(text) == written
