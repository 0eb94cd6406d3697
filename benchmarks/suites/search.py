"""A search: trials that Optuna chooses one after another (``train -m hydra/sweeper=optuna``).

Optuna keeps what was tried in its own journal, ``<out>/studies/<name>/study.log``. Its sampler is
seeded by the search's seed and the number of trials before, so a search that was stopped tries what
it would have tried without the stop.
"""

from __future__ import annotations

import concurrent.futures
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks.suites.bars import Bars
from trimtab.benchmarks.suites.launch import JOBS, Chosen, Done, Work
from trimtab.benchmarks.suites.space import Space, asked_for, import_optuna
from trimtab.benchmarks.suites.sweep_line import SweepLine, sweep_line
from trimtab.benchmarks.training.locking import locked
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.store import is_address
from trimtab.benchmarks.training.train import check
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes, sha256_json
from trimtab.plugins import command_line

__all__ = ["DIRECTIONS", "SAMPLERS", "SCORES", "Search", "search"]

DIRECTIONS = ("maximize", "minimize")
SAMPLERS: Mapping[str, Callable[[Any, int], Any]] = {
    "tpe": lambda optuna, seed: optuna.samplers.TPESampler(seed=seed),
    "random": lambda optuna, seed: optuna.samplers.RandomSampler(seed=seed),
}
"""What chooses the trials, by the name that ``hydra.sweeper.sampler`` takes."""
HELD_OUT = "held_out_error"
"""Name of the score that is better the smaller it is."""
SCORES: Mapping[str, Callable[[SweepLine], float | None]] = {
    "auto": lambda found: found.return_ if found.success is None else found.success,
    "success": lambda found: found.success,
    "return": lambda found: found.return_,
    HELD_OUT: lambda found: found.held_out,
}
"""What is searched for, of a run's last evaluation, by its name; None where a run has none."""
_OUTCOME = "outcome"
"""The attribute of a trial that has ended, with what the table says of it."""


@dataclass(frozen=True)
class Search:
    """How trials are chosen.

    Attributes:
        n_trials: how many are to succeed, those of earlier sittings included.
        n_jobs: trials side by side; with 1 the same trials are chosen every time.
        direction: ``maximize`` or ``minimize``.
        score: what of the last evaluation; a key of ``SCORES``.
        sampler: what chooses; a key of ``SAMPLERS``.
        seed: of the sampler.
        study_name: empty for one that follows from the words of all trials.
    """

    n_trials: int = 20
    n_jobs: int = 1
    direction: str = "maximize"
    score: str = "auto"
    sampler: str = "tpe"
    seed: int = 0
    study_name: str = ""


def search(
    overrides: Sequence[str],
    how: Search,
    tell: Callable[[Sequence[SweepLine], str], None],
    *,
    console: Console,
    launcher: Chosen,
) -> None:
    """Carry out a search, or continue it; a trial that fails does not stop the others.

    Args:
        overrides: words of the runs' settings, those to be searched among them.
        how: trials are chosen.
        tell: called at the end, also where the search is stopped, with what became of each trial,
            the best one first, and the command of the best one (empty while there is none).
        console: where progress is shown.
        launcher: what carries the trials out.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the runs' states are saved.
        TrimtabError: if a word is wrong, or a trial failed.
    """
    optuna = import_optuna()
    if how.study_name and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", how.study_name):
        raise TrimtabError(
            f"hydra.sweeper.study_name={how.study_name[:80]!r}: may have letters, digits, '.', '-' "
            "and '_' only, 64 at most"
        )
    words, space, runs = asked_for(overrides)
    _check_score(how, runs)
    first = _ask(optuna.create_study(), how, space, 0)
    run = compose_run([*words, *_words_of(first, space)])
    check(run)
    own = sorted(word for word in words if not word.startswith("out="))
    about = {
        "words": own, "direction": how.direction, "score": how.score, "sampler": how.sampler,
        "seed": how.seed,
        "space": {
            key: optuna.distributions.distribution_to_json(one) for key, one in space.items()
        },
    }  # fmt: skip
    out = Path("runs" if is_address(run["out"]) else run["out"])
    folder = out / "studies" / (how.study_name or sha256_json(own)[:10])
    with locked(folder):
        study = _open_study(folder / "study.log", about)
        try:
            failed = _carry_out(study, words, space, how, console, launcher, out / JOBS)
        finally:
            if study.trials:
                tell(*_table(study, words, space, how))
    if failed:
        raise TrimtabError(
            f"{len(failed)} of {len(study.trials)} trials failed: {failed[0].label}: "
            f"{failed[0].note}"
        )


