"""What a method is worth when a few episodes may be spent on choosing among its policies.

A method trained with several settings and seeds leaves candidates, and nobody knows without the
task which of them is good. Jackson et al., "A Clean Slate for Offline Reinforcement Learning"
(arXiv 2504.11453) pay for that choice in the open: a bandit plays the candidates (UCB, Auer et al.
2002), and the score after m episodes is the true mean of the candidate that looks best by then. It
is worked out from episodes that were played already, drawn again with replacement.

Two things are otherwise than in the authors' code. The bonus is in units of the candidates' scores,
so that it means the same for successes and for returns of thousands. A candidate that was never
played is not taken for one whose mean is 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trimtab.benchmarks.board.groups import Group, scored_groups
from trimtab.benchmarks.board.model import Metric
from trimtab.benchmarks.board.stats import Array, Interval, checked_scores
from trimtab.benchmarks.board.tables import csv_table, markdown_page, write_texts
from trimtab.benchmarks.core.numerals import number_text
from trimtab.errors import TrimtabError

__all__ = ["FILES", "Budgeted", "Choice", "build", "search", "to_markdown", "write"]

FILES = ("budgeted.md", "budgeted.csv")
"""What is written."""
READING = """\
What each method is worth where its settings have to be chosen by playing. The candidates are its
policies of all settings and seeds, each at its last evaluation. A search draws at most
{policies} of them, plays them as a bandit (UCB), and takes the one that looks best. **After m** is
the true mean of what was taken after m episodes, averaged over {trials} searches; in brackets what
the middle 95 percent of the searches found. **Blind** is a candidate taken without playing,
**known** the best of those drawn, by somebody who knows. Episodes are those of the rows, drawn
again."""


@dataclass(frozen=True)
class Choice:
    """What searches found after a number of episodes."""

    episodes: int
    score: Interval  # the middle 95 percent of the searches


@dataclass(frozen=True)
class Budgeted:
    """One method's candidates in one environment, and what searches among them find."""

    env: str
    metric: Metric
    method: str
    candidates: int
    blind: float
    known: float
    choices: tuple[Choice, ...]


