"""What lies on disk of a run, and what is read of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trimtab.benchmarks.training.checkpoint import load_checkpoint


def loaded(folder: Path) -> Any:
    state = load_checkpoint(folder)
    assert state is not None
    return state


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a run's checkpoints with its bytes."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
