"""Write docs/methods.md: every method, by when it learns and from what.

``python scripts/methods.py`` reads the registry (family, paper, whether faithful), the sentences of
``docs/methods.yaml``, the commands of ``docs/cross_product.yaml``, and the committed rows of the
arena and of the suites without frozen bases.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.board.arena.model import Arena
from trimtab.benchmarks.board.arena.table import build
from trimtab.benchmarks.board.data_contests import contests_of
from trimtab.benchmarks.cli.records import RECORDS
from trimtab.benchmarks.core.numerals import number_text
from trimtab.benchmarks.suites.suite import load_suite
from trimtab.benchmarks.training.rows import FILE_NAME, collect_episodes
from trimtab.benchmarks.training.settings.catalog import (
    FAMILIES,
    describe_algorithm,
    family_of,
    is_faithful,
)
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.benchmarks.training.settings.groups import group_options, heading, registered_target
from trimtab.files import atomic_write_text, read_json

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "methods.md"
RESULTS = ROOT / "benchmarks" / "results"
ARENA = RESULTS / "arena"
WITHOUT_BASES = ("offline", "offline-to-online", "from-nothing")
"""Folders of results without frozen bases."""
CLONE = "clone_"
"""What a suite of data calls cloning by a kind of policy begins with."""
IMPROVING = ("steering", "selection", "editing", "finetuning", "offline_to_online")
DESCRIBED = (*IMPROVING, "offline", "on_policy", "off_policy")
_SENTENCES = ("idea", "when", "needs", "cost", "paper")
KINDS = ("gaussian", "diffusion", "flow", "consistency")
OPENING = """\
# Methods

This page is written by `python scripts/methods.py`. Every method is one file in a folder of
`algorithms/`, whose name is its family, and one file in `conf/algorithm/`. The first families
start from the same frozen policy: `base=` names a run or a bundle. `trimtab bench suite=arena`
compares them, beside the controls that an honest answer needs. The offline methods learn from
`dataset=` alone, and most can go on in the environment (`online_steps`); `trimtab bench
suite=offline` and `suite=offline_to_online` compare them. The last two families learn in the
environment from nothing (`trimtab bench suite=from_nothing`). "Our result" is the mean success with
one setting over the contests of the committed arena rows. For the others it is the mean score of
the last evaluations on each dataset or task, a success or a return: of data after a hundredth of
the papers' updates (`benchmarks/results/offline`), from nothing after the few steps of that suite
(`benchmarks/results/from-nothing`). A dash says that there are no rows yet."""
CROSS = """\
## The classical learners on each kind of policy

