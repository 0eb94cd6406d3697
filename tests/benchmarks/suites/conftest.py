"""For the tests of launchers: a suite of a few seconds, what it finds, and a Slurm of our own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training.rows import read_episodes

STEPS = 1500
"""Updates of a clone: as many as take some seconds, in which something can happen to it."""
SUITE = {
    "title": "Tiny",
    "seeds": [0, 1],
    "common": [
        "env=robotics/PointMaze-TwoRoutes-v0", "env_options.horizon=28", "other_task=true",
        "eval_episodes=2", "act_steps=4",
    ],
    "runs": {
        "clone": {
            "seconds": 5,
            "overrides": [
                "dataset=two_routes", "dataset.episodes=4", "policy=flow", "policy.hidden=[16]",
                "policy.sampling_steps=2", "algorithm=bc", "algorithm.batch_size=16",
                f"offline_steps={STEPS}", "checkpoint_every=100",
            ],
        },
        "frozen": {"base": "clone", "seeds": [0], "overrides": ["algorithm=frozen"]},
    },
}  # fmt: skip


PROGRAMS = ("sbatch", "srun", "sacct", "scontrol", "scancel")


@dataclass
class Found:
    """What a suite found: its table, its rows and its policies; without how long that took."""

    table: bytes
    rows: list[dict[str, Any]] = field(repr=False)
    weights: dict[str, bytes] = field(repr=False)


class TinySuite:
    """A suite of a few seconds; with a task of its own a run, and one that starts from another.

    Attributes:
        steps: updates of a clone.
    """

    steps = STEPS

    def write(self, folder: Path, steps: int = STEPS) -> None:
        """Write the suite's file, with clones of so many updates."""
        offline = f"offline_steps={steps}"
        text = yaml.safe_dump(SUITE).replace(f"offline_steps={STEPS}", offline)
        (folder / "tiny.yaml").write_text(text)

    def bench(self, folder: Path, *words: str) -> str:
        """Carry the suite out below a folder; return what was shown on standard output."""
        self.write(folder)
        shown, told = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(shown),
            contextlib.redirect_stderr(told),
            pytest.raises(SystemExit) as ended,
        ):
            main(["bench", "suite=tiny.yaml", *words])
        assert ended.value.code == 0, told.getvalue()
        return shown.getvalue()

    def found(self, folder: Path, runs: str = "runs") -> Found:
        """Return what the suite found below a folder, with its runs in a folder in that."""
        out = folder / "runs" / "suites" / "tiny"
        weights = sorted((folder / runs).glob("**/policy/model.safetensors*"))
        return Found(
            (out / "leaderboard.csv").read_bytes(),
            read_episodes(out / "episodes.parquet").drop_columns(["seconds"]).to_pylist(),
            {str(path.parent.relative_to(folder / runs)): path.read_bytes() for path in weights},
        )


@pytest.fixture(scope="session")
def tiny_suite() -> TinySuite:
    """The suite."""
    return TinySuite()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with the state of a Slurm whose programs are on the PATH."""
    state = tmp_path / "slurm"
    state.mkdir()
    answers = Path(__file__).with_name("fake_slurm.py")
    for name in PROGRAMS:
        script = state / name
        script.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -S "{answers}" "{state}" {name} "$@"\n'
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{state}:{os.environ['PATH']}")
    yield state
    for session in state.glob("session.*"):  # of a job that a failed test has left
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(session.read_text()), signal.SIGKILL)
