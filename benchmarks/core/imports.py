"""Imports that take a second or more, such as torch's, when a command needs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from trimtab.benchmarks.core.signals import interrupt_as_event

__all__ = ["imported"]


def imported(name: str) -> ModuleType:
    """Import a module; an interrupt waits until that has ended.

    Torch and what else is written in C++ abort the process where one comes in their middle.
    """
    with interrupt_as_event("an import") as interrupted:
        try:
            module = importlib.import_module(name)
        except Exception:
            if not interrupted.is_set():
                raise
    if interrupted.is_set():
        raise KeyboardInterrupt
    return module
