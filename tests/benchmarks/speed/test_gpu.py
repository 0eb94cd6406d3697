"""The script for a GPU, on a processor: its words, its checks, and what it keeps."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.benchmarks.speed.measure import Stage
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.errors import TrimtabError


@pytest.fixture
def gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script for a GPU; its parts are imported with it."""
    monkeypatch.syspath_prepend(str(root / "scripts"))
    return load_module(root / "scripts" / "gpu.py")


def test_the_script_for_a_gpu_says_that_there_is_none(
    root: Path, gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", f"out={tmp_path / 'rows'}"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(root / "scripts" / "gpu.py"), run_name="__main__")
    shown = capfd.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert "no CUDA GPU" in shown.err and shown.err.count("\n") == 1
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("round=3", "no setting 'round'; did you mean rounds"),
        ("out", "gpu: out: write key=value, with one of out, rounds, scale, only"),
        ("rounds=0", "gpu: rounds=0: must be a whole number from 1"),
        ("scale=0", "gpu: scale=0: must be a number above 0"),
        ("only=mjx_hoper_1024", "no such row; did you mean mjx_hopper_1024"),
    ],
)
def test_the_script_for_a_gpu_refuses_other_words(gpu: Any, word: str, told: str) -> None:
    with pytest.raises(TrimtabError, match=told):
        gpu.main([word])


@pytest.mark.parametrize("name", ["sac", "td3", "bc_flow", "dsrl_na"])
def test_the_script_for_a_gpu_replays_updates_to_the_same_bits(gpu: Any, name: str) -> None:
    assert gpu.gpu_updates.check(name, "cpu", updates=9) == 0.0


def test_the_script_for_a_gpu_notices_an_update_that_is_not_replayed(gpu: Any) -> None:
    with pytest.raises(TrimtabError, match="sac: replayed weights differ by"):
        gpu.gpu_updates.check("sac", "cpu", lambda algorithm, device: lambda data: None, updates=1)


