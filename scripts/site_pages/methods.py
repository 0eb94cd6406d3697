"""A page for every method: what it does, its settings, commands, needs, cost and results."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from site_pages.results import ROOT, entries, results_table
from site_pages.text import Page, code, escaped, from_docstring, sections_of, table

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.training.settings.catalog import (
    FAMILIES,
    describe_algorithm,
    family_of,
    is_faithful,
)
from trimtab.benchmarks.training.settings.constructors import class_of, keywords
from trimtab.benchmarks.training.settings.explained import meanings
from trimtab.benchmarks.training.settings.groups import (
    constructed_section,
    group_options,
    heading,
    load_group,
)

_SAID = {
    "when": "When to use it",
    "needs": "What it needs",
    "cost": "What it costs",
    "paper": "What the paper claims",
}
_EXAMPLE = {
    "base": "base=<a run or a bundle>",
    "dataset": "dataset=two_routes",
    "oracles": "oracles=[<a run or a bundle>,<another>]",
    "policy": "policy=flow",
    "start": "base=<a run or a bundle>",
}
"""Words of a command, by what a method uses."""
_WITH_COSTS = "dataset=two_routes dataset.env_options.cost=upper"


def families() -> dict[str, list[str]]:
    """Return the names of the registered methods by family, in the order of the families."""
    found: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in group_options("algorithm"):
        if not _target(name).startswith("trimtab."):
            continue  # of a plug-in that is installed here
        found.setdefault(family_of(_target(name)), []).append(name)
    return {family: names for family, names in found.items() if names}


def pages(only: int | None = None, also: Container[str] = ()) -> Iterator[Page]:
    """Yield a page for each method.

    Args:
        only: where it is given, each family has its first ones alone.
        also: methods that have a page in any case.
    """
    for names in families().values():
        for name in (name for name in names if name in names[:only] or name in also):
            yield Page(f"methods/{name}.md", _page(name))


def _target(name: str) -> str:
    return str(constructed_section("algorithm", name)["_target_"])


@functools.cache
def _sentences() -> Mapping[str, Mapping[str, str]]:
    found: Mapping[str, Mapping[str, str]] = yaml.safe_load(
        (ROOT / "docs" / "methods.yaml").read_text(encoding="utf-8")
    )
    return found


def _page(name: str) -> str:
    target = _target(name)
    kind = class_of(target, "algorithm")
    assert issubclass(kind, Algorithm)
    module = importlib.import_module(target.rpartition(".")[0])
    family = family_of(target)
    summary, paper = describe_algorithm(target, heading("algorithm", name))
    said = _sentences().get(name, {})
    faith = (
        "It follows the paper; differences are listed below."
        if is_faithful(target)
        else "It is an adaptation of the paper; the reasons stand below."
    )
    parts = [
        f"# `{name}`",
        escaped(said.get("idea", f"{summary}.")),
        f"Family: **{family.replace('_', ' ')}** ({FAMILIES.get(family, 'your own')}). Paper: "
        f"{escaped(paper)}. {faith}",
        *_facts(said),
        "## Commands",
        _commands(name),
        "## Settings",
        _settings(name, target, kind),
        *_of_the_run(name),
        "## Results",
        _results(name),
        "## What it does",
        from_docstring(module.__doc__ or ""),
        *_of_the_class(kind),
        f"Source: `{_source(kind)}`. Settings: `conf/algorithm/{name}.yaml`. All methods side by "
        "side: [methods](../methods.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _facts(said: Mapping[str, str]) -> Iterator[str]:
    rows = [(title, escaped(said[key])) for key, title in _SAID.items() if key in said]
    if rows:
        yield "\n".join(f"- **{title}:** {text}" for title, text in rows)


def example(name: str) -> list[str]:
    """Return the words of a run that shows a method: a task and data that it can learn from."""
    kind = class_of(_target(name), "algorithm")
    given = {use: _EXAMPLE[use] for use in sorted(kind.needs.required) if use in _EXAMPLE}
    task = ["env=robotics/PointMaze-TwoRoutes-v0" if kind.needs.required else "env=gym/Hopper-v5"]
    if kind.batch_spec.cost:
        task, given["dataset"] = [*task, "env_options.cost=upper"], _WITH_COSTS
    elif kind.batch_spec.goal is not None:
        task = ["env=robotics/PointMaze_Medium-v3", "env_options.terminate_on_success=true"]
        given["dataset"] = "dataset=maze_medium"
    elif family_of(_target(name)) == "offline" and "dataset" in given:
        task, given["dataset"] = ["env=gym/Hopper-v5"], "dataset=hopper_medium_replay"
    return [*task, f"algorithm={name}", *given.values()]


def _commands(name: str) -> str:
    return "\n".join(
        [
            "```sh",
            " ".join(["trimtab train", *example(name)]),
            f"trimtab train --help algorithm={name}      # its settings, in the terminal",
            "trimtab evaluate policy=<the run> episodes=100",
            "trimtab export run=<the run> out=my-bundle  # for a robot",
            "```",
        ]
    )


def _settings(name: str, target: str, kind: type[Any]) -> str:
    section: Any = OmegaConf.to_container(constructed_section("algorithm", name))
    told = meanings(kind)
    rows = [
        (
            code(f"algorithm.{key}"),
            code(_plain(section.get(key, parameter.default))),
            escaped(told.get(key, "")),
        )
        for key, parameter in keywords(target, "algorithm").items()
    ]
    if not rows:
        return "It has no settings of its own."
    return table(("Setting", "Default", "Meaning"), rows)


def _of_the_run(name: str) -> Iterator[str]:
    """Yield the settings of the run that the method's file gives, unless a user does."""
    file = load_group("algorithm", name)
    rows = [(code(key), code(_plain(value))) for key, value in file.items() if key != "algorithm"]
    if rows and "algorithm" in file:
        yield "These settings of the run have other defaults with this method:"
        yield table(("Setting of the run", "Default here"), rows)


def _results(name: str) -> str:
    found = [one for one in entries() if one.method == name]
    if not found:
        return "No rows of this method are committed yet."
    return results_table(found, "Task", [code(one.env) for one in found], "../") + (
        "\n\nA score is a mean over seeds with its 95 percent interval; "
        "[statistics](../statistics.md) says how it is computed."
    )


def _of_the_class(kind: type[Any]) -> Iterator[str]:
    said = inspect.cleandoc(sections_of(kind.__doc__ or ""))
    if said.partition("\n")[2]:  # its one line says no more than the module's
        yield f"**`{kind.__name__}`.** {from_docstring(said)}"


def _source(kind: type[Any]) -> str:
    return str(Path(inspect.getfile(kind)).resolve().relative_to(ROOT))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
