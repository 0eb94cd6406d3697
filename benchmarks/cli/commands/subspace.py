"""``trimtab subspace``: how much of a run's gradients lies in few directions of high curvature."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.benchmarks.artefacts.run_subspaces import RunSubspaces, subspaces_of_run
from trimtab.benchmarks.artefacts.subspaces import overlap
from trimtab.benchmarks.board.tables import csv_table
from trimtab.benchmarks.cli.screen import print_json, print_rows
from trimtab.benchmarks.core.numerals import lone_number
from trimtab.benchmarks.training.settings.words import listed
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_text

__all__ = ["subspace"]

logger = logging.getLogger(__name__)


def subspace(run: str, dimensions: str, pairs: int, out: str, format: str) -> int:
    """Print the shares of one run's gradients, or of several and how their subspaces overlap.

    Raises:
        TrimtabError: if a word is wrong, or a run cannot be measured.
    """
    sizes = _sizes(dimensions)
    if out and os.path.lexists(out):
        raise TrimtabError(f"subspace: out={out}: is there already; name a new file")
    if not listed(run):
        raise TrimtabError(f"subspace: run={run}: names no run; give the folder of one")
    runs = [subspaces_of_run(Path(folder), sizes, pairs) for folder in listed(run)]
    rows = [row for one in runs for row in _rows(one, runs[0])]
    if len(runs) == 1:
        for row in rows:
            del row["overlap"]  # with itself
    if out:
        atomic_write_text(out, csv_table(rows))
        logger.info("wrote %s", out)
    if format == "json":
        print_json(rows)
        return 0
    shown = [
        {
            key: lone_number(value) if isinstance(value, float) else value
            for key, value in row.items()
        }
        for row in rows
    ]
    print_rows("share of the gradient in the k leading eigenvectors of the Hessian", shown)
    return 0


def _sizes(text: str) -> list[int]:
    """Return the numbers k of eigenvectors, in order."""
    words = listed(text)
    if not words or not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise TrimtabError(
            f"subspace: dimensions={text}: must be whole numbers of at least 1, such as 1,10,100"
        )
    return sorted({int(word) for word in words})


def _rows(run: RunSubspaces, first: RunSubspaces) -> Sequence[dict[str, Any]]:
    """Return a line for each loss, each Hessian and each k.

    Raises:
        TrimtabError: if the networks are not of the first run's sizes.
    """
    rows = []
    for found, reference in zip(run.found, first.found, strict=True):
        weights = len(found.vectors)
        if weights != len(reference.vectors):
            raise TrimtabError(
                f"subspace: {run.run} and {first.run} have {weights} and "
                f"{len(reference.vectors)} weights of the {found.loss}; give runs of one network"
            )
        for k, share in found.shares.items():
            rows.append(
                {
                    "run": str(run.run), "env_steps": run.env_steps, "loss": found.loss,
                    "hessian": found.pairs, "k": k, "share": share, "random": k / weights,
                    "eigenvalue": float(found.values[k - 1]),
                    "overlap": overlap(reference.vectors[:, :k], found.vectors[:, :k]),
                }
            )  # fmt: skip
    return rows
