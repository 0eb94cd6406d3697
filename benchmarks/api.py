"""Trimtab from Python: what ``trimtab train``, ``evaluate`` and ``leaderboard`` do, as functions.

They are offered by the package itself: ``trimtab.train(...)``. A setting has the same name, default
and check as on the command line, and a run the same folder and the same bits.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.board import curves
from trimtab.benchmarks.board import leaderboard as boards
from trimtab.benchmarks.board.intervals.kinds import KINDS
from trimtab.benchmarks.board.model import Leaderboard, Metric
from trimtab.benchmarks.board.pictures import DRAWN, FIGURE
from trimtab.benchmarks.board.sources import collect, named_places
from trimtab.benchmarks.training import base
from trimtab.benchmarks.training import train as runs
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.evaluate import EpisodeScore, Scores
from trimtab.benchmarks.training.judging import BundleJudge, task_of
from trimtab.benchmarks.training.provenance import versions
from trimtab.benchmarks.training.random_states import random_states, set_random_states
from trimtab.benchmarks.training.result import Progress
from trimtab.benchmarks.training.rows import FILE_NAME, STOPPED_EARLY, read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.groups import GROUPS
from trimtab.benchmarks.training.settings.words import quoted
from trimtab.benchmarks.training.store import local_view
from trimtab.benchmarks.training.torch_state import usual_torch
from trimtab.errors import TrimtabError, one_line_on_wrong_arguments
from trimtab.files import check_own
from trimtab.plugins import command_line
from trimtab.policies.defaults import torch_defaults

__all__ = [
    "Callback",
    "EpisodeScore",
    "RunProgress",
    "Scores",
    "TrainedRun",
    "evaluate",
    "export",
    "leaderboard",
    "train",
]

logger = logging.getLogger(__name__)

_NAMES = frozenset({*GROUPS, "env"})
"""Settings whose value is a name."""
_LISTS = frozenset({"dataset", "oracles", "tracker"})
"""Settings of a run whose value may be a list."""
_NAME = re.compile(r"[+~]{0,2}\w[\w.]*")


@dataclass(frozen=True)
class TrainedRun:
    """A finished run.

    Attributes:
        folder: where it lies; ``evaluate``, ``leaderboard`` and ``base=`` take it, as they take the
            run itself.
        summary: what ``result.json`` in it says.
        already_done: whether it was finished before it was asked for.
    """

    folder: Path
    summary: Mapping[str, Any]
    already_done: bool

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    @property
    def mean_return(self) -> float | None:
        """Mean undiscounted return of the last evaluation's episodes; None without a task."""
        found = self.summary["return"]
        return None if found is None else float(found)

    @property
    def success_rate(self) -> float | None:
        """Share of the last evaluation's episodes that succeeded; None for a task without it."""
        rate = self.summary.get("success")
        return None if rate is None else float(rate)

    @property
    def stopped_early(self) -> bool:
        """Whether a callback ended it before its settings say."""
        return STOPPED_EARLY in self.summary

    def episodes(self) -> pa.Table:
        """Return one row for each evaluated episode, as an Arrow table."""
        return read_episodes(self.folder / FILE_NAME)


@one_line_on_wrong_arguments
def train(
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    callbacks: Sequence[Callback] = (),
    progress: Progress = lambda share, text: None,
    **more: Any,
) -> TrainedRun:
    """Carry out one run, go on with it, or find it done.

    torch's and NumPy's global generators and what torch is set to are afterwards as before. Another
    thread's run waits until this one has ended, because these are the whole process's.

    Args:
        settings: by name, such as ``{"env": "gym/Hopper-v5", "algorithm.hidden": [64, 64]}``;
            a mapping as a value sets each of its names.
        callbacks: told of steps, evaluations and checkpoints.
        progress: called with the share that is done, from 0 to 1, and a few words.
        more: further settings, such as ``seed=1``.

    Raises:
        Stopped: if the process is told to end: the run's state is saved, and the same call goes
            on.
        TrimtabError: on wrong settings, as one line.

    Example:
        >>> run = trimtab.train(env="gym/Hopper-v5", algorithm="sac", online_steps=100_000)
        >>> run.mean_return
    """
    if not isinstance(settings, Mapping | None):
        raise TrimtabError(
            f"train: settings is of type {type(settings).__name__}; give a mapping of names to "
            "values, or names as keywords, such as seed=1"
        )
    _check_callbacks(callbacks)
    _check_names(settings or {}, more)
    chosen = {**(settings or {}), **more}
    if len(chosen) < len(settings or {}) + len(more):
        twice = sorted(set(settings or {}) & set(more))
        raise TrimtabError(f"train: {', '.join(twice)} is given twice")
    config = compose_run([word for name, value in chosen.items() for word in _words(name, value)])
    with _left_as_it_was(config["device"]):
        done = runs.train(config, progress, callbacks=callbacks)
    return TrainedRun(done.folder, done.summary, done.already_done)


