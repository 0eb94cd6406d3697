"""Statistics of a benchmark, in numpy: point estimates and percentile bootstraps.

The aggregates and the stratified bootstrap are those of Agarwal et al., "Deep Reinforcement
Learning at the Edge of the Statistical Precipice" (2021). Scores come as a list of tasks, each an
array ``[..., R]`` with one score a run, because tasks may have different numbers of runs. For one
task with its episodes at hand there is a two-level bootstrap: runs first, then episodes within
each drawn run.

Everything is deterministic: the same scores and seed give the same interval. The bootstraps hold 95
percent of their resamples. They are the field's formula (to 2e-12 that of the package rliable),
kept for those who want to compare with it. With few runs they are too narrow: of three seeds a
"95 percent" interval holds the truth 76 percent of the time. Tables are made with the closed forms
of ``benchmarks/board/intervals/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.benchmarks.core.numerals import decimals_for, number_text
from trimtab.errors import TrimtabError

Array = NDArray[np.float64]
Statistic = Callable[[Sequence[Array]], Array]
"""From tasks, each ``[..., R]``, to ``[...]``."""

REPETITIONS = 2000
_CHUNK = 2_000_000  # random numbers drawn at once: bounds the memory of a bootstrap


class Interval(NamedTuple):
    """An estimate with the two ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def is_given(self) -> bool:
        """Whether the ends differ: scores that are all equal tell of no spread, so give none."""
        return self.low < self.high

    def decimals(self, least: int = 2) -> int:
        """Return the decimals that the estimate and its ends are shown with, ``least`` or more."""
        return decimals_for(*self, least)

    def text(self, digits: int = 2, *, signed: bool = False) -> str:
        """Return ``0.83 [0.76, 0.90]``, or the estimate alone where no interval can be given.

        A narrow interval has as many more digits as tell its ends apart.
        """
        digits = self.decimals(digits)
        value, low, high = (number_text(x, digits, signed=signed) for x in self)
        return f"{value} [{low}, {high}]" if self.is_given else value


def interquartile_mean(scores: Array, axis: int | None = None) -> Array:
    """Return the mean of the middle half: a quarter of the scores is cut at either end.

    ``floor(n / 4)`` scores are cut at each end, so up to three scores give their mean.

    Args:
        scores: array of any shape.
        axis: axis to reduce; None takes all scores together.
    """
    flat = np.sort(np.asarray(scores, np.float64), axis=axis)
    axis = -1 if axis is None else axis
    count = flat.shape[axis]
    if count == 0:
        raise TrimtabError("interquartile mean: no scores; give at least one")
    cut = count // 4
    middle = np.take(flat, np.arange(cut, count - cut), axis=axis)
    return np.asarray(middle.mean(axis=axis), np.float64)


def aggregate_iqm(tasks: Sequence[Array]) -> Array:
    """Return the interquartile mean over all runs of all tasks together."""
    return interquartile_mean(np.concatenate(list(tasks), axis=-1), axis=-1)


def aggregate_mean(tasks: Sequence[Array]) -> Array:
    """Return the mean over tasks of the mean over runs."""
    return np.asarray(_task_means(tasks).mean(axis=-1), np.float64)


def aggregate_median(tasks: Sequence[Array]) -> Array:
    """Return the median over tasks of the mean over runs."""
    return np.asarray(np.median(_task_means(tasks), axis=-1), np.float64)


def optimality_gap(tasks: Sequence[Array], gamma: float = 1.0) -> Array:
    """Return how far scores fall short of ``gamma`` on average; what exceeds it does not count."""
    capped = _task_means([np.minimum(task, gamma) for task in tasks])
    return np.asarray(gamma - capped.mean(axis=-1), np.float64)


def _task_means(tasks: Sequence[Array]) -> Array:
    return np.stack([np.asarray(task, np.float64).mean(axis=-1) for task in tasks], axis=-1)


