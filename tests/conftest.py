"""What every test finds: one thread a process, no hub, a scratch folder, searches that repeat."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from trimtab.benchmarks.artefacts.headless import choose_renderer
from trimtab.errors import TrimtabError

# Before torch, numpy or a hub client is imported. `make test` sets the same for its workers.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
}.items():
    os.environ.setdefault(_name, _value)

# A shell makes the processes that it starts in the background ignore Ctrl+C; here they do not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The caches of libraries (compiled programs, shaders, fonts) and all temporary files are in one
# folder, which is removed at the end. Parallel workers, and the processes of tests, share it.
if "TRIMTAB_TEST_SCRATCH" not in os.environ:
    _SCRATCH = tempfile.mkdtemp(prefix="trimtab-")
    os.environ["TRIMTAB_TEST_SCRATCH"] = _SCRATCH
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # those of tests stay
    for _name, _folder in {
        "TMPDIR": "tmp",
        "XDG_CACHE_HOME": "cache",
        "MPLCONFIGDIR": "matplotlib",
        "WANDB_CACHE_DIR": "wandb",
        "JAX_COMPILATION_CACHE_DIR": "jax",
        "NUMBA_CACHE_DIR": "numba",  # robosuite's arithmetic, ten seconds in each process
    }.items():
        os.environ[_name] = os.path.join(_SCRATCH, _folder)
        os.mkdir(os.environ[_name])
    tempfile.tempdir = None
    atexit.register(shutil.rmtree, _SCRATCH, ignore_errors=True)

# Simulators read how to draw when they are imported, whichever test does that first. The workers of
# a parallel run inherit it from the process that starts them.
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-task", action="store_true", help="hold every task to the whole contract"
    )


def pytest_collection_finish() -> None:
    # pytest listens to every logger that does not propagate, and torch.export writes down all that
    # it does where this one has a listener.
    logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(autouse=True, scope="module")
def nothing_old_is_collected() -> None:
    """Keep what is there before a file's tests out of what the collector of garbage goes through.

    Ten thousand tests and every library make that a second, before each loop of a robot, at each
    reset of robosuite and after each evaluation.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def adopted_settings_forgotten() -> Iterator[None]:
    """Forget files of settings that a test has adopted; later tests would see them."""
    yield
    if groups := sys.modules.get("trimtab.benchmarks.training.settings.groups"):
        groups.adopted.clear()
