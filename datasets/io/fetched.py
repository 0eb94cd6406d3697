"""Whether a file is there with its content."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trimtab.errors import TrimtabError

__all__ = ["check_fetched"]

_POINTER = b"version https://git-lfs"
_ADVICE = "make the dataset again or fetch a fresh copy"


def check_fetched(path: Path) -> None:
    """Check that a file is neither empty nor Git's note of where its content is.

    Any other fault is its reader's to tell.

    Raises:
        TrimtabError: if it is.
    """
    start = b"unknown"
    if path.is_file():  # a pipe would be waited for
        with suppress(OSError), open(path, "rb") as file:
            start = file.read(len(_POINTER))
    if not start:
        raise TrimtabError(f"dataset {path}: the file is empty; {_ADVICE}")
    if start == _POINTER:
        raise TrimtabError(
            f"dataset {path}: a pointer of Git LFS and not the file itself; run git lfs pull"
        )
