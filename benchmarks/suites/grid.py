"""A suite's grid as runs: methods on tasks, from nothing or from the same frozen bases.

Without ``bases`` every method is run on every task, or on those of its ``tasks``. With them, each
kind of base is trained once a task (``<task>-<base>``), and every method starts from it
(``<task>-<base>-<method>``), so that what is compared differs in the method alone. A method that
starts from no base is run once a task (``<task>-<method>``). A method gets the task's ``budget``
unless it says ``budget: false``, and the task's ``data`` only if it says ``data: true``.
``variants`` are further settings of a method, run beside it (``<task>-<base>-<method>~<variant>``).
A grid without bases may have ``published``: what a method's authors set for a task in place of its
one setting for all, run beside it (``<task>-<method>~published``). A scale names the ``tasks``,
``methods`` and ``bases`` that it has, and leaves out runs by their names,
``leave_out: ["*-oppo"]``, gives runs more seeds than the others where a claim hangs on them,
``seeds_of: {"push-*": [0, 1, 2, 3, 4]}``, and words of their own, which come after all others,
``words_of: {"*-awac": ["algorithm.hidden=[128,128,128]"]}``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trimtab.benchmarks.suites.naming import runs_once
from trimtab.benchmarks.training.settings.constructors import keywords
from trimtab.benchmarks.training.settings.groups import constructed_section, group_options
from trimtab.benchmarks.training.settings.overrides import check_name
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.errors import TrimtabError

__all__ = ["Narrowing", "expanded", "matching"]

Runs = dict[str, dict[str, Any]]
"""Runs by name, as a suite's file could list them, with what each is of the grid."""

Narrowing = Mapping[str, Any]
"""What a scale says besides its words: which tasks, bases and methods, and words of its own."""


def expanded(suite: str, grid: Mapping[str, Any], narrowing: Narrowing) -> Runs:
    """Return the runs of a grid by name.

    Args:
        suite: its name, for messages.
        grid: what its file says, whose shapes are checked (``document.check_document``).
        narrowing: what the chosen scale says of it.

    Raises:
        TrimtabError: if a name in it is unknown, or it has no runs.
    """
    rest = {key: grid[key] for key in ("seconds", "seeds") if key in grid}
    chosen = _Grid(suite, grid, narrowing)
    runs = chosen.from_bases() if "bases" in grid else chosen.without_bases()
    named = runs_once(suite, ((name, rest | run) for name, run in runs))
    return _left(suite, named, narrowing.get("leave_out", []))


def _left(suite: str, runs: Runs, patterns: Sequence[str]) -> Runs:
    """Return the runs that no pattern leaves out."""
    left_out = {
        name for pattern in patterns for name in matching(suite, "leave_out", pattern, runs)
    }
    runs = {name: run for name, run in runs.items() if name not in left_out}
    if not runs:
        raise TrimtabError(f"suite {suite}: its grid has no run that its scale does not leave out")
    return runs


def matching(suite: str, key: str, pattern: object, runs: Collection[str]) -> list[str]:
    """Return the names of runs that a pattern in a scale's ``key`` names.

    Raises:
        TrimtabError: if there is none.
    """
    found = [name for name in runs if fnmatch.fnmatchcase(name, str(pattern))]
    if not found:
        raise TrimtabError(f"suite {suite}: its scale's {key} names no run by {pattern}")
    return found


class _Grid:
    """One grid at one scale."""

    def __init__(self, suite: str, grid: Mapping[str, Any], narrowing: Narrowing) -> None:
        self.suite, self.grid, self.narrowing = suite, grid, narrowing
        self.settings: dict[str, frozenset[str]] = {}  # of each algorithm, found once

    def side(self, name: str) -> Mapping[str, Any]:
        """Return a side of the grid, without what the scale leaves out."""
        every: Mapping[str, Any] = self.grid.get(name) or {}
        wanted = self.narrowing.get(name, list(every))
        self.check_known("its scale", wanted, name)
        return {one: every[one] for one in wanted}

    def check_known(self, where: str, names: Iterable[str], side: str) -> None:
        """Check that a part of the grid or of the scale names what a side of the grid has."""
        every = self.grid.get(side) or {}
        for name in names:
            if name not in every:
                raise TrimtabError(
                    f"suite {self.suite}: {where} names {name} of {side}; {nearest(name, every)}"
                )

    def words(self, name: str) -> list[str]:
        """Return words that the grid and the scale give to some runs; the scale's come last."""
        return [*self.grid.get(name, []), *self.narrowing.get(name, [])]

    def without_bases(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the runs of a grid without bases: each method on each task."""
        methods, published = self.side("methods"), self.side("published")
        self.check_known("grid.published", published, "methods")
        for name, of_tasks in published.items():
            self.check_known(f"grid.published.{name}", of_tasks, "tasks")
        of_methods = {name: self._words_and_tasks(name, one) for name, one in methods.items()}
        for task, of_task in self.side("tasks").items():
            for method, (words, rest, tasks) in of_methods.items():
                if task not in tasks:
                    continue
                known, place = self.known(method, words), {"task": task, "method": method}
                run = {"overrides": [*of_task, *words, *known], "place": place}
                yield f"{task}-{method}", rest | run
                own = published.get(method, {}).get(task)
                if own is not None:
                    run = {
                        "overrides": [*of_task, *words, *own, *known],
                        "place": place | {"variant": "published"},
                    }
                    yield f"{task}-{method}~published", rest | run

    def _words_and_tasks(
        self, method: str, described: Any
    ) -> tuple[list[str], dict[str, Any], Collection[str]]:
        """Return a method's words, what else each of its runs has, and the tasks it is run on."""
        if isinstance(described, list):
            return described, {}, self.grid["tasks"]
        tasks = described.get("tasks", list(self.grid["tasks"]))
        self.check_known(f"grid.methods.{method}", tasks, "tasks")
        rest = {"seconds": described["seconds"]} if "seconds" in described else {}
        return described["words"], rest, tasks

    def from_bases(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the runs of a grid with bases: each task's bases, then what starts from them.

        What a task says of its clones comes after what the grid says of all, and a scale has the
        last word.
        """
        of_all, of_scale = self.grid.get("clone", []), self.narrowing.get("clone", [])
        self.check_known("grid.variants", self.grid.get("variants", {}), "methods")
        for task, of_task in self.side("tasks").items():
            for base, of_base in self.side("bases").items():
                words = [*of_all, *of_task["clone"], *of_base, *of_scale]
                place = {"task": task, "base": base, "method": None}
                yield f"{task}-{base}", {"overrides": words, "place": place}
            for method in self.side("methods"):
                yield from self._methods_runs(task, of_task, method)

    def _methods_runs(
        self, task: str, of_task: Mapping[str, Any], method: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        described = self.grid["methods"][method]
        described = described if isinstance(described, Mapping) else {"words": described}
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
        self.check_known(f"grid.methods.{method}", base, "bases")
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