def _check_score(how: Search, runs: Sequence[RunConfig]) -> None:
    """Check that the results of runs will have the score that trials are compared by.

    Raises:
        TrimtabError: naming the task whose results have not.
    """
    if how.score == HELD_OUT and how.direction == DIRECTIONS[0]:
        raise TrimtabError(
            f"hydra.sweeper.score={HELD_OUT}: the smaller it is the better; add "
            f"hydra.sweeper.direction={DIRECTIONS[1]}"
        )
    for run in runs:
        found = SweepLine("", "done", held_out=None if run["holdout"] is None else 0.0)
        if run["env"] is not None:
            task = get_spec(run["env"], **checked_names(run["env_options"] or {}))
            success = None if task.success_key is None else 0.0
            found = replace(found, return_=0.0, success=success)
        if SCORES[how.score](found) is None:
            others = [name for name, score in SCORES.items() if score(found) is not None]
            raise TrimtabError(
                f"hydra.sweeper.score={how.score}: {run['env'] or 'a run without a task'} has no "
                f"{how.score}; there are: {', '.join(others) or HELD_OUT + ', with holdout=0.1'}"
            )


def _open_study(file: Path, about: Mapping[str, Any]) -> Any:
    """Return Optuna's study in a file, which is made if it is not there.

    Raises:
        TrimtabError: if the file is damaged, or has a search of something else or in another way.
    """
    optuna = import_optuna()
    other = "name another search with hydra.sweeper.study_name=…"
    if file.is_file() and not (text := file.read_bytes()).endswith(b"\n"):
        atomic_write_bytes(file, text[: text.rfind(b"\n") + 1])  # killed while it wrote a line
    try:
        backend = optuna.storages.journal.JournalFileBackend(str(file))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), study_name="search",
            direction=about["direction"], load_if_exists=True,
        )  # fmt: skip
        had = study.user_attrs
        if had.keys() != about.keys():
            for name, value in {**about, **had}.items():
                study.set_user_attr(name, value)
    except Exception as error:  # Optuna reads lines of JSON, and checks none of them
        raise TrimtabError(
            f"study: {file} cannot be read ({type(error).__name__}: {error}); move it away to "
            f"start anew, or {other}"
        ) from error
    for name, value in about.items():
        if (begun := had.get(name, value)) != value:
            raise TrimtabError(f"study: {file} was begun with {name}={begun}, not {value}; {other}")
    return study


def _ask(study: Any, how: Search, space: Space, number: int) -> Any:
    """Return a new trial, the ``number``-th of its search."""
    seed = int(sha256_json([how.seed, number])[:8], 16)
    study.sampler = SAMPLERS[how.sampler](import_optuna(), seed)
    return study.ask(space)


def _words_of(trial: Any, space: Space) -> list[str]:
    return [f"{key}={trial.params[key]}" for key in space]


def _carry_out(
    study: Any, words: Sequence[str], space: Space, how: Search, console: Console, chosen: Chosen,
    folder: Path,
) -> list[SweepLine]:  # fmt: skip
    """Continue a search until enough trials have succeeded; return those that failed."""
    states = import_optuna().trial.TrialState
    for stopped in study.get_trials(states=(states.RUNNING,)):  # in an earlier sitting
        study.tell(stopped.number, state=states.FAIL)
        study.enqueue_trial(stopped.params)
    done = len(study.get_trials(states=(states.COMPLETE,)))
    number = sum(_OUTCOME in trial.user_attrs for trial in study.trials)
    end = number + how.n_trials - done
    failed: list[SweepLine] = []
    if number >= end:
        return failed
    weights = {f"trial {index}": 1.0 for index in range(number, end)}
    running: dict[concurrent.futures.Future[Done], tuple[Any, Work]] = {}
    with (
        Bars("search", weights, console) as bars,
        chosen.start(how.n_jobs, bars.tell, folder) as launched,
    ):
        while number < end or running:
            while number < end and len(running) < how.n_jobs:
                trial = _ask(study, how, space, number)
                work = Work(f"trial {number}", (*words, *_words_of(trial, space)))
                running[launched.submit(work)] = trial, work
                number += 1
            for future in launched.await_some(running):
                trial, work = running.pop(future)
                score, outcome = _ended(future, " ".join(_words_of(trial, space)), how)
                trial.set_user_attr(_OUTCOME, vars(outcome))
                if score is None:
                    failed.append(outcome)
                    study.tell(trial, state=states.FAIL)
                else:
                    study.tell(trial, score)
                bars.finished(work.label, outcome.state)
    return failed


def _ended(
    future: concurrent.futures.Future[Done], label: str, how: Search
) -> tuple[float | None, SweepLine]:
    """Return the score of a trial that has ended, None where it failed, and what became of it."""
    line = sweep_line(label, future)
    score = SCORES[how.score](line) if line.state == "done" else None
    if line.state == "done" and (score is None or not math.isfinite(score)):
        return None, SweepLine(label, "failed", note=f"its {how.score} is no finite number")
    return score, line


def _table(
    study: Any, words: Sequence[str], space: Space, how: Search
) -> tuple[list[SweepLine], str]:
    """Return what became of each trial, the best one first, and the best one's command."""
    sign = -1.0 if how.direction == DIRECTIONS[0] else 1.0
    known = [one for one in study.trials if one.value is not None]
    known.sort(key=lambda one: sign * one.value)
    best = command_line("train", *words, *_words_of(known[0], space)) if known else ""
    known += [one for one in study.trials if one.value is None and _OUTCOME in one.user_attrs]
    return [SweepLine(**one.user_attrs[_OUTCOME]) for one in known], best
