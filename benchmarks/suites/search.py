"""A search: trials that Optuna chooses one after another (``train -m hydra/sweeper=optuna``)."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks.suites.bars import Bars
from trimtab.benchmarks.suites.launch import JOBS, Chosen, Done, Launcher, Work
from trimtab.benchmarks.suites.outcome import Outcome, outcomes_of
from trimtab.benchmarks.suites.space import asked_for
from trimtab.benchmarks.suites.study import (
    DIRECTIONS,
    HELD_OUT,
    SCORES,
    Study,
    Trial,
    check_optuna,
    score_of,
    study_name,
)
from trimtab.benchmarks.training.rundir import locked
from trimtab.benchmarks.training.settings.config import RunConfig, compose_run
from trimtab.benchmarks.training.store import is_address
from trimtab.benchmarks.training.train import check
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import Stopped, TrimtabError
from trimtab.plugins import command_line

__all__ = ["Search", "search"]

_STUDIES = "studies"
"""The folder, beside the runs, in which each study has one of its own."""


@dataclass(frozen=True)
class Search:
    """How trials are chosen.

    Attributes:
        n_trials: how many there are, those of earlier sittings included.
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
    tell: Callable[[Sequence[Outcome], str], None],
    *,
    console: Console,
    launcher: Chosen,
) -> None:
    """Carry out a search, or go on with it; a trial that fails does not stop the others.

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
    check_optuna()
    _check(how)
    words, space, runs = asked_for(overrides)
    _check_score(how.score, runs)
    if how.score == HELD_OUT and how.direction == DIRECTIONS[0]:
        raise TrimtabError(
            f"hydra.sweeper.score={HELD_OUT}: the smaller it is the better; add "
            f"hydra.sweeper.direction={DIRECTIONS[1]}"
        )
    own = [word for word in words if not word.startswith("out=")]
    about = {
        "words": sorted(own), "space": space, "direction": how.direction, "score": how.score,
        "sampler": how.sampler, "seed": how.seed,
    }  # fmt: skip
    first = Study(Path(), about).ask()
    run = compose_run([*words, *first.words])
    check(run)
    out = Path("runs" if is_address(run["out"]) else run["out"])
    folder = out / _STUDIES / (how.study_name or study_name(own))
    study = Study(folder, about)
    study.load()  # what is wrong with it is told before anything is locked
    with locked(folder):
        study.load()
        try:
            _carry_out(study, words, how, console, launcher, out / JOBS)
        finally:
            if study.trials:
                tell(_outcomes(study, words), _best(study, words))
    failed = [trial for trial in study.trials if trial.state == "failed"]
    if failed:
        note = failed[0].outcome.get("note", "")
        raise TrimtabError(
            f"{len(failed)} of {len(study.trials)} trials failed: trial {failed[0].number}: {note}"
        )


def _check(how: Search) -> None:
    if how.study_name and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", how.study_name):
        raise TrimtabError(
            f"hydra.sweeper.study_name={how.study_name[:80]!r}: may have letters, digits, '.', '-' "
            "and '_' only, 64 at most"
        )


def _check_score(score: str, runs: Sequence[RunConfig]) -> None:
    """Check that the results of runs will have the score that trials are compared by.

    Raises:
        TrimtabError: naming the task whose results have not.
    """
    for run in runs:
        summary = _summary_like(run)
        if score_of(score, summary) is None:
            others = " or ".join(
                f"hydra.sweeper.score={name}"
                for name in SCORES
                if score_of(name, summary) is not None
            )
            raise TrimtabError(
                f"hydra.sweeper.score={score}: {run['env'] or 'a run without a task'} has no "
                f"{score}, so no trial would have a score; write "
                f"{others or f'hydra.sweeper.score={HELD_OUT}, and holdout=0.1'}"
            )


def _summary_like(run: RunConfig) -> dict[str, Any]:
    """Return what a run's result has of each score, as far as it will have it."""
    total = success = None
    if run["env"] is not None:
        task = get_spec(run["env"], **checked_names(run["env_options"] or {}))
        total, success = 0.0, None if task.success_key is None else 0.0
    held_out = {} if run["holdout"] is None else {"held_out": {"error": 0.0}}
    return {"return": total, "success": success, **held_out}


