"""Recording demonstrations: which episodes are kept, by how many processes, and who gives up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.benchmarks.training.data import recording
from trimtab.benchmarks.training.data.recipes import make_dataset
from trimtab.benchmarks.training.data.recording import dataset_of, record_episodes
from trimtab.datasets.catalog import success_sentence
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.recording import Wanted, attempts_of, record
from trimtab.envs.registry import make
from trimtab.types import TrimtabError

pytestmark = pytest.mark.bits

recipe = load_module(Path(__file__).with_name("changed.py")).recipe


class Scripted:
    """Succeeds in episodes whose generator says so: a controller of the task below."""

    def __init__(self, task: str, generator: np.random.Generator) -> None:
        self.push = 1.0 if generator.random() < 0.5 else 0.0

    def act(self, obs: Any) -> Any:
        return np.full(2, self.push, np.float32)


class Task:
    """Two steps, of which the second succeeds if it is pushed."""

    def __init__(self) -> None:
        space = make("robotics/PointMaze-TwoRoutes-v0").action_space
        self.action_space, self.steps = space, 0

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        success = bool(self.steps == 2 and action[0] > 0.5)
        obs = np.full(3, self.steps, np.float32)
        return obs, float(success), success, self.steps == 2, {"success": success}


def recorded(**changes: Any) -> list[Any]:
    amount = {"episodes": 30, **changes}
    key = amount.pop("success_key", "success")
    wanted = Wanted(**amount)
    return record(Task(), "task", Scripted, wanted, seed=0, success_key=key)  # type: ignore[arg-type]


def test_only_successful_drops_the_others() -> None:
    everything, successes = recorded(), recorded(only_successful=True)
    kept = [episode.seed for episode in everything if episode.success]
    assert 5 < len(kept) < 25
    assert [episode.seed for episode in successes][: len(kept)] == kept
    assert all(episode.success for episode in successes)
    assert len(successes) == len(everything) == 30


def test_attempts_follow_from_the_seed_of_the_last_success() -> None:
    tried, kept = recorded(episodes=60), recorded(only_successful=True)
    recipe: dict[str, Any] = {"seed": 0, "only_successful": True, "episodes": 30}

    def told(recipe: dict[str, Any], episodes: list[Any] = kept) -> int | None:
        return attempts_of(Dataset("a/b-v0", "a/b", {}, episodes, (-1.0,), (1.0,), recipe=recipe))

    attempts = told(recipe)
    assert attempts == [one.seed for one in tried].index(kept[-1].seed) + 1 > 30
    for other in ({"seed": 1}, {"seed": "0"}, {"only_successful": False}, {"episodes": 31}):
        assert told({**recipe, **other}) is None
    assert told({}, [replace(one, seed=None) for one in kept]) is None
    sentence = success_sentence(Dataset("a/b-v0", "a/b", {}, kept, (-1.0,), (1.0,), recipe=recipe))
    assert sentence.startswith(f"success: 30 of {attempts} attempts (")


def test_end_flags_are_those_of_the_task() -> None:
    for episode in recorded():
        assert episode.terminations.tolist() == [False, bool(episode.success)]
        assert episode.truncations.tolist() == [False, True]
        assert episode.observations[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert recorded(success_key=None)[0].infos == {}


def test_steps_are_filled_with_whole_episodes() -> None:
    assert [len(episode) for episode in recorded(episodes=None, steps=5)] == [2, 2, 2]
    assert len(recorded(episodes=None, steps=6)) == 3


def test_how_many_processes_record_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe("two_routes", episodes=20)  # more than a block
    blocks = tmp_path / "blocks"
    hashes = [dataset_of(wanted, record_episodes(wanted, blocks, workers=2)).content_hash]
    with monkeypatch.context() as few:
        few.setattr(recording, "BLOCK", 64)
        episodes = record_episodes(wanted, tmp_path / "none")
    assert not (tmp_path / "none").exists()  # this process has recorded all of them
    hashes.append(dataset_of(wanted, episodes).content_hash)
    assert len(episodes) == 20 and hashes[0] == hashes[1]
    recorded_at = {path: path.stat().st_mtime_ns for path in blocks.rglob("*.hdf5")}
    again = dataset_of(wanted, record_episodes(wanted, blocks, workers=1))
    assert again.content_hash == hashes[0]
    assert (
        recorded_at
        and recorded_at.items()
        <= {path: path.stat().st_mtime_ns for path in blocks.rglob("*.hdf5")}.items()
    )  # what was recorded before is not recorded again


def test_a_few_steps_are_recorded_without_further_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"episodes": None, "env_options": {"horizon": 25}, "only_successful": False}
    small = recipe("two_routes", **changes, steps=16 * 25)
    blocks = tmp_path / "blocks"
    with monkeypatch.context() as few:
        few.setattr(recording, "_FEW_STEPS", 16 * 25)
        by_others = record_episodes({**small, "steps": 16 * 25 + 1}, blocks, workers=1)
    assert [path.name for path in blocks.iterdir()]
    monkeypatch.setattr(recording, "worker_pool", None)
    here = record_episodes(small, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    # Whole episodes until the steps are there: the same ones, one less.
    assert sum(map(len, here)) == 16 * 25
    hashes = [dataset_of(small, found).content_hash for found in (here, by_others[:16])]
    assert len(by_others) == 17 and hashes[0] == hashes[1]


def test_recorders_end_with_who_started_them(tmp_path: Path) -> None:
    command = (
        "import sys; from pathlib import Path; from trimtab.benchmarks.cli.main import main\n"
        "if __name__ == '__main__': main(sys.argv[1:])\n"
    )
    (tmp_path / "go.py").write_text(command)
    words = ["dataset", "make", "dataset=maze_large", f"out={tmp_path / 'runs'}"]
    # Tracked by a word in the environment: a killed parent's children are nobody's.
    environment = {**os.environ, "RECORDED_BY": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "go.py"), *words], env=environment)
    deadline = time.monotonic() + 100
    while not list(tmp_path.rglob("blocks/*/data")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(_started_by(str(tmp_path))) > 1
    parent.kill()
    parent.wait()
    while (left := _started_by(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def _started_by(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"RECORDED_BY={word}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_a_hopeless_recipe_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one recorder
    wanted = recipe("two_routes", episodes=17, env_options={"horizon": 1})  # in blocks
    with pytest.raises(TrimtabError, match="only 0 of 340 attempts succeeded"):
        make_dataset(wanted, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_never_succeeds_gives_up() -> None:
    class Idle(Scripted):
        def __init__(self, task: str, generator: np.random.Generator) -> None:
            self.push = 0.0

    with pytest.raises(TrimtabError, match="only 0 of 40 attempts succeeded") as error:
        record(
            Task(), "task", Idle, Wanted(2, only_successful=True),  # type: ignore[arg-type]
            seed=0, success_key="success",
        )  # fmt: skip
    assert "\n" not in str(error.value)
