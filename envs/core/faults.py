"""What an environment may get wrong in what ``reset`` and ``step`` return, each in one line.

A line says what is wrong and what to do. The suite raises the first line that it meets
(:mod:`trimtab.envs.core.task_env`), and ``trimtab check`` collects all of them.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["OLD_RESET", "faults_of_reset", "faults_of_step", "in_a_line", "where_raised"]

OLD_RESET = (
    "reset() does not take seed= and options=, as in Gym's old interface; write "
    "def reset(self, *, seed=None, options=None), call super().reset(seed=seed) first, and return "
    "(observation, info)"
)
"""The line for a ``reset`` with another signature."""
_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = "fiub"
"""Kinds of NumPy types that become float32 without loss of meaning."""


def in_a_line(error: BaseException) -> str:
    """Return an exception's type and words in one line of bounded length."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def where_raised(error: BaseException) -> str:
    """Return :func:`in_a_line` with the file and the line that raised the exception."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return in_a_line(error) + place


def faults_of_reset(result: Any, shape: tuple[int, ...]) -> Iterator[str]:
    """Yield what is wrong with what ``reset`` returned.

    Args:
        result: whatever it was.
        shape: of the observation, as ``observation_space`` says it.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        yield (
            f"reset() returned {_what(result)}; return (observation, info), with {{}} as info "
            "where there is nothing to tell"
        )
        return
    observation, info = result
    yield from _faults_of_observation(observation, shape, "reset()")
    if not isinstance(info, dict):
        yield f"reset() returned {_what(info)} as info; return a dictionary, {{}} if it is empty"


def faults_of_step(result: Any, shape: tuple[int, ...], success_key: str | None) -> Iterator[str]:
    """Yield what is wrong with what ``step`` returned.

    Args:
        result: whatever it was.
        shape: of the observation, as ``observation_space`` says it.
        success_key: key of info for success, or None.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        old = (
            ", as in Gym's old interface" if isinstance(result, tuple) and len(result) == 4 else ""
        )
        yield (
            f"step() returned {_what(result)}{old}; return (observation, reward, terminated, "
            "truncated, info)"
        )
        return
    observation, reward, terminated, truncated, info = result
    yield from _faults_of_observation(observation, shape, "step()")
    if not _is_number(reward):
        yield f"step() returned the reward {_short(reward)}; return a finite number, such as 0.0"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not _is_number(flag):
            yield f"step() returned {_short(flag)} as {name}; return True or False"
    if not isinstance(info, dict):
        yield f"step() returned {_what(info)} as info; return a dictionary, {{}} if it is empty"
    elif success_key is not None and success_key not in info:
        there = ", ".join(map(str, info)) or "nothing"
        yield (
            f"step() returned an info without {success_key!r}, the task's success_key (it has "
            f"{there}); put it into every info, or declare success_key=None"
        )
    elif success_key is not None and not _is_flag(info[success_key]):
        yield (
            f"step() returned {_short(info[success_key])} as info[{success_key!r}]; return True or "
            "False"
        )


def _faults_of_observation(observation: Any, shape: tuple[int, ...], where: str) -> Iterator[str]:
    try:
        array = np.asarray(observation)
    except (TypeError, ValueError):  # such as rows of several lengths
        array = np.asarray(None)
    if array.dtype.kind not in _NUMBERS:
        yield (
            f"{where} returned an observation of {_what(observation)}; return an array of numbers"
        )
    elif array.shape != shape:
        yield (
            f"{where} returned an observation of shape {array.shape}, but observation_space has "
            f"{shape}; make the two the same"
        )
    elif not np.isfinite(array).all():
        entry = int(np.argmin(np.isfinite(array)))
        yield f"{where} returned an observation that is not finite (entry {entry})"
    elif (large := np.abs(array.astype(np.float64)) > _LARGEST).any():
        entry = int(np.argmax(large))
        yield (
            f"{where} returned an observation with {array.ravel()[entry]:g} in entry {entry}, "
            "which float32 cannot hold; return it in other units"
        )


def _is_number(value: Any) -> bool:
    """Return whether something is one finite number or truth value, of any library's type."""
    if isinstance(value, str | bytes) or np.ndim(value):
        return False
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError, ValueError):
        return False


def _is_flag(value: Any) -> bool:
    """Return whether something is True or False, or 1 or 0 in their place."""
    return _is_number(value) and value in (0, 1)


def _what(value: Any) -> str:
    """Return in a few words what something is."""
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"{len(value)} values" if isinstance(value, tuple) else f"a list of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"one array of shape {value.shape} and type {value.dtype}"
    return f"one value of type {type(value).__name__}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
