"""What a search may choose from, as a sweep's words say it: ``key=interval(0.1,1)`` or so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import IntervalSweep, RangeSweep

from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.swept import Swept, swept_words
from trimtab.errors import TrimtabError

__all__ = ["Space", "asked_for"]

Space = Mapping[str, Mapping[str, Any]]
"""What each searched setting may be, as JSON values, by what stands before its ``=``."""

MOST_CHOICES = 100
"""How many values a setting is chosen from at most: each is read once before the first trial."""


def asked_for(words: Sequence[str]) -> tuple[list[str], Space, list[RunConfig]]:
    """Return what a search is to choose from.

    Returns:
        The words that every trial has; what may be chosen for the others; and runs in which each of
        these values, or each end of what they lie between, is there once.

    Raises:
        TrimtabError: on a wrong word or value, or if nothing is to be chosen.
    """
    swept = swept_words(words)
    space = {one.key: _choices(one) for one in swept if one.several}
    if not space:
        raise TrimtabError(
            "hydra/sweeper=optuna: no setting is to be searched; give one several values, such as "
            "algorithm.learning_rate='tag(log, interval(1e-5, 1e-3))'"
        )
    fixed = [one.text for one in swept if not one.several]
    words_of = {one.key: one.text for one in swept}
    first = {key: f"{key}={_ends(limits)[0]}" for key, limits in space.items()}
    runs = []
    for key, limits in space.items():
        others = [*fixed, *(word for other, word in first.items() if other != key)]
        if _has_fractions(limits):
            _check_fractions(words_of[key], key, limits, others)
        runs += [compose_run([*others, f"{key}={value}"]) for value in _ends(limits)]
    return fixed, space, runs


def _ends(limits: Mapping[str, Any]) -> list[Any]:
    """Return the values of a choice, or the two that others lie between."""
    return list(limits["values"]) if "values" in limits else [limits["low"], limits["high"]]


def _has_fractions(limits: Mapping[str, Any]) -> bool:
    return isinstance(limits.get("low"), float)


def _check_fractions(word: str, key: str, limits: Mapping[str, Any], others: Sequence[str]) -> None:
    """Check that a setting may be a fraction, if that is what it is to be chosen from.

    Args:
        word: as it was given.
        key: what stands before its ``=``.
        limits: what it lies between.
        others: the words of a run beside it.

    Raises:
        TrimtabError: if it has to be a whole number.
    """
    least, most = math.ceil(limits["low"]), math.floor(limits["high"])
    between = (limits["low"] + limits["high"]) / 2
    between += 0.25 if between.is_integer() and between + 0.25 < limits["high"] else 0.0
    try:
        compose_run([*others, f"{key}={between}"])
    except TrimtabError:
        if least > most:
            raise
        compose_run([*others, f"{key}={least}"])  # else it is no matter of fractions
        whole = f"range({least},{most + 1})"
        whole = f"tag(log, {whole})" if limits["log"] else whole
        raise TrimtabError(
            f"{word}: takes whole numbers, and between these ends are others; write "
            f"{key}='{whole}' or {key}='choice({least},{most})'"
        ) from None


def _choices(one: Swept) -> dict[str, Any]:
    """Return what a word lets be chosen."""
    word, value = one.text, one.value
    if isinstance(value, IntervalSweep):  # Hydra has made fractions of its ends
        return _between(word, value.start, value.end, None, "log" in value.tags, False)
    one.check_some()
    if isinstance(value, RangeSweep) and not value.shuffle:
        start, step = cast(Any, (value.start, value.step))
        if step < 0:
            raise TrimtabError(f"{word}: there is nothing in this range; range(1, 4) is 1, 2 and 3")
        whole = isinstance(start, int) and isinstance(step, int)
        last = start + (one.count - 1) * step
        return _between(word, start, last, step, "log" in value.tags, whole)
    if one.count > MOST_CHOICES:
        raise TrimtabError(
            f"{word}: a search chooses from {MOST_CHOICES} values at most, and these are "
            f"{one.count}; use range(…) or interval(…)"
        )
    return {"kind": "choice", "values": list(dict.fromkeys(one.values()))}


def _between(
    word: str, low: float | None, high: float | None, step: float | None, log: bool, whole: bool
) -> dict[str, Any]:
    """Return a numeric setting's limits.

    Raises:
        TrimtabError: if there is nothing between them, or no logarithm.
    """
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        raise TrimtabError(f"{word}: both ends must be finite numbers, such as interval(0.1, 1)")
    if low > high:
        raise TrimtabError(f"{word}: it begins above its end; write the smaller number first")
    if log and low <= 0:
        raise TrimtabError(f"{word}: on a logarithmic scale both ends must be above 0")
    if log and step not in (None, 1):
        raise TrimtabError(f"{word}: a logarithmic scale has no steps; use interval(…)")
    kind = int if whole else float
    step = None if log or step is None else kind(step)
    return {
        "kind": "int" if whole else "float",
        "low": kind(low), "high": kind(high), "step": step, "log": log,
    }  # fmt: skip
