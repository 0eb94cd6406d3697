"""Check and time on a CUDA GPU what a processor cannot show, in one call.

    python scripts/gpu.py out=benchmarks/results/gpu rounds=3 scale=1

Three ways to update SAC (``gpu_updates.py``), MJX's environments (``gpu_simulation.py``) and a
whole run of PPO (``gpu_training.py``). Each is first checked and then timed in turns with a peer,
as ``trimtab speed`` does it. ``rows.json`` is written anew after each row, so what is interrupted
is not lost; a row that failed says why. Without a GPU it says so in one line and exits with code 2.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_simulation
import gpu_training
import gpu_updates
import torch
from gpu_part import Part

from trimtab.benchmarks.settings.words import nearest
from trimtab.benchmarks.speed.measure import check_rounds, check_scale, measure
from trimtab.benchmarks.speed.report import machine
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json

__all__ = ["main", "measured"]

Row = dict[str, Any]
GIVEN = {"out": "gpu", "rounds": "3", "scale": "1.0"}


def settings(words: list[str]) -> tuple[Path, int, float]:
    """Return the folder, the rounds and the scale that the words ask for.

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
    return Path(given["out"]), check_rounds(int(given["rounds"])), check_scale(given["scale"])


def jobs(rounds: int, scale: float) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Yield the name of each row and what measures it."""
    for part in (*gpu_updates.parts(), *gpu_simulation.parts()):
        yield part.pair.name, lambda part=part: timed(part, rounds, scale)  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        yield gpu_training.NAME, lambda: gpu_training.run(Path(folder), scale)


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
    out, rounds, scale = settings(words)
    if not torch.cuda.is_available():
        raise TrimtabError("gpu: torch sees no CUDA GPU here; run it on a machine that has one")
    out.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.get_device_name()
    atomic_write_json(out / "machine.json", {"gpu": gpu, **machine(rounds, scale)})
    rows: list[Row] = []
    for name, job in jobs(rounds, scale):
        rows.append(measured(name, job))
        atomic_write_json(out / "rows.json", rows)
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