def search(
    candidates: Sequence[Array],
    *,
    policies: int = 8,
    episodes: int = 200,
    trials: int = 1000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Search for the best candidate by playing, many times over.

    Before a candidate was played once, it is played next; then the one with the largest
    ``mean + range * sqrt(2 ln n / plays)`` after n episodes, with the range of all scores. Ties are
    decided at random.

    Args:
        candidates: for each candidate the scores of its episodes ``[E]``.
        policies: candidates in a search, drawn without replacement.
        episodes: episodes that a search plays.
        trials: searches.
        seed: seed of all that is drawn.

    Returns:
        The true mean of what would be taken after each episode ``[trials, episodes]``, and that of
        the best candidate of each search ``[trials]``.

    Raises:
        TrimtabError: if there is no candidate, or a score is not finite.
    """
    scores = checked_scores(candidates, "budgeted score")
    for name, value in (("policies", policies), ("episodes", episodes), ("trials", trials)):
        if value < 1:
            raise TrimtabError(f"budgeted score: {name}={value}: must be at least 1")
    rng = np.random.default_rng(seed)
    truth = np.array([one.mean() for one in scores])
    lengths = np.array([len(one) for one in scores])
    starts = np.cumsum(lengths) - lengths
    played = np.concatenate(scores)
    width = float(played.max() - played.min())
    order = rng.permuted(np.tile(np.arange(len(scores)), (trials, 1)), axis=1)
    drawn = order[:, : min(policies, len(scores))]
    plays = np.zeros(drawn.shape, np.int64)
    total = np.zeros(drawn.shape)
    rows = np.arange(trials)
    found = np.empty((trials, episodes))
    for n in range(episodes):
        mean = total / np.maximum(plays, 1)
        bonus = width * np.sqrt(2.0 * np.log(max(n, 1)) / np.maximum(plays, 1))
        arm = _largest(np.where(plays == 0, np.inf, mean + bonus), rng)
        which = drawn[rows, arm]
        episode = starts[which] + rng.integers(lengths[which])
        total[rows, arm] += played[episode]
        plays[rows, arm] += 1
        looks = np.where(plays == 0, -np.inf, total / np.maximum(plays, 1))
        found[:, n] = truth[drawn[rows, _largest(looks, rng)]]
    return found, truth[drawn].max(axis=1)


def _largest(values: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return for each row where its largest value is, one of them at random."""
    ties = values == values.max(axis=1, keepdims=True)
    chosen: NDArray[np.intp] = np.where(ties, rng.random(values.shape), -1.0).argmax(axis=1)
    return chosen


def build(
    table: pa.Table,
    *,
    budgets: Sequence[int] = (1, 5, 10, 25, 50, 100, 200),
    policies: int = 8,
    trials: int = 1000,
) -> list[Budgeted]:
    """Return what searches find among each method's policies, the best first in each environment.

    Args:
        table: episode rows.
        budgets: numbers of episodes after which it is said what was found.
        policies: candidates in a search.
        trials: searches.

    Raises:
        TrimtabError: if there is no row, rows of one environment have different physics, or a score
            is not finite.
    """
    if table.num_rows == 0:
        raise TrimtabError("budgeted scores: no episode rows; evaluate a run first")
    methods: dict[tuple[str, str, str, str], list[Group]] = defaultdict(list)
    for group in scored_groups(table):
        methods[group.env, group.algorithm, group.policy or "", group.dataset or ""].append(group)
    found = []
    for (env, algorithm, policy, dataset), groups in methods.items():
        scores = [last for group in groups for _, last in sorted(group.last().items())]
        ends, known = search(scores, policies=policies, episodes=max(budgets), trials=trials)
        low, high = np.percentile(ends, [2.5, 97.5], axis=0)
        marks = ", ".join(mark for mark in (policy, dataset) if mark)
        found.append(
            Budgeted(
                env=env,
                metric=groups[0].metric,
                method=algorithm + (f" ({marks})" if marks else ""),
                candidates=len(scores),
                blind=float(np.mean([one.mean() for one in scores])),
                known=float(known.mean()),
                choices=tuple(
                    Choice(m, Interval(*(float(x[m - 1]) for x in (ends.mean(axis=0), low, high))))
                    for m in sorted(budgets)
                ),
            )
        )
    return sorted(found, key=lambda one: (one.env, -one.choices[-1].score.value, one.method))


def to_markdown(found: Sequence[Budgeted], *, policies: int = 8, trials: int = 1000) -> str:
    """Return a table an environment as Markdown."""
    tables = defaultdict[str, list[dict[str, str]]](list)
    for one in found:
        tables[one.env].append(_cells(one))
    reading = READING.format(policies=policies, trials=f"{trials:,}")
    return markdown_page("Budgeted scores", reading, tables)


def _cells(one: Budgeted) -> dict[str, str]:
    digits = 2 if one.metric == "success" else 0
    return {
        "Method": one.method,
        "Candidates": str(one.candidates),
        "Blind": number_text(one.blind, digits),
        **{f"After {choice.episodes}": choice.score.text(digits) for choice in one.choices},
        "Known": number_text(one.known, digits),
    }


def _lines(found: Sequence[Budgeted]) -> list[Mapping[str, object]]:
    return [
        {
            "env": one.env,
            "metric": one.metric,
            "method": one.method,
            "candidates": one.candidates,
            "blind": one.blind,
            "known": one.known,
            "episodes": choice.episodes,
            "score": choice.score,
        }
        for one in found
        for choice in one.choices
    ]


def write(table: pa.Table, folder: Path, names: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Write ``budgeted.md`` and ``budgeted.csv`` of episode rows; return their paths by name.

    ``names`` is what other tables call configurations by; here those of one method are candidates.

    Raises:
        TrimtabError: if there is no row; nothing is written then.
    """
    found = build(table)
    texts = (to_markdown(found), csv_table(_lines(found), ["score"]))
    return write_texts(folder, dict(zip(FILES, texts, strict=True)))
