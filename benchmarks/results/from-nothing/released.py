"""What authors have released of learning from nothing: the means of their curves at a few points.

    python released.py flash_sac=<folder of a checkout of FlashSAC> reppo=<of REPPO>

The checkouts are of ``Holiday-Robot/FlashSAC``, which has the curves of its own method, and of XQC,
SimbaV2, MR.Q, TD-MPC2 and PPO, as its authors ran or gathered them; and of ``cvoelcker/reppo``,
with those of REPPO, FastTD3, PPO as tuned there, and Brax's PPO on MuJoCo Playground. Written are
``released.csv`` and ``released.md``.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.benchmarks.board.tables import csv_table, markdown_page
from trimtab.benchmarks.core.numerals import number_text
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text

PLACE = Path(__file__).resolve().parent
SOURCES = {"flash_sac": "Holiday-Robot/FlashSAC", "reppo": "cvoelcker/reppo"}
ON_PROCESSORS = {
    "FlashSAC": "FlashSAC", "XQC": "baseline/XQC", "SimbaV2": "baseline/SimbaV2",
    "MR.Q": "baseline/MRQ", "TD-MPC2": "baseline/TD-MPC2", "PPO": "baseline/PPO",
}  # fmt: skip
"""Files of ``results/stateRL_cpusim`` in FlashSAC's repository, by the method."""
TASKS = ("cheetah-run", "walker-run", "HalfCheetah-v4", "Hopper-v4", "Walker2d-v4", "Ant-v4",
         "Humanoid-v4")  # fmt: skip
POINTS = (100_000, 200_000, 500_000, 1_000_000)
ON_GPUS = {
    "REPPO": ("full_large_data",),
    "FastTD3": ("fasttd3_small",),
    "PPO, the best of four settings": ("ppo", "ppo_3", "ppo_4", "ppo_long"),
    "Brax PPO": ("ppo_brax_full",),
}
"""Ends of the names of files of ``results`` in REPPO's repository, by the method."""
PLAYGROUND = ("CheetahRun", "HopperStand", "WalkerRun")
FAR_POINTS = (10_000_000, 50_000_000, 100_000_000, 200_000_000)
READING = """\
Means over the seeds of curves that authors have released, at the evaluation nearest to so many
environment steps (`released.csv` has its steps, the seeds and the repositories). They are not runs
of Trimtab. In the tasks of DM Control an action is repeated twice and counts as two steps; Gym's
are v4, so compare ratios with v5. On Playground REPPO normalises observations by steps that it does
not count. A dash: no curve was released, or it has no evaluation within a tenth of these steps."""
Row = dict[str, Any]


def on_processors(checkout: Path) -> Iterator[Row]:
    """Yield the rows of FlashSAC's repository."""
    for method, name in ON_PROCESSORS.items():
        file = checkout / "results" / "stateRL_cpusim" / f"{name}.csv"
        curves: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
        for row in _rows(file):
            if row["metric"] == "avg_return" and row["env_name"] in TASKS:
                place = row["env_name"], row["seed"]
                curves[place][float(row["env_step"])] = float(row["value"])
        for task in TASKS:
            mine = [curve for (env, _), curve in curves.items() if env == task]
            yield from _at(task, method, SOURCES["flash_sac"], mine, POINTS)


def on_gpus(checkout: Path) -> Iterator[Row]:
    """Yield the rows of REPPO's repository."""
    for task in PLAYGROUND:
        for method, names in ON_GPUS.items():
            files = [checkout / "results" / f"{task}_{name}.csv" for name in names]
            several = [_curves(file) for file in files]
            best = max(several, key=lambda curves: np.mean([one[max(one)] for one in curves]))
            yield from _at(task, method, SOURCES["reppo"], best, FAR_POINTS)


def _curves(file: Path) -> list[dict[float, float]]:
    """Return the curve of each seed in a file of REPPO's repository."""
    rows = _rows(file)
    seeds = [name for name in rows[0] if name.startswith("trial_")]
    # Shorter curves are filled up with their last values.
    while len(rows) > 1 and all(rows[-1][one] == rows[-2][one] for one in seeds):
        rows.pop()
    return [{float(row["steps"]): float(row[one]) for row in rows if row[one]} for one in seeds]


def _rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV, which has some, each with all of its columns."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows: list[dict[str, str]] = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TrimtabError(f"{file}: cannot be read: {error}") from error
    if not rows or any(None in {*row, *row.values()} for row in rows):
        raise TrimtabError(f"{file}: is cut short; take a whole checkout")
    return rows


def _at(
    task: str,
    method: str,
    source: str,
    curves: list[dict[float, float]],
    points: tuple[int, ...],
) -> Iterator[Row]:
    """Yield the mean over curves at each point that they have an evaluation near."""
    for point in points:
        near = [min(one, key=lambda step: abs(step - point)) for one in curves]
        found = [(step, one[step]) for one, step in zip(curves, near, strict=True)
                 if abs(step - point) <= 0.1 * point]  # fmt: skip
        if found:
            steps, values = zip(*found, strict=True)
            yield {
                "task": task, "method": method, "source": source, "steps": point,
                "evaluated_at": round(float(np.mean(steps))), "seeds": len(values),
                "mean": round(float(np.mean(values)), 2),
            }  # fmt: skip


def page(rows: list[Row]) -> str:
    """Return the tables of ``released.md``, one a task."""
    tables: dict[str, list[dict[str, str]]] = {}
    for task in (*TASKS, *PLAYGROUND):
        points = FAR_POINTS if task in PLAYGROUND else POINTS
        here = {(row["method"], int(row["steps"])): float(row["mean"]) for row in rows
                if row["task"] == task}  # fmt: skip
        tables[task] = [
            {"method": method, **{f"{point:,} steps": number_text(here[method, point], 0)
             if (method, point) in here else "–" for point in points}}
            for method in dict.fromkeys(name for name, _ in here)
        ]  # fmt: skip
    return markdown_page("Released curves of learning from nothing", READING, tables)


def main(words: list[str]) -> int:
    """Write the rows and the page; without checkouts, the page from the committed rows."""
    given = dict(word.partition("=")[::2] for word in words)
    try:
        if unknown := given.keys() - SOURCES.keys():
            raise TrimtabError(f"released: {min(unknown)}: use {' and '.join(SOURCES)}")
        if given.keys() == SOURCES.keys():
            rows = [*on_processors(Path(given["flash_sac"])), *on_gpus(Path(given["reppo"]))]
            atomic_write_text(PLACE / "released.csv", csv_table(rows))
        elif given:
            raise TrimtabError(f"released: give both, {' and '.join(SOURCES)}")
        atomic_write_text(PLACE / "released.md", page(list(_rows(PLACE / "released.csv"))))
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except (KeyError, ValueError) as error:
        sys.stderr.write(f"released: a file has other columns or numbers than it should: {error}\n")
        return TrimtabError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
