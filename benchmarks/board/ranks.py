"""Whether estimates without an environment put policies in the order of their true returns.

Fu et al., "Benchmarks for Deep Off-Policy Evaluation" (arXiv 2103.16596) measure it by Spearman's
rank correlation, and by regret: how far the policy that an estimator likes best is below the best.
Each estimator stands beside one that learns nothing: longer training is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from trimtab.benchmarks.board.stats import Array
from trimtab.benchmarks.board.tables import csv_table, markdown_table, write_texts
from trimtab.benchmarks.core.numerals import number_text
from trimtab.errors import TrimtabError

__all__ = ["FILES", "Judged", "Rank", "rank", "spearman", "to_markdown", "write"]

FILES = ("offline_ranks.md", "offline_ranks.csv", "offline_estimates.csv")
"""What is written."""
LATER = "later"
"""The estimator that learns nothing: the number of a policy's updates."""
DRAWN = 10_000
"""Orders that are drawn where there are too many to go through all."""
READING = """\
**Rank correlation** is Spearman's, between estimates and true mean returns of {policies} policies:
1 where both have the same order, -1 where one is the other turned round. **p** is the share of all
orders of the policies that correlate at least as well. **Regret** is how far the policy with the
highest estimate is below the best one, as a share of the distance from the worst to the best.
**{later}** learns nothing: it takes a policy with more updates for a better one. Estimates are of
discounted returns, the true returns are not discounted."""


@dataclass(frozen=True)
class Judged:
    """One policy: its true mean return and what each estimator says of it."""

    run: str
    label: str
    updates: int
    true_return: float
    estimates: Mapping[str, float]


@dataclass(frozen=True)
class Rank:
    """How well one estimator orders policies; NaN where there is no order to find."""

    estimator: str
    correlation: float
    p_value: float
    regret: float
    policies: int


def spearman(one: Array, other: Array) -> float:
    """Return the correlation of two lists' ranks; NaN where all values of one are equal."""
    a, b = (ranks - ranks.mean() for ranks in (rankdata(one), rankdata(other)))
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def rank(policies: Sequence[Judged], *, seed: int = 0) -> list[Rank]:
    """Return how well each estimator orders policies, the best first.

    Args:
        policies: at least three; an estimator that lacks for one of them is left out.
        seed: of the orders that are drawn.

    Raises:
        TrimtabError: if there are fewer than three.
    """
    if len(policies) < 3:
        raise TrimtabError(
            f"rank correlation: {len(policies)} policies have no order worth a number; give at "
            "least 3 finished runs"
        )
    truth = np.array([one.true_return for one in policies])
    known = {name: None for one in policies for name in one.estimates}
    columns = {
        name: np.array([one.estimates[name] for one in policies])
        for name in known
        if all(name in one.estimates for one in policies)
    }
    columns[LATER] = np.array([float(one.updates) for one in policies])
    found = [
        Rank(name, *_of(values, truth, seed), len(policies)) for name, values in columns.items()
    ]
    return sorted(found, key=lambda one: (math.isnan(one.correlation), -one.correlation))


def _of(values: Array, truth: Array, seed: int) -> tuple[float, float, float]:
    """Return correlation, p-value and regret of one estimator."""
    correlation = spearman(values, truth)
    if math.isnan(correlation) or not np.isfinite([values, truth]).all():
        return math.nan, math.nan, math.nan
    ranks, true_ranks = rankdata(values), rankdata(truth)
    products = _orders(len(values), seed)
    shuffled = ranks[products] @ (true_ranks - true_ranks.mean())
    own = float(ranks @ (true_ranks - true_ranks.mean()))
    p_value = float(np.mean(shuffled >= own - 1e-9))
    chosen = float(truth[values == values.max()].mean())
    regret = (float(truth.max()) - chosen) / float(truth.max() - truth.min())
    return correlation, p_value, regret


def _orders(count: int, seed: int) -> NDArray[np.intp]:
    """Return all orders of ``count`` policies, or many that are drawn, ``[orders, count]``."""
    if math.factorial(count) <= DRAWN:
        return np.array(list(itertools.permutations(range(count))), np.intp)
    rng = np.random.default_rng(seed)
    drawn = rng.permuted(np.tile(np.arange(count), (DRAWN, 1)), axis=1)
    own: NDArray[np.intp] = np.concatenate([np.arange(count)[None], drawn]).astype(np.intp)
    return own  # with the order that there is, so that no p-value is 0


def _shown(value: float, digits: int, *, signed: bool = False) -> str:
    return "–" if math.isnan(value) else number_text(value, digits, signed=signed)


def to_markdown(found: Sequence[Rank]) -> str:
    """Return the table as Markdown."""
    rows = [
        {
            "Estimator": one.estimator,
            "Rank correlation": _shown(one.correlation, 2, signed=True),
            "p": _shown(one.p_value, 3),
            "Regret": _shown(one.regret, 2),
            "Policies": str(one.policies),
        }
        for one in found
    ]
    reading = READING.format(policies=found[0].policies, later=LATER)
    return "\n\n".join(["# Estimates without an environment", reading, markdown_table(rows)]) + "\n"


def write(policies: Sequence[Judged], folder: Path) -> dict[str, Path]:
    """Write the ranks as Markdown and CSV, and every estimate as CSV; return paths by name.

    Raises:
        TrimtabError: if there are fewer than three policies.
    """
    found = rank(policies)
    names = list(dict.fromkeys(name for one in policies for name in one.estimates))
    lines: list[dict[str, object]] = [
        {
            "run": one.run, "label": one.label, "updates": one.updates,
            "true_return": one.true_return,
            **{name: one.estimates.get(name, "") for name in names},
        }
        for one in policies
    ]  # fmt: skip
    texts = (to_markdown(found), csv_table([vars(one) for one in found]), csv_table(lines))
    return write_texts(folder, dict(zip(FILES, texts, strict=True)))
