"""What a contract is: checks by name, each of which says what it found or what is broken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.benchmarks.core.own_code import fault_of_own_code
from trimtab.errors import Stopped, TrimtabError

__all__ = ["Broken", "Outcome", "examine", "require"]

logger = logging.getLogger(__name__)


class Broken(TrimtabError):
    """Something breaks its contract; the message says how."""


@dataclass(frozen=True)
class Outcome:
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


def examine(check: str, function: Callable[..., str], *arguments: Any) -> Outcome:
    """Carry out one check; what it raises is what is broken."""
    try:
        return Outcome(check, True, function(*arguments))
    except Stopped:
        raise
    except TrimtabError as error:
        return Outcome(check, False, str(error))
    except Exception as error:  # whatever code of a user's own raises
        logger.debug("%s", check, exc_info=error)
        words = fault_of_own_code(error) or f"{type(error).__name__}: {error}"
        return Outcome(check, False, " ".join(words.split()))


Checks = Mapping[str, Callable[..., str]]
"""Checks by name, in the order in which they are carried out."""
