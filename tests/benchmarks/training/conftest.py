"""What the tests of single runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
