"""A run folder that lacks a part, or holds junk, is named in one line that says what to do."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.checkpoint import Checkpoints
from trimtab.benchmarks.training.folder import inspect_run
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.types import TrimtabError


def words_of(tiny: Any, out: Path) -> list[str]:
    changed = {"offline_steps": "60", "eval_every": "25", "checkpoint_every": "15"}
    words = dict(word.split("=", 1) for word in tiny.cloning(out)) | changed
    return [f"{key}={value}" for key, value in words.items()]


@pytest.fixture(scope="module")
def done(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs in which one run came to its end."""
    out = tmp_path_factory.mktemp("done")
    train(compose_run(words_of(tiny, out)))
    return out


@pytest.fixture(scope="module")
def begun(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs in which one run was killed after its second checkpoint."""
    out = tmp_path_factory.mktemp("begun")
    save, saved = Checkpoints.save, []

    def kill(*args: Any) -> None:
        save(*args)
        saved.append(args)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, "save", kill)
        patch.setattr(loop, "LOG_EVERY", 10)
        train(compose_run(words_of(tiny, out)))
    return out


def copied(out: Path, to: Path) -> Path:
    """Return the folder of the one run in a copy of a folder of runs."""
    shutil.copytree(out, to)
    (folder,) = (path.parent for path in to.rglob("config.yaml"))
    return folder


def junk(name: str, text: str = "{") -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (path,) = folder.glob(name)
        path.write_text(text)

    return damage


def gone(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (path,) = folder.glob(name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def pipe(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (path,) = folder.glob(name)
        path.unlink()
        os.mkfifo(path)  # a process that reads it would wait for ever

    return damage


@pytest.mark.parametrize(
    ("at_its_end", "damage", "named"),
    [
        (True, gone("policy"), "policy is missing"),
        (True, junk("policy/model.safetensors"), "policy is damaged"),
        (True, gone("episodes.parquet"), "episodes.parquet is missing"),
        (True, junk("episodes.parquet"), "episodes.parquet is damaged"),
        (True, junk("result.json"), "result.json is damaged"),
        (True, junk("result.json", '{"return": "x"}'), "result.json is damaged"),
        (True, gone("provenance.json"), "has lost its provenance.json"),
        (True, gone("config.yaml"), "has lost its config.yaml"),
        (True, junk("provenance.json", "[]"), "provenance.json is no JSON object"),
        (False, gone("provenance.json"), "has lost its provenance.json"),
        (False, junk("metrics.jsonl", ""), "metrics.jsonl is shorter than"),
        (False, junk("metrics.jsonl", "junk" * 9999), "metrics.jsonl has no line where"),
        (False, junk("checkpoint/step-*/state.json"), "checkpoint: "),
        (False, junk("checkpoint/step-*/arrays.safetensors"), "checkpoint: "),
        (False, pipe("checkpoint/step-*/arrays.safetensors"), "checkpoint: "),
    ],
)
def test_a_damaged_run_is_not_gone_on_with(
    at_its_end: bool,
    damage: Callable[[Path], None],
    named: str,
    tiny: Any,
    done: Path,
    begun: Path,
    tmp_path: Path,
) -> None:
    folder = copied(done if at_its_end else begun, tmp_path / "runs")
    assert inspect_run(folder).state == ("done" if at_its_end else "stopped")
    damage(folder)
    before = sorted(folder.rglob("*"))
    remedy = f"move {shlex.quote(str(folder))} away and run it again"
    found = inspect_run(folder)
    if "has lost" not in named:
        assert found.state == "broken" and named.split()[0].strip(":") in found.broken
    words = ["train", *words_of(tiny, tmp_path / "runs")]
    if named.startswith("policy"):
        words = ["evaluate", f"policy={folder}", "episodes=1"]
    with pytest.raises(TrimtabError) as error:
        trimtab(words)
    assert error.value.exit_code == 2 and "\n" not in str(error.value)
    assert remedy in str(error.value)
    assert named.split()[0] in str(error.value)
    assert {*before} <= {*folder.rglob("*")}
