"""The estimates and intervals of rliable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import exchange
import numpy as np
from rliable import metrics
from rliable.library import StratifiedBootstrap

METRICS: dict[str, Callable[[Any], Any]] = {
    "interquartile mean": metrics.aggregate_iqm,
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "optimality gap": metrics.aggregate_optimality_gap,
}


class Given(StratifiedBootstrap):
    """rliable's stratified bootstrap, which is handed its resamples in place of drawing them."""

    def give(self, rows: Any) -> None:
        """Take the rows ``[repetitions, R, tasks]`` that are drawn of each task's runs."""
        self.rows = iter(rows)

    def update_indices(self) -> Any:
        """Return the next resample, as indices of runs and of tasks."""
        return (next(self.rows), *self._strata_indices)


def answer(part: Path) -> exchange.Answers:
    """Return estimates and 95 percent intervals of the scores in ``part``."""
    inputs = exchange.arrays_of(part / "in.npz")
    scores = inputs["scores"]  # [R, tasks]
    answers: dict[str, Any] = {}
    for name, metric in METRICS.items():
        answers[name] = metric(scores)
        bootstrap = Given(scores, random_state=np.random.RandomState(0))
        bootstrap.give(inputs["rows"])
        interval = bootstrap.conf_int(
            lambda drawn, metric=metric: np.atleast_1d(metric(drawn)),
            reps=len(inputs["rows"]),
            size=0.95,
            method="percentile",
        )
        answers[f"interval of the {name}"] = interval[:, 0]
    answers["probability of improvement"] = metrics.probability_of_improvement(
        scores, inputs["baseline"]
    )
    return answers


if __name__ == "__main__":
    exchange.main(answer, "rliable")
