"""What ``trimtab dataset`` does: offline data listed, made, checked and described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks import config
from trimtab.benchmarks.cli import near
from trimtab.benchmarks.recipes import make_dataset, recipe_folder
from trimtab.benchmarks.screen import print_json, print_rows
from trimtab.types import TrimtabError


def dataset(action: str, dataset: str, path: str, out: str, format: str) -> int:
    """List, make, check or describe offline data."""
    from trimtab.datasets import catalog, lint

    if action == "list":
        rows = [
            {"recipe": name, **{key: recipe.get(key) for key in ("id", "env", "episodes")}}
            for name, recipe in _recipes().items()
        ]
        place = Path(out) / "datasets"
        made = catalog.list_datasets(place) if place.is_dir() else []
        if format == "json":
            print_json({"recipes": rows, "made": made})
        else:
            print_rows("recipes", rows)
            print_rows(f"on disk below {out}/datasets", made)
        return 0
    if bool(dataset) == bool(path):
        raise TrimtabError(
            f"dataset: action={action} takes either dataset=<recipe> or path=<folder>"
        )
    if dataset:
        recipes = _recipes()
        if dataset not in recipes:
            raise TrimtabError(
                f"dataset={dataset}: there is no such recipe; {near(dataset, recipes)}"
            )
        recipe = recipes[dataset]
        loaded = make_dataset(recipe, Path(out))
        place = recipe_folder(recipe, Path(out))
    elif action == "make":
        raise TrimtabError("dataset: action=make takes dataset=<recipe>, not path=")
    else:
        from trimtab.datasets.formats import minari

        place, loaded = Path(path), minari.load(path)
    if action == "check":
        findings = lint.check(loaded)
        rows = [
            {"level": f.level, "code": f.code, "where": f.where, "message": f.message}
            for f in findings
        ]
        if format == "json":
            print_json({"path": str(place), "findings": rows})
        elif rows:
            print_rows(str(place), rows)
        else:
            Console(soft_wrap=True, highlight=False).print(f"{place}: nothing found")
        return 1 if any(f.level == "error" for f in findings) else 0
    summary = {"path": str(place), "content_hash": loaded.content_hash, **catalog.summary(loaded)}
    if format == "json":
        print_json(summary)
    else:
        print_rows(loaded.id, [{"what": k, "value": v} for k, v in summary.items()])
    return 0


def _recipes() -> dict[str, dict[str, Any]]:
    """Return the datasets that can be made here: the files that say how."""
    files = {name: config.load_group("dataset", name) for name in config.group_options("dataset")}
    return {name: file for name, file in files.items() if {"controller", "run", "of"} & set(file)}