`base=…` stands for a clone of the column's kind (`trimtab train … algorithm=bc policy=<kind>
dataset=…`), `dataset=…` for demonstrations. A test carries out every command at toy size."""


def sentences() -> Mapping[str, Mapping[str, str]]:
    """Return what the page says of each method."""
    found: Mapping[str, Mapping[str, str]] = yaml.safe_load((DOCS / "methods.yaml").read_text())
    return found


def cross_product() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the cells of the classical learners on each kind of policy."""
    found: Mapping[str, Any] = yaml.safe_load((DOCS / "cross_product.yaml").read_text())
    return found


def described() -> dict[str, list[str]]:
    """Return the registered methods that the page has to describe, by family."""
    found: dict[str, list[str]] = {family: [] for family in DESCRIBED}
    for name in group_options("algorithm"):
        family = family_of(str(registered_target("algorithm", name)))
        if family in found:
            found[family].append(name)
    return found


def results() -> Mapping[str, str]:
    """Return each method's results: over the arena's contests, and on each dataset."""
    found: dict[str, list[str]] = defaultdict(list)
    for method, said in _of_the_arena().items():
        found[method].append(said)
    for name in WITHOUT_BASES:
        folder = RESULTS / name
        table, records = collect_episodes(folder / FILE_NAME), read_json(folder / RECORDS, "runs")
        scores: dict[str, list[str]] = defaultdict(list)
        for contest in contests_of(table, records):
            clones = []
            for method, one in contest.methods.items():
                text = contest.mean_text(one.score)
                algorithm, policy = _of_which(method)
                scores[algorithm].append(f"`{contest.task}` {text}{policy}")
                if method.startswith(CLONE):
                    clones.append(f"{text} ({method.removeprefix(CLONE)})")
            if clones:
                scores["bc"].append(f"`{contest.task}` {', '.join(clones)}")
        for method, several in scores.items():
            found[method].append(f"{name.replace('-', ' ')}: {', '.join(several)}")
    return {method: "; ".join(several) for method, several in found.items()}


def _of_which(method: str) -> tuple[str, str]:
    """Return the algorithm of a suite's method, and what else its name says: a kind of policy."""
    for kind in KINDS:
        if method.endswith(f"_{kind}") and method not in group_options("algorithm"):
            return method.removesuffix(f"_{kind}"), f" ({kind})"
    return method, ""


def _of_the_arena() -> Mapping[str, str]:
    arena: Arena = build(
        collect_episodes(ARENA / FILE_NAME),
        read_json(ARENA / RECORDS, "runs"),
        load_suite("arena", "runs").controls,
    )
    return {
        row.method: f"{number_text(row.one_setting)} over {row.contests}" for row in arena.overall
    }


def page() -> str:
    """Return the page."""
    return "\n\n".join([OPENING, *_families(), CROSS, _cross_table()]) + "\n"


def _families() -> Iterator[str]:
    said, ours = sentences(), results()
    for family, names in described().items():
        yield f"## {family.replace('_', ' ').capitalize()}: {FAMILIES[family]}"
        for name in names:
            target = str(registered_target("algorithm", name))
            summary, paper = describe_algorithm(target, heading("algorithm", name))
            what = said.get(name) or dict.fromkeys(_SENTENCES, "–") | {"idea": f"{summary}."}
            kind = class_of(target, "algorithm")
            assert issubclass(kind, Algorithm)
            faith = "" if is_faithful(target) else " An adaptation; its docstring says why."
            facts = f"{_facts(what)}\n- our result: {ours.get(name, '–')}"
            yield f"### `{name}`\n\n{what['idea']} Paper: {paper}.{faith}\n\n{facts}"
    yield _sources(said)
    yield _elsewhere(said, ours)


def _facts(what: Mapping[str, str]) -> str:
    labels = {"when": "when", "needs": "needs", "cost": "cost", "paper": "the paper's claim"}
    return "\n".join(f"- {label}: {what[key]}" for key, label in labels.items())


def _sources(said: Mapping[str, Mapping[str, str]]) -> str:
    """Return what makes data for any offline method."""
    lines = ["## Sources: make the data that an offline method learns from (`source=`)"]
    for name in group_options("source"):
        target, what = str(registered_target("source", name)), said[name]
        _, paper = describe_algorithm(target, heading("source", name))
        lines.append(f"### `{name}`\n\n{what['idea']} Paper: {paper}.\n\n{_facts(what)}")
    return "\n\n".join(lines)


def _elsewhere(said: Mapping[str, Mapping[str, str]], ours: Mapping[str, str]) -> str:
    """Return the methods that start from no base and stand in the arena beside the others."""
    known = {name for names in described().values() for name in names}
    known |= {*group_options("source")}
    lines = ["## Beside them: from the data, and from nothing"]
    for name, what in said.items():
        if name not in known:
            lines.append(
                f"- `{name}`: {what['idea']} Needs {what['needs']}. The paper's claim: "
                f"{what['paper']}. Our result: {ours.get(name, '–')}."
            )
    floor = [f"`{name}`: {ours.get(name, '–')}" for name in ("sac", "ppo")]
    lines.append(f"- From nothing these are the floor. {'. '.join(floor)}.")
    return "\n\n".join([lines[0], "\n".join(lines[1:])])


def _cross_table() -> str:
    rows = [["", *KINDS], [":--"] * (len(KINDS) + 1)]
    for learner, cells in cross_product().items():
        rows.append([learner, *(_cell(cells[kind]) for kind in KINDS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(cell: Mapping[str, str]) -> str:
    if "reason" in cell:
        return f"none: {cell['reason']}"
    words = cell["command"].replace(" base", " base=…").replace(" dataset", " dataset=…")
    note = f" ({cell['note']})" if "note" in cell else ""
    return f"`{words}`{note}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes no words
    atomic_write_text(PAGE, page())
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")
