"""The log of what updates return, ``metrics.jsonl``."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.benchmarks.training.folder import log_fault
from trimtab.benchmarks.training.locking import remedy
from trimtab.errors import Stopped, TrimtabError
from trimtab.files import limit_reached
from trimtab.types import Metrics

__all__ = ["MetricsLog", "NotFinite", "placed"]

logger = logging.getLogger(__name__)


class NotFinite(TrimtabError):
    """A metric that is no finite number.

    Attributes:
        ago: updates since the one that it is of.
    """

    def __init__(self, name: str, value: float, ago: int) -> None:
        super().__init__(f"{name} is {value}")
        self.ago = ago


@contextmanager
def placed(where: Callable[[int], str], update: int) -> Iterator[None]:
    """Say of an error at which update of a run it came; :class:`NotFinite` knows that itself."""
    try:
        yield
    except (Stopped, NotFinite):
        raise
    except TrimtabError as error:
        raise TrimtabError(f"{where(update)}: {error}") from error


def _numbers(values: Sequence[float | Tensor], name: str) -> list[float]:
    """Return scalars as numbers, those of tensors in one transfer."""
    if all(isinstance(value, Tensor) and value.ndim == 0 for value in values):
        numbers: list[float] = torch.stack([v for v in values if isinstance(v, Tensor)]).tolist()
        return numbers
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError, RuntimeError) as error:
        raise TrimtabError(f"the metric {name} of an update is no scalar ({error})") from error


def _shown(value: object) -> str:
    return " ".join(repr(value).split())[:80]


class MetricsLog:
    """Running means of an update's metrics, appended to ``metrics.jsonl`` a line at a time.

    The file's length is part of a checkpoint, so a resumed run cuts what was written after it.
    Tensors are read in :meth:`settle` alone, so an update never waits for its device. Whether they
    are finite is checked there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sums: dict[str, float] = {}
        self._kept: list[Metrics] = []
        self.count = 0
        self.length = 0

    def add(self, metrics: object) -> None:
        """Keep the metrics of one update, tensors where they are, until :meth:`settle`.

        Raises:
            TrimtabError: if it is no mapping, or lacks a name that an update before it had.
        """
        if not isinstance(metrics, Mapping):
            raise TrimtabError(
                f"an update returned {_shown(metrics)}; it has to return named scalars"
            )
        if self._kept and (lacking := [n for n in self._kept[0] if n not in metrics]):
            raise TrimtabError(
                f"an update returned no {lacking[0]}, and one before did; the names of the metrics "
                "have to be the same every time"
            )
        self._kept.append(cast(Metrics, metrics))

    @property
    def pending(self) -> bool:
        """Whether there are updates since the last line."""
        return bool(self._kept or self.count)

    def settle(self) -> None:
        """Add what was kept to the running means.

        Raises:
            NotFinite: if a value is no finite number; the first such one.
        """
        kept, self._kept = self._kept, []
        names = kept[0] if kept else ()
        columns = {name: _numbers([metrics[name] for metrics in kept], name) for name in names}
        for place in range(len(kept)):
            for name, column in columns.items():
                if not math.isfinite(column[place]):
                    raise NotFinite(name, column[place], len(kept) - 1 - place)
        for name, column in columns.items():
            total = self.sums.get(name, 0.0)
            for value in column:  # one after another, so that no look in between moves a bit
                total += value
            self.sums[name] = total
        self.count += len(kept)

    def write(
        self, position: Mapping[str, Any], extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Append one line: position in the run, means since the last line, and ``extra``.

        Returns:
            What the line holds.
        """
        self.settle()
        means = {name: value / max(self.count, 1) for name, value in self.sums.items()}
        numbers = {**position, **means, **(extra or {})}
        line = json.dumps(numbers) + "\n"
        self.sums, self.count = {}, 0
        with self._explained(), open(self.path, "ab") as file:
            file.write(line.encode())
        self.length += len(line.encode())
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the running means and the file's length."""
        self.settle()
        return {"sums": dict(self.sums), "count": self.count, "length": self.length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken, dropping lines that were written after it.

        A log that is gone begins again here: nothing is computed from it.

        Raises:
            TrimtabError: if the log is not what it was, or cannot be written.
        """
        self.sums, self.count = dict(state["sums"]), int(state["count"])
        self.length = int(state["length"])
        if self.length and not os.path.lexists(self.path):
            logger.warning(
                "%s is gone: the log of this run begins anew, its numbers do not", self.path
            )
            self.length = 0
        with self._explained():
            fault = log_fault(self.path, self.length)
            if fault:  # cutting one that is too short would fill it up with zeros
                raise TrimtabError(f"{self.path} {fault}; {remedy(self.path.parent)}")
            self.path.touch()
            os.truncate(self.path, self.length)

    def start_again(self) -> None:
        """Drop what an earlier process wrote that left no checkpoint."""
        with self._explained():
            self.path.unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self.path.is_dir():
                raise TrimtabError(f"{self.path} is no file; {remedy(self.path.parent)}") from error
            cure = limit_reached(error) or "free the disk or choose another out="
            raise TrimtabError(f"cannot write {self.path}: {error.strerror}; {cure}") from error
