"""Mutated bundles and weight files end in one line, and nothing in them is executed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).with_name("fuzz_files.py")


def test_mutated_files_are_opened_or_refused_in_one_line(
    bundle_of: Callable[[str], Path],
) -> None:
    command = [sys.executable, SCRIPT, "11", "120", bundle_of("flow")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found = json.loads(done.stdout)
    assert found["events"] == []
    assert found["whole files"]["Diffusion Policy opened"] == 1
    assert found["events of a control"]  # pickle.loads, which the hook must notice
    assert found["outcomes"].keys() <= {
        f"{kind} {outcome}"
        for kind in ("bundle", "weight file")
        for outcome in ("opened", "refused")
    }
    assert min(found["outcomes"][f"{kind} refused"] for kind in ("bundle", "weight file")) > 40
