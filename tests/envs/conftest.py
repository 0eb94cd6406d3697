"""What the tests of environments share: the script of fingerprints, and what it says of a task."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loading import load_module

from trimtab.envs.registry import confirm, get_spec

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def fingerprints() -> Any:
    """``scripts/fingerprints.py``."""
    return load_module(HERE.parents[1] / "scripts" / "fingerprints.py")


@pytest.fixture(scope="session")
def as_published(fingerprints: Any) -> Callable[[str], None]:
    """What holds a task's physics, as it is in this process, to the published one."""
    text = (HERE / "published_physics.json").read_text(encoding="utf-8")
    published: dict[str, dict[str, str]] = json.loads(text)

    def check(id: str) -> None:
        known, spec = fingerprints.definition_of(id), get_spec(id)
        assert not fingerprints.changed_parts(known)
        found = confirm(spec)  # by the steps that get_spec has played
        assert found.agrees, f"{id} moves otherwise than published, by {found.deviation}"
        assert spec.fingerprint == published[id]["{}"]

    return check