def stratified_bootstrap(
    tasks: Sequence[Array],
    statistic: Statistic = aggregate_iqm,
    *,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Interval:
    """Return a statistic over tasks; runs are resampled within each task.

    Args:
        tasks: for each task the scores of its runs ``[R_t]``.
        statistic: one of the aggregates of this module, or anything of their kind.
        repetitions: number of resamples.
        seed: seed of the resampling.
    """
    tasks = checked_scores(tasks, "stratified bootstrap")
    rng = np.random.default_rng(seed)
    drawn = [task[rng.integers(len(task), size=(repetitions, len(task)))] for task in tasks]
    return _percentiles(float(statistic(tasks)), statistic(drawn))


def two_level_bootstrap(
    runs: Sequence[Array],
    statistic: Statistic = aggregate_mean,
    *,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Interval:
    """Return a statistic over the runs of one task; runs, then episodes in them, are resampled.

    A run's score is the mean of its episodes; ``statistic`` sees one task of these scores.

    Args:
        runs: for each run the scores of its episodes ``[E_r]``.
        statistic: what is made of the runs' scores.
        repetitions: number of resamples.
        seed: seed of the resampling.
    """
    runs = checked_scores(runs, "two-level bootstrap")
    rng = np.random.default_rng(seed)
    choice = rng.integers(len(runs), size=(repetitions, len(runs)))
    drawn = _episode_bootstrap(runs, choice, rng)
    observed = np.array([run.mean() for run in runs])
    return _percentiles(float(statistic([observed])), statistic([drawn]))


def difference_bootstrap(
    method: Mapping[int, Array],
    baseline: Mapping[int, Array],
    *,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Interval:
    """Return the mean of a method's runs minus that of a baseline's, over runs and episodes.

    Where both have the same seeds the runs are paired: one draw of seeds serves both. Otherwise
    (a baseline with one seed, say) each side is drawn by itself. Episodes are always drawn apart,
    which is the careful choice where both sides share their evaluation seeds.

    Args:
        method: for each seed the scores of the run's episodes ``[E]``.
        baseline: the same of the baseline.
        repetitions: number of resamples.
        seed: seed of the resampling.
    """
    ours, theirs = sorted(method), sorted(baseline)
    left = checked_scores([method[key] for key in ours], "difference of means")
    right = checked_scores([baseline[key] for key in theirs], "difference of means")
    rng = np.random.default_rng(seed)
    left_choice = rng.integers(len(left), size=(repetitions, len(left)))
    right_choice = left_choice
    if ours != theirs:
        right_choice = rng.integers(len(right), size=(repetitions, len(right)))
    drawn = _episode_bootstrap(left, left_choice, rng).mean(axis=-1)
    drawn = drawn - _episode_bootstrap(right, right_choice, rng).mean(axis=-1)
    observed = float(np.mean([x.mean() for x in left]) - np.mean([x.mean() for x in right]))
    return _percentiles(observed, drawn)


def improvement_bootstrap(
    method: Sequence[Array],
    baseline: Sequence[Array],
    *,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Interval:
    """Return the chance that a random run of the method beats a random run of the baseline.

    The mean over tasks of ``P(X > Y) + P(X = Y) / 2``, over all pairs of runs; runs are resampled
    within each task and side.

    Args:
        method: for each task the scores of the method's runs ``[R_t]``.
        baseline: for each of the same tasks those of the baseline's runs.
        repetitions: number of resamples.
        seed: seed of the resampling.
    """
    tables = wins(method, baseline)
    rng = np.random.default_rng(seed)
    observed, drawn = 0.0, np.zeros(repetitions)
    for table in tables:
        ours, theirs = table.shape
        observed += float(table.mean())
        # Resampling runs only changes how often each pair counts: no need to form the pairs anew.
        left = rng.multinomial(ours, np.full(ours, 1 / ours), size=repetitions)
        right = rng.multinomial(theirs, np.full(theirs, 1 / theirs), repetitions)
        drawn += ((left @ table) * right).sum(axis=-1) / table.size
    return _percentiles(observed / len(tables), drawn / len(tables))


def wins(method: Sequence[Array], baseline: Sequence[Array]) -> list[Array]:
    """Return for each task which run beats which: 1, 0.5 for a tie, or 0, ``[R, baseline's R]``.

    Args:
        method: for each task the scores of the method's runs ``[R_t]``.
        baseline: for each of the same tasks those of the baseline's runs.

    Raises:
        TrimtabError: if a task has no score or one that is not finite, or the tasks do not pair.
    """
    ours = checked_scores(method, "probability of improvement")
    theirs = checked_scores(baseline, "probability of improvement")
    if len(ours) != len(theirs):
        raise TrimtabError(
            f"probability of improvement: {len(ours)} tasks of the method and {len(theirs)} of "
            "the baseline; give both on the same tasks"
        )
    pairs = zip(ours, theirs, strict=True)
    return [(np.sign(left[:, None] - right[None, :]) + 1.0) / 2.0 for left, right in pairs]


def _episode_bootstrap(runs: Sequence[Array], choice: NDArray[np.int64], rng: np.random.Generator
                       ) -> Array:  # fmt: skip
    """Return ``[repetitions, R]``: means of resampled episodes of the runs that were drawn."""
    lengths = np.array([len(run) for run in runs])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    episodes = np.concatenate(list(runs))
    longest = int(lengths.max())
    parts = []
    for rows in _chunks(len(choice), choice.shape[1] * longest):
        length = lengths[choice[rows], None]
        index = (rng.random((*length.shape[:2], longest)) * length).astype(np.int64)
        values = episodes[starts[choice[rows], None] + index]
        values[np.broadcast_to(np.arange(longest) >= length, values.shape)] = 0.0
        parts.append(values.sum(axis=-1) / length[..., 0])
    return np.concatenate(parts)


def _chunks(count: int, width: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _percentiles(value: float, drawn: Array) -> Interval:
    tail = 50.0 * (1.0 - 0.95)
    low, high = np.percentile(drawn, [tail, 100.0 - tail])
    return Interval(value, float(low), float(high))


def checked_scores(groups: Sequence[Array], what: str) -> list[Array]:
    """Return groups of scores as flat arrays of floats.

    Raises:
        TrimtabError: if there is no group, one is empty or not flat, or a score is not finite.
    """
    arrays = [np.asarray(group, np.float64) for group in groups]
    if not arrays or any(array.ndim != 1 or array.size == 0 for array in arrays):
        raise TrimtabError(f"{what}: every task or run needs at least one score in a flat array")
    if not all(np.isfinite(array).all() for array in arrays):
        raise TrimtabError(f"{what}: a score is NaN or infinite; find the run that diverged")
    return arrays
