"""Guarded reading of columns of numbers from Parquet files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trimtab.datasets.io.fetched import check_fetched
from trimtab.datasets.io.hdf5 import FORBIDDEN
from trimtab.datasets.io.sandbox import Blocks, Read, read_apart
from trimtab.errors import TrimtabError

__all__ = ["Table", "read_columns", "read_table"]

_MOST_COMPRESSION = 10_000  # dictionaries and runs of one value, and then snappy
_DEEPEST = 4
_ADVICE = "make the dataset again or fetch a fresh copy"


class Table(NamedTuple):
    """Files of one table, end to end.

    Attributes:
        columns: those that were asked for and are there, ``[N]`` or ``[N, width]``.
        names: of all columns.
        rows: number of rows of each file.
    """

    columns: dict[str, npt.NDArray[Any]]
    names: list[str]
    rows: list[int]


def read_columns(
    paths: Sequence[Path], widths: Mapping[str, int], folder: Path
) -> dict[str, npt.NDArray[Any]]:
    """Return columns of all files end to end, in a separate process: damage can crash the reader.

    Args:
        paths: the files, in order.
        widths: numbers in a row of each column that is read: 1 gives ``[N]``, more ``[N, width]``.
            A column that no file has is left out.
        folder: named in errors.

    Raises:
        TrimtabError: if a file is damaged, or a column is not of that many numbers.
    """
    return read_table(paths, widths, folder).columns


def read_table(paths: Sequence[Path], widths: Mapping[str, int], folder: Path) -> Table:
    """Read as :func:`read_columns` does, and say what columns and rows there are.

    Raises:
        TrimtabError: as :func:`read_columns`.
    """
    task = ([str(path) for path in paths], dict(widths))
    values, columns = read_apart(folder, _read, *task)
    return Table(columns, values["names"], values["rows"])


@contextmanager
def _read(paths: Sequence[str], widths: Mapping[str, int]) -> Iterator[Read]:
    files = [_Columns(Path(path), widths) for path in paths]
    names = sorted(set().union(*(file.types for file in files)))
    for file in files:
        if missing := sorted(set(names) - file.types.keys()):
            place = f"dataset {file.path}, key '{missing[0]}'"
            raise TrimtabError(f"{place}: missing; {_ADVICE}")
    values = {
        "names": sorted(set().union(*(file.names for file in files))),
        "rows": [file.rows for file in files],
    }
    yield values, ((name, _joined(name, widths[name], files)) for name in names)


class _Columns:
    """The columns of numbers of one file, read a row group at a time.

    The file is open only while a column is read: version 2.1 has as many files as episodes.

    Args:
        path: the file.
        widths: numbers in a row of each column that is wanted.

    Raises:
        TrimtabError: if the file is damaged, or a column is none of numbers.
    """

    def __init__(self, path: Path, widths: Mapping[str, int]) -> None:
        self.path, self._widths = path, widths
        self.types: dict[str, np.dtype[Any]] = {}
        check_fetched(path)
        with self._guarded():
            if not path.is_file():  # a pipe would be waited for
                raise ValueError("it is no regular file")
            size = path.stat().st_size
            with open(path, "rb") as raw, pq.ParquetFile(raw) as file:  # pyarrow's paths are UTF-8
                self._metadata = file.metadata
                self.names = list(file.schema_arrow.names)
                fields = [field for field in file.schema_arrow if field.name in widths]
            self.rows = self._metadata.num_rows
        for field in fields:
            with self._guarded(field.name):
                if not 0 <= self.rows * widths[field.name] <= size * _MOST_COMPRESSION:
                    raise ValueError(f"{self.rows} rows, which the file cannot hold")
                self.types[field.name] = _number_type(field.type)

    @contextmanager
    def _guarded(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise TrimtabError(f"dataset {self.path}: {FORBIDDEN}") from error
        except Exception as error:
            key = f", key '{name}'" if name else ""
            raise TrimtabError(
                f"dataset {self.path}{key}: not readable ({type(error).__name__}: {error}); "
                f"{_ADVICE}"
            ) from error

    def read(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yield a column's rows ``[n]`` or ``[n, width]``."""
        found = 0
        with (
            self._guarded(name),
            open(self.path, "rb") as raw,
            pq.ParquetFile(raw, metadata=self._metadata) as file,
        ):
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, [name], use_threads=False)
                column = table.column(0).combine_chunks()
                block = _numbers(column, table.num_rows, self._widths[name])
                found += len(block)
                yield block
            if found != self.rows:
                raise ValueError(f"{found} rows, expected {self.rows}")


def _joined(name: str, width: int, files: Sequence[_Columns]) -> Blocks:
    """Return a column of all files end to end."""
    return Blocks(
        np.result_type(*(file.types[name] for file in files)),
        (sum(file.rows for file in files), *([] if width == 1 else [width])),
        lambda: (block for file in files for block in file.read(name)),
    )


def _number_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the type of the numbers in lists of lists of them."""
    for _ in range(_DEEPEST):
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if not isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            break
        kind = kind.value_type
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    if dtype.kind not in "biuf":
        raise ValueError(f"type {kind} is not a number")
    return dtype


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
