"""Check and time on a CUDA GPU what a processor cannot show, in one call.

    python scripts/gpu.py out=benchmarks/results/gpu rounds=3 scale=1
    python scripts/gpu.py out=benchmarks/results/gpu only=ppo_half_cheetah_1024 scale=0.5

Three ways to update SAC (``gpu_updates.py``), MJX's environments (``gpu_simulation.py``) and a
whole run of PPO (``gpu_training.py``). The first two are checked, and then timed in turns with a
peer as ``trimtab speed`` does it. ``rows.json`` is written anew after each row, and rows of other
names stay in it, so a measurement may take several sittings; a row that failed says why. Without a
GPU it says so in one line and exits with code 2.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_simulation
import gpu_training
import gpu_updates
import torch
from gpu_part import Part

from trimtab.benchmarks.settings.words import listed, nearest
from trimtab.benchmarks.speed.measure import check_rounds, check_scale, measure
from trimtab.benchmarks.speed.report import machine
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json, read_json

__all__ = ["main", "measured"]

Row = dict[str, Any]
GIVEN = {"out": "gpu", "rounds": "3", "scale": "1.0", "only": ""}


@dataclass(frozen=True)
class Settings:
    """What the words ask for: the folder, turns of each side, a factor to the work, and rows."""

    out: Path
    rounds: int
    scale: float
    only: list[str]


def settings(words: list[str]) -> Settings:
    """Return what the words ask for.

    Raises:
        TrimtabError: on a word that is none of them, or whose value cannot be read.
    """
    given = dict(GIVEN)
    for word in words:
        name, is_given, value = word.partition("=")
        if not is_given or name not in given:
            raise TrimtabError(f"gpu: {word}: {nearest(name, list(given))}")
        given[name] = value
    if not given["rounds"].isdigit():
        raise TrimtabError(f"gpu: rounds={given['rounds']}: must be a whole number, such as 3")
    rounds, scale = check_rounds(int(given["rounds"])), check_scale(given["scale"])
    return Settings(Path(given["out"]), rounds, scale, listed(given["only"]))


def jobs(rounds: int, scale: float) -> dict[str, Callable[[], Row]]:
    """Return what measures each row, by its name."""
    parts = (*gpu_updates.parts(), *gpu_simulation.parts())
    found = {part.pair.name: functools.partial(timed, part, rounds, scale) for part in parts}
    return {**found, gpu_training.NAME: functools.partial(trained, scale)}


def trained(scale: float) -> Row:
    """Carry the whole run out, in a folder that goes."""
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        return gpu_training.run(Path(folder), scale)


def timed(part: Part, rounds: int, scale: float) -> Row:
    """Check a part and time it."""
    found = part.check()
    return {**measure(part.pair, rounds=rounds, scale=scale).to_json(), **found}


def measured(name: str, job: Callable[[], Row]) -> Row:
    """Return a job's row, or one that says why there is none: the others are wanted still."""
    try:
        return job()
    except Exception as error:  # a driver, a compiler or a peer may raise anything
        told = str(error).strip().splitlines() or [""]
        return {"name": name, "failed": f"{type(error).__name__}: {told[0]}"}


def main(words: list[str]) -> int:
    """Measure every row and write it; return 1 if one of them failed."""
    asked = settings(words)
    chosen = jobs(asked.rounds, asked.scale)
    for name in asked.only:
        if name not in chosen:
            raise TrimtabError(f"gpu: only={name}: there is no such row; {nearest(name, chosen)}")
    if not torch.cuda.is_available():
        raise TrimtabError("gpu: torch sees no CUDA GPU here; run it on a machine that has one")
    file = asked.out / "rows.json"
    rows = {row["name"]: row for row in read_json(file, "gpu")} if file.exists() else {}
    asked.out.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.get_device_name()
    taken = machine(asked.rounds, asked.scale)
    atomic_write_json(asked.out / "machine.json", {"gpu": gpu, **taken})
    failed = False
    for name in asked.only or chosen:
        rows[name] = {**measured(name, chosen[name]), "scale": asked.scale}
        failed = failed or "failed" in rows[name]
        atomic_write_json(file, [rows[name] for name in chosen if name in rows])
        sys.stdout.write(f"{rows[name]}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
