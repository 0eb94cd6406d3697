"""Imports and constructors of simulators, without their chatter."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from trimtab.envs.core.turns import in_turn

__all__ = ["quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings and prints of the block, which say nothing that a user could act on.

    Simulators announce deprecated tasks on import, and Gymnasium warns about every float64 limit
    that becomes float32. Errors pass through. What other threads print meanwhile is hidden, too.
    """
    with (
        in_turn(),
        warnings.catch_warnings(),
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
