"""Make every recipe's dataset and write what came of it: ``datasets/made.yaml``, the catalogue.

python scripts/catalogue.py [folder of runs] [recipe ...]    # all recipes, or some; others stay

python scripts/catalogue.py --beginnings             # plays each recipe's first episode alone

What is made before is not made again. On another kind of processor a last bit can differ, and then
a content hash: so the kind stands beside it, and ``datasets/beginnings.safetensors`` has numbers of
each first episode that hold on every kind (:mod:`trimtab.benchmarks.training.data.published`).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import save

from trimtab.benchmarks.recipe_kinds.others import parts_of
from trimtab.benchmarks.training.data.published import (
    Beginning,
    beginning_of,
    beginnings,
    numbers_of,
    statistics_of,
)
from trimtab.benchmarks.training.data.recipes import (
    definition_digest,
    is_recipe,
    make_dataset,
    recipe_digest,
    recipe_folder,
    recipe_identity,
)
from trimtab.benchmarks.training.data.recording import Stage, dataset_of
from trimtab.benchmarks.training.settings.groups import group_options, load_group
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.datasets.catalog import made_datasets
from trimtab.datasets.episodes import Dataset
from trimtab.files import atomic_write_bytes, atomic_write_text
from trimtab.processor import processor_kind

PLACE = Path(__file__).resolve().parent.parent / "datasets"
REPLAYED = 10
"""First steps of a replay buffer whose numbers are kept."""
HEAD = (
    "# What each recipe gives on the pinned stack; written by scripts/catalogue.py.\n"
    "# `recipe` digests the settings that it was made with, `definition` all that decides\n"
    "# it; `identity` is what its dataset is known by as long as it has that definition.\n"
    "# Content hashes are equal on the kind of `processor` that made them; beginnings.safetensors\n"
    "# has numbers of each first episode that hold within a tolerance on every kind.\n"
)


def beginning(recipe: Mapping[str, Any]) -> str:
    """Return the content hash of a recipe's first attempt, which a test makes anew."""
    with contextlib.closing(Stage(recipe)) as stage:
        return dataset_of(recipe, [stage.play(0)]).content_hash


def numbers(recipe: Mapping[str, Any], dataset: Dataset | None) -> Beginning | None:
    """Return the numbers by which another kind of processor confirms a recipe's first episode.

    Of a recipe of others they are those of its first part. Of a run's replay buffer they are the
    first steps, which uniform actions made: a last bit's change cannot be tried on a whole run.
    """
    if "of" in recipe:
        return numbers(parts_of(recipe)[0], None)
    if "controller" in recipe:
        return beginning_of(recipe)
    return None if dataset is None else numbers_of(dataset.episodes[0], REPLAYED)


def write(rows: Mapping[str, Any], known: Mapping[str, Beginning]) -> None:
    """Write both files; recipes that are gone are left out."""
    there = {key: rows[key] for key in sorted(rows) if is_recipe(key)}
    atomic_write_text(PLACE / "made.yaml", HEAD + yaml.safe_dump(there, sort_keys=False))
    arrays = {f"{name}/{what}": known[name][what] for name in there for what in known.get(name, {})}
    atomic_write_bytes(PLACE / "beginnings.safetensors", save(arrays))


def enter(runs: Path, names: Sequence[str], *, only_beginnings: bool) -> None:
    """Make the datasets, or play their first episodes alone, and write the files."""
    rows = {name: dict(row) for name, row in made_datasets().items()}
    known = dict(beginnings())
    for name in names:
        recipe = load_group("dataset", name)
        dataset = None if only_beginnings else make_dataset(recipe, runs)
        if dataset is not None:
            files = [path for path in recipe_folder(recipe, runs).rglob("*") if path.is_file()]
            rows[name] = {
                "id": dataset.id,
                "content_hash": dataset.content_hash,
                "episodes": len(dataset),
                "steps": dataset.num_steps,
                **statistics_of(dataset),
                "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 1),
                "recipe": recipe_digest(recipe),
                "definition": definition_digest(recipe, runs),
                "identity": recipe_identity(recipe, runs),
                "processor": processor_kind(),
            }
            if "controller" in recipe:
                rows[name]["beginning"] = beginning(recipe)
        found = numbers(recipe, dataset)
        if found is not None:
            known[name] = found
            sys.stdout.write(f"{name}: {found['steps'][-1] + 1} steady steps\n")
        if dataset is not None:
            sys.stdout.write(f"{name}: {dataset.content_hash[:12]}\n")
        sys.stdout.flush()
        write(rows, known)


def main() -> int:
    """Carry out the command line; the exit code is 2 on wrong input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="?", type=Path, default=Path("runs"), help="folder of runs")
    parser.add_argument("recipes", nargs="*", help="of those there are, all of them by itself")
    parser.add_argument(
        "--beginnings", action="store_true", help="only play each recipe's first episode"
    )
    words = parser.parse_args()
    known = [name for name in group_options("dataset") if is_recipe(name)]
    for name in words.recipes:
        if name not in known:
            sys.stderr.write(f"catalogue: {name} is no recipe; {nearest(name, known)}\n")
            return 2
    enter(words.runs, words.recipes or known, only_beginnings=words.beginnings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
