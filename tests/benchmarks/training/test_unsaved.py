"""State of a method that changes and is not saved is named, and no other."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import date
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.benchmarks.contracts.made_up import make_setup
from trimtab.benchmarks.contracts.methods import Subject, check_seeds, check_state
from trimtab.benchmarks.core.differences import differences
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError


@dataclasses.dataclass
class Counts:
    seen: int = 0

    def plus_one(self) -> None:
        self.seen += 1


class Slots:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0


class Called(Counts):
    def __call__(self) -> int:
        return self.seen


class Raises:
    """Lets nobody look into it."""

    def __init__(self) -> None:
        self.number = random.random()

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError


def nest(depth: int, value: Any) -> Counts:
    for _ in range(depth):
        value = Counts(value)
    return value


def plus(value: Any, more: Any = 1) -> Any:
    return value + more


def set_seen(value: Any) -> None:
    value.seen += 1


def closure() -> Callable[[], None]:
    counts = Counts()

    def count() -> None:
        counts.seen += 1

    return count


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "number": (lambda: 0, plus),
    "text": (str, lambda held: held + "a"),
    "truth": (lambda: False, lambda held: True),
    "list": (list, lambda held: held.append(1)),
    "nested": (lambda: {"a": [{"b": 0}]}, lambda held: held["a"][0].update(b=3)),
    "set": (set, lambda held: held.add(len(held))),
    "deque": (collections.deque, lambda held: held.append(1.0)),
    "dataclass": (Counts, set_seen),
    "slots": (Slots, set_seen),
    "array": (lambda: np.zeros(3), lambda held: held.__iadd__(1)),
    "tensor": (lambda: torch.zeros(2), lambda held: held.add_(1)),
    "tensors": (lambda: [torch.zeros(2)], lambda held: held[0].add_(1)),
    "generator of numpy": (lambda: np.random.default_rng(0), lambda held: held.random()),
    "generator of torch": (torch.Generator, lambda held: torch.rand(1, generator=held)),
    "generator of Python": (lambda: random.Random(0), lambda held: held.random()),
    "object that is called": (Called, set_seen),
    "sparse tensor": (lambda: torch.eye(2).to_sparse(), lambda held: held.mul_(2)),
    "conjugate": (lambda: torch.ones(2, dtype=torch.cfloat).conj(), lambda held: held.mul_(2)),
    "set of pairs": (set, lambda held: held.add((len(held), 1))),
    "date": (lambda: {"at": date(2020, 1, 1)}, lambda held: held.update(at=date(2020, 1, 2))),
    "closure": (closure, lambda held: held()),
    "method of another": (lambda: Counts().plus_one, lambda held: held()),
    "iterator": (itertools.count, next),
    "iterator of a list": (lambda: iter([1] * 99), next),
    "generator": (lambda: (x for x in range(99)), next),
    "method of an iterator": (lambda: itertools.count().__next__, lambda held: held()),
    "frozen weights": (lambda: torch.nn.Linear(1, 1), lambda held: held.requires_grad_(False)),
}


def subject(kind: type[BehaviorCloning]) -> Subject:
    def make(seed: int, device: str) -> BehaviorCloning:
        torch.manual_seed(seed)
        return kind(make_setup(kind.needs.parts, device=device), batch_size=8)

    return Subject(make, "mine")


@pytest.mark.parametrize("name", KINDS)
def test_what_changes_and_is_not_saved_is_named(name: str) -> None:
    make, change = KINDS[name]

    class Mine(BehaviorCloning):
        def __init__(self, setup: Setup, **keywords: Any) -> None:
            super().__init__(setup, **keywords)
            self.held = make()

        def update(self, data: Any) -> Any:
            changed = change(self.held)
            if isinstance(self.held, int | str):
                self.held = changed
            return super().update(data)

    class Told(Mine):
        unsaved = frozenset({"held"})

    with pytest.raises(TrimtabError, match=r"^mine: held.*is not saved.*state_dict\(\)"):
        check_state(subject(Mine))
    assert check_state(subject(Told))  # and what the parent names stays named


def test_what_is_saved_cached_or_made_alike_is_not_named() -> None:
    class Mine(BehaviorCloning):
        def __init__(self, setup: Setup, **keywords: Any) -> None:
            super().__init__(setup, **keywords)
            self.count, self.window = 0, collections.deque([0.0], maxlen=3)
            self.lock, self.drawn = threading.Lock(), torch.rand(3)
            self.me, self.tools = self, {"log": print, "module": np, "name": float("nan")}

        @cached_property
        def size(self) -> int:
            return 3

        def update(self, data: Any) -> Any:
            self.count += self.size
            self.window.append(float(self.count))
            return super().update(data)

        def state_dict(self) -> dict[str, Any]:
            own = {"count": self.count, "window": list(self.window), "drawn": self.drawn}
            return {**super().state_dict(), **own}

        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            self.count, self.drawn = state["count"], state["drawn"]
            self.window = collections.deque(state["window"], maxlen=3)

    assert check_state(subject(Mine))


def test_an_iterator_is_refused_until_the_state_has_its_name() -> None:
    class Mine(BehaviorCloning):
        def __init__(self, setup: Setup, **keywords: Any) -> None:
            super().__init__(setup, **keywords)
            self.ids, self.at = itertools.count(), 0

        def update(self, data: Any) -> Any:
            self.at = next(self.ids)
            return super().update(data)

    class Saved(Mine):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "ids": self.at}

        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            self.ids, self.at = itertools.count(state["ids"] + 1), state["ids"]

    with pytest.raises(TrimtabError, match=r"^mine: .*ids \(an iterator: a checkpoint cannot hold"):
        check_state(subject(Mine))
    assert check_state(subject(Saved))


@pytest.mark.parametrize("draw", [lambda: float(np.random.random()), random.random])
@pytest.mark.parametrize("where", ["update", "explore"])
def test_draws_from_generators_that_environments_seed_are_named(
    draw: Callable[[], float], where: str
) -> None:
    class Mine(BehaviorCloning):
        def update(self, data: Any) -> Any:
            metrics = super().update(data)
            with torch.no_grad():
                for value in self.policy.parameters() if where == "update" else ():
                    value += draw()
            return metrics

    class Explores(Mine):
        def explore(self, obs: Any, *, warmup: bool) -> Any:
            return self.policy.act(obs) + (draw() if where == "explore" else 0), {}

    with pytest.raises(TrimtabError, match="seed gives other numbers.*torch's global generator"):
        check_seeds(subject(Explores))
    assert check_seeds(subject(BehaviorCloning))


@pytest.mark.parametrize(("saved", "said"), [({1, 2}, "a set"), (object(), "an object|a object")])
def test_what_no_checkpoint_can_hold_is_one_line(saved: Any, said: str) -> None:
    class Mine(BehaviorCloning):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "own": saved}

    with pytest.raises(TrimtabError, match=f"cannot hold ({said}) .*return tensors") as told:
        check_state(subject(Mine))
    assert "\n" not in str(told.value)


def test_equal_objects_in_circles_have_no_difference() -> None:
    one: list[Any] = [1, {"a": (2.0, None)}]
    other: list[Any] = [1, {"a": [2.0, None]}]  # as a checkpoint gives it back
    one.append(one)
    other.append(other)
    assert not list(differences(one, other))
    other[1]["a"][0] = 3.0
    assert [name for name, *_ in differences(one, other)] == ["[1]['a'][0]"]


def test_what_cannot_be_looked_into_counts_as_equal_and_raises_nothing() -> None:
    kinds: list[Callable[[], Any]] = [
        threading.Lock, Raises, lambda: {object()}, lambda: lambda: 1,
        lambda: torch.eye(2).to_sparse_csr(), lambda: torch.empty(2, device="meta"),
        lambda: {torch.ones(1)}, lambda: weakref.ref(Counts()),
    ]  # fmt: skip
    for make in kinds:
        one, other = {"held": [make()]}, {"held": [make()]}
        assert not list(differences(one, other))


def test_long_and_deep_objects_and_sets_are_compared_in_a_moment() -> None:
    assert list(differences({(1, 2), "a"}, {(1, 3), "a"}))
    many = np.arange(300_000.0)
    began = time.process_time()
    assert not list(differences(list(many), list(many)))
    assert time.process_time() - began < 2
    assert not list(differences(nest(5000, 1), nest(5000, 1)))
    ((name, *values),) = differences(nest(5000, 1), nest(5000, 2))
    assert values == [1, 2] and name.count("seen") == 5000


OWN = """
import math
import threading
import torch
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.policies.kinds.gaussian import GaussianPolicy

