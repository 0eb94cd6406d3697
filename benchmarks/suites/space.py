"""What a search may choose from, as a sweep's words say it: ``key=interval(0.1,1)`` or so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from hydra import initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from trimtab.benchmarks.settings.overrides import check_overrides, spell_out
from trimtab.errors import TrimtabError

__all__ = ["Space", "space_of"]

Space = Mapping[str, Mapping[str, Any]]
"""What each searched setting may be, as JSON values, by what stands before its ``=``."""


def space_of(words: Sequence[str]) -> tuple[list[str], Space]:
    """Return the words that every trial has, and what may be chosen for the others.

    Raises:
        TrimtabError: on a wrong word, or if nothing is to be chosen.
    """
    words = spell_out(words, several=True)
    try:
        with initialize_config_module("trimtab.conf", version_base="1.3"):
            check_overrides(words, several=True)
        parsed = OverridesParser.create().parse_overrides(words)
        space = {
            word.partition("=")[0]: _choices(word, override)
            for word, override in zip(words, parsed, strict=True)
            if override.is_sweep_override()
        }
    except HydraException as error:
        raise TrimtabError(f"sweep: {str(error).strip().splitlines()[0]}") from error
    if not space:
        raise TrimtabError(
            "hydra/sweeper=optuna: no setting is to be searched; give one several values, such as "
            "algorithm.learning_rate='tag(log, interval(1e-5, 1e-3))'"
        )
    fixed = [word for word in words if word.partition("=")[0] not in space]
    return fixed, space


def _choices(word: str, override: Override) -> dict[str, Any]:
    value = cast(Any, override.value())  # its annotation leaves out what a sweep has
    if isinstance(value, IntervalSweep):
        low, high = cast(Any, (value.start, value.end))
        whole = isinstance(low, int) and isinstance(high, int)
        return _between(word, low, high, None, "log" in value.tags, whole)
    if isinstance(value, RangeSweep) and not value.shuffle:
        start, stop, step = cast(Any, (value.start, value.stop, value.step))
        steps = math.ceil((stop - start) / step) - 1 if step and start is not None else -1
        if steps < 0 or step <= 0:
            raise TrimtabError(f"{word}: there is nothing in this range; range(1, 4) is 1, 2 and 3")
        whole = isinstance(start, int) and isinstance(step, int)
        return _between(word, start, start + steps * step, step, "log" in value.tags, whole)
    values = list(dict.fromkeys(override.sweep_string_iterator()))
    return {"kind": "choice", "values": values}


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
