"""What belongs to the whole process is as it was, whichever threads and forks there were."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import mujoco
import numpy as np
import pytest

from trimtab.envs.core.quiet import quiet
from trimtab.envs.engines.mujoco_kept import models_kept
from trimtab.envs.registry import make
from trimtab.policies.bundle import exporter
from trimtab.turns import as_global_generator, in_turn, replaced, without_warnings

# Python 3.12 warns of a fork where there are threads, and so does JAX.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*fork.*:{kind}")
    for kind in ("DeprecationWarning", "RuntimeWarning")
]


@contextmanager
def switching_often() -> Iterator[None]:
    """Let Python turn to another thread after each few operations."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def changed(user: types.ModuleType, entered: threading.Event, leave: threading.Event) -> None:
    """Change streams, warnings and a library until ``leave`` is set."""
    with quiet(), models_kept(user), as_global_generator(np.random.RandomState(1)):
        entered.set()
        leave.wait(60)


def library() -> types.ModuleType:
    user = types.ModuleType("library")
    vars(user)["mujoco"] = mujoco
    return user


def test_threads_take_turns() -> None:
    before = sys.stdout, sys.stderr, warnings.filters
    user = library()
    entered, leave = [threading.Event() for _ in range(2)], threading.Event()
    threads = [threading.Thread(target=changed, args=(user, one, leave)) for one in entered]
    threads[0].start()
    assert entered[0].wait(60)
    threads[1].start()
    assert not entered[1].wait(0.2)  # it waits for its turn
    leave.set()
    for thread in threads:
        thread.join(60)
    assert entered[1].is_set()
    assert (sys.stdout, sys.stderr, warnings.filters) == before
    assert vars(user)["mujoco"] is mujoco


def in_a_fork(check: Callable[[], bool]) -> bool:
    """Return what ``check`` finds in a forked process; false also if it raises or hangs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_has_none_of_the_changes_of_other_threads() -> None:
    """It does not wait for them, and numpy's generator is free also where a thread was drawing."""
    before = sys.stdout, sys.stderr, warnings.filters
    np.random.seed(3)
    draw = np.random.RandomState(3).random()
    user = library()
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=changed, args=(user, entered, leave))
    thread.start()
    assert entered.wait(60) and sys.stdout is not before[0]

    def as_before() -> bool:
        found = (sys.stdout, sys.stderr, warnings.filters) == before
        with quiet(), models_kept(user):  # it can have a turn of its own
            pass
        return found and vars(user)["mujoco"] is mujoco and np.random.random() == draw

    with np.random.get_bit_generator().lock:
        kept = in_a_fork(as_before)
    assert kept and sys.stdout is not before[0]
    leave.set()
    thread.join(60)
    assert (sys.stdout, sys.stderr, warnings.filters) == before
    assert np.random.random() == draw


def test_a_change_is_noted_before_it_is_made() -> None:
    kept: list[bool] = []

    class Watched(types.ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if value == "changed":  # another thread forks at this very moment
                with ThreadPoolExecutor(1) as pool:
                    as_before = pool.submit(in_a_fork, lambda: vars(self)["name"] == "before")
                    kept.append(as_before.result())

    library = Watched("library")
    vars(library)["name"] = "before"
    with replaced(library, "name", "changed"):
        pass
    assert kept == [True] and vars(library)["name"] == "before"


def test_forks_at_any_moment_have_no_changes() -> None:
    """A fork between the change of a stream and the note of what it was would keep the change."""
    before = sys.stdout, sys.stderr, warnings.filters
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            with quiet():
                pass

    thread = threading.Thread(target=change)
    with switching_often():
        thread.start()
        try:
            kept = [
                in_a_fork(lambda: (sys.stdout, sys.stderr, warnings.filters) == before)
                for _ in range(40)
            ]
        finally:
            over.set()
            thread.join(60)
    assert all(kept)
    assert (sys.stdout, sys.stderr, warnings.filters) == before


def test_changes_are_put_back_the_last_first_also_after_an_error() -> None:
    user = library()
    with pytest.raises(KeyError), in_turn() as note:
        order: list[int] = []
        for number in range(3):
            note(lambda number=number: order.append(number))
        with replaced(user, "mujoco", 1), replaced(user, "mujoco", 2):
            raise KeyError
    assert order == [2, 1, 0]
    assert vars(user)["mujoco"] is mujoco


def test_what_cannot_be_put_back_keeps_nothing_else_from_it() -> None:
    user = library()

    def fails() -> None:
        raise RuntimeError("not so")

    with (
        pytest.raises(RuntimeError, match="not so"),
        replaced(user, "mujoco", 1),
        in_turn() as note,
    ):
        note(fails)
    assert vars(user)["mujoco"] is mujoco


def test_warnings_are_told_after_a_block_that_hid_them() -> None:
    """Also those that the block told of itself, by filters of its own."""

    def warn() -> None:
        warnings.warn_explicit("old", UserWarning, "file.py", 1, registry=registry)

    registry: dict[str, object] = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        with without_warnings():
            warn()
            warnings.simplefilter("default")
            warn()
        warn()
    assert [str(one.message) for one in told] == ["old", "old"]


@pytest.mark.parametrize("one_of", ["replaced", "as_global_generator", "exporter"])
def test_every_kind_of_change_takes_turns(one_of: str) -> None:
    changes = {
        "replaced": lambda: replaced(library(), "mujoco", None),
        "as_global_generator": lambda: as_global_generator(np.random.RandomState(1)),
        "exporter": exporter.quiet,
    }
    done = threading.Event()

    def change() -> None:
        with changes[one_of]():
            pass
        done.set()

    thread = threading.Thread(target=change)
    with quiet():
        thread.start()
        assert not done.wait(0.1)
    thread.join(60)
    assert done.is_set()


def test_who_forks_in_its_own_turn_keeps_its_changes() -> None:
    before = sys.stdout

    def hidden() -> bool:
        with quiet():
            return sys.stdout is not before

    with quiet():
        assert in_a_fork(hidden)
    assert sys.stdout is before


@pytest.mark.parametrize("id", ["ogbench/cube-single-v0", "robotics/PointMaze-TwoDoors-v0"])
def test_environments_of_two_threads_are_as_those_of_one(id: str) -> None:
    """Their episodes follow their seeds, and numpy's one global generator stays where it stood."""

    def episode(seed: int) -> list[np.ndarray]:
        env = make(id)
        rows = [env.reset(seed=seed)[0]]
        rows += [env.step(np.zeros(env.action_space.shape, np.float32))[0] for _ in range(3)]
        env.close()
        return rows

    alone = [episode(seed) for seed in (1, 2)]
    before = sys.stdout, sys.stderr, np.random.get_state(legacy=False)["state"]["pos"]
    with switching_often(), ThreadPoolExecutor(2) as pool:
        found = [list(pool.map(episode, (1, 2))) for _ in range(3)]
    for both in found:
        for one, known in zip(both, alone, strict=True):
            np.testing.assert_array_equal(one, known)
    after = sys.stdout, sys.stderr, np.random.get_state(legacy=False)["state"]["pos"]
    assert after == before
