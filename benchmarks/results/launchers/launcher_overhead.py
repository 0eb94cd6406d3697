"""Measure what a launcher adds to a suite: the same runs, which do almost nothing, by each of them.

    python launcher_overhead.py out=benchmarks/results/launchers rounds=3

Each measurement is a whole ``trimtab bench`` in an empty folder, two runs at a time. What a further
run costs is the difference between a suite of ten runs and one of two, divided by eight. Launchers
take turns, so that a machine that slows down for a while slows all of them down.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from trimtab.benchmarks.speed.measure import check_rounds
from trimtab.benchmarks.speed.report import write_machine
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json, atomic_write_text

__all__ = ["LAUNCHERS", "measure", "table"]

FEW, MANY = 2, 10
LAUNCHERS = {
    "local": ["launcher=local"],
    "slurm, a run a job": ["launcher=slurm", "launcher.cluster=local"],
    "slurm, two runs a job": [
        "launcher=slurm", "launcher.cluster=local", "launcher.runs_a_job=2",
    ],
    "ray, started with the suite": ["launcher=ray"],
}  # fmt: skip
"""The words of each launcher; Slurm is submitit's executor for one machine."""
RUN = ["env=gym/Hopper-v5", "algorithm=sac", "algorithm.hidden=[16]", "online_steps=60"]
RUN += ["algorithm.warmup_steps=50", "eval_episodes=1"]


def measure(words: list[str], runs: int) -> float:
    """Return the seconds that a suite takes, from the command to its tables.

    Args:
        words: those of the launcher.
        runs: number of runs in the suite.

    Raises:
        TrimtabError: if the suite does not come to its end.
    """
    suite: dict[str, Any] = {"title": "Runs of nothing", "seeds": list(range(runs))}
    suite["runs"] = {"sac": {"overrides": RUN, "seconds": 1}}
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        (Path(folder) / "nothing.yaml").write_text(yaml.safe_dump(suite), encoding="utf-8")
        command = [sys.executable, "-m", "trimtab.benchmarks.cli.main", "bench"]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "suite=nothing.yaml", "workers=2", *words],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - started
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["it says nothing"]
        raise TrimtabError(f"{' '.join(words)}: {told[-1]}")
    return seconds


def table(rows: list[dict[str, object]]) -> str:
    """Return medians over the rounds as Markdown, with the least and the greatest."""
    lines = ["| launcher | two runs, seconds | each further run, seconds |", "| :-- | --: | --: |"]
    for name in LAUNCHERS:
        taken = [row for row in rows if row["launcher"] == name]
        few = [float(str(row["two_runs"])) for row in taken]
        more = [float(str(row["further_run"])) for row in taken]
        texts = (f"{statistics.median(x):.1f} ({min(x):.1f} to {max(x):.1f})" for x in (few, more))
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> int:
    """Measure, and write the rows and their table; the exit code is 2 on wrong input."""
    given = dict(word.partition("=")[::2] for word in words)
    try:
        rounds = int(given.pop("rounds", "3"))
        out = Path(given.pop("out", "launchers"))
        check_rounds(rounds)
        if given:
            raise TrimtabError(f"unknown: {', '.join(given)}; there are out= and rounds=")
        rows: list[dict[str, object]] = []
        write_machine(out, rounds, 1.0)
        for number in range(rounds):
            for name, launcher in LAUNCHERS.items():
                few, many = measure(launcher, FEW), measure(launcher, MANY)
                further = (many - few) / (MANY - FEW)
                rows.append({
                    "launcher": name, "round": number, "two_runs": round(few, 2),
                    "ten_runs": round(many, 2), "further_run": round(further, 2),
                })  # fmt: skip
                sys.stderr.write(f"{name}, round {number + 1} of {rounds}: {few:.1f} s\n")
                atomic_write_json(out / "rows.json", rows)  # what there is stays after a failure
    except (ValueError, TrimtabError) as error:
        sys.stderr.write(f"launcher_overhead: {error}\n")
        return 2
    atomic_write_text(out / "launchers.md", table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
