"""Policies that a run may imitate: what they have to be, and what they make of its identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check, train
from trimtab.policies.bundle.bundle import bundle_hash
from trimtab.types import TrimtabError


def words(tiny: Any, out: Path, *more: str) -> list[str]:
    """A tiny run of a method that imitates, with other oracles."""
    own = [word for word in tiny.online(out, "rpi") if not word.startswith("oracles=")]
    return [*own, *more]


def test_a_run_hears_of_its_episodes_ends_and_imitates(tiny: Any, tmp_path: Path) -> None:
    made = train(compose_run(words(tiny, tmp_path, f"oracles=[{tiny.base}]")))
    document = json.loads((made.folder / "provenance.json").read_text())["identity"]
    assert document["oracles"] == [bundle_hash(tiny.base / "policy")]
    rows = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    shares = [row["oracle_share"] for row in rows if "oracle_share" in row]
    # First oracles alone; then episodes of seven decisions, in which a learner must begin again.
    assert shares[0] == 1.0 and 0.0 < min(shares) < 1.0


def test_bad_oracles_are_one_line(tiny: Any, tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    other = ["env=robotics/PointMaze-TwoRoutes-Blocked-v0", "other_task=false"]
    for more, line in (
        ([], r"^rpi imitates other policies: add oracles=\[<a run or a bundle>,…\]$"),
        (["oracles=[]"], r"oracles= is empty"),
        ([f"oracles=[{missing}]"], rf"^{missing} does not exist; give the folder of a run"),
        ([f"oracles=[{tiny.base},{tiny.base}/policy]"], r"is given twice; leave one out$"),
        ([f"oracles=[{tiny.base}]", "env=gym/Hopper-v5", "env_options.horizon=null"],
         r"^oracle \S+ does not fit gym/Hopper-v5: observation length .*; give another oracle"),
        ([f"oracles=[{tiny.base}]", *other],
         r"^oracle \S+ was trained on robotics/PointMaze-TwoRoutes-v0, this run is on robotics/"),
    ):  # fmt: skip
        with pytest.raises(TrimtabError, match=line):
            check(compose_run(words(tiny, tmp_path / "out", *more)))
    others = [*tiny.cloning(tmp_path / "out"), f"oracles=[{tiny.base}]"]
    with pytest.raises(TrimtabError, match=r"^oracles=…: bc makes no use of it; leave it out$"):
        check(compose_run(others))
    assert not (tmp_path / "out").exists()
