"""What belongs to the whole process is as it was, whichever threads and forks there were."""

from __future__ import annotations

import os
import signal
import sys
import threading
import types
import warnings

import mujoco

from trimtab.envs.core.quiet import quiet
from trimtab.envs.engines.mujoco_kept import models_kept


def changed(user: types.ModuleType, entered: threading.Event, leave: threading.Event) -> None:
    """Change streams, warnings and a library until ``leave`` is set."""
    with quiet(), models_kept(user):
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


def test_a_process_forked_meanwhile_has_no_changes_and_can_make_its_own() -> None:
    before = sys.stdout, sys.stderr
    user = library()
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=changed, args=(user, entered, leave))
    thread.start()
    assert entered.wait(60) and sys.stdout is not before[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12, that there are threads
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        as_before = (sys.stdout, sys.stderr) == before and vars(user)["mujoco"] is mujoco
        with quiet(), models_kept(user):
            pass
        os._exit(0 if as_before else 1)
    leave.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (sys.stdout, sys.stderr) == before


def test_who_forks_in_its_own_turn_keeps_its_changes() -> None:
    before = sys.stdout
    with quiet():
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            with quiet():
                hidden = sys.stdout is not before
            os._exit(0 if hidden else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sys.stdout is before
