"""Make every recipe's dataset and write what came of it: ``datasets/made.yaml``, the catalogue.

python scripts/catalogue.py [folder of runs] [recipe ...]    # all recipes, or some; others stay

What is made before is not made again. On another kind of processor a last bit can differ, and then
a content hash.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trimtab.benchmarks.config import group_options, load_group
from trimtab.benchmarks.recipes import is_recipe, make_dataset, recipe_digest, recipe_folder
from trimtab.benchmarks.recording import Stage, dataset_of
from trimtab.datasets.catalog import made_datasets
from trimtab.files import atomic_write_text

ROOT = Path(__file__).resolve().parent.parent
HEAD = (
    "# What each recipe gives on the pinned stack; written by scripts/catalogue.py.\n"
    "# `recipe` is a digest of the settings that it was made with.\n"
)


def beginning(recipe: Mapping[str, Any]) -> str:
    """Return the content hash of a recipe's first attempt, which a test makes anew."""
    with contextlib.closing(Stage(recipe)) as stage:
        return dataset_of(recipe, [stage.play(0)]).content_hash


def main(runs: Path, names: list[str]) -> None:
    """Make the datasets and write the file."""
    rows = {name: dict(row) for name, row in made_datasets().items()}
    for name in names or [n for n in group_options("dataset") if is_recipe(n)]:
        recipe = load_group("dataset", name)
        dataset = make_dataset(recipe, runs)
        files = [path for path in recipe_folder(recipe, runs).rglob("*") if path.is_file()]
        rows[name] = {
            "id": dataset.id,
            "content_hash": dataset.content_hash,
            "episodes": len(dataset),
            "steps": dataset.num_steps,
            "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 1),
            "recipe": recipe_digest(recipe),
        }
        if "controller" in recipe:
            rows[name]["beginning"] = beginning(recipe)
        sys.stdout.write(f"{name}: {dataset.content_hash[:12]}\n")
        sys.stdout.flush()
        there = {key: rows[key] for key in sorted(rows) if is_recipe(key)}
        text = yaml.safe_dump(there, sort_keys=False)
        atomic_write_text(ROOT / "datasets" / "made.yaml", HEAD + text)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"), sys.argv[2:])