@one_line_on_wrong_arguments
def evaluate(
    policy: str | os.PathLike[str],
    env: str | None = None,
    *,
    episodes: int = 50,
    seed: int = 0,
    env_options: Mapping[str, Any] | None = None,
    backend: str = "torch",
    deterministic: bool | None = None,
    inputs: Mapping[str, Any] | None = None,
    delay_ms: float | str = 0,
    jitter: float = 0.0,
    drop: float = 0.0,
    mode: str = "",
    interval: int = 0,
) -> Scores:
    """Evaluate a policy on fixed seeds, by simulated time if a delay or a mode is given.

    Args:
        policy: folder of a run or a bundle.
        env: task id; None for the task that the policy was trained in.
        episodes: number of episodes.
        seed: that of the first episode; episode i has ``seed + i``.
        env_options: what the task is made with; None for what the policy was trained with.
        backend: what runs the policy, ``torch`` or ``onnx``.
        deterministic: whether the noise is zero; None takes what the bundle says.
        inputs: values of the policy's inputs that differ from their defaults, such as
            ``{"guidance": 3}``; ``noise``, of one row, is that of every decision.
        delay_ms: milliseconds from an observation to its answer, while the robot plays on, or
            ``measured`` for what a decision takes on this machine.
        jitter: standard deviation of the delay's logarithm.
        drop: share of ticks without an observation.
        mode: how chunks are played, such as ``receding``, the default, or ``ensemble``.
        interval: ticks from one chunk to the next; 0 for the mode's usual one.

    Raises:
        TrimtabError: if there is no such policy, task or input, or they do not fit each other.
    """
    if not isinstance(env, str | None) or not isinstance(env_options, Mapping | None):
        raise TrimtabError("evaluate: env is a task's id, and env_options a mapping of its options")
    if not isinstance(inputs, Mapping | None):
        raise TrimtabError("evaluate: inputs is a mapping of names to values")
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
            raise TrimtabError(f"evaluate: {name}={value!r}: must be a whole number from {least}")
    with torch_defaults():
        bundle = base.load_base(_path("evaluate", "policy", policy))
        judge = BundleJudge(bundle, *task_of(bundle, env, env_options), inputs)
        if deterministic is None:
            deterministic = bool(bundle.config["evaluate_deterministic"])
        timed = judge.timed(
            backend, mode=mode, interval=interval, delay_ms=delay_ms, jitter=jitter, drop=drop
        )
        return judge.judge(
            episodes=episodes,
            seed=seed,
            backend=backend,
            deterministic=deterministic,
            timing=judge.timing(**timed) if timed else None,
        )


@one_line_on_wrong_arguments
def export(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    env: str | None = None,
    contract: str | os.PathLike[str] | None = None,
    weights: bool = True,
    chunking: str | None = None,
    choices: Mapping[str, Any] | None = None,
    mix: str | os.PathLike[str] | None = None,
    limits: Mapping[str, Any] | None = None,
    lerobot: bool = False,
    **settings: Any,
) -> Path:
    """Write the policy of a run as a bundle for a robot, with ONNX, and check it.

    Args:
        run: folder of a run or a bundle, what :func:`train` returned, or a weight file or an ONNX
            file of others.
        out: folder of the bundle; an older bundle there is replaced if it is of the same run or
            file. A name that ends with ``.pt2`` is that of a program of ``torch.export``, a new
            file, in place of a bundle.
        env: task of a weight file, which does not name it.
        contract: YAML file that says what a file of others does not.
        weights: False for the graph alone, which others can run and steer.
        chunking: ``rtc`` or ``rti`` for a policy that goes on from the chunk that is being played.
        choices: settings that the user of the bundle chooses while it runs, the default first, such
            as ``{"sampling_steps": [10, 5, 2]}``.
        mix: a run or bundle whose predictions are mixed with those of this one, by the input
            ``mix``.
        limits: of a robot's commands, such as ``{"velocity": 1.0}``; None for those that the bundle
            or the run's contract states.
        lerobot: True for a policy folder of LeRobot, with the bundle in it.
        settings: of how the policy acts, that differ from its training, such as
            ``sampling_steps=2``.

    Returns:
        The folder of the bundle, for ``load_policy``.

    Raises:
        TrimtabError: if there is no such policy or setting, or the bundle cannot be written or does
            not give the same actions.

    Example:
        >>> runner = trimtab.load_policy(trimtab.export(run, "my-bundle"))
    """
    target = _path("export", "out", out)
    source = _path("export", "run", run)
    with torch_defaults():
        export_policy(
            source, target, env=env or "",
            contract=_path("export", "contract", contract) if contract else "",
            weights=weights, chunking=chunking or "", settings=settings, limits=limits,
            choices=choices, mix=_path("export", "mix", mix) if mix else "",
            lerobot=lerobot,
        )  # fmt: skip
    return Path(target)