@pytest.mark.parametrize("name", ["actor", "flow"])
def test_decisions_for_a_gpu_are_held_against_those_of_the_processor(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    latency = gpu.gpu_latency
    assert latency.check(name, 3, "cpu") == {"difference": 0.0}
    actions = latency.acting(name, "cpu", Stage())(np.zeros((3, latency.OBS_DIM), np.float32))
    assert actions.dtype == np.float32 and len(actions) == 3 and abs(actions).max() <= 1
    seeds, seeded = iter([0, 1]), torch.manual_seed
    monkeypatch.setattr(latency.torch, "manual_seed", lambda _: seeded(next(seeds)))
    with pytest.raises(TrimtabError, match=f"{name}: actions differ by"):
        latency.check(name, 3, "cpu")


def test_the_script_for_a_gpu_goes_on_after_a_row_that_failed(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> dict[str, Any]:
        raise RuntimeError("no room\nlong story")

    def measured(*words: str, **found: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the rows by name, without their machine."""
        known = {
            name: (lambda row=row, name=name: {"name": name, **row}) if row else fails
            for name, row in found.items()
        }
        monkeypatch.setattr(gpu, "jobs", lambda asked: known)
        code = gpu.main([f"out={tmp_path}", *words])
        rows = json.loads((tmp_path / "rows.json").read_text())
        assert all(row.pop("machine")["gpu"] == "a GPU" for row in rows)
        return code, {row.pop("name"): row for row in rows}

    monkeypatch.setattr(gpu, "check_gpu", lambda names: None)
    monkeypatch.setattr(gpu.torch.cuda, "get_device_name", lambda: "a GPU")
    none: dict[str, Any] = {}
    failed, two, three = {"failed": "RuntimeError: no room"}, {"ours": 2.0}, {"ours": 3.0}
    assert measured(a=none, b=two, c=two) == (1, {"a": failed, "b": two, "c": two})
    assert capfd.readouterr().out.count("\n") == 3
    # What is measured again takes the old row's place, unless it fails; all others stay.
    assert measured("only=b", b=three) == (0, {"a": failed, "b": three, "c": two})
    assert measured(b=none, a=three) == (1, {"a": three, "b": three, "c": two})
    # They are in the order of the jobs, whichever was measured first; unknown ones come last.
    measured(d=two, b=three, a=three)
    assert [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())] == [*"dbac"]
    capfd.readouterr()
    # Behind its time no row begins, and the call says which are left.
    clock = iter([0.0, 59.0, 61.0])
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    left = measured("minutes=1", a=two, b=two, c=three)[1]
    assert left == {"a": two, "b": three, "c": two, "d": two}
    assert "left: only=b,c" in capfd.readouterr().out


def test_the_page_of_a_gpu_has_rows_without_a_peer_and_no_failures(root: Path, gpu: Any) -> None:
    rows = json.loads((root / "benchmarks" / "results" / "gpu" / "rows.json").read_text())
    lines = list(gpu.published_tables.on_a_gpu(rows))
    timed = next(row for row in rows if row["name"] == "mjx_hopper_1024")
    more = [{**timed, **gpu.gpu_training.NO_PEER}, {"name": "resume_sac", "failed": "no room"}]
    *before, last = gpu.published_tables.on_a_gpu([*rows, *more])
    assert before == lines
    assert last == ("`mjx_hopper_1024`", "-", "75,000", "-", "steps/s", "-", "", lines[5][-1])


def test_simulated_seconds_are_those_of_the_rows(gpu: Any, root: Path) -> None:
    rows = json.loads((root / "benchmarks" / "results" / "gpu" / "rows.json").read_text())
    known = {row["name"]: row for row in rows}
    for task, peer in gpu.gpu_simulation.PEERS.items():
        assert gpu.gpu_simulation.simulated(task).items() <= known[f"mjx_{peer}_4096"].items()


def test_a_run_for_a_gpu_comes_to_its_end(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run, small, on the processor."""
    monkeypatch.setattr(gpu.gpu_training, "WORDS", ["eval_episodes=2"])
    monkeypatch.setattr(gpu.gpu_training, "EVALUATIONS", 4)
    asked: list[tuple[Any, ...]] = []

    def peer(
        task: str, numbers: Any, parts: int, steps: int, done: Callable[[float], None]
    ) -> None:
        asked.append((task, numbers, parts, steps))
        if len(asked) == 2:
            raise AttributeError("jax has no pmap\nlong story")
        for rate in (1.0, 100.0, 200.0, 300.0):  # the first one has the compilation
            done(rate)

    monkeypatch.setattr(gpu.gpu_training.brax_side, "train", peer)
    training = gpu.gpu_training.Training("ppo", "gym/InvertedPendulum-v5", copies=1, steps=512)
    row, again = (
        gpu.trained(gpu.settings([f"out={tmp_path}", "scale=0.5"]), training) for _ in range(2)
    )
    assert row["peer"] == 200.0 and row["ratio_median"] == row["ours"] / 200.0
    assert again["peer_failed"] == "AttributeError: jax has no pmap" and again["peer"] is None
    # The peer gets what the run's words say.
    task, numbers, _, steps = asked[0]
    assert (task, steps) == ("InvertedPendulum-v5", 256)
    said = compose_run(row["words"])["algorithm"]
    assert said["rollout_steps"] == numbers.rollout and said["epochs"] == numbers.epochs
    assert said["hidden"] == [numbers.hidden] * 2
    assert said["batch_size"] == numbers.rollout * numbers.copies // numbers.minibatches
    metrics = (tmp_path / "ppo" / "metrics.jsonl").read_text()
    assert {steps: len(them) for steps, them in row["returns_by_steps"].items()} == dict.fromkeys(
        (64, 128, 192, 256), 2
    )
    assert row["ours"] > 256 / row["seconds"]
    assert json.loads(metrics.splitlines()[-1])["env_steps"] == 256


def test_a_run_of_sac_for_a_gpu_comes_to_its_end(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (real,) = (one for one in gpu.gpu_training.RUNS if not one.beside_brax)
    words = gpu.gpu_training.words_of(real, real.steps)
    config = compose_run([word for word in words if word != "device=cuda"])
    assert len(words) > len(config.words) and config["num_envs"] == 1024
    assert config["algorithm"]["updates_per_decision"] * 1024 == 8
    small = ["algorithm.hidden=[8]", "algorithm.batch_size=8", "algorithm.warmup_steps=64"]
    monkeypatch.setattr(gpu.gpu_training, "WORDS", ["eval_episodes=2"])
    monkeypatch.setattr(gpu.gpu_training, "SAC", small)
    training = replace(real, task="gym/InvertedPendulum-v5", copies=4, steps=1600)
    row = gpu.trained(gpu.settings([f"out={tmp_path}", "scale=0.5"]), training)
    assert row["name"] == "sac_half_cheetah_1024" and row["unit"] == "steps/s" and row["ours"] > 0
    assert row["peer"] is row["peer_name"] is row["ratio_median"] is None
    metrics = (tmp_path / row["name"] / "metrics.jsonl").read_text().splitlines()
    last = json.loads(metrics[-1])
    # Eight updates for each step of all four, from the end of the warm-up on.
    assert last["env_steps"] == 800 and last["updates"] == 8 * (1 + (800 - 64) // 4)
    assert len(metrics) > 2 and list(row["returns_by_steps"]) == [400, 800]


def test_runs_for_a_gpu_are_made_side_by_side(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = gpu.gpu_side_by_side
    assert {"side_by_side_1", "side_by_side_16"} <= gpu.jobs(gpu.settings([])).keys()
    small = ["env=gymnasium:Pendulum-v1", "algorithm=sac", "algorithm.hidden=[8]"]
    small += ["algorithm.warmup_steps=200", "eval_episodes=2"]
    monkeypatch.setattr(shared, "words", lambda steps: [*small, f"online_steps={steps}"])
    row = shared.run(2, tmp_path, 0.05, "cpu")
    assert row["ours"] == 7200 / row["seconds"] and row["words"][-1] == "online_steps=300"
    assert len(list(tmp_path.glob("runs/**/result.json"))) == 2
    monkeypatch.setattr(shared, "words", lambda steps: ["env=gym/Hoper-v5", "algorithm=sac"])
    with pytest.raises(TrimtabError, match="2 runs side by side: .*the nearest is"):
        shared.run(2, tmp_path, 0.05, "cpu")
