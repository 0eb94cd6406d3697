"""The rows of a log in files that are written once, so that a checkpoint adds only what is new.

Rows up to some number are covered by spans of a few sizes, each a multiple of the one below, as
digits make up a number. Which spans there are follows from how many rows were written and not from
when checkpoints were made: a run that was killed and goes on ends with the files of one left alone.
(Only a span whose first rows were written over before any checkpoint was made is without them.)
A row is written at most once for each size. The rows behind the last span are the checkpoint's own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes, reading
from trimtab.types import RowLog

__all__ = ["Segment", "SegmentFolder", "describe", "read_log", "segments_of", "spans_of"]

SMALLEST = 1 << 18
"""Bytes of the smallest span, about; fewer are written with every checkpoint."""
LARGEST = 1 << 26
"""Bytes that no span exceeds, unless a single row does."""
FACTOR = 16
"""How many spans of a size make up one of the next size."""
LEAST_SPANS = 4
"""No span is longer than the ring's share by this number: so much of the disk may hold old rows."""


@dataclass(frozen=True)
class Segment:
    """Rows ``start`` to below ``stop`` of a log, in the file ``file`` of ``size`` bytes."""

    file: str
    start: int
    stop: int
    size: int
    sha256: str


def spans_of(log: RowLog) -> tuple[list[tuple[int, int]], int]:
    """Return the spans ``(start, stop)`` of rows that have files, and the first row after them."""
    row = sum(math.prod(a.shape[1:]) * a.itemsize for a in log.arrays.values())
    each = max(1, SMALLEST // max(1, row))
    sizes = [each]
    while sizes[-1] * FACTOR * row <= LARGEST and sizes[-1] * FACTOR <= log.rows // LEAST_SPANS:
        sizes.append(sizes[-1] * FACTOR)
    if each > log.rows // LEAST_SPANS:
        return [], log.oldest
    spans = []
    start = log.oldest // sizes[-1] * sizes[-1]
    for size in reversed(sizes):
        while start + size <= log.settled:
            if start + size > log.oldest:
                spans.append((start, start + size))
            start += size
    return spans, max(start, log.oldest)


class SegmentFolder:
    """The folder of the files, as its only writer knows it.

    Attributes:
        named: the segments of each log that the newest checkpoint names, by the log's path.

    Args:
        path: of the folder; made when there is a file for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.named: dict[str, list[Segment]] = {}
        self._added: list[Path] = []

    def write(self, logs: Mapping[str, RowLog]) -> dict[str, list[Segment]]:
        """Write what is not in a file yet; return the segments of each log.

        Files that are there stay as they are, also those that are not needed any more.

        Raises:
            TrimtabError: if the disk refuses; what was written is removed again.
        """
        self._added = []
        found: dict[str, list[Segment]] = {}
        try:
            for name, log in logs.items():
                found[name] = []
                for start, stop in spans_of(log)[0]:
                    first = max(start, log.oldest)
                    there = self._there(name, first, stop)
                    found[name].append(there or self._add(log, first, stop))
        except BaseException:
            self.take_back()
            raise
        return found

    def take_back(self) -> None:
        """Remove the files that the last ``write`` added."""
        for path in self._added:
            path.unlink(missing_ok=True)
        self._added = []

    def _there(self, name: str, first: int, stop: int) -> Segment | None:
        """Return the segment in which the newest checkpoint has these rows, if its file is there.

        It is known by what this process has written or read and checked itself.
        """
        for segment in self.named.get(name, []):
            if segment.start <= first and segment.stop == stop:
                with contextlib.suppress(OSError):
                    if (self.path / segment.file).stat().st_size == segment.size:
                        return segment
        return None

    def _add(self, log: RowLog, start: int, stop: int) -> Segment:
        data = safetensors.numpy.save(log.part(start, stop))
        digest = sha256(data).hexdigest()
        # Named by its content: no file that an older checkpoint names is ever written over.
        path = self.path / f"{start:012d}-{stop:012d}-{digest[:16]}.safetensors"
        if not path.exists():
            self._added.append(path)
        atomic_write_bytes(path, data)
        return Segment(path.name, start, stop, len(data), digest)

    def remove_others(self) -> None:
        """Remove every file that the newest checkpoint does not name, and an empty folder."""
        files = {segment.file for segments in self.named.values() for segment in segments}
        with contextlib.suppress(OSError):
            for path in sorted(self.path.iterdir()):
                if path.name not in files:
                    path.unlink()
            if not files:
                self.path.rmdir()


def describe(log: RowLog, segments: Iterable[Segment]) -> dict[str, Any]:
    """Return as JSON what :func:`read_log` has to know beside the rows of no segment."""
    return {
        "rows": log.rows,
        "written": log.written,
        "settled": log.settled,
        "cleared": log.cleared,
        "segments": [asdict(segment) for segment in segments],
    }


def segments_of(description: Mapping[str, Any]) -> list[Segment]:
    """Return the segments in what ``describe`` returned."""
    return [Segment(**entry) for entry in description["segments"]]


def read_log(
    description: Mapping[str, Any], tail: Mapping[str, NDArray[Any]], folder: Path
) -> RowLog:
    """Return a log that ``describe`` described.

    Args:
        description: see there.
        tail: its newest rows, those of no segment, by name; ``[0, ...]`` where there are none.
        folder: of the segments.

    Raises:
        TrimtabError: if a segment was changed since it was written.
        OSError: if one is missing.
    """
    rows, written = int(description["rows"]), int(description["written"])
    cleared = int(description.get("cleared", 0))  # an earlier version emptied no ring
    size = min(rows, written - cleared)
    arrays = {name: np.empty((size, *a.shape[1:]), a.dtype) for name, a in tail.items()}
    log = RowLog(arrays, rows, written, int(description["settled"]), cleared)
    for segment in segments_of(description):
        with reading(folder / segment.file) as file:
            data = file.read()
        if sha256(data).hexdigest() != segment.sha256:
            raise TrimtabError(f"{folder / segment.file} was changed since it was written")
        _put(log, safetensors.numpy.load(data), segment.start)
    _put(log, tail, written - min((len(array) for array in tail.values()), default=0))
    return log


def _put(log: RowLog, part: Mapping[str, NDArray[Any]], start: int) -> None:
    """Write rows with numbers from ``start`` to their places; those that are too old are left."""
    for name, array in log.arrays.items():
        first = max(start, log.oldest)
        numbers = np.arange(first, start + len(part[name]))
        array[numbers % log.rows] = part[name][first - start :]
