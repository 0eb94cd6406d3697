"""What the tests of single runs share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.training import run as loop


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Interrupt the run of a block as soon as it has come to a position."""

    @contextmanager
    def stopped(position: int) -> Iterator[None]:
        after = loop.Run._finish_step

        def stop(run: Any, index: int, steps: int) -> None:
            after(run, index, steps)
            if run.position >= position:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loop.Run, "_finish_step", stop)
            yield

    return stopped


@pytest.fixture
def copied_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Path], Any]:
    """Copy the folder of a block's run to ``copy`` as soon as the run has come to a position.

    That is what would be left of it if its process ended there; the run itself goes on.
    """

    @contextmanager
    def copied(position: int, copy: Path) -> Iterator[None]:
        after = loop.Run._finish_step

        def keep(run: Any, index: int, steps: int) -> None:
            after(run, index, steps)
            if run.position >= position and not copy.exists():
                shutil.copytree(run.config["out"], copy)

        with monkeypatch.context() as patch:
            patch.setattr(loop.Run, "_finish_step", keep)
            yield

    return copied