def _to_do(study: Study, how: Search) -> Iterator[Trial]:
    """Yield the trials to be carried out: those that were stopped, new ones, those that failed.

    What is tried next follows from the scores that are known by then. Trials that failed earlier
    come last, so that new ones follow from the same scores whether or not the search was stopped
    between that failure and them.
    """
    failed = [trial for trial in study.trials if trial.state == "failed"]
    yield from [trial for trial in study.trials if trial.state == "running"]
    while len(study.trials) < how.n_trials:
        yield study.ask()
    for trial in failed:
        trial.state, trial.outcome = "running", {}
        yield trial


def _carry_out(
    study: Study, words: Sequence[str], how: Search, console: Console, chosen: Chosen, folder: Path
) -> None:
    """Go on with a search until there are enough trials, and none of them is left to be tried."""
    numbers = [trial.number for trial in study.trials if trial.state != "done"]
    numbers += range(len(study.trials), how.n_trials)
    if not numbers:
        return
    weights = {f"trial {number}": 1.0 for number in numbers}
    to_do = _to_do(study, how)
    with (
        Bars("search", weights, console) as bars,
        chosen.start(how.n_jobs, bars.tell, folder) as launched,
    ):
        running: dict[concurrent.futures.Future[Done], Trial] = {}
        while True:
            for trial in itertools.islice(to_do, how.n_jobs - len(running)):
                study.save()  # before it is begun: it goes on under the same settings
                running[launched.submit(_work(trial, words))] = trial
            if not running:
                return
            _await(running, launched, study, words, bars)


def _await(
    running: dict[concurrent.futures.Future[Done], Trial],
    launched: Launcher,
    study: Study,
    words: Sequence[str],
    bars: Bars,
) -> None:
    """Wait for some trials, and note what became of them."""
    for future in launched.await_some(running):
        trial = running.pop(future)
        try:
            done = future.result()
            trial.score = score_of(study.about["score"], done.summary)
            outcome = _outcome(trial, words, done)
            if trial.score is None:
                note = f"its {study.about['score']} is no finite number"
                outcome = dataclasses.replace(outcome, state="failed", note=note)
        except Stopped:
            raise
        except TrimtabError as error:
            outcome = _outcome(trial, words, None, str(error))
        trial.state = "failed" if trial.score is None else "done"
        trial.outcome = {key: one for key, one in vars(outcome).items() if key != "label"}
        study.save()
        bars.finished(f"trial {trial.number}", trial.state)


def _work(trial: Trial, words: Sequence[str]) -> Work:
    return Work(f"trial {trial.number}", (*words, *trial.words))


def _outcome(
    trial: Trial, words: Sequence[str], done: Done | None = None, reason: str = ""
) -> Outcome:
    """Return what became of a trial."""
    work = _work(trial, words)
    try:
        run = compose_run(work.words)
    except TrimtabError as error:  # it fails with the same line when it is carried out
        return Outcome(_label(trial), "failed", note=str(error))
    ended = {work: done} if done is not None else {}
    outcome = outcomes_of([work], [run], ended, {work: reason} if reason else {})[0]
    return dataclasses.replace(outcome, label=_label(trial))


def _label(trial: Trial) -> str:
    return " ".join([f"trial {trial.number}:", *trial.words])


def _outcomes(study: Study, words: Sequence[str]) -> list[Outcome]:
    """Return what became of each trial, the best one first."""
    return [
        Outcome(_label(trial), **trial.outcome) if trial.outcome else _outcome(trial, words)
        for trial in study.best_first()
    ]


def _best(study: Study, words: Sequence[str]) -> str:
    """Return the command that repeats the best trial; empty while there is none."""
    best = study.best_first()[0]
    return "" if best.score is None else command_line("train", *words, *best.words)
