"""The arena's tables as Markdown and CSV."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.arena.differences import FOREST, Difference, differences, draw
from trimtab.benchmarks.board.arena.model import Arena, ArenaRow, Contest
from trimtab.benchmarks.board.baselines import FROZEN
from trimtab.benchmarks.board.tables import csv_table, markdown_table, write_texts
from trimtab.benchmarks.core.numerals import number_text

__all__ = ["FILES", "to_csv", "to_curves_csv", "to_markdown", "write"]

FILES = ("arena.md", "arena.csv", "curves.csv")
"""The tables that are written; beside them there is a picture, where there is something to draw."""

READING = """\
Every method of a contest that has a gain starts from the same frozen policies, one a seed; one
without (–) starts from nothing, with or without data. All have the same budget of environment
steps; updates on demonstrations before the first step are not counted in it. **Control gain** is
the difference to the best control of the contest (named beside it): controls learn nothing, or no
more than a constant or a ranking of the base's own samples. Gains are over the seeds that both
sides have. **Area** is the mean score over the budget, which without a base counts the first
evaluation from step 0 on, **regret** what it lacks to the best
method's area, **worst drop** how far the score fell below the base's on the way. **Distance** is
that of the last policy's actions from a sample of the base, in half ranges of an action; that of
`frozen` is two samples' of the base itself. **ms** is one decision for one observation, in torch
and in ONNX. Distance and ms are measured on the first seed's policy. Intervals are over seeds, 95
percent."""

OVERALL = """\
**One setting** is the mean success with the same setting on all tasks; compare methods that are
not in the same contests by what the best control has there. **Best per task** takes the best of a
method's settings in each contest, by the same episodes, so it flatters a little; **tuning
episodes** are the training episodes of all these settings."""

DIFFERENCES = """\
The mean difference of success to the best control of each contest, paired by seed, over all
contests with sparse rewards that a method is in. In hindsight the control is the best by all seeds,
held out each seed's is the best by the other seeds; *better* is read off the first and *worse* off
the second. The last interval is for the mean over all tasks like these. `differences.png` draws
them."""

_INTERVALS = ("score", "gain", "control_gain")
"""Columns that are an interval: an estimate with two ends."""


def to_markdown(arena: Arena) -> str:
    """Return all tables as Markdown."""
    parts = ["# Arena", READING]
    if arena.overall:
        parts += ["## Over all contests scored by success", OVERALL]
        parts += [markdown_table(_overall(arena))]
    if found := differences(arena):
        parts += ["## Beside the best control", DIFFERENCES]
        parts += [markdown_table([_difference_cells(row) for row in found])]
    for contest in arena.contests:
        parts += [f"## {contest.task}, from a {contest.base} policy"]
        parts += [f"`{contest.env}`, scored by {contest.metric}."]
        parts += [markdown_table([_cells(contest, row) for row in contest.rows])]
    return "\n\n".join(parts) + "\n"


def _overall(arena: Arena) -> list[dict[str, str]]:
    return [
        {
            "Method": row.method,
            "Contests": str(row.contests),
            "One setting": number_text(row.one_setting),
            "Best control there": "–" if math.isnan(row.control) else number_text(row.control),
            "Regret": number_text(row.regret),
            "Best per task": number_text(row.tuned),
            "Tuning episodes": number_text(row.tuning_episodes, 0) if row.tuning_episodes else "–",
        }
        for row in arena.overall
    ]


def _difference_cells(row: Difference) -> dict[str, str]:
    return {
        "Method": row.method,
        "Contests": str(row.contests),
        "Verdict": row.verdict,
        "In hindsight [95%]": row.hindsight.text(signed=True),
        "Held out [95%]": row.held_out.text(signed=True),
        "Over such tasks [95%]": row.over_tasks.text(signed=True),
    }


def _cells(contest: Contest, row: ArenaRow) -> dict[str, str]:
    digits = 2 if contest.metric == "success" else 0

    def number(value: float | None, decimals: int = digits, *, signed: bool = False) -> str:
        return "–" if value is None else number_text(value, decimals, signed=signed)

    gain = row.control_gain
    return {
        "Method": row.label,
        "Score [95%]": row.score.text(digits),
        "Control gain [95%]": gain.text(digits, signed=True) if gain else "–",
        "Control": row.control or "–",
        f"Gain over {FROZEN} [95%]": row.gain.text(digits, signed=True) if row.gain else "–",
        "Area": number(row.area),
        "Regret": number(row.regret),
        "Worst drop": number(row.worst_drop, signed=True),
        "Episodes": number(row.episodes, 0),
        "Seconds": number(row.seconds, 0),
        "Trained": f"{row.trained_parameters:,}",
        "Distance": number(row.base_distance, 2),
        "ms torch": number(row.torch_ms, 2),
        "ms ONNX": number(row.onnx_ms, 2),
        "Demonstrations online": "yes" if row.demonstrations else "no",
        "Seeds": str(len(row.seeds)),
    }


def to_csv(arena: Arena) -> str:
    """Return one line for each row, numbers unrounded."""
    lines = []
    for contest in arena.contests:
        for row in contest.rows:
            values = {name.rstrip("_"): value for name, value in vars(row).items()}
            del values["curve"]  # it has a file of its own
            del values["episode_scores"]  # they are the rows themselves
            for each in ("seeds", "finals", "areas"):
                values[each] = " ".join(f"{value:.6g}" for value in values[each])
            line: dict[str, Any] = {"env": contest.env, "contest": contest.base} | values
            for column in _INTERVALS:
                ends = values[column] or (None, None, None)
                line |= zip((column, f"{column}_low", f"{column}_high"), ends, strict=True)
            lines.append(line)
    return csv_table(lines)


def to_curves_csv(arena: Arena) -> str:
    """Return one line for each evaluation: score and return against steps, episodes, seconds."""
    return csv_table(
        [
            {
                "task": contest.task,
                "contest": contest.base,
                "method": row.method,
                "variant": row.variant,
                "env_steps": point.env_steps,
                "episodes": point.episodes,
                "seconds": point.seconds,
                "score": point.score,
                "return": point.return_,
            }
            for contest in arena.contests
            for row in contest.rows
            for point in row.curve
        ],
        ["score"],
    )


def write(arena: Arena, folder: Path) -> dict[str, Path]:
    """Write ``arena.md``, ``arena.csv``, ``curves.csv`` and the picture; return paths by name."""
    if found := differences(arena):
        draw(found, folder / FOREST)
    texts = (to_markdown(arena), to_csv(arena), to_curves_csv(arena))
    return write_texts(folder, dict(zip(FILES, texts, strict=True)))
