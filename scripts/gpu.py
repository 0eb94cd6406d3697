"""Check and time on a CUDA GPU what a processor cannot show, in one call.

    python scripts/gpu.py out=benchmarks/results/gpu rounds=3 scale=1
    python scripts/gpu.py out=benchmarks/results/gpu only=ppo_half_cheetah_4096 scale=0.3
    python scripts/gpu.py out=benchmarks/results/gpu minutes=9

Updates that are replayed as CUDA graphs (``gpu_updates.py``), decisions (``gpu_latency.py``), runs
that are killed and resumed, MJX's environments (``gpu_simulation.py``), runs of PPO beside Brax's
and a run of SAC (``gpu_training.py``), and runs that share the GPU (``gpu_side_by_side.py``). All
but the runs are checked, and then timed in turns with a peer as ``trimtab speed`` does it; a run
and its peer's are made one after the other. The cheapest rows come first.
``rows.json`` is written anew after each row. All other rows stay in the file, so a measurement may
take several sittings: with ``minutes=`` no row begins later than that, and the call ends with the
words ``only=`` of the rows that are left. Each row has the machine that it is from. A row that
failed says why, but does not take the place of one that was measured. Without a GPU the script says
so in one line and exits with code 2.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gpu_latency
import gpu_side_by_side
import gpu_simulation
import gpu_training
import gpu_updates
import published_tables
import torch

from trimtab.benchmarks.cli.words import Command, Setting, parse
from trimtab.benchmarks.contracts.resuming import check_resuming
from trimtab.benchmarks.speed.measure import Pair, begin_here, check_scale, measure
from trimtab.benchmarks.speed.report import machine, versions_of
from trimtab.benchmarks.training.settings.words import listed, nearest
from trimtab.envs.engines.mjx_programs import has_device
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json, atomic_write_text, read_json, unwritable

__all__ = ["main", "measured"]

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "benchmarks" / "results" / "gpu"
"""The committed rows; the table of their page is written with them."""
SIDE_BY_SIDE = {f"side_by_side_{count}": count for count in gpu_side_by_side.WORKERS}
PLAYGROUND = "env=playground/CartpoleSwingup env_options.horizon=21 num_envs=8"
RESUMED = {
    "resume_sac": "algorithm=sac",
    "resume_ppo_playground": f"{PLAYGROUND} algorithm=ppo algorithm.rollout_steps=8",
}
"""Runs that are killed and go on: with simulations on the processor, and on the GPU."""
SAME_KERNELS = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
NO_JAX = ("resume_sac", *gpu_updates.ROWS, *gpu_latency.ROWS, *SIDE_BY_SIDE)
"""The rows for which torch alone has to see the GPU."""
SETTINGS = {
    "out": Setting("gpu", "folder of the rows"),
    "rounds": Setting(3, "turns of each side; a row has their medians", least=1),
    "scale": Setting("1.0", "factor that multiplies the work of a turn"),
    "only": Setting("", "names of rows, with commas between them; without it, all"),
    "minutes": Setting(0, "minutes after which no row begins; 0: all rows", least=0),
}


@dataclass(frozen=True)
class Settings:
    """What the words ask for: the folder, turns, a factor to the work, rows, and minutes."""

    out: Path
    rounds: int
    scale: float
    only: list[str]
    minutes: int


def settings(words: list[str]) -> Settings:
    """Return what the words ask for.

    Raises:
        TrimtabError: on a word that is none of them, or whose value cannot be read.
    """
    for word in words:
        if "=" not in word:
            raise TrimtabError(
                f"gpu: {word}: write key=value, with one of {', '.join(SETTINGS)}, or --help"
            )
    given = parse("gpu", Command("gpu", "", (), SETTINGS), words)
    only = list(dict.fromkeys(listed(given["only"])))
    scale = check_scale(given["scale"], "gpu")
    return Settings(Path(given["out"]), given["rounds"], scale, only, given["minutes"])


def help_text() -> str:
    """Return what the script does, its settings and the names of its rows."""
    lines = [
        f"    {name:8}{setting.help}{f' ({setting.default})' if setting.default else ''}"
        for name, setting in SETTINGS.items()
    ]
    names = [f"    {name}" for name in jobs(settings([]))]
    return "\n".join([__doc__, "settings:", *lines, "", "rows:", *names, ""])


def jobs(asked: Settings) -> dict[str, Callable[[], Row]]:
    """Return what measures each row, by its name."""

    def rows_of(*parts: ModuleType) -> dict[str, Callable[[], Row]]:
        return {
            pair.name: functools.partial(timed, pair, check, asked.rounds, asked.scale)
            for part in parts
            for pair, check in part.parts()
        }

    shared = {
        name: functools.partial(side_by_side, asked, count) for name, count in SIDE_BY_SIDE.items()
    }
    runs = {one.name: functools.partial(trained, asked, one) for one in gpu_training.RUNS}
    # JAX keeps the memory that its rows took, so the runs that share the GPU come before them.
    updates, stepping = rows_of(gpu_updates, gpu_latency), rows_of(gpu_simulation)
    ending = {name: functools.partial(resumed, name) for name in RESUMED}
    first = {"resume_sac": ending.pop("resume_sac")}
    return {**first, **updates, **shared, **ending, **stepping, **runs}


def resumed(name: str, device: str = "cuda") -> Row:
    """Kill a run, let it go on, and compare it with one that was not killed.

    Each is a process of its own, which compiles anew; XLA is told to choose the same kernels.

    Raises:
        TrimtabError: if a bit of weights, rows or metrics differs.
    """
    before = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{before} {SAME_KERNELS}".strip()  # which processes inherit
    try:
        told = check_resuming([*RESUMED[name].split(), f"device={device}"])
    finally:
        os.environ["XLA_FLAGS"] = before
    return {"name": name, "group": "gpu", "found": told}


def trained(asked: Settings, training: gpu_training.Training) -> Row:
    """Carry a whole run out in a temporary folder, and keep its iterations."""
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        row, metrics = gpu_training.run(training, Path(folder), asked.scale)
    atomic_write_text(asked.out / training.name / "metrics.jsonl", metrics)
    return row


def side_by_side(asked: Settings, count: int) -> Row:
    """Carry runs that share the GPU out in a temporary folder."""
    gc.collect()
    torch.cuda.empty_cache()  # what earlier rows have left is memory that the runs may need
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        return gpu_side_by_side.run(count, Path(folder), asked.scale)


def timed(pair: Pair, check: Callable[[], Mapping[str, float]], rounds: int, scale: float) -> Row:
    """Check that our side does what it should, which gives further numbers of the row; time it."""
    found = check()
    return {**measure(pair, rounds=rounds, scale=scale, begin=begin_here).to_json(), **found}


def measured(name: str, job: Callable[[], Row]) -> Row:
    """Return a job's row, or one that says why it failed, so that the next are still measured."""
    try:
        return job()
    except Exception as error:  # a driver, a compiler or a peer may raise anything
        told = str(error).strip().splitlines() or [""]
        return {"name": name, "failed": f"{type(error).__name__}: {told[0]}"}


