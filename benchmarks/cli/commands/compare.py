"""``trimtab compare``: one sentence whether one configuration beats another."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from trimtab.benchmarks.board.compare import compare, side_of
from trimtab.benchmarks.board.recorded import check_recorded
from trimtab.benchmarks.board.sources import collect
from trimtab.benchmarks.board.stats import Interval
from trimtab.benchmarks.cli.screen import print_json, print_line
from trimtab.errors import TrimtabError

__all__ = ["compare_two"]

_LABEL = re.compile(r"((?:[^/(]|\([^)]*\))+)(?:/(.+))?")
"""What a leaderboard calls a method, which may have a path in brackets, and its task."""


def compare_two(a: str, b: str, runs: str, metric: str, intervals: str, format: str) -> int:
    """Print whether ``a`` beats ``b``: each is a place of rows, or a method of ``runs``."""
    options: dict[str, Any] = {"metric": metric} if metric else {}
    words = [("", "", place) if os.path.exists(place) else _label(place, runs) for place in (a, b)]
    for (method, _, place), word in zip(words, (a, b), strict=True):
        if method and not os.path.exists(place):
            raise TrimtabError(
                f"compare: {word}: there is no such file or folder, and as a method it would be "
                f"looked for in runs={place}, which does not exist; check the path, or runs="
            )
    env = next((env for _, env, _ in words if env), "")
    sides = []
    for (method, own, place), word in zip(words, (a, b), strict=True):
        table, sources = collect(Path(place))
        check_recorded(table, sources)
        task = own or env
        sides.append(side_of(table, word, sources.settings, method=method, env=task, **options))
    found = compare(*sides, intervals=intervals)
    if format == "json":
        values = vars(found).items()
        print_json({k: v._asdict() if isinstance(v, Interval) else v for k, v in values})
    else:
        print_line(found.sentence)
    return 0


def _label(word: str, runs: str) -> tuple[str, str, str]:
    """Return the method and the task that a word such as ``sac/gym/Hopper-v5`` names, and where."""
    found = _LABEL.fullmatch(word)
    return (found[1], found[2] or "", runs) if found else (word, "", runs)
