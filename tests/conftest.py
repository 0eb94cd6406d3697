"""What every test finds: one thread a process, no hub, and searches that repeat."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import settings

from trimtab.benchmarks.headless import choose_renderer
from trimtab.errors import TrimtabError

# Before torch, numpy or a hub client is imported. `make test` sets the same for its workers.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
}.items():
    os.environ.setdefault(_name, _value)

# Simulators read how to draw when they are imported, whichever test does that first. The workers of
# a parallel run are told by the process that starts them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    with contextlib.suppress(TrimtabError):  # then the tests that draw say so
        choose_renderer()

# A machine shared with other work is slow at times, and a test must say the same every time.
settings.register_profile("trimtab", deadline=None, derandomize=True, database=None)
settings.load_profile("trimtab")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent
