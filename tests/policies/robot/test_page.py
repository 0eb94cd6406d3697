"""The loop of ``docs/robots.md``, as it stands there, and its log."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_networks import contract, linear

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.policies.robot.replay import replay

BLOCK = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def loop_of_the_page(root: Path, bundle: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the loop with a bundle in a folder."""
    ((name, text),) = BLOCK.findall((root / "docs" / "robots.md").read_text(encoding="utf-8"))
    (folder / name).write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, name, bundle],
        cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    "limits",
    [{"velocity": 2.0, "acceleration": 10.0}, {"acceleration": 10.0, "of_velocities": True}],
    ids=["positions", "velocities"],
)
def test_the_loop_of_the_page_runs_as_it_stands_and_its_log_is_played_again(
    limits: dict[str, Any], root: Path, copy_of: Callable[[str], Path], reseal: Any, tmp_path: Path
) -> None:
    bundle = copy_of("flow")
    reseal(bundle, config={"limits": limits})
    done = loop_of_the_page(root, bundle, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = re.match(r"(\d+) ticks, (\d+) left out, \d+ late\n  wake ", done.stdout)
    assert told is not None and int(told[1]) + int(told[2]) == 20
    found = replay(tmp_path / "run.log")
    assert found.ticks == int(told[1]) and found.passed


def test_the_loop_says_in_one_line_that_its_mode_does_not_fit_a_chunk_of_one_action(
    root: Path, tmp_path: Path
) -> None:
    network = linear(tmp_path / "n.onnx", np.eye(2, dtype=np.float32))
    said = contract(
        tmp_path / "contract.yaml",
        action={"low": -1, "high": 1},
        observation={"terms": {"o": {"size": 2}}},
        limits={"velocity": 1.0},
    )
    export_policy(str(network), str(tmp_path / "bundle"), contract=str(said))
    done = loop_of_the_page(root, tmp_path / "bundle", tmp_path)
    told = "mode: interval=2: a chunk has 1 action; give 1\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)
    assert not (tmp_path / "run.log").exists()
