"""A suite's grid as runs: methods on tasks, from nothing or from the same frozen bases.

Without ``bases`` every method is run on every task. With them, each kind of base is trained once a
task (``<task>-<base>``), and every method starts from it (``<task>-<base>-<method>``), so that what
is compared differs in the method alone. A method that starts from no base is run once a task
(``<task>-<method>``). A method gets the task's ``budget`` unless it says ``budget: false``, and the
task's ``data`` only if it says ``data: true``. ``variants`` are further settings of a method, run
beside it (``<task>-<base>-<method>~<variant>``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trimtab.benchmarks.settings.constructors import keywords
from trimtab.benchmarks.settings.groups import constructed_section, group_options
from trimtab.benchmarks.settings.overrides import check_name
from trimtab.benchmarks.settings.words import nearest
from trimtab.types import TrimtabError

__all__ = ["Narrowing", "expanded"]

Runs = dict[str, dict[str, Any]]
"""Runs by name, as a suite's file could list them, with what each is of the grid."""

Narrowing = Mapping[str, Any]
"""What a scale says besides its words: which tasks, bases and methods, and words of its own."""

_KEYS = frozenset(
    {"methods", "tasks", "bases", "variants", "clone", "budget", "where_known", "seconds", "seeds"}
)
_OF_METHOD = frozenset({"words", "base", "budget", "data", "seconds"})


def expanded(suite: str, grid: Any, narrowing: Narrowing) -> Runs:
    """Return the runs of a grid by name.

    Args:
        suite: its name, for messages.
        grid: what its file says.
        narrowing: what the chosen scale says of it.

    Raises:
        TrimtabError: if it is no grid, or a name in it is unknown.
    """
    sides = [grid.get(key) for key in ("methods", "tasks")] if isinstance(grid, Mapping) else []
    if not sides or not all(isinstance(side, Mapping) and side for side in sides):
        raise TrimtabError(f"suite {suite}: its grid must have methods and tasks, by their names")
    for key in grid.keys() - _KEYS:
        raise TrimtabError(f"suite {suite}: its grid has {', '.join(sorted(_KEYS))}, no {key}")
    for key in ("clone", "budget", "where_known"):
        _check_words(suite, f"grid.{key}", grid.get(key, []))
    for key, value in narrowing.items():
        _check_words(suite, f"its scale's {key}", value)
    for key in ("bases", "tasks", "variants"):
        for name, value in (grid.get(key) or {}).items():
            for inner, words in (value if isinstance(value, Mapping) else {"": value}).items():
                _check_words(suite, f"grid.{key}.{name}" + (f".{inner}" if inner else ""), words)
    rest = {key: grid[key] for key in ("seconds", "seeds") if key in grid}
    chosen = _Grid(suite, grid, narrowing)
    if "bases" in grid:
        return {name: rest | run for name, run in chosen.from_bases()}
    return {
        f"{task}-{method}": {
            **rest,
            "overrides": [*of_task, *of_method, *chosen.known(method, of_method)],
            "place": {"task": task, "method": method},
        }
        for task, of_task in chosen.side("tasks").items()
        for method, of_method in chosen.side("methods").items()
    }


def _check_words(suite: str, where: str, value: Any) -> None:
    if not isinstance(value, list):
        raise TrimtabError(f"suite {suite}: {where} must be a list")


