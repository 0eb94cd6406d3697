"""The tables of measured rows as Markdown, and the page that has all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from coverage_study.measuring import NEW_DRAWS, OLD_DRAWS, RESAMPLES
from coverage_study.power import POWER_SEEDS, detectable
from scipy.special import stdtrit


def page(rows: Sequence[Mapping[str, Any]], powers: Sequence[Mapping[str, Any]]) -> str:
    """Return ``coverage.md``."""
    parts = (
        "# Coverage of the 95 percent intervals, measured",
        f"New: {NEW_DRAWS:,} draws a cell (standard error 0.007 at 0.95). Old: percentile "
        f"bootstrap, {OLD_DRAWS} draws a cell (standard error 0.013 at 0.95), {RESAMPLES} "
        "resamples.",
        "## By situation and number of seeds", summary(rows),
        "## Verdicts on a method beside its peer, normal scores", verdict_table(powers),
        "## Smallest difference found with 80 percent power, in standard deviations", seeds_table(),
        "## Every cell", details(rows),
    )  # fmt: skip
    return "\n\n".join(parts) + "\n"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return for each situation and number of seeds the median and the least coverage."""
    lines: list[Sequence[object]] = [
        ("situation", "seeds", "settings", "new: median", "new: least", "old: median", "old: least")
    ]
    keys = list(dict.fromkeys((row["situation"], int(row["runs"])) for row in rows))
    for situation, runs in sorted(keys, key=lambda key: [k[0] for k in keys].index(key[0])):
        here = [r for r in rows if (r["situation"], int(r["runs"])) == (situation, runs)]
        cells_ = [
            f"{found:.2f}"
            for name in ("coverage", "old_coverage")
            for values in [[float(row[name]) for row in here]]
            for found in (np.median(values), min(values))
        ]
        lines.append((situation, runs, len(here), *cells_))
    return table(lines)


def seeds_table() -> str:
    """Return the smallest difference that is found with 80 percent power, by seeds."""
    lines: list[Sequence[object]] = [("seeds a side", "t quantile", "independent", "paired")]
    for seeds in POWER_SEEDS:
        quantile = float(stdtrit(seeds - 1, 0.975))
        lines.append(
            (seeds, f"{quantile:.2f}", *(f"{detectable(seeds, paired):.1f}" for paired in (0, 1)))
        )
    return table(lines, 0)


def verdict_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often each verdict is given."""
    names = ("behind", "cannot be told", "not behind", "old test")
    lines: list[Sequence[object]] = [
        ("ours is worse by", "seeds a side", *names[:3], "old test passed")
    ]
    for row in rows:
        cells_ = [f"{float(row[name]):.2f}" for name in names]
        lines.append((f"{float(row['worse_by']):g}", row["seeds"], *cells_))
    return table(lines, 0)


def contests_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often each of the four verdicts is given beside the best of some controls."""
    words = ("contests", "seeds", "controls", "difference")
    names = ("better", "worse", "no different", "not told yet", "better held out",
             "worse in hindsight", "over tasks")  # fmt: skip
    heading = (*words, *names[:4], "*better* read held out", "*worse* read in hindsight",
               "coverage of the mean over tasks")  # fmt: skip
    lines = [[*(row[name] for name in words), *(f"{float(row[n]):.2f}" for n in names)]
             for row in rows]  # fmt: skip
    return table([heading, *lines], 0)


def looks_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often a plan of several looks ends with each verdict."""
    names = ("better", "worse", "no different", "not told yet", "first at 95 percent",
             "told at 95 percent each")  # fmt: skip
    heading = ("controls", "difference", *names[:4], "told, if the first look asked for 95 percent",
               "told, if each look did", "seeds used")  # fmt: skip
    lines = [[row["controls"], row["difference"], *(f"{float(row[n]):.2f}" for n in names),
              f"{float(row['mean seeds']):.1f}"] for row in rows]  # fmt: skip
    return table([heading, *lines])


def starts_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often no difference is taken for one where all runs share their starts."""
    lines = [[row["share"], row["contests"], row["seeds"], f"{float(row['told']):.2f}",
              f"{float(row['told by seeds alone']):.2f}"] for row in rows]  # fmt: skip
    heading = ("share of the start", "contests", "seeds", "told", "told by seeds alone")
    return table([heading, *lines], 0)


def unequal_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often no difference is taken for one where contests vary unequally."""
    names = ("contests", "seeds", "told", "told by all degrees", "told at looks")
    heading = ("contests", "seeds", "told", "told, with all degrees of freedom", "told at a look")
    lines = [[row[n] if n in names[:2] else f"{float(row[n]):.2f}" for n in names] for row in rows]
    return table([heading, *lines], 0)


def tasks_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how often the interval over tasks holds where each task has two clones."""
    heading = ("share of the task", "tasks as draws", "clones as draws")
    names = ("share", "tasks as draws", "clones as draws")
    lines = [[f"{float(row[n]):.1f}" if n == "share" else f"{float(row[n]):.2f}" for n in names]
             for row in rows]  # fmt: skip
    return table([heading, *lines], 0)


def details(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return every cell."""
    names = ("situation", "setting", "runs", "episodes", "coverage", "width", "old_coverage",
             "old_width")  # fmt: skip
    lines: list[Sequence[object]] = [
        ("situation", "setting", "seeds", "episodes", "coverage", "width", "old coverage",
         "old width")
    ]  # fmt: skip
    for row in rows:
        lines.append(
            [f"{float(row[n]):.3f}" if "wid" in n or "cov" in n else row[n] for n in names]
        )
    return table(lines, 2)


def table(lines: Iterable[Sequence[object]], words: int = 1) -> str:
    """Return lines of cells as Markdown; the first ``words`` columns are words."""
    heading, *rest = [[str(cell) for cell in line] for line in lines]
    rule = [":--" if number < words else "--:" for number in range(len(heading))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, rule, *rest))
