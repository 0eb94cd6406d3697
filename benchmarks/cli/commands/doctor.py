"""``trimtab doctor``: what is wrong with this machine or installation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from trimtab.errors import TrimtabError

__all__ = ["doctor"]

_NEEDED = (
    "gymnasium", "h5py", "hydra", "mujoco", "numpy", "omegaconf", "onnx", "onnxruntime", "pyarrow",
    "rich", "safetensors", "torch", "yaml",
)  # fmt: skip


def doctor(out: str, format: str) -> int:
    """Print what is wrong with this machine or installation; exit code 1 if anything is.

    Raises:
        TrimtabError: if packages are missing that nothing here does without.
    """
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
    return 1 if any(finding.level == "error" for finding in findings) else 0
