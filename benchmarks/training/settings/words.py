"""Short texts of words: what stands between commas, in quotes, and what is wrong with YAML."""

from __future__ import annotations

from trimtab.errors import closest, nearest

__all__ = ["closest", "listed", "nearest", "quoted", "yaml_fault"]


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
