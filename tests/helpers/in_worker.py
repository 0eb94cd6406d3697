"""What tests have workers do; a worker has to be able to import it."""

from __future__ import annotations

import os
import sys
import time

import numpy as np


def variable(name: str) -> str | None:
    """Return a variable of the worker's environment, after a while for another worker to come."""
    time.sleep(0.3)
    return os.environ.get(name)


def drawn(_: int) -> float:
    """Return what a worker draws that nobody has seeded, after a while."""
    time.sleep(0.3)
    return float(np.random.random())  # noqa: NPY002


def found() -> tuple[bool, int, bool]:
    """Return whether torch's exporter is there already, who forked this, and what is set for it."""
    return "torch.onnx" in sys.modules, os.getppid(), "PYTHONSAFEPATH" in os.environ
