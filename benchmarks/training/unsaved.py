"""State of a method that changes while it learns and is in no checkpoint.

A run that goes on from a checkpoint has a method that was made anew and took on the saved state. It
comes to the same bits only if that method is as the one that was saved. So such a method is made
beside the first checkpoints, and the two are compared: whatever differs is not saved.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from itertools import chain, islice
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.core.differences import (
    MISSING,
    PLAIN,
    differences,
    is_closed_iterator,
)
from trimtab.benchmarks.training.checkpoint import as_read_back
from trimtab.benchmarks.training.generated import GeneratedData
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.random_states import random_states, set_random_states
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.types import Source

__all__ = ["SavedWhole", "check_same", "take_on"]

_NAMED = 3
"""Attributes that a message names."""
_DATA = (*PLAIN[:3], list, dict, set, torch.Tensor, np.ndarray, np.random.Generator)
"""What a class may hold that changes as learning goes on."""


_NOT_OWN = frozenset({"trimtab", "torch", "builtins", "abc", "typing"})
"""Packages whose classes hold nothing that learning changes."""


class SavedWhole:
    """Checks that a run saves all of its method that changes.

    Args:
        plan: what the run is made of; its method has learned nothing yet in this process.
        data: what batches of the run's dataset are drawn from.
    """

    def __init__(self, plan: Plan, data: Source | None) -> None:
        self.plan, self.algorithm = plan, plan.algorithm
        self.generated = data if isinstance(data, GeneratedData) else None
        self._shared = SimpleNamespace(
            **{k: _copy(v) for k, v in vars(_shared(self.algorithm)).items()}
        )
        self._saves = 0

    def check(self, state: Mapping[str, Any], *, last: bool) -> None:
        """Check at the first, second, fourth, … save and the last: some things change late.

        Args:
            state: of the run, which is about to be saved.
            last: whether the run is at its end.

        Raises:
            TrimtabError: naming what changes and is not saved, and how to save it.
        """
        self._saves += 1
        if self._saves & (self._saves - 1) and not last:
            return
        name, again = self.plan.config.algorithm, self.plan.make_learner()
        take_on(again.algorithm, state["algorithm"], name)
        check_same(self.algorithm, again.algorithm, name)
        check_same(_shared(self.algorithm), self._shared, name)
        if self.generated is not None and again.generator is not None:
            name, device = f"source={self.plan.config.source}", self.plan.config["device"]
            kept = random_states(device)
            set_random_states(device, again.random)
            again.generator.begin(self.generated.learned_from)  # which may draw from both
            set_random_states(device, kept)
            self.generated.learned_from.load_state_dict(state["dataset"]["learned_from"])
            take_on(again.generator, state["dataset"]["generator"], name)
            check_same(self.generated.generator, again.generator, name)


def take_on(learner: Any, state: Any, name: str) -> None:
    """Have a method or a generator take on a state as it is read from a checkpoint.

    Raises:
        TrimtabError: if a checkpoint cannot hold the state, or the learner cannot take it on.
    """
    try:
        learner.load_state_dict(as_read_back(state))
    except Exception as error:  # whatever a method of a user's own raises
        raise TrimtabError(
            f"{name}: its load_state_dict() does not take what its state_dict() returned "
            f"({type(error).__name__}: {error}); return tensors, arrays, numbers and text, nested "
            "in mappings and lists, and read no name that was not returned"
        ) from error


def check_same(learner: Any, again: Any, name: str) -> None:
    """Check that a learner equals one that took on its state.

    Raises:
        TrimtabError: naming what differs, and how to save it.
    """
    apart = list(islice(differences(learner, again), 50))
    saved: Mapping[str, Any] = getattr(learner, "state_dict", dict)() if apart else {}
    found = {
        path: _how(*both)
        for path, *both in apart
        if not (is_closed_iterator(both[0]) and path in saved)  # nobody sees where it is
    }
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        what = ", ".join(f"{path}{how}" for path, how in islice(found.items(), _NAMED))
        raise TrimtabError(
            f"{name}: {what}{more}: changes while it learns, and is not saved; a run that goes on "
            "from its checkpoint would come to other numbers. Save it by state(), or by "
            "state_dict() and load_state_dict(); if it decides no number, name it in unsaved "
            '("State that is saved" in docs/add-a-method.md)'
        )


def _how(now: Any, then: Any) -> str:
    """Return the values of an attribute, where they are short."""
    if is_closed_iterator(now):
        return " (an iterator: a checkpoint cannot hold where it is; count by a number instead)"
    shown = [
        value if value is MISSING else repr(value)
        for value in (now, then)
        if isinstance(value, PLAIN)
    ]
    short = len(shown) == 2 and len("".join(shown)) < 40
    return f" ({shown[0]}, {shown[1]} once loaded)" if short else ""


def _copy(value: Any) -> Any:
    """Return a copy; what cannot be copied, such as a list of modules, is itself, and equal."""
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever an object of a user's own raises
        return value


def _shared(algorithm: Algorithm) -> SimpleNamespace:
    """Return the data of a user's own classes, and the global data that a method's own code names.

    Objects share it, and two processes do not.
    """
    kinds = (type(one).__mro__ for one in [algorithm, *algorithm.policy.modules()])
    own = [
        kind
        for kind in dict.fromkeys(chain.from_iterable(kinds))
        if kind.__module__.partition(".")[0] not in _NOT_OWN
    ]
    places: list[tuple[type, str, Mapping[str, Any]]]
    places = [(kind, kind.__qualname__, vars(kind)) for kind in own]
    for kind in own:
        module = sys.modules.get(kind.__module__)
        if module is not None and issubclass(kind, Algorithm | Policy):
            places.append((kind, kind.__module__, _named_globals(kind, vars(module))))
    found = {
        f"{place}.{attribute}": value
        for kind, place, values in places
        for attribute, value in values.items()
        if isinstance(value, _DATA) and not attribute.startswith("__")
        if attribute not in getattr(kind, "unsaved", ())
    }
    return SimpleNamespace(**found)


def _named_globals(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the globals of a module that the methods of one of its classes name."""
    codes = [one.__code__ for one in vars(kind).values() if isinstance(one, FunctionType)]
    return {name: values[name] for code in codes for name in code.co_names if name in values}
