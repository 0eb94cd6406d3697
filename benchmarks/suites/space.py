"""What a search may choose from, as a sweep's words say it: ``key=interval(0.1,1)`` or so."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import IntervalSweep, RangeSweep

from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.swept import Swept, swept_words
from trimtab.errors import TrimtabError

__all__ = ["Space", "asked_for", "import_optuna"]

Space = Mapping[str, Any]
"""Optuna's distribution of each searched setting, by what stands before its ``=``."""

MOST_CHOICES = 100
"""How many values a setting is chosen from at most: each is read once before the first trial."""


def import_optuna() -> Any:
    """Return the module.

    Raises:
        TrimtabError: if it is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as error:
        raise TrimtabError(
            "hydra/sweeper=optuna: optuna is not installed; pip install 'trimtab[optuna]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def asked_for(words: Sequence[str]) -> tuple[list[str], Space, list[RunConfig]]:
    """Return what a search is to choose from.

    Returns:
        The words that every trial has; what may be chosen for the others; and runs in which each of
        these values, or each end of what they lie between, is there once.

    Raises:
        TrimtabError: on a wrong word or value, or if nothing is to be chosen.
    """
    swept = swept_words(words)
    space = {one.key: _distribution(one) for one in swept if one.several}
    if not space:
        raise TrimtabError(
            "hydra/sweeper=optuna: no setting is to be searched; give one several values, such as "
            "algorithm.learning_rate='tag(log, interval(1e-5, 1e-3))'"
        )
    fixed = [one.text for one in swept if not one.several]
    ends = {key: [f"{key}={value}" for value in _ends(one)] for key, one in space.items()}
    runs = []
    for key, own in ends.items():
        others = [*fixed, *(of_other[0] for other, of_other in ends.items() if other != key)]
        runs += [compose_run([*others, word]) for word in own]
    return fixed, space, runs


def _ends(distribution: Any) -> list[Any]:
    """Return the values of a choice, or the two that others lie between."""
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    return [distribution.low, distribution.high]


def _distribution(one: Swept) -> Any:
    """Return what a word lets be chosen.

    Raises:
        TrimtabError: if there is nothing between its ends, or it has too many values.
    """
    distributions = import_optuna().distributions
    word, value = one.text, one.value
    interval = isinstance(value, IntervalSweep)
    if not interval:
        one.check_some()
    if not interval and not (isinstance(value, RangeSweep) and not value.shuffle):
        if one.count > MOST_CHOICES:
            raise TrimtabError(
                f"{word}: a search chooses from {MOST_CHOICES} values at most, and these are "
                f"{one.count}; use range(…) or interval(…)"
            )
        return distributions.CategoricalDistribution(list(dict.fromkeys(one.values())))
    low, step = cast(Any, (value.start, None if interval else value.step))
    high = value.end if interval else low + (one.count - 1) * step
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        raise TrimtabError(f"{word}: both ends must be finite numbers, such as interval(0.1, 1)")
    log, whole = "log" in value.tags, isinstance(low, int) and isinstance(step, int)
    try:
        if whole:
            return distributions.IntDistribution(low, high, log=log, step=step)
        return distributions.FloatDistribution(
            float(low), float(high), log=log, step=None if step is None else float(step)
        )
    except ValueError as error:
        raise TrimtabError(f"{word}: {error}") from error
