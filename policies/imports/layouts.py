"""How a library's weight file is recognised, and what reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimtab.policies.imports.actors import Actor, Unsaid
from trimtab.policies.imports.torch_archive import TensorArchive

__all__ = ["Layout", "at"]


@dataclass(frozen=True)
class Layout:
    """One library's files.

    Attributes:
        name: of the library, for messages.
        recognises: whether a file's content is in this layout.
        read: returns the actor.
    """

    name: str
    recognises: Callable[[Any], bool]
    read: Callable[[TensorArchive, Unsaid], Actor]


def at(content: Any, *place: str | int) -> Any:
    """Return what lies at a place in nested dictionaries and sequences, or None."""
    for key in place:
        if isinstance(content, dict):
            content = content.get(key)
        elif isinstance(content, list | tuple) and isinstance(key, int) and key < len(content):
            content = content[key]
        else:
            return None
    return content
