"""A search: trials that Optuna chooses one after another (``train -m hydra/sweeper=optuna``)."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from trimtab.benchmarks.core.rundir import locked
from trimtab.benchmarks.core.storage import is_address
from trimtab.benchmarks.runs.train import check
from trimtab.benchmarks.settings.config import compose_run
from trimtab.benchmarks.suites.bars import Bars
from trimtab.benchmarks.suites.launch import JOBS, Chosen, Done, Launcher, Work
from trimtab.benchmarks.suites.outcome import Outcome, outcomes_of
from trimtab.benchmarks.suites.space import space_of
from trimtab.benchmarks.suites.study import Study, Trial, check_optuna, score_of, study_name
from trimtab.errors import Stopped, TrimtabError

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
    words, space = space_of(overrides)
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
    for name in ("n_trials", "n_jobs"):
        if getattr(how, name) < 1:
            raise TrimtabError(f"hydra.sweeper.{name}={getattr(how, name)}: must be 1 or more")
    if how.study_name and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", how.study_name):
        raise TrimtabError(
            f"hydra.sweeper.study_name={how.study_name[:80]!r}: may have letters, digits, '.', '-' "
            "and '_' only, 64 at most"
        )


def _carry_out(
    study: Study, words: Sequence[str], how: Search, console: Console, chosen: Chosen, folder: Path
) -> None:
    """Go on with trials that were stopped, then with new ones, until there are enough."""
    stopped = [trial for trial in study.trials if trial.state == "running"]
    new = max(how.n_trials - len(study.trials), 0)
    if not stopped and not new:
        return
    numbers = [trial.number for trial in stopped]
    numbers += range(len(study.trials), len(study.trials) + new)
    weights = {f"trial {number}": 1.0 for number in numbers}
    with (
        Bars("search", weights, console) as bars,
        chosen.start(how.n_jobs, bars.tell, folder) as launched,
    ):
        running: dict[concurrent.futures.Future[Done], Trial] = {}
        while True:
            while len(running) < how.n_jobs and (stopped or len(study.trials) < how.n_trials):
                trial = stopped.pop(0) if stopped else study.ask()
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
    return "" if best.score is None else shlex.join(["trimtab", "train", *words, *best.words])
