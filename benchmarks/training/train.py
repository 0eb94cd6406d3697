"""Carry out one run: check it, find what is done of it, go on with the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.phases import Feed, Trials
from trimtab.benchmarks.core.memory import within_memory
from trimtab.benchmarks.core.own_code import TRACEBACK, fault_of_own_code, keep_traceback
from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.training import build
from trimtab.benchmarks.training.away import RunStore, at_home, localised
from trimtab.benchmarks.training.base import load_base, training
from trimtab.benchmarks.training.callbacks import Callback
from trimtab.benchmarks.training.dataset import check_goes_on, check_rewards_tell, check_successes
from trimtab.benchmarks.training.experience import wants_of
from trimtab.benchmarks.training.folder import (
    CONFIG,
    POLICY,
    PROVENANCE,
    RESULT,
    check_done,
    inspect_run,
    is_run,
    read_result,
)
from trimtab.benchmarks.training.generated import check_feeds
from trimtab.benchmarks.training.goals import goals_of
from trimtab.benchmarks.training.provenance import (
    check_same_base,
    check_same_start,
    write_config,
    write_provenance,
)
from trimtab.benchmarks.training.result import Progress, Result, budget_of
from trimtab.benchmarks.training.rows import STOPPED_EARLY
from trimtab.benchmarks.training.run import Run
from trimtab.benchmarks.training.rundir import locked, remove_leftovers
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.spending import planned
from trimtab.benchmarks.training.tracking import chosen_trackers
from trimtab.benchmarks.training.trials import TrialJudge
from trimtab.benchmarks.training.without_task import NO_TASK
from trimtab.datasets.episodes import Dataset
from trimtab.errors import TrimtabError
from trimtab.files import limit_reached
from trimtab.policies.registry import check_is_kind

__all__ = ["check", "is_done", "train"]

logger = logging.getLogger(__name__)


def train(
    config: RunConfig,
    progress: Progress = lambda share, text: None,
    *,
    wait: bool = False,
    callbacks: Sequence[Callback] = (),
    home: RunStore | None = None,
) -> Result:
    """Carry out one run, or go on with it, or say that it is done.

    Args:
        config: checked settings.
        progress: told how far the run is.
        wait: wait for another process that is at this run, instead of giving up.
        callbacks: told of steps, evaluations and checkpoints; not of a run that is done already. A
            run that one of them ended early is done for them, and goes on where there is none.
        home: where the run's folder belongs, if that is no folder of this machine; by default what
            ``out`` says.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the run's state is saved first.
        TrimtabError: on wrong input, a folder that is in use or cannot be written, or a loss that
            is not finite.
        Exception: whatever a task or a method of the caller's own raises; its notes say where the
            run was.
    """
    try:
        local, home = localised(config, home)
        with within_memory(config["device"]):
            return _train(local, progress, wait=wait, callbacks=callbacks, home=home)
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
    local, _ = localised(config, None)
    with within_memory(config["device"]):
        _check_method(local, _components(local))


def is_done(config: RunConfig) -> bool:
    """Return whether a run is done, as far as that is known without its dataset."""
    local, home = localised(config, None)
    with contextlib.suppress(TrimtabError):  # what it would end with is told when it is carried out
        return home is None and _done_without_data(local, whole=True) is not None
    return False


def _components(
    config: RunConfig, progress: Callable[[float], None] = lambda share: None
) -> build.Components:
    """Return what a run is made of; its settings are tried before a dataset is recorded."""
    return build.components(config, progress, functools.partial(_check_method, config))


def _check_method(config: RunConfig, parts: build.Components) -> None:
    """Make the method once, and check that there is something for it to learn from."""
    if is_run(Path(config["out"])):
        raise TrimtabError(f"out={config['out']}: is the folder of a run; name one that holds runs")
    chosen_trackers(config["tracker"])
    algorithm = parts.make_algorithm()
    check_is_kind(algorithm.policy)
    _check_phases(config, parts, algorithm)
    if parts.make_generator is not None:
        phases = algorithm.phases(budget_of(config))
        check_feeds(phases, config.algorithm, mixed=bool(config["offline_share"]))
        parts.make_generator(algorithm)
    read, chosen = wants_of(algorithm).history, config["history"]
    if chosen not in (None, read):
        raise TrimtabError(
            f"history={chosen}: the policy of {config.algorithm} reads {read}; leave it out"
        )
    if algorithm.wants.goal is not None:
        goals_of(parts.env, config.algorithm, parts.act_steps)
    if parts.split.training is not None:
        _check_data(config, parts.split.training, algorithm, parts.act_steps)
    _check_holdout(config, algorithm)
    if config["stop_at_success"] is not None:
        if config["eval_every"] is None:
            raise TrimtabError("stop_at_success: nothing is evaluated on the way; set eval_every")
        if parts.env.success_key is None:
            raise TrimtabError(f"stop_at_success: {parts.env.id} has no success; leave it out")
    own = ["rollouts"] if algorithm.pace.rollout_steps else list(algorithm.aux_shapes)
    # A phase with an update of its own may learn from data that lack what the method gathers.
    phases = algorithm.phases(budget_of(config))
    same = any(one.feed is Feed.DATASET and one.update == algorithm.update for one in phases)
    for name, shared in (("offline_steps", same), ("offline_share", True)):
        if config[name] and own and shared:
            raise TrimtabError(
                f"{name}={config[name]}: {config.algorithm} learns from its own "
                f"{', '.join(own)}, which no dataset holds; set {name}=0"
            )
    online = config["online_steps"]
    rollout = algorithm.pace.rollout_steps * config["num_envs"] * parts.act_steps
    if 0 < online < rollout:
        raise TrimtabError(
            f"online_steps={online}: {config.algorithm} learns after every {rollout} steps "
            "(rollout_steps x num_envs x act_steps) only; give it more of them"
        )
    if 0 < online < algorithm.pace.warmup_steps:
        raise TrimtabError(
            f"online_steps={online}: {config.algorithm} only begins to learn after its warm-up of "
            f"{algorithm.pace.warmup_steps} steps; give it more of them, or set "
            "algorithm.warmup_steps"
        )


def _check_holdout(config: RunConfig, algorithm: Algorithm) -> None:
    """Check that there is a held-out part where a setting is about it, and that a policy has one.

    Raises:
        TrimtabError: naming the setting.
    """
    after, remembered = config["stop_after"], algorithm.policy.reading.memories(1)
    if config["holdout"] is not None and remembered:
        raise TrimtabError(
            f"holdout={config['holdout']}: the policy of {config.algorithm} reads "
            f"{', '.join(remembered)} of its own episode, which data does not tell; leave it out"
        )
    if after is None:
        return
    for name, lacks in (("holdout", "the held-out error"), ("eval_every", "evaluations")):
        if config[name] is None:
            raise TrimtabError(f"stop_after={after}: counts by {lacks}; set {name}")
    if config["online_steps"]:
        raise TrimtabError(
            f"stop_after={after}: would end the run before its online_steps; leave out one of both"
        )


def _check_data(config: RunConfig, dataset: Dataset, algorithm: Algorithm, act_steps: int) -> None:
    """Check that a dataset has what its method learns from."""
    told = algorithm.needs.rewards and algorithm.wants.goal is None
    if algorithm.success_reward is not None:
        check_successes(dataset, config.algorithm, algorithm.success_reward)
    elif told and not config["online_steps"]:
        check_rewards_tell(dataset, config.algorithm)
    if algorithm.wants.next_action:
        check_goes_on(dataset, config.algorithm, act_steps)


def _check_phases(config: RunConfig, parts: build.Components, algorithm: Algorithm) -> None:
    """Check that every phase of a method has what feeds it."""
    gathered = False
    phases = algorithm.phases(budget_of(config))
    if algorithm.learns and not any(phase.length for phase in phases):
        raise TrimtabError(
            f"online_steps={config['online_steps']}, offline_steps={config['offline_steps']}: "
            f"{config.algorithm} would learn nothing; give it more of one of them"
        )
    acts = any(
        phase.length and (phase.unit == "steps" or isinstance(phase.feed, Trials))
        for phase in phases
    )
    if algorithm.learns and config["online_steps"] and not acts:
        raise _no_interaction(config)
    if config["env"] is None and acts:
        raise TrimtabError(
            f"{config.algorithm} acts in a task, and this run has none: add env=…, set "
            "online_steps=0, or choose a method that learns from data alone, such as bc"
        )
    for phase in phases:
        if not phase.length:
            continue
        if isinstance(phase.feed, Trials):
            TrialJudge(config, parts).check(phase.feed, phase.length)
            continue
        if phase.unit == "steps" and type(algorithm).explore is Algorithm.explore:
            raise _no_interaction(config)
        gathered |= phase.unit == "steps"
        if phase.unit == "updates" and phase.update is None:
            raise TrimtabError(f"{config.algorithm}: its phase {phase.name} updates nothing")
        if (
            phase.unit == "updates"
            and phase.feed is Feed.EXPERIENCE
            and algorithm.pace.rollout_steps
        ):
            raise TrimtabError(
                f"{config.algorithm}: its phase {phase.name} counts updates, but rollouts are "
                "learned from once, as they are gathered; let it count steps"
            )
        if phase.feed is Feed.DATASET and config["dataset"] is None:
            raise TrimtabError(
                f"{config.algorithm} needs dataset=… for its phase {phase.name}; trimtab list "
                "dataset shows what there is"
            )
        if phase.feed is Feed.EXPERIENCE and not gathered:
            raise TrimtabError(
                f"{config.algorithm}: its phase {phase.name} learns from what was gathered, and "
                "nothing is gathered before it; set online_steps"
            )


def _no_interaction(config: RunConfig) -> TrimtabError:
    return TrimtabError(
        f"online_steps={config['online_steps']}: {config.algorithm} does not learn from "
        "interaction; set online_steps=0"
    )


def _train(
    config: RunConfig,
    progress: Progress,
    *,
    wait: bool,
    callbacks: Sequence[Callback],
    home: RunStore | None,
) -> Result:
    whole = not callbacks  # one that a callback ended early is done for a caller with callbacks
    if home is None and (done := _done_without_data(config, whole=whole)) is not None:
        return done
    parts = _components(config, lambda share: progress(share, "the dataset"))
    torch.set_num_threads(config["threads"])  # after the data, which a run of its own may gather
    of_method = f"{config['env'] or NO_TASK}/{config.algorithm}"
    where = f"{of_method}/{parts.config_hash}/seed{config['seed']}"
    folder = Path(config["out"]) / where
    if home is None:
        done = _finished(folder, parts, whole=whole)
        if done is not None:
            return done
    _check_method(config, parts)  # before there is a folder
    with at_home(home, where, folder, wait=wait) as away:
        with locked(folder, wait=wait) as held:
            away.fetch()
            told = (*callbacks, *away.callbacks)
            result = _go_on(config, parts, folder, progress, told, held, whole=whole)
            away.send()
        return dataclasses.replace(result, address=away.address)


def _done_without_data(config: RunConfig, *, whole: bool) -> Result | None:
    """Return what a run that is done has found, where its data need not be recorded to know it.

    Args:
        config: settings of the run.
        whole: as for :func:`_finished`.
    """
    of_method = Path(config["out"], config["env"] or NO_TASK, config.algorithm)
    seed = f"seed{config['seed']}"
    try:
        there = any(of_method.glob(f"*/{seed}/{RESULT}"))
    except (OSError, ValueError):  # no name that a folder may have: the task is looked up later
        return None
    parts = build.without_data(config) if there else None
    return (
        None
        if parts is None
        else _finished(of_method / parts.config_hash / seed, parts, whole=whole)
    )


def _go_on(
    config: RunConfig,
    parts: build.Components,
    folder: Path,
    progress: Progress,
    callbacks: Sequence[Callback],
    held: Callable[[], None],
    *,
    whole: bool,
) -> Result:
    """Carry out what is left of a run in a folder that the caller holds."""
    if os.path.lexists(folder / RESULT):
        _write_start(folder, config, parts)
    done = _finished(folder, parts, whole=whole)  # by the process that held the folder until now
    if done is not None:
        return done
    if os.path.lexists(folder / RESULT):  # it goes on: what it found so far is not its result
        (folder / RESULT).unlink()
        shutil.rmtree(folder / POLICY, ignore_errors=True)
    remove_leftovers(folder)
    (folder / TRACEBACK).unlink(missing_ok=True)
    begun = (folder / PROVENANCE).is_file()
    if begun:
        check_same_start(folder, parts)
    with sigterm_as_event() as stop:
        run = Run(config, parts, folder, progress, stop, callbacks, held)
        try:
            with run.others:  # the task is played, to confirm its physics
                _write_start(folder, config, parts)
            for line in planned(config, run.algorithm, run.trials):
                logger.warning("%s: %s", config.algorithm, line)
            return run.carry_out()
        except Exception as error:
            where = f"at update {run.updates + 1}, after {run.env_steps} environment steps"
            keep_traceback(error, folder, f"{folder}: {where}")
            raise
        finally:
            run.close()


def _finished(folder: Path, parts: build.Components, *, whole: bool) -> Result | None:
    """Return what a run that is done has found, or None while it is not.

    Args:
        folder: of the run.
        parts: what it is made of.
        whole: whether a run that a callback ended early is not done.

    Raises:
        TrimtabError: if a part of a run with a result is missing or damaged.
    """
    if not os.path.lexists(folder / RESULT):
        return None
    check_done(folder)
    if not all((folder / part).exists() for part in (PROVENANCE, CONFIG)):
        return None  # set aside by a repair: they are written anew
    check_same_base(folder, parts)
    result = read_result(folder)
    return None if whole and STOPPED_EARLY in result else Result(folder, result, already_done=True)


def _write_start(folder: Path, config: RunConfig, parts: build.Components) -> None:
    """Write what says how the run was started, where it is not there: at first, or after a repair.

    Raises:
        TrimtabError: if it was started from another base or other data, or the disk refuses.
    """
    if (folder / PROVENANCE).exists():
        if not os.path.lexists(folder / CONFIG):
            write_config(folder, config)
        return
    found = inspect_run(folder, ours=True)
    check_same_start(folder, parts, found.counters.get("start") or {})
    if found.result:
        trained = training(load_base(str(folder)))
        data = {"dataset": trained["dataset_hash"]} if "dataset_hash" in trained else {}
        check_same_start(folder, parts, data)
    restored = bool(found.result or found.counters)
    write_provenance(folder, config, parts, restored=restored)
