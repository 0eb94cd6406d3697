"""Words as people write them, and hints on those that nothing is called by."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["closest", "listed", "nearest", "quoted", "yaml_fault"]

_MOST_NAMED = 40  # right words in one message; more of them are no help
_NEAR, _REST = 0.6, 0.5
"""How alike a word and a name must be, whole and without the parts that both have."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest right word, or all of them."""
    known = list(known)
    if not known:
        return "there are none"
    if close := closest(word, known):
        return f"did you mean {close}?"
    if len(known) > _MOST_NAMED:
        return f"there are {len(known)}, such as {', '.join(known[:5])}"
    return f"there are: {', '.join(known)}"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the name that a wrong word most likely stands for, or None where it is none of them.

    A word without a point is also held against what stands behind a name's last point, so that
    ``warmup_steps`` finds ``algorithm.warmup_steps``.
    """
    names = {name: _likeness(word, name) for name in known}
    best = max(names, key=lambda name: names[name], default=None)
    return best if best is not None and names[best] >= _NEAR else None


def _likeness(word: str, name: str) -> float:
    """Return how alike a word and a name are, from 0 to 1.

    Parts that both have, such as ``steps`` of ``sampling_steps`` and ``online_steps``, do not make
    them alike where the rest is different.
    """
    word, name = word.lower(), name.lower()
    whole = _ratio(word, name)
    if "." in name and "." not in word:
        name = name.rpartition(".")[2]
        whole = max(whole, _ratio(word, name))
    parts, others = (re.split(r"[._/ -]", text) for text in (word, name))
    rests = [[one for one in a if one not in b] for a, b in ((parts, others), (others, parts))]
    alike = not all(rests) or _ratio(*("_".join(rest) for rest in rests)) >= _REST
    return whole if alike else 0.0


def _ratio(word: str, name: str) -> float:
    return difflib.SequenceMatcher(None, name, word).ratio()


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
