"""``trimtab speed``: Trimtab beside its peers."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from trimtab.benchmarks.cli.screen import print_json, print_rows, progress_bar
from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.benchmarks.speed import measure as speeds
from trimtab.benchmarks.speed import report

__all__ = ["speed"]

logger = logging.getLogger(__name__)


def speed(only: str, rounds: int, scale: str, out: str, format: str) -> int:
    """Measure Trimtab against its peers."""
    factor, folder = speeds.check_scale(scale), Path(out)
    speeds.check_rounds(rounds)
    pairs = speeds.select(only, speeds.all_pairs())
    if out:
        report.write_machine(folder, rounds, factor)  # a folder that cannot be written ends it here
    done = functools.partial(report.write_rows, folder) if out else lambda rows: None
    with progress_bar("speed") as tell:
        rows = speeds.measure_all(pairs, rounds=rounds, scale=factor, progress=tell, done=done)
    if format == "json":
        print_json([row.to_json() for row in rows])
    elif format == "markdown":
        answer_stream().write(report.markdown(rows))
    else:
        print_rows("ours / peer: above 1, ours is faster", [report.readable(r) for r in rows])
    if out:
        logger.info("wrote %s", folder)
    return 0
