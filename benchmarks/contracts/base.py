"""What a contract is: checks by name, each of which says what it found or what is broken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from trimtab.benchmarks.core.own_code import fault_of_own_code
from trimtab.errors import Stopped, TrimtabError

__all__ = ["Broken", "CheckResult", "difference", "examine", "require"]

logger = logging.getLogger(__name__)


class Broken(TrimtabError):
    """Something breaks its contract; the message says how."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes:
        check: its name.
        passed: whether what was looked at keeps to it.
        text: what was found, or what is broken and what to do.
    """

    check: str
    passed: bool
    text: str


def require(holds: bool, text: str) -> None:
    """Check a promise.

    Raises:
        Broken: if it does not hold.
    """
    if not holds:
        raise Broken(text)


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return where two nested states differ in value or type; None where they are equal.

    Args:
        one: mappings, sequences, tensors, arrays and plain values.
        other: the other state.
        path: of both in a larger state.
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return path or "the names"
        dot = f"{path}." if path else ""
        pairs = [(one[key], other[key], f"{dot}{key}") for key in one]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return path or "the length"
        pairs = [
            (mine, theirs, f"{path}[{n}]")
            for n, (mine, theirs) in enumerate(zip(one, other, strict=True))
        ]
    else:
        first, second = np.asarray(_on_cpu(one)), np.asarray(_on_cpu(other))
        nan = first.dtype.kind == "f"  # equal_nan is of floats alone
        same = first.dtype == second.dtype and np.array_equal(first, second, equal_nan=nan)
        return None if same else path or "the value"
    return next((found for pair in pairs if (found := difference(*pair)) is not None), None)


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def examine(check: str, function: Callable[..., str], *arguments: Any) -> CheckResult:
    """Carry out one check; what it raises is what is broken."""
    try:
        return CheckResult(check, True, function(*arguments))
    except Stopped:
        raise
    except TrimtabError as error:
        return CheckResult(check, False, str(error))
    except Exception as error:  # whatever code of a user's own raises
        logger.debug("%s", check, exc_info=error)
        words = fault_of_own_code(error) or f"{type(error).__name__}: {error}"
        return CheckResult(check, False, " ".join(words.split()))


Checks = Mapping[str, Callable[..., str]]
"""Checks by name, in the order in which they are carried out."""
