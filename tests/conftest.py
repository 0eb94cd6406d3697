"""What every test finds: one thread a process, no hub, a scratch folder, searches that repeat.

Workers of a parallel run (``--dist loadgroup``) are given whole groups of tests, the longest first
(``WAITING`` says which of them a third worker is given): a file is a group, and the files whose
tests are one a task are a group for each simulator family, because what a family compiles is kept
in its process; ``TOGETHER`` adds other tests to such a group. ``tests/durations.json`` holds how
long each group took; ``--write-durations`` writes it anew. It decides the order and nothing else.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest import runner
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

# A shell has what it starts in the background ignore Ctrl+C; here it is as in the foreground.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What libraries keep for later (compiled programs, shaders, fonts) and all temporary files lie in
# one folder, which goes with the run. Parallel workers, and what a test starts, share it.
_SCRATCH = None
if "TRIMTAB_TEST_SCRATCH" not in os.environ:
    _SCRATCH = tempfile.mkdtemp(prefix="trimtab-")
    os.environ["TRIMTAB_TEST_SCRATCH"] = _SCRATCH
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # those of tests stay
    for _name, _folder in {
        "TMPDIR": "tmp",
        "XDG_CACHE_HOME": "cache",
        "MPLCONFIGDIR": "matplotlib",
        "WANDB_CACHE_DIR": "wandb",
        "NUMBA_CACHE_DIR": "numba",  # robosuite's arithmetic, ten seconds in each process
    }.items():
        os.environ[_name] = os.path.join(_SCRATCH, _folder)
        os.mkdir(os.environ[_name])
    tempfile.tempdir = None

# Simulators read how to draw when they are imported, whichever test does that first. The workers of
# a parallel run are told by the process that starts them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    with contextlib.suppress(TrimtabError):  # then the tests that draw say so
        choose_renderer()

gc.set_threshold(500_000, 50, 100)  # what is imported stays; an exported graph makes millions more

# A machine shared with other work is slow at times, and a test must say the same every time.
settings.register_profile("trimtab", deadline=None, derandomize=True, database=None)
settings.load_profile("trimtab")


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent


# One file of tests for all tasks; the rest of a group's name is the family.
BY_FAMILY = {"envs/test_contract.py", "envs/test_fingerprints.py"}
# What robosuite compiles when it first steps takes 12 seconds and is not kept on disk.
TOGETHER = dict.fromkeys(
    (
        "datasets/formats/test_robomimic.py",
        "datasets/recipes/test_recipes.py::test_every_recipe_plays[robosuite_can]",
        "datasets/recipes/test_recipes.py::test_every_recipe_plays[robosuite_lift]",
        "benchmarks/training/test_dataset_task.py::test_every_suites_data_is_of_its_task",
        "envs/test_robosuite.py",
    ),
    "envs/test_contract.py[robosuite]",
)
# So is what JAX makes of a task, a few tasks at a time: those that are compiled come first.
TOGETHER |= dict.fromkeys(
    (
        "benchmarks/training/test_collector.py",
        "benchmarks/speed/test_gpu.py::test_simulated_seconds_are_those_of_the_rows",
        "envs/test_mjx.py",
        "envs/test_traced.py",
    ),
    "envs/test_contract.py[playground]",
)
# Both are checked against diffusers, which takes a second to import.
TOGETHER["policies/test_chains.py"] = "policies/test_samplers.py"
# And a bundle of each kind of policy is exported once a process.
TOGETHER |= dict.fromkeys(
    ("policies/test_black_box.py", "policies/test_bundle_refused.py", "policies/test_runtime.py"),
    "policies/test_bundle.py",
)
# Files whose tests mostly wait for processes that they start. The third and further workers are
# given these alone, and so they import and compile little of what the first two have already.
WAITING = {
    "benchmarks/cli/test_cli.py",
    "benchmarks/cli/test_folders_and_disks.py",
    "benchmarks/core/test_pools.py",
    "benchmarks/training/test_rundir.py",
    "benchmarks/training/test_resumed_sweeps.py",
    "benchmarks/suites/test_launcher_overhead.py",
    "benchmarks/suites/test_launchers.py",
    "benchmarks/suites/test_stopped.py",
    "benchmarks/suites/test_stopped_anywhere.py",
    "benchmarks/suites/test_suite.py",
    "datasets/io/test_apart.py",
    "datasets/recipes/test_recorded.py",
    "test_docs.py",
    "test_packaging.py",
    "test_plugins.py",
}
DURATIONS = Path(__file__).with_name("durations.json")
_seconds: collections.Counter[str] = collections.Counter()


def group_of(nodeid: str) -> str:
    """Return the name of the group of tests that have to run in one process."""
    nodeid = nodeid.removeprefix("tests/")
    file, _, test = nodeid.partition("::")
    family, slash, _ = test.partition("[")[2].partition("/")
    if slash and file in BY_FAMILY:
        return f"{file}[{family}]"
    return TOGETHER.get(nodeid) or TOGETHER.get(file, file)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-task", action="store_true", help="hold every task to the whole contract"
    )
    parser.addoption(
        "--write-durations", action="store_true", help="write tests/durations.json (needs -n)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if getattr(config.option, "loadgroup", False):  # in a worker
        recorded: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
        new = float("inf")  # and so first
        items.sort(key=lambda item: -recorded.get(group_of(item.nodeid), new))


def pytest_collection_finish() -> None:
    # pytest listens to loggers that keep to themselves, and torch traces itself where one listens.
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    trace.handlers.clear()
    gc.freeze()  # half a million objects live until the end; nothing is found by looking at them


@pytest.hookimpl(optionalhook=True)  # a hook of xdist's, which need not be there
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out groups by the names of tests.

    Marks (``xdist_group``) would do, but xdist 3.8 does not see them under pytest 9.2.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def _reschedule(self, node: Any) -> None:
            if not self._waits(node) or WAITING & self.workqueue.keys():
                super()._reschedule(node)
            elif not node.shutting_down:
                node.shutdown()  # when it has done what it was given

        def _assign_work_unit(self, node: Any) -> None:
            waits = self._waits(node)
            # The first two take these groups last: they have others to compute meanwhile.
            if waits or len(self.nodes) > 2:
                for group in self.workqueue:
                    if (group in WAITING) == waits:
                        self.workqueue.move_to_end(group, last=False)
                        break
            super()._assign_work_unit(node)

        def _waits(self, node: Any) -> bool:
            return node in [one for one in self.nodes if not one.shutting_down][2:]

        def schedule(self) -> None:
            super().schedule()
            for node in self.nodes:  # one in the place of a crashed one would wait with one test
                self._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            work = self.assigned_work[node]
            for group in [group for group, tests in work.items() if all(tests.values())]:
                del work[group]  # it would be handed out again, and nobody would answer
            crashed: str | None = super().remove_node(node)
            return crashed

    return Groups(config, log)


def _with_room(run: Callable[[], object]) -> object:
    return run()


# CPython keeps the frames of calls in pieces of 16 kB, and gives a piece back to the system when
# the last call in it returns. Below pytest's own fifty calls, a loop deep inside JAX may lie at
# such an edge, and a third of its time goes there. A call that asks for more than a quarter of a
# megabyte gets half of one, in which there is room for all that is called from it.
_with_room.__code__ = _with_room.__code__.replace(co_stacksize=33_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> object:
    """Run a test as pytest does, where its calls have room."""
    done = _with_room(lambda: runner.pytest_runtest_protocol(item, nextitem))
    if nextitem is not None and group_of(item.nodeid) != group_of(nextitem.nodeid):
        gc.collect()
        gc.freeze()  # what a group leaves is kept to the end; looking at it takes half a second
    return done


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[group_of(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the families whose simulators are missing; their tests have failed."""
    from trimtab.envs.core.needs import unmet  # imports numpy
    from trimtab.envs.registry import list_families

    missing = {family.name: ", ".join(unmet(family)) for family in list_families()}
    told = [f"{name}/ (needs {needs})" for name, needs in missing.items() if needs]
    if told:
        terminalreporter.write_line(f"families that are missing: {'; '.join(told)}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.freeze()  # the end of the process would look through all that there is, several times
    if "PYTEST_XDIST_WORKER" not in os.environ and config.getoption("write_durations"):
        measured = {group: round(seconds, 1) for group, seconds in _seconds.items()}
        table = {**json.loads(DURATIONS.read_text(encoding="utf-8")), **measured}
        table = {group: table[group] for group in sorted(table)}
        DURATIONS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if _SCRATCH is not None:
        shutil.rmtree(_SCRATCH, ignore_errors=True)


@pytest.fixture(autouse=True)
def adopted_settings_forgotten() -> Iterator[None]:
    """Forget files of settings that a test has adopted; later tests would see them."""
    yield
    if outside := sys.modules.get("trimtab.benchmarks.training.settings.outside"):
        outside._made.clear()
