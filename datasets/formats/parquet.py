"""Guarded reading of columns of numbers from Parquet files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trimtab.datasets.formats.apart import Read, read_apart
from trimtab.errors import TrimtabError

__all__ = ["read_columns"]

_FAULTS = (
    pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError,
    RuntimeError, AttributeError, IndexError,
)  # fmt: skip
_MOST_COMPRESSION = 10_000  # dictionaries and runs of one value, and then snappy
_DEEPEST = 4
_ADVICE = "make the dataset again or fetch a fresh copy"


def read_columns(
    paths: Sequence[Path], widths: Mapping[str, int], folder: Path
) -> dict[str, npt.NDArray[Any]]:
    """Return columns of all files end to end, in a process apart: damage can crash the reader.

    Args:
        paths: the files, in order.
        widths: numbers in a row of each column that is read: 1 gives ``[N]``, more ``[N, width]``.
            A column that no file has is left out.
        folder: named in errors.

    Raises:
        TrimtabError: if a file is damaged, or a column is not of that many numbers.
    """

    def read() -> Read:
        tables = [_read_one(path, widths) for path in paths]
        names = set().union(*tables) if tables else set()
        for path, table in zip(paths, tables, strict=True):
            if missing := sorted(names - table.keys()):
                raise TrimtabError(f"dataset {path}, key '{missing[0]}': missing; {_ADVICE}")
        return {}, {name: np.concatenate([table[name] for table in tables]) for name in names}

    _, columns = read_apart(folder, read)
    return dict(columns)


def _read_one(path: Path, widths: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    columns = {}
    name = ""
    try:
        size = path.stat().st_size
        with pq.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            present = [column for column in file.schema_arrow.names if column in widths]
            for name in present:
                if not 0 <= rows * widths[name] <= size * _MOST_COMPRESSION:
                    raise ValueError(f"{rows} rows, which the file cannot hold")
                column = file.read([name], use_threads=False).column(0)
                columns[name] = _numbers(column.combine_chunks(), rows, widths[name])
    except _FAULTS as error:
        key = f", key '{name}'" if name else ""
        raise TrimtabError(
            f"dataset {path}{key}: not readable ({type(error).__name__}: {error}); {_ADVICE}"
        ) from error
    return columns


def _numbers(column: Any, rows: int, width: int) -> npt.NDArray[Any]:
    if isinstance(column, pa.ChunkedArray):  # what no row combines to
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([])
    if len(column) != rows:
        raise ValueError(f"{len(column)} rows, expected {rows}")
    for _ in range(_DEEPEST):
        if column.null_count:
            raise ValueError("values are missing")
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if not isinstance(column, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
            break
        lengths = pc.min_max(pc.list_value_length(column)).as_py()
        if lengths["min"] != lengths["max"]:
            raise ValueError("its rows are of several lengths")
        column = column.flatten()
    array = column.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"type {array.dtype} is not a number")
    if array.size != math.prod((rows, width)):
        raise ValueError(f"{array.size} numbers in {rows} rows, expected {width} each")
    return np.asarray(array if width == 1 else array.reshape(rows, width))
