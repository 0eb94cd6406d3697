"""Words as people write them, and hints on those that nothing is called by."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["listed", "nearest", "quoted", "yaml_fault"]

_MOST_NAMED = 40  # right words in one message; more of them are no help


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest right word, or all of them."""
    known = list(known)
    if not known:
        return "there are none"
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    if len(known) > _MOST_NAMED:
        return f"there are {len(known)}, such as {', '.join(known[:5])}"
    return f"there are: {', '.join(known)}"


def listed(text: str) -> list[str]:
    """Return the words between the commas of a text, which may stand in brackets as Hydra's do."""
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [word.strip() for word in inside.split(",") if word.strip()]


def yaml_fault(error: Exception) -> str:
    """Return what is wrong with a YAML text, and in which line, from its reader's error."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())[:200]
    return f"line {mark.line + 1}: {problem}"


def quoted(path: str) -> str:
    """Return a path as a Hydra override's value."""
    return "'" + path.replace("'", "\\'") + "'"