class _Grid:
    """One grid at one scale."""

    def __init__(self, suite: str, grid: Mapping[str, Any], narrowing: Narrowing) -> None:
        self.suite, self.grid, self.narrowing = suite, grid, narrowing
        self.settings: dict[str, frozenset[str]] = {}  # of each algorithm, found once

    def side(self, name: str) -> Mapping[str, Any]:
        """Return a side of the grid, without what the scale leaves out."""
        every: Mapping[str, Any] = self.grid.get(name) or {}
        wanted = self.narrowing.get(name, list(every))
        for one in wanted:
            if one not in every:
                raise TrimtabError(
                    f"suite {self.suite}: its scale names {one} of {name}; {nearest(one, every)}"
                )
        return {one: every[one] for one in wanted}

    def words(self, name: str) -> list[str]:
        """Return words that the grid and the scale give to some runs; the scale's come last."""
        return [*self.grid.get(name, []), *self.narrowing.get(name, [])]

    def from_bases(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the runs of a grid with bases: each task's bases, then what starts from them."""
        for task, of_task in self.side("tasks").items():
            if not isinstance(of_task, Mapping) or not {"clone", "words"} <= of_task.keys():
                raise TrimtabError(
                    f"suite {self.suite}: grid.tasks.{task} must have clone and words, because "
                    "there are bases"
                )
            for base, of_base in self.side("bases").items():
                words = [*of_task["clone"], *of_base, *self.words("clone")]
                place = {"task": task, "base": base, "method": None}
                yield f"{task}-{base}", {"overrides": words, "place": place}
            for method in self.side("methods"):
                yield from self._methods_runs(task, of_task, method)

    def _methods_runs(
        self, task: str, of_task: Mapping[str, Any], method: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        described = self.grid["methods"][method]
        described = described if isinstance(described, Mapping) else {"words": described}
        for key in described.keys() - _OF_METHOD:
            raise TrimtabError(
                f"suite {self.suite}: grid.methods.{method} has {', '.join(sorted(_OF_METHOD))}, "
                f"no {key}"
            )
        if not isinstance(described.get("words"), list):
            raise TrimtabError(
                f"suite {self.suite}: grid.methods.{method} must be a list of words, or have words"
            )
        variants = {None: [], **self.side("variants").get(method, {})}
        bases = self._bases_of(method, described.get("base", True))
        for base in bases:
            for variant, more in variants.items():
                words = [*of_task["words"], *described["words"]]
                if described.get("data", False):
                    words += [*of_task.get("data", []), *self.words("data")]
                if described.get("budget", True):
                    words += [*of_task.get("budget", []), *self.words("budget")]
                asked = of_task.get("where_known", [])
                words += [*self.known(method, words, asked), *more]
                parts = [task, *([base] if base else []), method]
                name = "-".join(parts) + (f"~{variant}" if variant else "")
                run: dict[str, Any] = {
                    "overrides": words,
                    "place": {"task": task, "base": base, "method": method, "variant": variant},
                }
                if base:
                    run["base"] = f"{task}-{base}"
                if "seconds" in described:
                    run["seconds"] = described["seconds"]
                yield name, run

    def _bases_of(self, method: str, base: bool | Sequence[str]) -> Sequence[str | None]:
        """Return the bases that a method starts from: all, those that are named, or nothing."""
        if base is True:
            return list(self.side("bases"))
        if base is False:
            return [None]
        if not isinstance(base, list):
            raise TrimtabError(
                f"suite {self.suite}: grid.methods.{method}.base must be true, false or a list"
            )
        for name in base:
            if name not in self.grid["bases"]:
                raise TrimtabError(
                    f"suite {self.suite}: grid.methods.{method} starts from {name}; "
                    f"{nearest(name, self.grid['bases'])}"
                )
        return [name for name in self.side("bases") if name in base]

    def known(self, method: str, words: Sequence[str], of_task: Sequence[str] = ()) -> list[str]:
        """Return those words of ``where_known`` whose setting the run's method has."""
        asked = [*of_task, *self.words("where_known")]
        if not asked:
            return []
        named = [word.partition("=")[2] for word in words if word.startswith("algorithm=")]
        if len(named) != 1:
            raise TrimtabError(
                f"suite {self.suite}: grid.methods.{method} must name one algorithm=, not "
                f"{len(named)}"
            )
        if named[0] not in self.settings:
            check_name("algorithm", named[0], group_options("algorithm"))
            section = constructed_section("algorithm", named[0])
            known = (f"algorithm.{key}" for key in keywords(section["_target_"]))
            self.settings[named[0]] = frozenset(known)
        return [word for word in asked if word.partition("=")[0] in self.settings[named[0]]]
