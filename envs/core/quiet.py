"""Imports and constructors of simulators, without their chatter."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trimtab.turns import replaced, without_warnings

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and prints of the block, which say nothing that a user could act on.

    Simulators announce deprecated tasks on import, and Gymnasium warns about every float64 limit
    that becomes float32. Errors pass through. What other threads print meanwhile is hidden, too.
    """
    with (
        without_warnings(),
        replaced(sys, "stdout", io.StringIO()),
        replaced(sys, "stderr", io.StringIO()),
    ):
        yield
