"""Short texts of words: what stands between commas, and in quotes."""

from __future__ import annotations

from trimtab.errors import closest, nearest, yaml_fault

__all__ = ["closest", "listed", "nearest", "quoted", "yaml_fault"]


def listed(text: str) -> list[str]:
    """Return the words between the commas of a text, which may stand in brackets as Hydra's do."""
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [word.strip() for word in inside.split(",") if word.strip()]


def quoted(path: str) -> str:
    """Return a path as a Hydra override's value."""
    return "'" + path.replace("'", "\\'") + "'"