def main(words: list[str]) -> int:
    """Measure every row and write it; return 1 if one of them failed."""
    if {"--help", "-h"} & {*words}:
        sys.stdout.write(help_text())
        return 0
    asked = settings(words)
    known = jobs(asked)
    for name in asked.only:
        if name not in known:
            raise TrimtabError(f"gpu: only={name}: there is no such row; {nearest(name, known)}")
    chosen = asked.only or list(known)
    check_gpu(chosen)
    file = asked.out / "rows.json"
    rows = rows_so_far(file)
    place = {"gpu": torch.cuda.get_device_name(), **machine(asked.rounds, asked.scale)}
    del place["rounds"]  # rows that are timed in rounds have them
    place["packages"] |= versions_of("mujoco-mjx", "playground")
    order = {name: number for number, name in enumerate(known)}
    failed, started = False, time.monotonic()
    for number, name in enumerate(chosen):
        if asked.minutes and time.monotonic() - started > 60 * asked.minutes:
            sys.stdout.write(f"the time is over; left: only={','.join(chosen[number:])}\n")
            break
        row = {**measured(name, known[name]), "machine": place}
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        failed = failed or "failed" in row
        if "failed" not in row or "failed" in rows.get(name, row):
            rows[name] = row
        rows = dict(sorted(rows.items(), key=lambda item: order.get(item[0], len(order))))
        atomic_write_json(file, list(rows.values()))
        if asked.out.resolve() == COMMITTED:
            published_tables.write_pages(COMMITTED, ROOT)
    return 1 if failed else 0


def check_gpu(names: Sequence[str]) -> None:
    """Check that torch, and JAX where it is needed, see a GPU.

    Raises:
        TrimtabError: if they do not.
    """
    if not torch.cuda.is_available():
        raise TrimtabError("gpu: torch sees no CUDA GPU here; run it on a machine that has one")
    if all(name in NO_JAX for name in names):
        return
    others = f"or ask for other rows: only={','.join(NO_JAX)}"
    try:
        if not has_device("cuda"):
            raise TrimtabError(f"gpu: JAX sees no CUDA GPU here; install jax[cuda12], {others}")
    except ImportError as error:
        raise TrimtabError(f"gpu: {error}; install trimtab[playground], {others}") from error


def rows_so_far(file: Path) -> dict[str, Row]:
    """Return the rows of a file by their names; none if there is no file yet.

    Raises:
        TrimtabError: if it cannot be read or holds something else, or its folder cannot be made or
            written into.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrimtabError(
            f"gpu: out={file.parent}: {error.strerror}; name another folder"
        ) from error
    if reason := unwritable(file.parent):
        raise TrimtabError(f"gpu: out={file.parent}: {reason}; name another folder")
    if not file.exists():
        return {}
    rows = read_json(file, "gpu")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows
    ):
        raise TrimtabError(f"gpu: {file} holds no rows of this script; name another out=")
    return {row["name"]: row for row in rows}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TrimtabError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("gpu: interrupted; every row that was measured is in rows.json\n")
        sys.exit(130)
