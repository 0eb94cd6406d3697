"""``trimtab doctor``: what is wrong with this machine or installation."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from trimtab.benchmarks.cli.finding import Finding
from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.errors import TrimtabError

__all__ = ["doctor"]

_TRAINING = ("torch", "gymnasium", "hydra")
_NEEDED = (
    "gymnasium", "h5py", "hydra", "mujoco", "numpy", "omegaconf", "onnx", "onnxruntime", "pyarrow",
    "rich", "safetensors", "torch", "yaml",
)  # fmt: skip


def doctor(out: str, format: str, bundle: str = "") -> int:
    """Print what is wrong with this machine or installation; exit code 1 if anything is.

    With ``bundle``, or where no package of training is installed, it asks for what a robot needs.

    Raises:
        TrimtabError: if packages are missing that nothing here does without.
    """
    if bundle or not any(map(importlib.util.find_spec, _TRAINING)):
        from trimtab.benchmarks.cli.robot import examine_robot

        return _told(examine_robot(Path(bundle) if bundle else None), format)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise TrimtabError(
            f"doctor: not installed: {', '.join(missing)}; make an environment from its lock "
            "(make install)"
        )
    from trimtab.benchmarks.cli.doctor import examine
    from trimtab.benchmarks.cli.screen import print_json, print_rows

    findings = examine(Path(out))
    if format == "json":
        print_json([finding.to_json() for finding in findings])
    else:
        print_rows("doctor", [finding.to_json() for finding in findings])
    return _failed(findings)


def _told(findings: list[Finding], format: str) -> int:
    """Print findings where only the standard library is sure to be there."""
    rows = [finding.to_json() for finding in findings]
    lines = [f"{row['level']:<8} {row['what']:<12} {row['message']}" for row in rows]
    answer = json.dumps(rows, indent=2) if format == "json" else "\n".join(lines)
    answer_stream().write(answer + "\n")
    return _failed(findings)


def _failed(findings: list[Finding]) -> int:
    return 1 if any(finding.level == "error" for finding in findings) else 0
