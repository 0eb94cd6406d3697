"""``trimtab speed``: Trimtab beside its peers, and how its costs grow."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from trimtab.benchmarks.cli.screen import print_json, print_rows, progress_bar
from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.benchmarks.speed import growth, report
from trimtab.benchmarks.speed import measure as speeds
from trimtab.errors import TrimtabError

__all__ = ["speed"]

logger = logging.getLogger(__name__)


def speed(only: str, rounds: int, scale: str, out: str, format: str) -> int:
    """Measure Trimtab against its peers, and with ``out`` also how costs grow."""
    factor, folder = speeds.check_scale(scale), Path(out)
    speeds.check_rounds(rounds)
    pairs, words = speeds.select(only, speeds.all_pairs(), ["growth", *growth.AXES])
    axes = [name for name in growth.AXES if "growth" in words or name in words]
    if only and axes and not out:
        raise TrimtabError(f"speed: only={only}: growth is written to files; add out=<folder>")
    rows: list[speeds.Row] = []
    if out:
        report.write_machine(folder, rounds, factor)  # a folder that cannot be written ends it here
    if pairs:
        done = functools.partial(report.write_rows, folder) if out else lambda rows: None
        with progress_bar("speed") as tell:
            rows = speeds.measure_all(pairs, rounds=rounds, scale=factor, progress=tell, done=done)
    if axes and out:
        with progress_bar("growth") as tell:
            points = growth.measure_axes(axes, rounds=rounds, scale=factor, progress=tell)
        growth.write_growth(folder, points)
    if format == "json":
        print_json([row.to_json() for row in rows])
    elif format == "markdown":
        answer_stream().write(report.markdown(rows))
    elif rows:
        print_rows("ours / peer: above 1, ours is faster", [report.readable(r) for r in rows])
    if out:
        logger.info("wrote %s", folder)
    return 0
