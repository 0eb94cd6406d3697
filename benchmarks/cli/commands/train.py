"""``trimtab train``: one run, or a sweep of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Console

from trimtab.benchmarks.cli.screen import print_line, print_result, print_rows, progress_bar
from trimtab.benchmarks.cli.words import Command, Setting, parse
from trimtab.benchmarks.core.numerals import score_words
from trimtab.benchmarks.suites.launch import WITHIN, Chosen, chosen_launcher, launcher_kinds
from trimtab.benchmarks.suites.search import DIRECTIONS, SAMPLERS, SCORES, Search, search
from trimtab.benchmarks.suites.sweep import sweep
from trimtab.benchmarks.suites.sweep_line import SweepLine
from trimtab.benchmarks.training.settings import config, groups
from trimtab.benchmarks.training.settings.explained import keywords_help, settings_help
from trimtab.benchmarks.training.settings.overrides import check_name
from trimtab.benchmarks.training.train import train as carry_out
from trimtab.errors import TrimtabError

__all__ = ["explain_run", "train"]

_OF_SWEEPS: Mapping[str, Setting] = MappingProxyType(
    {"launcher": Setting("local", ""), "workers": Setting(0, "")}
)
"""Settings of a sweep that none of its runs has."""


def train(words: Sequence[str]) -> int:
    """Carry out one run, or with ``-m`` one for each combination of comma-separated values."""
    many = {"-m", "--multirun"}
    overrides = [word for word in words if word not in many]
    for word in overrides:
        if word.startswith("-"):
            raise TrimtabError(f"train: no option {word}; settings are key=value, sweeps take -m")
    _refuse_repeated(overrides)
    if len(overrides) < len(words):
        return _sweep(overrides)
    for word in overrides:
        if word.partition("=")[0] in _OF_SWEEPS or word.startswith((WITHIN, *_SWEEPER)):
            raise TrimtabError(f"train: {word}: belongs to a sweep: add -m, such as -m seed=0,1")
    settings = config.compose_run(overrides)

    with progress_bar(settings.algorithm) as tell:
        result = carry_out(settings, tell)
    print_result(result.place, result.summary, already_done=result.already_done)
    return 0


def _refuse_repeated(words: Sequence[str]) -> None:
    """Refuse a setting that is given twice; only in suites the later word wins.

    Raises:
        TrimtabError: if a setting is given twice; the message names it.
    """
    seen = set()
    for word in words:
        key, equals, text = word.partition("=")
        key = key.lstrip("+~")
        if equals and key in seen:
            raise TrimtabError(f"train: {key} is given twice, the second time as {text[:80]!r}")
        seen.add(key)


def _sweep(words: Sequence[str]) -> int:
    own = {**_OF_SWEEPS, **_SEARCH}
    command = Command("", "", (), own)
    chosen = [word for word in words if word.partition("=")[0] in own]
    of_launcher = [word for word in words if word.startswith(WITHIN)]
    of_sweeper = [word for word in words if word.startswith(_SWEEPER) and word not in chosen]
    if of_sweeper:
        parse("train", command, of_sweeper[:1])  # there is no such setting
    settings = parse("train", command, chosen)
    left = [word for word in words if word not in {*chosen, *of_launcher}]
    launcher = chosen_launcher(settings["launcher"], of_launcher)
    _SWEEPERS[settings["hydra/sweeper"]](left, settings, launcher, chosen)
    return 0


def _grid(
    words: Sequence[str], settings: Mapping[str, Any], launcher: Chosen, chosen: Sequence[str]
) -> None:
    """Carry out a run for each combination of values."""
    for word in chosen:
        if word.startswith(_SWEEPER[1]):
            raise TrimtabError(f"{word}: is a setting of a search; add hydra/sweeper=optuna")
    sweep(
        words,
        _print_outcomes,
        console=Console(stderr=True),
        launcher=launcher,
        workers=settings["workers"],
    )


def _search(
    words: Sequence[str], settings: Mapping[str, Any], launcher: Chosen, chosen: Sequence[str]
) -> None:
    """Carry out trials that Optuna chooses."""
    if settings["workers"]:
        raise TrimtabError("workers: hydra.sweeper.n_jobs says how many trials go side by side")
    own = {key.rpartition(".")[2]: settings[key] for key in _SEARCH if key.startswith(_SWEEPER[1])}
    search(words, Search(**own), _print_trials, console=Console(stderr=True), launcher=launcher)


_SWEEPER = ("hydra/sweeper", "hydra.sweeper.")
_SEARCH = {
    "hydra/sweeper": Setting("basic", "", ("basic", "optuna")),
    "hydra.sweeper.n_trials": Setting(20, "", least=1),
    "hydra.sweeper.n_jobs": Setting(1, "", least=1),
    "hydra.sweeper.direction": Setting("maximize", "", DIRECTIONS),
    "hydra.sweeper.score": Setting("auto", "", tuple(SCORES)),
    "hydra.sweeper.sampler": Setting("tpe", "", tuple(SAMPLERS)),
    "hydra.sweeper.sampler.seed": Setting(0, ""),
    "hydra.sweeper.study_name": Setting("", ""),
}
_SWEEPERS = {"basic": _grid, "optuna": _search}


def _print_trials(outcomes: Sequence[SweepLine], best: str) -> None:
    """Print the table at the end of a search, and how the best trial is repeated."""
    _print_outcomes(outcomes, "trials")
    if best:
        print_line(f"the best one is repeated with: {best}")


def _print_outcomes(outcomes: Sequence[SweepLine], called: str = "runs") -> None:
    """Print the table at the end of a sweep: what became of each run."""
    states = [outcome.state for outcome in outcomes]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    print_rows(f"sweep: {len(outcomes)} {called}, {counts}", [_row(one) for one in outcomes])


def _row(outcome: SweepLine) -> dict[str, str]:
    score = score_words(outcome.return_, outcome.success, outcome.held_out)
    return {
        "settings": outcome.label,
        "state": outcome.state,
        "last score": score,
        "episodes": "" if outcome.episodes is None else str(outcome.episodes),
        "seconds": "" if outcome.seconds is None else f"{outcome.seconds:,.0f}",
        "folder": outcome.folder,
        "note": outcome.note,
    }


def explain_run(words: Sequence[str] = ()) -> list[str]:
    """Return the lines of help on the settings of a run: those of ``conf/config.yaml``.

    Args:
        words: words of the command line; if they name a method or a policy, the lines also explain
            its keywords.

    Raises:
        TrimtabError: if a word names a method or a policy that does not exist.
    """
    lines = [f"  {line}" for line in settings_help()]
    for group in ("algorithm", "policy", "dataset", "source"):
        lines.append(f"  {group}: {', '.join(groups.group_options(group))}")
    lines += [
        "  algorithm.<keyword>, policy.<keyword>: settings of the chosen method and policy;",
        "      trimtab train --help algorithm=dsrl_na policy=flow shows those of these two",
        "  -m: a sweep over comma-separated values, such as -m seed=0,1,2, in parallel;",
        "      hydra/sweeper=optuna searches with Optuna (docs/runs.md);",
        "      workers=2 runs two side by side, launcher=… chooses what carries them out:",
        f"      {', '.join(launcher_kinds())}; trimtab list launcher shows their settings",
    ]
    for word in words:
        group, _, names = word.partition("=")
        for value in names.split(",") if group in groups.CONSTRUCTED else ():
            name = groups.name_in_group(group, value)
            check_name(group, name, groups.group_options(group))
            lines += ["", *keywords_help(group, name)]
    return lines
