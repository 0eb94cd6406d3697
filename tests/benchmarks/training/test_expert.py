"""Data of good episodes that guide a method: what it has to be, and what it makes of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings_of import settings_of
from trimtab.benchmarks.training.train import check, train
from trimtab.types import TrimtabError

METHOD = "guided_td3_bc"


def test_a_run_is_guided_by_other_data(tiny: Any, tmp_path: Path) -> None:
    words = tiny.online(tmp_path, METHOD)
    plain = train(compose_run(words))
    guided = train(compose_run([*words, f"expert={tiny.dataset}"]))
    assert plain.folder.parent != guided.folder.parent
    identity = json.loads((guided.folder / "provenance.json").read_text())["identity"]
    config = compose_run([*words, f"expert={tiny.dataset}"])
    plan = checked_plan(config)
    data = plan.expert
    assert data is not None and identity["expert"] == data.content_hash
    assert settings_of(guided.folder)["expert"] == str(tiny.dataset)  # and no hash, for a reader
    # Every decision is there once, in its order.
    given = plan.algorithm.expert  # type: ignore[attr-defined]
    actions = torch.cat([torch.tensor(episode.actions) for episode in data.episodes])
    assert len(given) == data.num_steps and torch.equal(given.action[:, 0], actions)


def test_bad_experts_are_one_line(tiny: Any, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "out"
    words = tiny.online(out, METHOD)
    other = ["env=robotics/PointMaze-TwoRoutes-Blocked-v0", "other_task=false"]
    (tmp_path / "junk.hdf5").write_bytes(b"junk")
    for more, line in (
        ([f"expert={tmp_path / 'nothing'}"], "nothing: does not exist; give a dataset's file or"),
        ([f"expert={tmp_path / 'junk.hdf5'}"], "junk.hdf5"),
        (["expert=[1]"], "expert"),
        ([f"expert={tiny.dataset}", "env=gym/Hopper-v5", "env_options.horizon=null"],
         r"does not fit gym/Hopper-v5: observation and action lengths"),
        ([f"expert={tiny.dataset}", *other],
         r"^dataset \S+ is of robotics/PointMaze-TwoRoutes-v0 .* this run is in \S+-Blocked-v0"),
    ):  # fmt: skip
        with pytest.raises(TrimtabError, match=line) as told:
            check(compose_run([*words, *more]))
        assert "\n" not in str(told.value)
    monkeypatch.setattr("trimtab.benchmarks.training.dataset._MOST_OF_EXPERTS", 3)
    with pytest.raises(TrimtabError, match="guided by a few hundred; give at most 3"):
        check(compose_run([*words, f"expert={tiny.dataset}"]))
    cloning = [*tiny.cloning(out), f"expert={tiny.dataset}"]
    with pytest.raises(TrimtabError, match="^expert=…: bc makes no use of it; leave it out$"):
        check(compose_run(cloning))
    assert not out.exists()
