"""Carry out one run: check it, find what is done of it, go on with the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from trimtab.benchmarks.core.memory import within_memory
from trimtab.benchmarks.core.own_code import TRACEBACK, fault_of_own_code, keep_traceback
from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.training.callbacks import Callback
from trimtab.benchmarks.training.checkpoint import places_of
from trimtab.benchmarks.training.data.recipes import is_recipe_section
from trimtab.benchmarks.training.fits import check_data, check_method, fitting_plan
from trimtab.benchmarks.training.folder import (
    CHECKPOINT,
    CONFIG,
    POLICY,
    PROVENANCE,
    RESULT,
    check_done,
    read_result,
)
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.provenance import (
    check_same_base,
    check_same_start,
    write_provenance,
)
from trimtab.benchmarks.training.result import Progress, Result
from trimtab.benchmarks.training.rows import STOPPED_EARLY
from trimtab.benchmarks.training.run import Run
from trimtab.benchmarks.training.rundir import locked, remedy, remove_leftovers
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.spending import planned
from trimtab.benchmarks.training.store import (
    Copy,
    SendCopies,
    Store,
    child_of,
    is_light,
    localised,
)
from trimtab.benchmarks.training.without_task import NO_TASK
from trimtab.errors import TrimtabError
from trimtab.files import limit_reached

__all__ = ["check", "is_done", "train"]

logger = logging.getLogger(__name__)


def train(
    config: RunConfig,
    progress: Progress = lambda share, text: None,
    *,
    wait: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Carry out one run, or go on with it, or say that it is done.

    Args:
        config: checked settings.
        progress: told how far the run is.
        wait: wait for another process that is at this run, instead of giving up.
        callbacks: told of steps, evaluations and checkpoints; not of a run that is done already. A
            run that one of them ended early is done for them, and goes on where there is none.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the run's state is saved first.
        TrimtabError: on wrong input, a folder that is in use or cannot be written, or a loss that
            is not finite.
        Exception: whatever a task or a method of the caller's own raises; its notes say where the
            run was.
    """
    try:
        local, store = localised(config)
        with within_memory():
            return _train(local, store, progress, wait=wait, callbacks=callbacks)
    except OSError as error:  # such as a simulator's own temporary files on a full disk
        if fault_of_own_code(error) is not None:
            raise
        where = error.filename or "a file"
        cure = "free the disk or choose writable folders with out= and TMPDIR"
        cure = limit_reached(error) or cure
        raise TrimtabError(
            f"cannot write or read {where}: {error.strerror or error}; {cure}"
        ) from error


def check(config: RunConfig) -> None:
    """Do all of a run that can fail because of its settings, and leave nothing behind but its data.

    Raises:
        TrimtabError: what the run would end with.
    """
    local, _ = localised(config)
    with within_memory():
        plan = fitting_plan(local)
        check_method(plan)
        plan.load_dataset()
        check_data(plan)


def is_done(config: RunConfig) -> bool:
    """Return whether a run is done, as far as that is known without its dataset."""
    with contextlib.suppress(TrimtabError, OSError, ValueError):  # told when it is carried out
        local, store = localised(config)
        if store is not None or not any(_of_method(local).glob(f"*/seed{local['seed']}/{RESULT}")):
            return False
        if local["dataset"] is None or is_recipe_section(local["dataset"]):
            plan = fitting_plan(local)
            return _finished(Path(local["out"], _place(plan)), plan, whole=True) is not None
    return False


def _of_method(config: RunConfig) -> Path:
    """Return the folder of all runs of a method in a task."""
    return Path(config["out"], config["env"] or NO_TASK, config.algorithm)


def _place(plan: Plan) -> str:
    """Return the name of a run's folder in the folder of runs."""
    config = plan.config
    of_method = f"{config['env'] or NO_TASK}/{config.algorithm}"
    return f"{of_method}/{plan.config_hash}/seed{config['seed']}"


def _train(
    config: RunConfig,
    store: Store | None,
    progress: Progress,
    *,
    wait: bool,
    callbacks: Sequence[Callback],
) -> Result:
    whole = not callbacks  # one that a callback ended early is done for a caller with callbacks
    plan = fitting_plan(config, lambda share: progress(share, "the dataset"))
    where = _place(plan)
    folder = Path(config["out"], where)
    if store is None and (done := _finished(folder, plan, whole=whole)) is not None:
        return done
    check_method(plan)
    plan.load_dataset()
    check_data(plan)
    torch.set_num_threads(config["threads"])  # after the data, which a run of its own may gather
    with locked(folder, wait=wait) as held:
        if store is None:
            return _go_on(plan, folder, progress, callbacks, held, whole=whole)
        copy = Copy(store, where, folder)
        done_there = RESULT in (copy.files() or ())
        copy.fetch(is_light if done_there else lambda file: True)
        told = (*callbacks, SendCopies(copy))
        result = _go_on(plan, folder, progress, told, held, whole=whole)
        if not done_there:
            copy.send(tries=3)
    return dataclasses.replace(result, address=child_of(config.asked["out"], where))


def _go_on(
    plan: Plan,
    folder: Path,
    progress: Progress,
    callbacks: Sequence[Callback],
    held: Callable[[], None],
    *,
    whole: bool,
) -> Result:
    """Carry out what is left of a run in a folder that the caller holds."""
    done = _finished(folder, plan, whole=whole)  # by the process that held the folder until now
    if done is not None:
        return done
    if os.path.lexists(folder / RESULT):  # it goes on: what it found so far is not its result
        (folder / RESULT).unlink()
        shutil.rmtree(folder / POLICY, ignore_errors=True)
    remove_leftovers(folder)
    (folder / TRACEBACK).unlink(missing_ok=True)
    if places_of(folder / CHECKPOINT):
        _check_begun(folder)
    begun = (folder / PROVENANCE).is_file()
    if begun:
        check_same_start(folder, plan)
    with sigterm_as_event() as stop:
        run = Run(plan, folder, progress, stop, callbacks, held)
        try:
            with run.others:  # the task is played, to confirm its physics
                if not begun:
                    write_provenance(folder, plan)
            for line in planned(run.phases, run.algorithm, run.trials):
                logger.warning("%s: %s", plan.config.algorithm, line)
            return run.carry_out()
        except Exception as error:
            where = f"at update {run.updates + 1}, after {run.env_steps} environment steps"
            keep_traceback(error, folder, f"{folder}: {where}")
            raise
        finally:
            run.close()


def _finished(folder: Path, plan: Plan, *, whole: bool) -> Result | None:
    """Return what a run that is done has found, or None while it is not.

    Args:
        folder: of the run.
        plan: what it is made of.
        whole: whether a run that a callback ended early is not done.

    Raises:
        TrimtabError: if a part of a run with a result is missing or damaged.
    """
    if not os.path.lexists(folder / RESULT):
        return None
    check_done(folder)
    _check_begun(folder)
    check_same_base(folder, plan)
    result = read_result(folder)
    return None if whole and STOPPED_EARLY in result else Result(folder, result, already_done=True)


def _check_begun(folder: Path) -> None:
    """Check that a run that left something also says what it was started with.

    Raises:
        TrimtabError: if it does not: it cannot be known whether this is the same run.
    """
    for part in (PROVENANCE, CONFIG):
        if not os.path.lexists(folder / part):
            raise TrimtabError(f"{folder} has lost its {part}; {remedy(folder)}")
