"""A recipe of the package, with settings of a test's own."""

from __future__ import annotations

from typing import Any

from trimtab.benchmarks.training.settings.groups import load_group


def recipe(name: str, **changes: Any) -> dict[str, Any]:
    return {**load_group("dataset", name), **changes}
