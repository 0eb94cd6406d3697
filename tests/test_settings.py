"""Settings are declared once, in signatures, and checked before an object is made."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import pytest

from trimtab.errors import TrimtabError
from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.settings import (
    Bounds,
    CheckedSettings,
    Count,
    Natural,
    NonNegative,
    Positive,
    Share,
    keywords_of,
)


class Parent(metaclass=CheckedSettings):
    section: ClassVar[str] = "algorithm"
    made: ClassVar[int] = 0

    def __init__(
        self,
        *,
        tau: Share = 0.5,
        critics: Count = 2,
        subset: Annotated[int, Bounds(least=1, most_of="critics")] | None = None,
        wait: Natural = 0,
        weight: NonNegative = 1.0,
        scale: Positive = 1.0,
        dropout: Annotated[float, Bounds(least=0, below=1)] = 0.0,
        widths: Sequence[Count] = (8, 8),
        order: Literal["each", "repeated"] = "each",
        flag: bool = False,
    ) -> None:
        type(self).made += 1
        self.tau = tau


class Child(Parent):
    unused_settings = frozenset({"flag"})

    def __init__(self, *, tau: float = 0.9, **keywords: Any) -> None:
        super().__init__(tau=tau, **keywords)


@pytest.mark.parametrize("kind", [Parent, Child])
@pytest.mark.parametrize(
    "settings",
    [
        {"tau": 0}, {"tau": 1.0}, {"tau": np.float64(0.25)}, {"critics": np.int64(3)},
        {"critics": 3, "subset": 3}, {"subset": None}, {"wait": 0}, {"weight": math.inf},
        {"scale": 1e-30}, {"dropout": 0.999}, {"widths": [1]}, {"widths": ()},
        {"order": "repeated"},
    ],
)  # fmt: skip
def test_what_is_within_its_bounds_is_taken(kind: type[Parent], settings: dict[str, Any]) -> None:
    assert isinstance(kind(**settings), kind)


@pytest.mark.parametrize("kind", [Parent, Child])
@pytest.mark.parametrize(
    "settings",
    [
        {"tau": 1.5}, {"tau": math.nan}, {"tau": "a"}, {"critics": 0}, {"critics": 1.5},
        {"critics": True}, {"subset": 3}, {"subset": 4, "critics": 3}, {"wait": -1},
        {"weight": -0.1}, {"scale": 0}, {"dropout": 1.0}, {"widths": [8, 0]}, {"widths": 8},
        {"order": "none"},
    ],
)  # fmt: skip
def test_what_is_not_is_refused_by_name_and_value_before_anything_is_made(
    kind: type[Parent], settings: dict[str, Any]
) -> None:
    made = kind.made
    name, value = next(iter(settings.items()))
    with pytest.raises(TrimtabError, match=re.escape(f"algorithm.{name}={value}: must be ")):
        kind(**settings)
    assert kind.made == made


def test_a_child_has_the_settings_of_its_parent_but_for_those_without_effect() -> None:
    assert keywords_of(Child).keys() == keywords_of(Parent).keys() - {"flag"}
    assert (keywords_of(Child)["tau"].default, keywords_of(Parent)["tau"].default) == (0.9, 0.5)
    assert keywords_of(Child)["critics"].annotation is int
    with pytest.raises(TrimtabError, match=r"algorithm.flag: has no effect on Child; leave it out"):
        Child(flag=True)


def test_a_limit_that_is_given_is_held_against_a_default() -> None:
    class Kept(metaclass=CheckedSettings):
        section = "algorithm"

        def __init__(
            self, *, kept: Annotated[int, Bounds(most_of="candidates")] = 4, candidates: Count = 8
        ) -> None: ...

    Kept(candidates=4)
    with pytest.raises(TrimtabError, match=r"kept=4: must be at most 3 .algorithm.candidates is"):
        Kept(candidates=3)


def test_annotations_of_a_user_that_cannot_be_resolved_are_not_checked() -> None:
    class Own(Parent):
        def __init__(self, *, size: Unknown = 3) -> None:  # type: ignore[name-defined]  # noqa: F821
            super().__init__()

    assert isinstance(Own(size="any"), Parent)


def test_what_no_value_can_be_held_against_is_not_checked() -> None:
    class OnlyTyped(Protocol):
        name: str

    class Own(Parent):
        def __init__(self, *, what: Any = None, named: OnlyTyped | None = None) -> None:
            super().__init__()

    # The annotations are those of this function, where a user's would be those of a module.
    Own.__init__.__annotations__ = {"what": Any, "named": OnlyTyped | None}
    assert isinstance(Own(what=3, named=3), Parent)


def test_fields_of_a_users_mode_that_cannot_be_resolved_leave_the_others_checked() -> None:
    @dataclass
    class Own(RecedingHorizon):
        size: Unknown = 3  # type: ignore[name-defined]  # noqa: F821

    assert Own(2, size="any").interval == 2
    with pytest.raises(TrimtabError, match=r"mode: interval=0: must be at least 1"):
        Own(0)
