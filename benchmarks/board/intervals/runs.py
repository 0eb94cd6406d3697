"""What an interval needs of the runs of one configuration: means, variances, episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.benchmarks.board.intervals.limits import student_quantile
from trimtab.benchmarks.board.stats import Array, checked_scores
from trimtab.errors import TrimtabError

__all__ = ["Runs", "check_rates", "start_variance"]


@dataclass(frozen=True)
class Runs:
    """What an interval needs of the runs of one configuration.

    Attributes:
        means: mean score of each run, ``[R]``.
        episodes: number of episodes of each run, ``[R]``.
        scores: those of each run's episodes; empty where only means are known.
    """

    means: Array
    episodes: Array
    scores: Sequence[Array] = ()

    @classmethod
    def of(cls, runs: Sequence[Array], rate: bool, what: str) -> Runs:
        """Return the runs with these scores of their episodes.

        Args:
            runs: for each run the scores of its episodes ``[E_r]``.
            rate: whether scores are successes, 0 or 1.
            what: what is computed, for the message of an error.

        Raises:
            TrimtabError: if a run has no score, a score is not finite, or a rate is not in [0, 1].
        """
        scores = checked_scores(runs, what)
        if rate:
            check_rates(scores, what)
        counts = [len(run) for run in scores]
        means = np.array([run.sum() for run in scores]) / counts
        return cls(means, np.array(counts, np.float64), scores)

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.means)

    @property
    def mean(self) -> float:
        """Mean of the runs' means."""
        return float(self.means.mean())

    @property
    def noise(self) -> Array:
        """Variance of each run's mean that comes from its episodes; 0 for a single episode."""
        several = [run if len(run) > 1 else np.zeros(2) for run in self.scores]
        return np.array([run.var(ddof=1) / len(run) for run in several])

    @property
    def seed_variance(self) -> float:
        """Variance of the mean, over runs; 0 for one run, whose variance is unknown."""
        return float(self.means.var(ddof=1)) / self.count if self.count > 1 else 0.0

    @property
    def start_variance(self) -> float:
        """Variance of the mean that comes from the starts, which all runs have in common."""
        return start_variance(self.scores)

    @property
    def all_episodes(self) -> float:
        """Episodes that give the mean of the rates as much variance as the runs' episodes do."""
        return self.count**2 / float((1.0 / self.episodes).sum())

    @property
    def binomial_variance(self) -> float:
        """Variance of a mean rate if all runs were one policy."""
        return self.mean * (1.0 - self.mean) / self.all_episodes

    @property
    def effective_episodes(self) -> float:
        """How many independent episodes the mean rate is worth by its variance; at most all."""
        variance = self.seed_variance + self.start_variance
        if variance == 0.0:
            return self.all_episodes
        return min(self.all_episodes, self.mean * (1.0 - self.mean) / variance)

    def return_variance(self) -> tuple[float, float]:
        """Return the variance of a mean return and its degrees of freedom.

        It is that over seeds and over the starts that they share. With one run, or where all seeds
        are equal, it is that of episodes.
        """
        variance, starts = self.seed_variance, self.start_variance
        if variance > 0.0:
            return variance + starts, self.count - 1.0
        freedom = self.episodes[0] - 1.0 if self.count == 1 else self.count - 1.0
        return max(float(self.noise.sum()) / self.count**2, starts), float(freedom)


def start_variance(scores: Sequence[Array], freedom: float | None = None) -> float:
    """Return the variance of a mean that comes from all runs having been judged in the same starts.

    It is ``(MS_start - MS_residual) / (R E)`` of the two-way table of runs by starts (Cornfield and
    Tukey, "Average values of mean squares in factorials", 1956), and 0 where it is negative: in
    starts of their own, runs have none. It is added to a variance over runs whose t quantile is
    wide, as runs are few; starts are many, so it is made smaller by the square of the quantiles'
    ratio. An interval is then the root of both parts' squares, each with its own quantile.

    Args:
        scores: for each run those of its episodes ``[E]``, in the order of their starts. Runs with
            different numbers of episodes do not share their starts.
        freedom: degrees of freedom of the variance that it is added to; None: runs less one.
    """
    if len(scores) < 2 or {len(run) for run in scores} != {len(scores[0])} or len(scores[0]) < 2:
        return 0.0
    table = np.stack(scores)
    runs, starts = table.shape
    of_start = table.mean(0)
    residual = table - table.mean(1, keepdims=True) - of_start + table.mean()
    mean_square = float((residual**2).sum()) / ((runs - 1) * (starts - 1))
    found = max(runs * float(of_start.var(ddof=1)) - mean_square, 0.0) / (runs * starts)
    wide = student_quantile(0.95, runs - 1.0 if freedom is None else freedom)
    return found * (student_quantile(0.95, starts - 1.0) / wide) ** 2


def check_rates(scores: Sequence[Array], what: str) -> None:
    """Refuse success rates that are none.

    Raises:
        TrimtabError: if a score is not in [0, 1].
    """
    if any(array.min() < 0.0 or array.max() > 1.0 for array in scores):
        raise TrimtabError(f"{what}: a success is not between 0 and 1; score it as a return")
