"""What the setting ``dataset`` names on disk: a dataset in memory or streamed, or finished runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.folder import (
    CHECKPOINT,
    RESULT,
    is_run,
    read_provenance,
    read_result,
)
from trimtab.benchmarks.training.locking import locked, remove_leftovers
from trimtab.datasets.catalog import format_of
from trimtab.datasets.episodes import ContentHash, Dataset, Episode, validate
from trimtab.datasets.formats.contents import Summary, scanned
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.io.sandbox import spill_to
from trimtab.datasets.sources import streaming
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.streamed_buffer import StreamedBuffer
from trimtab.envs.core.spec import EnvSpec
from trimtab.errors import TrimtabError
from trimtab.files import resolved, sha256_json

logger = logging.getLogger(__name__)

FILE_WORDS = ("mask", "keys", "horizon", "control_rate")
"""What ``dataset.<word>`` says of a file that does not say it itself."""
STREAMS = "streams"
"""Folder below ``out`` where the columns of streamed datasets are kept."""

Progress = Callable[[float], None]


def open_dataset(
    path: Path,
    out: Path,
    stream_above: int | None,
    progress: Progress = lambda share: None,
    **hints: Unpack[Hints],
) -> Dataset:
    """Return the dataset in ``path``, in memory or, where it is too large for that, streamed.

    Args:
        path: a dataset in any format.
        out: folder of runs, below which a streamed dataset's columns are kept.
        stream_above: bytes of its files above which it is streamed; None: a quarter of the memory.
        progress: called with the share that is done.
        hints: what its file does not say; ``task`` need not be one that its format takes.

    Raises:
        TrimtabError: if it is missing, damaged or wrong.
    """
    format = format_of(path)
    for name in FILE_WORDS:
        if name in hints and name not in format.hints:
            raise TrimtabError(
                f"dataset.{name}={hints.get(name)}: does not apply to {format.name} data"
            )
    if "task" not in format.hints:
        hints.pop("task", None)
    large = is_large(path, memory_bytes() // 4 if stream_above is None else stream_above)
    if large and format.open is None:
        logger.info("%s: %s data is read whole; convert it to stream it", path, format.name)
    if not large or format.open is None:
        return format.load(path, **hints)
    with streams(out) as cache:
        logger.info("streaming %s from %s", path, cache)
        return streaming.load(path, cache, progress, **hints)


def is_large(path: Path, limit: int) -> bool:
    """Return whether the files of the dataset in ``path`` have more bytes than ``limit``."""
    return sum(file.stat().st_size for file in streaming.stored_files(path)) > limit


def summary_of(path: Path, out: Path, stream_above: int) -> Summary:
    """Return what the dataset in ``path`` holds, having checked all of it.

    Args:
        path: see :func:`open_dataset`.
        out: see :func:`open_dataset`.
        stream_above: see :func:`open_dataset`.

    Raises:
        TrimtabError: if it is missing, damaged or wrong.
    """
    format = format_of(path)
    if format.open is None:
        held = format.load(path)
        return Summary(held.id, held.env, len(held), held.num_steps, held.content_hash)
    if not is_large(path, stream_above):
        return scanned(format.open(path))
    with streams(out) as cache:
        with spill_to(cache):
            contents = format.open(path)
        return scanned(contents)


def file_hints(section: Mapping[str, Any]) -> Hints:
    """Return what the setting ``dataset`` says of the file that it names."""
    given = {name: section[name] for name in FILE_WORDS if section.get(name) is not None}
    hints: Hints = {}
    hints.update(given)  # type: ignore[typeddict-item]
    return hints


def open_source(
    dataset: Dataset, progress: Progress = lambda share: None, **settings: Any
) -> ReplayBuffer:
    """Return what draws batches from ``dataset``.

    Args:
        dataset: the data.
        progress: called with the share of what has to be computed first.
        settings: those of ``ReplayBuffer.from_dataset``.

    Raises:
        TrimtabError: as ``ReplayBuffer.from_dataset``.
    """
    if isinstance(dataset, streaming.StreamedDataset):
        with streams(dataset.folder.parent.parent):
            return StreamedBuffer(dataset, progress=progress, **settings)
    return ReplayBuffer.from_dataset(dataset, **settings)


@contextmanager
def streams(out: Path) -> Iterator[Path]:
    """Hold the folder of columns below ``out``: runs that start together write them once."""
    folder = out / STREAMS
    with locked(folder, wait=True):
        remove_leftovers(folder)
        yield folder


def memory_bytes() -> int:
    """Return the memory that this process may have: the machine's, or its container's."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or one without a limit
        return physical


