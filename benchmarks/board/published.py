"""Normalised scores with the settings that each method's authors publish for a dataset.

Papers choose settings for each dataset, and ours has one for all of them: two tables, because a
method that is tuned for each dataset has spent more than one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from trimtab.benchmarks.board import normalised
from trimtab.benchmarks.board.normalised import PUBLISHED, Normalised
from trimtab.benchmarks.board.tables import write_texts

__all__ = ["FILES", "build", "write"]

FILES = ("published.md", "published.csv")
"""What is written."""
READING = """\
The scores of `normalised.md`, but methods marked with **~published** have what their authors set
for the dataset. A method without that mark has its one setting in both tables: its authors set
nothing else for the dataset, or this scale of the suite leaves their setting out."""


def build(table: pa.Table, names: Mapping[str, str] | None = None) -> list[Normalised]:
    """Return the scores of every method on every task, with the published setting if there is one.

    Args:
        table: episode rows.
        names: what a suite calls configurations, by their hashes.

    Raises:
        TrimtabError: as that of :func:`normalised.build`.
    """
    found = normalised.build(table, names)
    replaced = {
        (one.env, one.dataset, one.label.removesuffix(PUBLISHED))
        for one in found
        if one.label.endswith(PUBLISHED)
    }
    return [one for one in found if (one.env, one.dataset, one.label) not in replaced]


def write(table: pa.Table, folder: Path, names: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Write ``published.md`` and ``.csv``, if a task has such settings; return paths by name."""
    found = build(table, names)
    if not any(one.label.endswith(PUBLISHED) for one in found):
        return {}
    text = normalised.to_markdown(found, "Normalised scores with published settings", READING)
    return write_texts(folder, dict(zip(FILES, (text, normalised.to_csv(found)), strict=True)))
