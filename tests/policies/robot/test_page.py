"""The loop of ``docs/robots.md``, as it stands there, and its log."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.policies.robot.replay import replay

BLOCK = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
    ((name, text),) = BLOCK.findall((root / "docs" / "robots.md").read_text(encoding="utf-8"))
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, name, bundle],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    told = re.match(r"(\d+) ticks, (\d+) left out, \d+ late\n  wake ", done.stdout)
    assert told is not None and int(told[1]) + int(told[2]) == 20
    found = replay(tmp_path / "run.log")
    assert found.ticks == int(told[1]) and found.passed
