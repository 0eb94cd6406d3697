"""Runs whose method learns from what a generator makes: same bits, refusals, names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from trimtab.benchmarks.cli.commands.listing import LISTINGS
from trimtab.benchmarks.cli.commands.train import explain_run
from trimtab.benchmarks.cli.table import COMMANDS
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check, train
from trimtab.types import TrimtabError


def words(tiny: Any, out: Path, algorithm: str = "td3_bc") -> list[str]:
    """Return the settings of a run of a second: 30 updates of the model, 60 of the method."""
    return [
        *tiny.task(out),
        f"dataset={tiny.dataset}",
        f"algorithm={algorithm}",
        "algorithm.hidden=[16]",
        "algorithm.batch_size=16",
        "source=policy_guided_diffusion",
        "source.fit_updates=30",
        "source.hidden=[8,16]",
        "source.length=6",
        "source.rollouts=8",
        "source.refresh_every=20",
        "source.sampling_steps=3",
        "offline_steps=60",
        "eval_every=25",
        "checkpoint_every=20",
    ]


@pytest.mark.parametrize("stop_at", [23, 55])
def test_a_run_goes_on_to_the_same_bits(
    stop_at: int, tiny: Any, tmp_path: Path, copied_at: Callable[[int, Path], Any]
) -> None:
    """Stopped while the model learns, and while the method does, after data were made anew."""
    with copied_at(stop_at, tmp_path / "stopped"):
        whole = train(compose_run(words(tiny, tmp_path / "whole"))).folder
    again = train(compose_run(words(tiny, tmp_path / "stopped")))
    assert not again.already_done
    stopped = again.folder
    for name in ("policy/model.safetensors",):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    (one,), (other,) = (
        list(folder.glob("checkpoint/*/arrays.safetensors")) for folder in (stopped, whole)
    )
    assert one.read_bytes() == other.read_bytes()
    rows = [pq.read_table(folder / "episodes.parquet") for folder in (stopped, whole)]
    left, right = (table.drop_columns(["seconds"]) for table in rows)
    assert left.equals(right)
    # The untrained policy is not judged while the model learns.
    assert sorted(set(left["updates"].to_pylist())) == [50, 75, 90]
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert "denoising_loss" in lines[0] and "critic_loss" in lines[-1]
    assert "critic_loss" not in lines[0] and "denoising_loss" not in lines[-1]


def test_a_source_is_a_part_of_the_name_of_a_run_only_where_there_is_one(
    tiny: Any, tmp_path: Path
) -> None:
    given = words(tiny, tmp_path)
    without = [word for word in given if not word.startswith("source")]
    plain = checked_plan(compose_run(without)).identity
    made = dict(checked_plan(compose_run(given)).identity)
    source = made.pop("source")
    assert made == plain and "source" not in plain
    assert source["name"] == "policy_guided_diffusion" and source["settings"]["rollouts"] == 8


def test_help_and_refusals_are_one_line(tiny: Any, tmp_path: Path) -> None:
    assert any(
        "source.guidance: 1.0 #" in one for one in explain_run(["source=policy_guided_diffusion"])
    )
    listed = {row["source"] for row in LISTINGS["source"]("source", "")}
    assert listed == {"policy_guided_diffusion"}
    settings = COMMANDS["list"].settings
    assert settings is not None and {*LISTINGS} == {*settings["what"].choices}
    given = words(tiny, tmp_path)
    offline = [word for word in given if not word.startswith(("dataset", "offline"))]
    sequences = [
        word for word in words(tiny, tmp_path, "decision_transformer") if "[16]" not in word
    ]
    for wrong, said in (
        ([*given, "source.guidanc=1"], "guidance"),
        ([*given, "source.guidance=-1"], r"source\.guidance=-1"),
        ([*given, "source.rollouts=many"], r"source\.rollouts=many: must be a whole"),
        ([*given, "observations=dict"], "observations in parts"),
        (words(tiny, tmp_path, "cal_ql"), "returns of whole episodes"),
        # What a policy is told by its user is no observation in parts.
        (sequences, "learns from returns of whole episodes, sequences, and what"),
        ([*offline, "offline_steps=0", "online_steps=100"], "dataset"),
        (
            [*offline, "offline_steps=0", "algorithm=sac", "online_steps=900",
             "algorithm.warmup_steps=9"],
            r"source=policy_guided_diffusion: sac needs dataset=",
        ),
    ):  # fmt: skip
        with pytest.raises(TrimtabError, match=said) as caught:
            check(compose_run(wrong))
        assert "\n" not in str(caught.value)
