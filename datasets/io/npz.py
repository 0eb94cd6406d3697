"""Reading and writing of NumPy's ``.npz``, without pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.io.fetched import check_fetched
from trimtab.datasets.io.sandbox import Blocks
from trimtab.errors import TrimtabError
from trimtab.files import atomic_file

__all__ = ["array_names", "read_npz", "write_npz"]

_SUFFIX = ".npy"
_ADVICE = "make the dataset again or fetch a fresh copy"


def array_names(path: Path) -> frozenset[str]:
    """Return the names of a file's arrays; none if it is not an npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(n.removesuffix(_SUFFIX) for n in archive.namelist())
    except Exception:
        return frozenset()


def read_npz(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of numbers whose names are ``wanted``.

    Raises:
        TrimtabError: if the file is missing or damaged, or such an array is none of numbers.
    """
    if not path.is_file():
        raise TrimtabError(f"dataset {path}: the file is missing; {_ADVICE}")
    check_fetched(path)
    arrays = {}
    name = ""
    layout: Any = np.lib.format
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(_SUFFIX)
                if wanted(name):
                    with archive.open(entry) as file:
                        array = layout.read_array(file, allow_pickle=False)
                        if file.read(1):  # to the end, so that the archive's checksum is compared
                            raise ValueError(f"more than its shape {array.shape} is stored")
                    if array.dtype.kind not in "biuf":
                        raise ValueError(f"type {array.dtype} is not a number")
                    arrays[name] = array
    except Exception as error:
        key = f", key '{name}'" if name else ""
        raise TrimtabError(
            f"dataset {path}{key}: not readable ({type(error).__name__}: {error}); {_ADVICE}"
        ) from error
    return arrays


def write_npz(path: Path, arrays: Mapping[str, Blocks]) -> None:
    """Write ``arrays``, compressed, whole or not at all; the same arrays give the same bytes.

    Raises:
        TrimtabError: if the disk refuses.
    """
    layout: Any = np.lib.format
    with atomic_file(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            dtype = np.dtype(array.dtype)
            header = {
                "descr": layout.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": array.shape,
            }
            # An entry that is made from its name alone has no time of its own, as in NumPy's files.
            entry = zipfile.ZipInfo(name + _SUFFIX)
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as file:
                layout.write_array_header_1_0(file, header)
                for rows in array.read():
                    file.write(np.ascontiguousarray(rows, dtype).tobytes())
