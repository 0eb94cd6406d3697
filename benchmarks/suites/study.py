"""A study: what a search has tried, in one JSON file that is only ever replaced whole.

Optuna chooses each trial anew from the scores before it, with a generator that is seeded by the
study's seed and the trial's number. So a study that was stopped goes on as if it had not been, and
nothing of Optuna's own is stored: no pickles, and none of its locks.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json, read_json, sha256_json

__all__ = [
    "DIRECTIONS",
    "HELD_OUT",
    "SAMPLERS",
    "SCORES",
    "Study",
    "Trial",
    "check_optuna",
    "score_of",
    "study_name",
]

HELD_OUT = "held_out_error"
"""Name of the score that is better the smaller it is."""
DIRECTIONS = ("maximize", "minimize")
_FILE = "study.json"
_STATES = ("running", "done", "failed")

SAMPLERS: Mapping[str, Callable[[Any, int], Any]] = {
    "tpe": lambda optuna, seed: optuna.samplers.TPESampler(seed=seed),
    "random": lambda optuna, seed: optuna.samplers.RandomSampler(seed=seed),
}
"""What chooses the trials, by the name that ``hydra.sweeper.sampler`` takes."""


def _return(summary: Mapping[str, Any]) -> float:
    total = summary["return"]
    return math.nan if total is None else float(total)


def _either(summary: Mapping[str, Any]) -> float:
    success = summary["success"]
    return _return(summary) if success is None else float(success)


def _success(summary: Mapping[str, Any]) -> float:
    success = summary["success"]
    return math.nan if success is None else float(success)


SCORES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "auto": _either,
    "success": _success,
    "return": _return,
    HELD_OUT: lambda summary: float(summary.get("held_out", {}).get("error", math.nan)),
}
"""What is searched for, of a run's last evaluation, by its name."""


def score_of(kind: str, summary: Mapping[str, Any]) -> float | None:
    """Return the score of a run's result; None where it has none that is a finite number."""
    score = SCORES[kind](summary)
    return score if math.isfinite(score) else None


def check_optuna() -> None:
    """Check that Optuna is installed.

    Raises:
        TrimtabError: if it is not.
    """
    try:
        importlib.import_module("optuna")
    except ImportError as error:
        raise TrimtabError(
            "hydra/sweeper=optuna: optuna is not installed; pip install 'trimtab[optuna]'"
        ) from error


@dataclass
class Trial:
    """One trial of a study.

    Attributes:
        number: from 0.
        params: what was chosen for each searched setting.
        state: running (also where it was stopped), done or failed.
        score: of one that is done.
        outcome: what the table says of one that has ended.
    """

    number: int
    params: Mapping[str, float | int | str]
    state: str = "running"
    score: float | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """What was chosen, as words of a run."""
        return [f"{key}={value}" for key, value in self.params.items()]


class Study:
    """The trials of a search.

    Args:
        folder: where its file lies; not made yet for a new one.
        about: what it searches and how, as JSON values: ``words``, ``space``, ``direction``,
            ``score``, ``sampler`` and ``seed``.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder, self.about = folder, dict(about)
        self.trials: list[Trial] = []

    def load(self) -> None:
        """Read what was tried before, if anything was.

        Raises:
            TrimtabError: if the file is damaged, or it searched something else or in another way.
        """
        file = self.folder / _FILE
        if not file.exists():
            return
        found = read_json(file, "study")
        other = "give another one a name of its own with hydra.sweeper.study_name=…"
        try:
            about, trials = found["about"], [Trial(**trial) for trial in found["trials"]]
            right = all(
                trial.number == number and trial.state in _STATES
                and trial.params.keys() == about["space"].keys()
                and (trial.state != "done" or isinstance(trial.score, int | float))
                for number, trial in enumerate(trials)
            )  # fmt: skip
        except (TypeError, KeyError, AttributeError):
            right = False
        if not right:
            raise TrimtabError(f"study: {file} is damaged; move it away and start anew, or {other}")
        for name, value in self.about.items():
            if about.get(name) != value:
                raise TrimtabError(
                    f"study: {self.folder} was begun with {name}={about.get(name)}, not "
                    f"{value}; {other}"
                )
        self.trials = trials

    def save(self) -> None:
        """Write what has been tried."""
        value = {"about": self.about, "trials": [vars(trial) for trial in self.trials]}
        atomic_write_json(self.folder / _FILE, value)

    def ask(self) -> Trial:
        """Add a trial, whose settings Optuna chooses from the scores of those before it."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        number = len(self.trials)
        seed = int(sha256_json([self.about["seed"], number])[:8], 16)
        space = {key: _distribution(optuna, one) for key, one in self.about["space"].items()}
        study = optuna.create_study(
            direction=self.about["direction"], sampler=SAMPLERS[self.about["sampler"]](optuna, seed)
        )
        study.add_trials(
            [
                optuna.trial.create_trial(
                    value=trial.score, params=dict(trial.params), distributions=space
                )
                for trial in self.trials
                if trial.state == "done"
            ]
        )
        chosen = study.ask(space).params
        self.trials.append(Trial(number, {key: chosen[key] for key in space}))
        return self.trials[-1]

    def best_first(self) -> Sequence[Trial]:
        """Return the trials with the best score first, and those without one at the end."""
        sign = -1 if self.about["direction"] == DIRECTIONS[0] else 1
        return sorted(
            self.trials, key=lambda t: (t.score is None, sign * (t.score or 0.0), t.number)
        )


def _distribution(optuna: Any, one: Mapping[str, Any]) -> Any:
    return _KINDS[one["kind"]](optuna.distributions, one)


def _int(distributions: Any, one: Mapping[str, Any]) -> Any:
    step = one["step"] or 1
    return distributions.IntDistribution(one["low"], one["high"], log=one["log"], step=step)


def _float(distributions: Any, one: Mapping[str, Any]) -> Any:
    low, high = one["low"], one["high"]
    return distributions.FloatDistribution(low, high, log=one["log"], step=one["step"])


_KINDS: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "int": _int,
    "float": _float,
    "choice": lambda distributions, one: distributions.CategoricalDistribution(one["values"]),
}


def study_name(words: Sequence[str]) -> str:
    """Return what a study is called that is given no name: by the words of all its trials."""
    return sha256_json(sorted(words))[:10]