@one_line_on_wrong_arguments
def leaderboard(
    runs: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    baseline: str | None = None,
    metric: Metric | None = None,
    intervals: str = KINDS[0],
    physics: Sequence[str] = (),
) -> Leaderboard:
    """Compute tables and their intervals from the raw rows of runs.

    Args:
        runs: a folder of runs, or its address, or one ``episodes.parquet``; or several of them in
            one text, with commas between.
        out: folder to write the tables and the figure to; None writes nothing.
        baseline: method that the others are compared with.
        metric: ``success`` or ``return``; None for success where a task has it.
        intervals: ``student_t`` or ``bootstrap``.
        physics: fingerprints; of an environment with several, only rows of one of these count.

    Raises:
        TrimtabError: if there are no rows, or they do not belong in one table.
    """
    folder = _path("leaderboard", "runs", runs)
    target = None if out is None else _path("leaderboard", "out", out)
    if target is not None:  # before minutes of intervals
        boards.check_place(target)
        check_own(Path(target, FIGURE), DRAWN, "out")
    said = {
        "runs": folder,
        "baseline": baseline,
        "intervals": None if intervals == KINDS[0] else intervals,
        "physics": ",".join(physics),
    }
    with ExitStack() as stack:
        places = [stack.enter_context(local_view(place, "runs")) for place in named_places(folder)]
        table, sources = collect(*places)
        board = boards.build(
            table,
            metric=metric,
            baselines=baseline,
            intervals=intervals,
            command=command_line(
                "leaderboard", *(f"{key}={word}" for key, word in said.items() if word)
            ),
            versions=versions(),
            sources=sources,
            physics=physics,
        )
    if target is not None:
        paths = boards.write(board, target)
        curves.draw(board, Path(target, FIGURE))
        logger.info("wrote %s", ", ".join(str(path) for path in paths.values()))
    return board


def _path(function: str, name: str, value: Any) -> str:
    """Return a path as text.

    Raises:
        TrimtabError: if it is no path.
    """
    if not isinstance(value, str | os.PathLike):
        raise TrimtabError(
            f"{function}: {name} is of type {type(value).__name__}; give one path, as text, as a "
            "pathlib.Path, or as what train() returned"
        )
    if not os.fspath(value):
        raise TrimtabError(f"{function}: {name} is empty; give a path, such as '.'")
    return os.fspath(value)


def _check_callbacks(callbacks: Any) -> None:
    """Check that callbacks are objects of :class:`Callback`.

    Raises:
        TrimtabError: if one is something else, such as a function, or a class.
    """
    several = isinstance(callbacks, Sequence) and not isinstance(callbacks, str)
    for one in callbacks if several else [callbacks]:
        if not several or not isinstance(one, Callback):
            kind = one.__name__ if isinstance(one, type) else type(one).__name__
            what = f"the class {kind}" if isinstance(one, type) else f"something of type {kind}"
            raise TrimtabError(
                f"train: callbacks {'holds' if several else 'is'} {what}; give a list of "
                "objects of classes that inherit trimtab.Callback, such as [MyCallback()]"
            )


def _check_names(*given: Mapping[Any, Any]) -> None:
    """Check that settings have names, and that one run is asked for.

    Raises:
        TrimtabError: if they have not, or a setting has the values of several runs.
    """
    for name, value in ((name, value) for settings in given for name, value in settings.items()):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise TrimtabError(
                f"train: {name!r} is no name of a setting; names are text, such as 'seed' or "
                "'algorithm.hidden'"
            )
        if isinstance(value, list | tuple) and not {name, name.partition(".")[1]} & {*_LISTS, "."}:
            raise TrimtabError(
                f"train: {name}={value!r}: is one value of one run; call train once for each"
            )


def _words(name: str, value: Any) -> Iterator[str]:
    """Yield the words of the command line that give a setting a Python value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _words(f"{name}.{key}", inner)
    elif name in _NAMES and isinstance(value, str | os.PathLike):
        text = os.fspath(value)  # a name, or a path as people write it
        yield f"{name}={quoted(text) if ',' in text and text[0] != '[' else text}"
    else:
        yield f"{name}={_written(name, value)}"


def _written(name: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | os.PathLike):
        return quoted(os.fspath(value))
    if isinstance(value, list | tuple):
        return f"[{','.join(_written(name, one) for one in value)}]"
    raise TrimtabError(
        f"train: {name} is of type {type(value).__name__}; give it a number, a text, a truth "
        "value, None, or a list or mapping of these"
    )


@contextmanager
def _left_as_it_was(device: str) -> Iterator[None]:
    with usual_torch():
        states = random_states(device)
        try:
            yield
        finally:
            set_random_states(device, states)
