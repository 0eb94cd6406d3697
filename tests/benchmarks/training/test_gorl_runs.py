"""Whole runs of GoRL: what its phases begin with, and that it goes on from any of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.algorithms.phases import Phase
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training import segments
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.policies.bundle.bundle import bundle_hash
from trimtab.types import Batch, Rollout

RUNS = {
    "gorl": "policy=flow",
    "gorl_sac": "policy=diffusion policy.train_steps=4",
}


def words_of(name: str, tiny: Any, out: Path) -> list[str]:
    return [
        *tiny.online(out, name.split()[0]), *RUNS[name].split(), "policy.hidden=[16]",
        "policy.sampling_steps=2", "online_steps=804", "algorithm.stage_lengths=[1,1,1]",
        "algorithm.collect_share=0.1", "algorithm.decoder_updates=6",
        "algorithm.decoder_batch_size=8", "algorithm.kept_decisions=64",
        "algorithm.validate_every=2", "algorithm.score_episodes=2", "eval_every=190",
    ]  # fmt: skip


def outcome(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = read_episodes(folder / "episodes.parquet").to_pylist()
    timed = {"seconds"}
    return {
        "policy": bundle_hash(folder / "policy"),
        "metrics": [{k: v for k, v in line.items() if k not in timed} for line in lines],
        "rows": [{k: v for k, v in row.items() if k not in timed} for row in rows],
    }


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Phase, int, int]]:
    """The phases that have begun, with the decisions that were stored before and after that."""
    found: list[tuple[Phase, int, int]] = []
    begin = loop.Run._begin

    def spied(run: loop.Run, phase: Phase) -> None:
        assert run.experience is not None
        before = len(run.experience.buffer)
        begin(run, phase)
        found.append((phase, before, len(run.experience.buffer)))

    monkeypatch.setattr(loop.Run, "_begin", spied)
    return found


@pytest.mark.slow
@pytest.mark.bits
@pytest.mark.parametrize("name", RUNS)
def test_killed_in_each_phase_it_goes_on_to_the_same_bits(
    name: str,
    tiny: Any,
    tmp_path: Path,
    stopped_at: Callable[[int], Any],
    begun: list[tuple[Phase, int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "LOG_EVERY", 20)
    monkeypatch.setattr(segments, "SMALLEST", 512)
    # The second stage begins with all that the first has left; a third one does no more.
    two = ["online_steps=536", "algorithm.stage_lengths=[1,1]"]
    whole = train(compose_run([*words_of(name, tiny, tmp_path / "whole"), *two])).folder
    phases = [phase for phase, _, _ in begun]
    assert len(phases) == (6 if any("warm-up" in phase.name for phase in phases) else 4)
    ends = torch.tensor([0, *(phase.length for phase in phases)]).cumsum(0)
    # At the end of each phase, where the next has not begun, and in the middle of the next one.
    moments = sorted({int(at) for at in [*ends[1:-1], *(ends[:-1] + ends[1:]) // 2]})
    words = [*words_of(name, tiny, tmp_path / "killed"), *two]
    del begun[:]
    for moment in moments:
        with stopped_at(moment):  # right after its state was saved
            train(compose_run([*words, f"checkpoint_every={moment}"]))
        torch.manual_seed(moment)
    killed = train(compose_run(words)).folder
    # Where a process ended as soon as a phase had begun and before it was saved, it begins again.
    assert [phase.name for phase, _, _ in begun] == [phase.name for phase in phases]
    assert outcome(killed) == outcome(whole)


def test_after_a_refit_the_ring_is_empty_and_all_that_is_drawn_is_new(
    tiny: Any, tmp_path: Path, begun: list[tuple[Phase, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, float]] = []
    update = loop.Run._update

    def spied(run: loop.Run, phase: Phase, data: Any) -> None:
        if isinstance(data, Batch) and data.aux:
            # Latents of earlier stages would be decoded to other actions than were executed.
            algorithm: Any = run.algorithm
            again = algorithm.policy.decode(data.obs, data.aux["latent"])
            error = torch.where(data.valid[..., None], again - data.action, 0.0).abs().amax()
            drawn.append((algorithm.stage, float(error)))
        update(run, phase, data)

    monkeypatch.setattr(loop.Run, "_update", spied)
    train(compose_run(words_of("gorl_sac", tiny, tmp_path)))
    fresh = [(before, after) for phase, before, after in begun if phase.fresh]
    assert len(fresh) == 2 and all(before > 0 and after == 0 for before, after in fresh)
    assert all(before == after for phase, before, after in begun if not phase.fresh)
    assert {stage for stage, _ in drawn} == {0, 1, 2}
    assert max(error for _, error in drawn) < 1e-5


def test_rollouts_are_of_one_stage(
    tiny: Any, tmp_path: Path, begun: list[tuple[Phase, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollout that a phase leaves unfinished is dropped, as are those of a collection."""
    learned: list[float] = []
    update = loop.Run._update

    def spied(run: loop.Run, phase: Phase, data: Any) -> None:
        algorithm: Any = run.algorithm
        if isinstance(data, Rollout):
            assert isinstance(data.obs, torch.Tensor)
            latent = data.aux["unclipped"].flatten(0, 1)
            again = algorithm.policy.decode(data.obs.flatten(0, 1), latent)
            learned.append(float((again - data.action.flatten(0, 1)).abs().amax()))
        update(run, phase, data)

    monkeypatch.setattr(loop.Run, "_update", spied)
    train(compose_run(words_of("gorl", tiny, tmp_path)))
    assert max(learned) < 1e-5
    assert len(learned) == sum(
        phase.length // 72 for phase, _, _ in begun if phase.name.startswith("encode")
    )
    assert any(before > 0 for phase, before, _ in begun if phase.fresh)
