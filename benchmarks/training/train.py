"""Train one run: check its settings; return its result if it is done, else start or resume it."""

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
from trimtab.benchmarks.training.fits import check_data, check_method, checked_plan
from trimtab.benchmarks.training.folder import (
    CHECKPOINT,
    CONFIG,
    POLICY,
    PROVENANCE,
    RESULT,
    check_done,
    read_result,
)
from trimtab.benchmarks.training.locking import locked, remedy, remove_leftovers
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.provenance import check_same_start, write_provenance
from trimtab.benchmarks.training.result import Progress, Result
from trimtab.benchmarks.training.rows import STOPPED_EARLY
from trimtab.benchmarks.training.run import Run
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.spending import planned
from trimtab.benchmarks.training.store import (
    BlobStore,
    RemoteRun,
    UploadAtCheckpoints,
    is_light,
    join_address,
    localise,
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
    """Train one run from its start or newest checkpoint, or return its result if it is done.

    Args:
        config: checked settings.
        progress: called with the share that is done, and a few words.
        wait: whether to wait while another process trains this run, instead of raising.
        callbacks: notified of steps, evaluations and checkpoints, unless the run is done already.
            If a callback stopped a run, a call with callbacks returns its result, and a call
            without callbacks resumes it.

    Raises:
        Stopped: if this process receives SIGTERM; the state of the run is saved first.
        TrimtabError: on wrong input, a folder that is in use or cannot be written, or a loss that
            is not finite.
        Exception: an exception of the caller's own task or method, unchanged; its notes say at
            which update it was raised.
    """
    try:
        local, store = localise(config)
        with within_memory():
            return _train(local, store, progress, wait=wait, callbacks=callbacks)
    except OSError as error:  # such as a full disk under a simulator's temporary files
        if fault_of_own_code(error) is not None:
            raise
        path = error.filename or "a file"
        cure = limit_reached(error) or (
            "free the disk or choose writable folders with out= and TMPDIR"
        )
        raise TrimtabError(
            f"cannot write or read {path}: {error.strerror or error}; {cure}"
        ) from error


def check(config: RunConfig) -> None:
    """Make every check of a run that needs no training.

    The run's dataset may be recorded or downloaded for it.

    Raises:
        TrimtabError: the error with which :func:`train` would refuse the run.
    """
    local, _ = localise(config)
    with within_memory():
        plan = checked_plan(local)
        check_method(plan)
        plan.load_dataset()
        check_data(plan)


def is_done(config: RunConfig) -> bool:
    """Return whether a run is known to be done.

    False also where that is unknown: at an address, or if the dataset is a file.
    """
    with contextlib.suppress(TrimtabError, OSError, ValueError):  # train raises them
        local, store = localise(config)
        if store is not None or not any(
            _method_folder(local).glob(f"*/seed{local['seed']}/{RESULT}")
        ):
            return False
        if local["dataset"] is None or is_recipe_section(local["dataset"]):
            plan = checked_plan(local)
            return (
                _finished(Path(local["out"], _run_path(plan)), plan, resume_stopped=True)
                is not None
            )
    return False


def _method_folder(config: RunConfig) -> Path:
    """Return the folder of all runs of a method in a task."""
    return Path(config["out"], config["env"] or NO_TASK, config.algorithm)


def _run_path(plan: Plan) -> str:
    """Return the path of a run's folder, relative to ``out``."""
    config = plan.config
    method = f"{config['env'] or NO_TASK}/{config.algorithm}"
    return f"{method}/{plan.config_hash}/seed{config['seed']}"


def _train(
    config: RunConfig,
    store: BlobStore | None,
    progress: Progress,
    *,
    wait: bool,
    callbacks: Sequence[Callback],
) -> Result:
    """Train a run whose addresses are resolved; see :func:`train`."""
    resume_stopped = not callbacks  # a callback may have stopped the run on purpose
    plan = checked_plan(config, lambda share: progress(share, "the dataset"))
    path = _run_path(plan)  # its hash needs the method, which is made here
    folder = Path(config["out"], path)
    if store is None:
        done = _finished(folder, plan, resume_stopped=resume_stopped)
        if done is not None:
            return done
    check_method(plan)
    plan.load_dataset()
    check_data(plan)
    torch.set_num_threads(config["threads"])  # the plan has restored the caller's number
    with locked(folder, wait=wait) as held:
        remote = None if store is None else RemoteRun(store, path, folder)
        if remote is not None:
            remote.download(is_light)
            if _finished(folder, plan, resume_stopped=resume_stopped) is None:
                remote.download()
            callbacks = (*callbacks, UploadAtCheckpoints(remote))
        result = _resume_or_start(
            plan, folder, progress, callbacks, held, resume_stopped=resume_stopped
        )
        if remote is None:
            return result
        if not result.already_done:
            remote.upload()
    # The address that was given, not the scratch folder that stands for it.
    return dataclasses.replace(result, address=join_address(config.asked["out"], path))


def _resume_or_start(
    plan: Plan,
    folder: Path,
    progress: Progress,
    callbacks: Sequence[Callback],
    held: Callable[[], None],
    *,
    resume_stopped: bool,
) -> Result:
    """Train what is left of a run; the caller holds the lock of its folder."""
    # Another process may have finished it while this one waited for the lock.
    done = _finished(folder, plan, resume_stopped=resume_stopped)
    if done is not None:
        return done
    if (folder / PROVENANCE).is_file():
        check_same_start(folder, plan)
    if os.path.lexists(folder / RESULT):  # stopped early: its result is no longer final
        (folder / RESULT).unlink()
        shutil.rmtree(folder / POLICY, ignore_errors=True)
    remove_leftovers(folder)
    (folder / TRACEBACK).unlink(missing_ok=True)
    if places_of(folder / CHECKPOINT):
        _check_begun(folder)
    with sigterm_as_event() as stop:
        run = Run(plan, folder, progress, stop, callbacks, held)
        try:
            with run.foreign_code:  # writing the provenance steps the task, to confirm its physics
                if not (folder / PROVENANCE).is_file():
                    write_provenance(folder, plan)
            for line in planned(run.phases, run.algorithm, run.trials):
                logger.warning("%s: %s", plan.config.algorithm, line)
            return run.carry_out()
        except Exception as error:
            keep_traceback(error, folder, run.where(run.updates + 1))
            raise
        finally:
            run.close()


def _finished(folder: Path, plan: Plan, *, resume_stopped: bool) -> Result | None:
    """Return the result of a finished run, or None if it is not finished.

    Args:
        folder: the run's folder.
        plan: the run's plan.
        resume_stopped: whether a run that a callback stopped early counts as unfinished.

    Raises:
        TrimtabError: if the run has a result and another part is missing or damaged, or if it
            started from another base.
    """
    if not os.path.lexists(folder / RESULT):
        return None
    check_done(folder)
    _check_begun(folder)
    check_same_start(folder, plan, data=False)
    result = read_result(folder)
    if resume_stopped and STOPPED_EARLY in result:
        return None
    return Result(folder, result, already_done=True)


def _check_begun(folder: Path) -> None:
    """Check that a run with a result or a checkpoint has its provenance and its settings.

    Raises:
        TrimtabError: if it does not: it cannot be known whether this is the same run.
    """
    for part in (PROVENANCE, CONFIG):
        if not os.path.lexists(folder / part):
            raise TrimtabError(f"{folder} has lost its {part}; {remedy(folder)}")
