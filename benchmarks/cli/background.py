"""What is shown of a suite from another terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from trimtab.benchmarks.cli.screen import print_json, print_line, print_rows

__all__ = ["print_progress"]

_HINTS = {
    "running": "it goes on",
    "done": "all runs are done",
    "ended": "run the same command to go on",
    "lost": "its process is gone; run the same command to go on",
}


def print_progress(found: Mapping[str, Any], format: str) -> None:
    """Print how far a suite is."""
    if format == "json":
        print_json(found)
        return
    runs: Mapping[str, Mapping[str, Any]] = found["runs"]
    done = sum(run["state"] == "done" for run in runs.values())
    rows = [
        {"run": label, "state": run["state"], "done": f"{run['share']:.0%}", "": run["text"]}
        for label, run in runs.items()
    ]
    ago = max(time.time() - found["updated"], 0.0)
    print_rows(
        f"{found['suite']} by launcher={found['launcher']}: {done} of {len(runs)} runs, "
        f"{found['state']}, last news {ago:.0f} s ago",
        rows,
    )
    why = f"{found['ended']}; " if found["state"] == "ended" else ""
    print_line(f"{why}{_HINTS[found['state']]}")
