"""A suite: a grid of runs with their bases, as its file describes them.

A suite is a file of ``conf/suite/``, or one of the user's own. Its runs are lists of words, as
``trimtab train`` takes them; a run that names another one as its ``base`` starts from the frozen
policy of that run with the same seed (the same-start rule). Nothing here knows what any method
does.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.benchmarks.suites.document import read_document
from trimtab.benchmarks.suites.grid import expanded, matching
from trimtab.benchmarks.suites.naming import (
    check_methods,
    check_run,
    method_of,
    runs_once,
)
from trimtab.benchmarks.training.data.recipes import is_recipe_section, recipe_identity
from trimtab.benchmarks.training.fits import check_uses
from trimtab.benchmarks.training.identity import PROTOCOL_REVISION, constructed
from trimtab.benchmarks.training.provenance import versions
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.settings.groups import GROUPS, group_options, is_file_of_settings
from trimtab.benchmarks.training.settings.words import nearest, quoted
from trimtab.envs.registry import checked_names, declared, get_spec
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json

__all__ = ["Job", "Suite", "load_suite"]


@dataclass(frozen=True)
class Job:
    """One run of a suite: a named configuration with one seed."""

    name: str
    seed: int
    overrides: tuple[str, ...]
    base: str | None
    seconds: float | None
    """Expected duration, from the suite's file."""
    place: Mapping[str, str | None] = field(default_factory=dict)
    """Where it stands in the suite's grid: ``task``, ``base``, ``method`` and ``variant``."""

    @property
    def label(self) -> str:
        """What progress bars call it."""
        return f"{self.name} seed {self.seed}"


@dataclass(frozen=True)
class Suite:
    """A suite as its file describes it.

    Attributes:
        name: name of the file.
        source: what it was asked for by: its name, or the path of a file of one's own.
        title: heading of its leaderboard.
        jobs: every run, bases before what starts from them.
        baselines: method label -> label of the method that it is compared with.
        export: name of the run whose first seed becomes a bundle, or None.
        controls: methods that a gain has to be measured against, the best of them; with them, a
            suite gets the tables of ``trimtab.benchmarks.board.arena``.
        tables: further tables that it gets, modules of ``trimtab.benchmarks.board`` by name, such
            as ``budgeted`` and ``switch``.
        figure: a figure of its own (``trimtab.benchmarks.suites.figures``), or None for learning
            curves.
        settings: what the file says, and the seeds that were asked for instead.
    """

    name: str
    source: str
    title: str
    jobs: tuple[Job, ...]
    baselines: Mapping[str, str | None]
    export: str | None
    controls: tuple[str, ...]
    tables: tuple[str, ...]
    figure: Mapping[str, Any] | None
    settings: Mapping[str, Any]

    @property
    def has_records(self) -> bool:
        """Whether ``runs.json`` is kept: where runs have places, by which claims name them."""
        return any(job.place for job in self.jobs)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all that decides the suite's numbers, code revisions and packages included."""
        revisions = {run: _revisions(config) for run, config in self.composed.items()}
        parts = {"protocol": PROTOCOL_REVISION, "packages": versions(), **revisions}
        return sha256_json({**self.settings, "parts": parts})

    @functools.cached_property
    def composed(self) -> Mapping[str, RunConfig]:
        """The settings of each run, of its first seed, by its name.

        Raises:
            TrimtabError: if a word of a run is wrong, or there is no such task.
        """
        found: dict[str, RunConfig] = {}
        for job in self.jobs:
            if job.name not in found:
                words = [*job.overrides, *(["base=x"] if job.base else [])]  # it is not opened here
                try:
                    found[job.name] = config = compose_run(words)
                    check_uses(config)
                    if config["env"] is None:
                        raise TrimtabError("a suite compares scores in tasks; add env=…")
                    declared(config["env"], checked_names(config["env_options"] or {}))
                except TrimtabError as error:
                    raise TrimtabError(f"suite {self.name}: {job.name}: {error}") from error
        return found


def _revisions(config: RunConfig) -> dict[str, Any]:
    """Return what can change a run's result while its settings stay: code, physics, recipe."""
    groups = {"algorithm": config.algorithm, "policy": config.policy}
    options = checked_names(config["env_options"] or {})
    return {
        "code": [
            constructed(group, name, config[group])
            for group, name in groups.items()
            if name is not None
        ],
        "physics": get_spec(config["env"], **options).fingerprint,
        "data": recipe_identity(config["dataset"], Path(config["out"]))
        if is_recipe_section(config["dataset"])
        else None,
    }


