"""What a suite will take, before anything of it runs: runs, steps and hours.

Hours come from finished runs of the same method and task where there are some, else from what the
suite's file says (``seconds``), else from a rough speed. Each line says which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from trimtab.benchmarks.suites.suite import Suite
from trimtab.benchmarks.training.data.recipes import is_recipe_section, recipe_folder
from trimtab.benchmarks.training.folder import find_runs, read_result
from trimtab.errors import TrimtabError

__all__ = ["Estimate", "RunEstimate", "estimate_suite"]

_A_SECOND = 500.0
"""Updates or environment steps a second, roughly, of a small policy on one core."""


@dataclass(frozen=True)
class RunEstimate:
    """The runs of one name.

    Attributes:
        run: their name in the suite.
        seeds: how many there are.
        done: how many of them are finished.
        updates: gradient updates of each before it acts.
        steps: environment steps of each.
        hours: of one core, of those that are not done.
        hours_from: ``measured``, ``suite's file`` or ``rough guess``.
    """

    run: str
    seeds: int
    done: int
    updates: int
    steps: int
    hours: float
    hours_from: str


@dataclass(frozen=True)
class Estimate:
    """A suite's runs, and the recipes whose data is recorded first."""

    runs: tuple[RunEstimate, ...]
    recipes: tuple[str, ...]


def estimate_suite(suite: Suite, runs: Path, done: Collection[str] = ()) -> Estimate:
    """Return what a suite will take.

    Args:
        suite: the suite.
        runs: folder of the runs, in which finished ones may lie.
        done: labels of its runs that are finished.

    Raises:
        TrimtabError: if a word of a run is wrong.
    """
    known = _measured(runs) if runs.is_dir() else {}
    planned, recipes = [], dict[str, None]()
    for name, config in suite.composed.items():
        jobs = [job for job in suite.jobs if job.name == name]
        left = [job for job in jobs if job.label not in done]
        found = known.get((config["env"], config.algorithm), [])
        updates, steps = config["offline_steps"] or 0, config["online_steps"] or 0
        if found:
            seconds, source = median(found) * max(steps or updates, 1), "measured"
        elif jobs[0].seconds is not None:
            seconds, source = jobs[0].seconds, "suite's file"
        else:
            seconds, source = (updates + steps) / _A_SECOND, "rough guess"
        planned.append(
            RunEstimate(
                run=name, seeds=len(jobs), done=len(jobs) - len(left), updates=updates, steps=steps,
                hours=len(left) * seconds / 3600, hours_from=source,
            )
        )  # fmt: skip
        recipe = config["dataset"]
        if left and is_recipe_section(recipe) and not recipe_folder(recipe, runs).exists():
            recipes[str(recipe["id"])] = None
    return Estimate(tuple(planned), tuple(recipes))


def _measured(runs: Path) -> Mapping[tuple[str, str], list[float]]:
    """Return the seconds that finished runs took for a step, by task and method."""
    found: dict[tuple[str, str], list[float]] = {}
    for folder in find_runs(runs):
        try:
            result = read_result(folder)
        except TrimtabError:  # it is not finished, or damaged
            continue
        steps = max(result["env_steps"] or result["updates"], 1)
        each = result["seconds"] / steps
        found.setdefault((result["env"], result["algorithm"]), []).append(each)
    return found