COUNTS = {"seen": 0}
CACHE = []


class OfModule(BehaviorCloning):
    unsaved = frozenset({"CACHE"})

    def update(self, data):
        CACHE.append(1)
        return super().update(data)


class Global(OfModule):
    def update(self, data):
        COUNTS["seen"] += 1
        return super().update(data)


class Shared(BehaviorCloning):
    seen: list = []

    def update(self, data):
        self.seen.append(1)
        return super().update(data)


class Tools(BehaviorCloning):
    BACKENDS = [math, torch]
    LOCKS = {"a": threading.Lock()}


class Late(BehaviorCloning):
    level = 0.0  # of the class, until it changes

    def update(self, data):
        if self.updates > 25:
            self.level += 0.5
        return super().update(data)


class OfPolicy(BehaviorCloning):
    def update(self, data):
        self.policy.calls = getattr(self.policy, "calls", 0) + 1
        return super().update(data)


class Decays(BehaviorCloning):
    def __init__(self, setup, **keywords):
        super().__init__(setup, **keywords)
        self.critic_optimizer = torch.optim.SGD(self.policy.parameters(), 0.1)

    def update(self, data):
        self.critic_optimizer.param_groups[0]["lr"] *= 0.9
        return super().update(data)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_of_unsaved.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_of_unsaved", raising=False)
    return "own_of_unsaved"


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("Shared", "Shared.seen"),
        ("Global", r"own_of_unsaved.COUNTS\['seen'\]"),
        ("Late", r"level \(\d+\.\d, 0\.0 once loaded\)"),
        ("OfPolicy", "policy.calls"),
    ],
)
def test_a_run_ends_before_it_saves_what_is_not_whole(
    own: str, kind: str, named: str, tiny: Any, tmp_path: Path
) -> None:
    words = [*tiny.cloning(tmp_path / "out"), f"algorithm._target_={own}.{kind}"]
    with pytest.raises(TrimtabError, match=f"^bc: {named}.*not saved") as told:
        train(compose_run(words))
    assert "\n" not in str(told.value) and not list((tmp_path / "out").rglob("result.json"))


@pytest.mark.parametrize("kind", ["Tools", "OfModule", "Decays"])
def test_a_class_may_hold_what_cannot_be_copied_is_named_or_is_an_optimiser(
    own: str, kind: str, tiny: Any, tmp_path: Path
) -> None:
    words = [*tiny.cloning(tmp_path / "out"), f"algorithm._target_={own}.{kind}"]
    assert train(compose_run(words)).summary["updates"]


def test_the_check_changes_no_number(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for name in ("checked", "unchecked"):
        runs.append(train(compose_run(tiny.cloning(tmp_path / name))).folder)
        unsaved: ModuleType = sys.modules["trimtab.benchmarks.training.unsaved"]
        monkeypatch.setattr(unsaved.SavedWhole, "check", lambda *_, **__: None)
    weights = [(run / "policy" / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]
