"""A page for every family of tasks and one for every task, from what the families declare."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from site_pages.results import ROOT, entries, results_table
from site_pages.text import Page, code, from_docstring, table

from trimtab.benchmarks.training.settings.groups import group_options, load_group
from trimtab.envs.core.spec import Family, Task
from trimtab.envs.registry import list_families

_NAMES = ROOT / "envs" / "physics" / "names.json"


def pages(only: int | None = None) -> Iterator[Page]:
    """Yield the pages of all tasks, of each family its first ones where ``only`` limits them."""
    known = json.loads(_NAMES.read_text(encoding="utf-8"))
    data = _datasets()
    families = sorted(list_families(), key=lambda family: family.name)
    yield Page("tasks/index.md", _overview(families))
    for family in families:
        tasks = dict(list(sorted(family.tasks.items()))[:only])
        yield Page(f"tasks/{family.name}.md", _of_family(family, tasks))
        for name, task in tasks.items():
            id = f"{family.name}/{name}"
            yield Page(
                f"tasks/{id}.md", _of_task(family, id, task, known.get(id, []), data.get(id, []))
            )


def _datasets() -> Mapping[str, list[tuple[str, str]]]:
    """Return the recipes of each task: their names, and the episodes or steps that they record."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name in group_options("dataset"):
        recipe = load_group("dataset", name)
        size = [f"{recipe[key]:,} {key}" for key in ("episodes", "steps") if recipe.get(key)]
        if recipe.get("env") and size:
            found.setdefault(str(recipe["env"]), []).append((name, size[0]))
    return found


def _overview(families: list[Family]) -> str:
    count = sum(len(family.tasks) for family in families)
    rows = [
        (f"[`{f.name}/`]({f.name}.md)", str(len(f.tasks)), code(f"pip install '{f.install}'"))
        for f in families
    ]
    return (
        "\n\n".join(
            [
                "# All tasks",
                f"There are {count} tasks of {len(families)} simulator families. Each task has "
                "a page with its horizon, its options, its data and its committed results. "
                "`trimtab list env` prints the same list; `trimtab list env tag=goal` selects by "
                "a tag.",
                table(("Family", "Tasks", "Its simulator is installed by"), rows),
                "[Environments](../environments.md) says what every environment promises, and how "
                "a task of your own is used.",
            ]
        )
        + "\n"
    )


def _of_family(family: Family, tasks: Mapping[str, Task]) -> str:
    module = importlib.import_module(family.build.__module__)
    rows = [
        (
            f"[`{name}`]({family.name}/{name}.md)",
            str(task.horizon),
            "yes" if task.success_key else "no",
            ", ".join(task.tags),
        )
        for name, task in tasks.items()
    ]
    faster = ""
    if family.vector is not None:
        faster = (
            f" {len(family.vector.tasks)} of its tasks are stepped by a vector environment of "
            f"Trimtab's own (on {', '.join(family.vector.devices)})."
        )
    return (
        "\n\n".join(
            [
                f"# `{family.name}/`",
                f"Install: `pip install '{family.install}'`. The physics is decided by "
                f"{', '.join(code(name) for name in family.packages)}.{faster}",
                table(("Task", "Horizon", "Success known", "Tags"), rows),
                "## How it is made",
                from_docstring(module.__doc__ or ""),
            ]
        )
        + "\n"
    )


def _of_task(
    family: Family,
    id: str,
    task: Task,
    physics: list[Mapping[str, Any]],
    datasets: list[tuple[str, str]],
) -> str:
    parts = [
        f"# `{id}`",
        f"A task of the family [`{family.name}/`](../{family.name}.md).",
        table(("What", "Value"), _facts(family, task, physics)),
        "## Commands",
        _commands(family, id, task, datasets),
    ]
    if task.options:
        rows = [
            (code(f"env_options.{key}"), *_choices(values)) for key, values in task.options.items()
        ]
        parts += ["## Options of its own", table(("Option", "Default", "Other values"), rows)]
    if task.score_references:
        rows = [
            (code(name), f"{low:,.2f}", f"{high:,.2f}")
            for name, (low, high) in task.score_references.items()
        ]
        parts += [
            "## Returns that scores are scaled by",
            table(("Reference", "Return of score 0", "Return of score 100"), rows),
        ]
    if datasets:
        parts += ["## Data that recipes record", table(("Recipe", "Size"), _recipes(datasets))]
    parts += _results(id)
    return "\n\n".join(parts) + "\n"


def _recipes(datasets: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(code(f"dataset={name}"), size) for name, size in datasets]


def _choices(values: tuple[Any, ...]) -> tuple[str, str]:
    default, *others = (code(json.dumps(value)) for value in values)
    return default, ", ".join(others) or "any of the same kind"


def _facts(
    family: Family, task: Task, physics: list[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    yield "Horizon", f"{task.horizon:,} environment steps"
    success = "the task has no notion of it" if task.success_key is None else code(task.success_key)
    yield "Success", success
    yield "Tags", ", ".join(code(tag) for tag in task.tags) or "none"
    yield "Install", code(f"pip install '{family.install}'")
    plain = [one for one in physics if not one["definition"]["options"]]
    if plain:
        known = plain[-1]["definition"]
        step = known["timestep"]
        if step is not None:
            rate = 1 / (step * known["frame_skip"])
            yield "Control rate", f"{rate:g} actions a simulated second"
        yield "Integrator", code(known["integrator"])
        versions = ", ".join(f"{name} {version}" for name, version in known["packages"].items())
        yield "Name of its physics", f"{code(plain[-1]['name'])} with {versions}"


def _commands(family: Family, id: str, task: Task, datasets: list[tuple[str, str]]) -> str:
    lines = [f"trimtab train env={id} algorithm=sac", f"trimtab check env={id}"]
    if datasets:
        lines.insert(0, f"trimtab train env={id} algorithm=bc policy=flow dataset={datasets[0][0]}")
    return "\n".join(["```sh", *lines, "```"])


def _results(id: str) -> list[str]:
    found = [one for one in entries() if one.env == id]
    links = [f"[`{one.method}`](../../methods/{one.method}.md)" for one in found]
    return (
        ["## Committed results", results_table(found, "Method", links, "../../")] if found else []
    )