def load_suite(
    name: str,
    runs: str,
    seeds: Sequence[int] | None = None,
    scale: str | None = None,
    only: Sequence[str] = (),
    device: str | None = None,
) -> Suite:
    """Read a suite's file.

    Args:
        name: name of a suite of the package, or the path of a YAML file of one's own.
        runs: folder of the runs.
        seeds: instead of the suite's own, and of those that a run has for itself.
        scale: which of the suite's scales, lists of words that every run gets; None for the first.
        only: names of runs, or patterns with ``*``: only these runs and their bases are kept; none:
            all runs.
        device: of torch in all runs; None for what the suite says.

    Raises:
        TrimtabError: if there is no such suite, scale or run, it is no suite, or its bases do not
            exist.
    """
    source = name
    name, document = read_document(source)
    given = None if seeds is None else list(seeds)
    chosen_scale, scaled = _scale(name, document, scale)
    grid = expanded(name, document["grid"], scaled) if "grid" in document else {}
    described = runs_once(name, [*grid.items(), *document.get("runs", {}).items()])
    seeds_of = _by_run(name, "seeds_of", scaled, described)
    words_of = _by_run(name, "words_of", scaled, described)
    common = [*document.get("common", []), *scaled.get("words", [])]
    places = [f"suite_name={name}", f"out={quoted(runs)}"]
    on_device = [f"device={quoted(device)}"] if device else []
    shared: Mapping[str, Sequence[str]] = document.get("shared", {})
    jobs: list[Job] = []
    for run, description in described.items():
        base = description.get("base")
        if base is not None and base not in list(described)[: list(described).index(run)]:
            raise TrimtabError(f"suite {name}: {run} starts from {base}, which no run above it is")
        own = (
            seeds_of.get(run) or scaled.get("seeds") or description.get("seeds", document["seeds"])
        )
        chosen = given or own
        lacking = set(chosen) - {job.seed for job in jobs if job.name == base} if base else set()
        if lacking:
            raise TrimtabError(f"suite {name}: {run} has seeds {sorted(lacking)}, {base} has not")
        for part in description.get("with", []):
            if part not in shared:
                raise TrimtabError(
                    f"suite {name}: {run} is with {part} of shared; {nearest(part, shared)}"
                )
        words = [word for part in description.get("with", []) for word in shared[part]]
        words += [*description.get("overrides", []), *words_of.get(run, [])]
        check_run(name, run, [*common, *words])
        jobs += [
            Job(
                name=run,
                seed=seed,
                overrides=(
                    *_with_own_files(source, [*common, *places, *words]),
                    *on_device,
                    f"seed={seed}",
                ),
                base=base,
                seconds=float(description["seconds"]) if "seconds" in description else None,
                place=description.get("place", {}),
            )
            for seed in chosen
        ]
    baselines: Mapping[str, str | None] = document.get("baselines", {})
    methods = {method_of(job.overrides) for job in jobs}
    check_methods(name, "baselines", [*baselines, *baselines.values()], methods)
    methods |= {*group_options("algorithm")}  # a scale may leave out the runs of some
    check_methods(name, "controls", document.get("controls", ()), methods)
    jobs = _chosen(name, jobs, only)
    export = document.get("export")
    if export is not None and export not in described:
        raise TrimtabError(f"suite {name}: export={export}: {nearest(export, described)}")
    figure: Mapping[str, Any] | None = document.get("figure")
    for panel in figure["panels"] if figure else ():
        if panel["run"] not in described:
            near = nearest(panel["run"], described)
            raise TrimtabError(f"suite {name}: figure draws the run {panel['run']}; {near}")
    return Suite(
        name=name,
        source=source,
        title=document["title"],
        jobs=tuple(jobs),
        baselines=baselines,
        export=None if only else export,
        controls=tuple(document.get("controls", ())),
        tables=tuple(document.get("tables", ())),
        figure=None if only else figure,
        settings={"suite": document, "seeds": given}
        | chosen_scale
        | ({"only": only} if only else {}),
    )


def _by_run(
    suite: str, key: str, scaled: Mapping[str, Any], runs: Collection[str]
) -> dict[str, list[Any]]:
    """Return what a scale says of runs by patterns, by run; the last pattern counts."""
    return {
        run: said
        for pattern, said in scaled.get(key, {}).items()
        for run in matching(suite, key, pattern, runs)
    }


def _with_own_files(source: str, words: Sequence[str]) -> list[str]:
    """Return words with the whole paths of files of settings that lie beside a suite's file."""
    if not is_file_of_settings(source):
        return [*words]
    found = []
    for word in words:
        key, _, value = word.partition("=")
        file = Path(source).absolute().parent / value
        own = key in GROUPS and is_file_of_settings(value) and file.is_file()
        found.append(f"{key}={file}" if own else word)
    return found


def _chosen(suite: str, jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """Return the runs that are asked for and the bases that they start from, in their order."""
    names = dict.fromkeys(job.name for job in jobs)
    wanted: set[str | None] = set()
    for pattern in only:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise TrimtabError(
                f"suite {suite}: only={pattern}: no run of this scale is called that; "
                f"{nearest(pattern, names)}"
            )
        wanted |= {*found}
    # Bases stand before what starts from them, so that one look from the end finds all.
    for job in reversed(jobs):
        if job.name in wanted:
            wanted.add(job.base)
    return [job for job in jobs if not only or job.name in wanted]


def _scale(
    name: str, document: Mapping[str, Any], wanted: str | None
) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Return the chosen scale, for the suite's settings, and what it says.

    A scale is a list of words, or a mapping: ``words``, ``seeds``, the two by patterns of
    runs' names (``seeds_of``, ``words_of``), and what narrows the grid.
    """
    scales: Mapping[str, Any] = document.get("scale", {})
    if not scales:
        if wanted is not None:
            raise TrimtabError(f"scale={wanted}: suite {name} has no scales; leave it out")
        return {}, {}
    chosen = next(iter(scales)) if wanted is None else wanted
    if chosen not in scales:
        raise TrimtabError(f"scale={chosen}: suite {name} has none so; {nearest(chosen, scales)}")
    says = scales[chosen]
    return {"scale": chosen}, says if isinstance(says, Mapping) else {"words": says}