def dataset_of_runs(folders: Sequence[str], env: EnvSpec) -> Dataset:
    """Return what finished runs kept in their replay buffers as one dataset, run after run.

    With ``offline_share`` this is Replay across Experiments (Tirumala et al., 2023, arXiv
    2311.15951). No setting allows runs of another task: the buffer would mix transitions with
    different rewards.

    Args:
        folders: of the runs.
        env: the task that the data is for.

    Raises:
        TrimtabError: if a folder is not that of a finished run of this task with a replay buffer of
            single steps, or is given twice.
    """
    if not (isinstance(folders, list | tuple) and folders) or not all(
        isinstance(folder, str) for folder in folders
    ):
        raise TrimtabError(
            f"dataset.runs={folders}: must be a list of folders of runs, such as dataset=[a,b]"
        )
    paths = [Path(folder) for folder in folders]
    whole = [resolved(path) for path in paths]
    for index, path in enumerate(whole):
        if path in whole[:index]:
            raise TrimtabError(f"dataset.runs: {paths[index]} is given twice; give each run once")
    episodes: list[Episode] = []
    sources = []
    for path in paths:
        found = _replayed(path, env)
        limits = env.action_low, env.action_high
        digest = ContentHash("", env.id, env.options, *limits)
        for episode in found:
            digest.add(episode)
        result = read_result(path)
        known = {key: result.get(key) for key in ("algorithm", "config_hash", "seed", "env_steps")}
        sources.append({**known, "content_hash": digest.hexdigest()})
        episodes += found
    recipe = {"runs": sources}
    dataset = Dataset(
        id=f"trimtab/runs-{sha256_json(recipe)[:10]}-v0",
        env=env.id,
        env_options=dict(env.options),
        episodes=tuple(episodes),
        action_low=env.action_low,
        action_high=env.action_high,
        control_rate=env.control_rate,
        recipe=recipe,
        fingerprint=env.fingerprint,
    )
    validate(dataset, f"dataset of {len(paths)} runs")
    return dataset


def _replayed(folder: Path, env: EnvSpec) -> list[Episode]:
    """Return the episodes in the replay buffer of the run in ``folder``."""
    if not is_run(folder):
        raise TrimtabError(f"dataset: {folder} is not the folder of a run; give one, as train said")
    task = read_provenance(folder).get("env", {})
    if task.get("fingerprint") != env.fingerprint:
        raise TrimtabError(
            f"dataset: {folder} is a run of {task.get('id')} with env_options "
            f"{task.get('options')}, this one is of {env.id} with {dict(env.options)}: "
            f"fingerprints {task.get('fingerprint')} and {env.fingerprint} differ; give runs of "
            "the same task, options and physics"
        )
    if not (folder / RESULT).is_file():
        raise TrimtabError(f"dataset: {folder} has not finished; run it again to finish it")
    state: Any = load_checkpoint(folder / CHECKPOINT)
    if state is None:
        raise TrimtabError(
            f"dataset: {folder} has lost its checkpoint, where its replay buffer was; move that "
            "folder away and run it again"
        )
    try:
        return ReplayBuffer.from_state(state["experience"]["buffer"]).episodes()
    except (KeyError, TypeError) as error:
        raise TrimtabError(
            f"dataset: {folder} kept no replay buffer; give runs of off-policy methods that "
            "interacted (online_steps)"
        ) from error
    except TrimtabError as error:
        raise TrimtabError(f"dataset: {folder}: {error}") from error
