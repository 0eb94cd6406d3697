"""What ``trimtab speed`` tells and writes: tables of its rows, and the machine they are from."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.benchmarks.speed.measure import Row, cores
from trimtab.benchmarks.training.provenance import versions as own_versions
from trimtab.files import atomic_write_json, atomic_write_text

_PEERS = ("stable-baselines3", "envpool", "sbx-rl", "jax")
_RIGHT = ("ours", "peer", "ours / peer")


def readable(row: Row) -> dict[str, str]:
    """Return a row as a person reads it: three digits, and the ratio with its range."""
    ratio = "-"
    if row.ratio_median is not None:
        ratio = f"{row.ratio_median:.2f} ({row.ratio_min:.2f} to {row.ratio_max:.2f})"
    threads = str(row.ours_threads)
    if row.peer_threads is not None:
        threads += f" / {row.peer_threads}"
    return {
        "row": row.name,
        "ours": three_digits(row.ours),
        "peer": "-" if row.peer is None else three_digits(row.peer),
        "unit": row.unit,
        "ours / peer": ratio,
        "measured against": row.peer_name or "-",
        "threads": threads,
    }


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [readable(row) for row in rows]
    headings = list(lines[0]) if lines else ["nothing"]
    rule = ["---:" if heading in _RIGHT else "---" for heading in headings]
    body = [headings, rule, *(list(line.values()) for line in lines)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in body)


def three_digits(value: float) -> str:
    """Return a positive number with three digits that count: 1,230 or 0.0457."""
    if not value > 0:
        return f"{value:g}"
    places = 2 - math.floor(math.log10(value))
    return f"{round(value, places):,.{max(0, places)}f}"


def machine(rounds: int, scale: float) -> dict[str, Any]:
    """Return what the numbers depend on besides the code: processor, cores, load, versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "cores_usable": cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {**own_versions(), **versions_of(*_PEERS)},
        # Above 0 the machine was at work with something else when the measurement began.
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
        "rounds": rounds,
        "scale": scale,
    }


def versions_of(*packages: str) -> dict[str, str | None]:
    """Return the versions of packages; None for one that is not installed as a package."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def write_machine(folder: Path, rounds: int, scale: float) -> None:
    """Write ``machine.json``; done first, so that a folder that cannot be written ends at once."""
    atomic_write_json(folder / "machine.json", machine(rounds, scale))


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Write ``speed.json`` and ``speed.md``."""
    atomic_write_json(folder / "speed.json", [row.to_json() for row in rows])
    atomic_write_text(folder / "speed.md", markdown(rows))
