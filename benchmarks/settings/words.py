"""Hints on words that nothing is called by."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest", "quoted"]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest right word, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"


def quoted(path: str) -> str:
    """Return a path as a Hydra override's value."""
    return "'" + path.replace("'", "\\'") + "'"
