"""Record a recipe's episodes: in blocks of attempts, on every core, kept until all is there.

A block that was recorded before an interruption is read and not recorded again. Which episodes a
recipe gives does not depend on how many processes recorded them: attempts are seeded one by one,
and taken in their order.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trimtab.benchmarks.core.own_code import in_a_line
from trimtab.benchmarks.core.pools import Workers, worker_pool
from trimtab.benchmarks.core.signals import sigterm_as_event
from trimtab.benchmarks.core.threads import one_thread
from trimtab.benchmarks.training.settings.constructors import class_of
from trimtab.datasets.catalog import is_dataset
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.recording import Wanted, play, select
from trimtab.envs.registry import get_spec, make
from trimtab.errors import TrimtabError

__all__ = ["dataset_of", "record_episodes", "wanted_of"]

RECORDER_REVISION = 1
"""Raised when attempts are seeded, played or chosen in another way, so that data is other data."""

BLOCK = 16
"""Attempts that are recorded and kept together."""
_FEW_STEPS = 1000
"""Steps that one process records in about the time in which several start."""
_STOPPED = "stopped; what is recorded so far is kept, run the same command to resume"


def wanted_of(recipe: Mapping[str, Any]) -> Wanted:
    """Return how much a recipe records.

    Raises:
        TrimtabError: if it does not say so in whole numbers, or in both ways at once.
    """
    for key, least in (("episodes", 1), ("steps", 1), ("seed", 0)):
        value = recipe.get(key)
        if value is None and key != "seed":
            continue
        if isinstance(value, float) and value.is_integer():
            raise TrimtabError(f"dataset.{key}={value:g}: write it in digits, without e or a point")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise TrimtabError(f"dataset.{key}={value}: must be a whole number of at least {least}")
    episodes, steps = recipe.get("episodes"), recipe.get("steps")
    if (episodes is None) == (steps is None):
        raise TrimtabError(f"recipe {recipe['id']}: give either dataset.episodes or dataset.steps")
    only_successful = recipe.get("only_successful", False)
    if not isinstance(only_successful, bool):
        raise TrimtabError(f"dataset.only_successful={only_successful}: must be true or false")
    return Wanted(episodes, steps, only_successful)


def record_episodes(
    recipe: Mapping[str, Any],
    blocks: Path,
    progress: Callable[[float], None] = lambda share: None,
    workers: int | None = None,
) -> list[Episode]:
    """Let a recipe's controller act, and return what it did.

    Args:
        recipe: ``controller``, ``env``, ``env_options``, ``seed``, ``episodes`` or ``steps``, and
            ``only_successful``.
        blocks: folder for the blocks recorded so far; not used for a recipe of a few episodes.
        progress: called with the share that is done.
        workers: processes side by side; None for one a core. No episode depends on it.

    Raises:
        Stopped: if the process is told to end (SIGTERM): the blocks that are recorded are kept.
        TrimtabError: if the controller cannot act, or succeeds too rarely.
    """
    wanted = wanted_of(recipe)
    with contextlib.closing(Stage(recipe)) as stage:  # wrong settings end it here, in one process
        if _is_small(wanted):
            with one_thread():
                return select(map(stage.play, itertools.count()), wanted, stage.task, progress)
    count = workers or os.cpu_count() or 1
    with worker_pool(count, _STOPPED) as pool:
        return select(_in_order(recipe, blocks, pool, count), wanted, stage.task, progress)


def _is_small(wanted: Wanted) -> bool:
    """Return whether a recipe asks for so little that it is about done when processes would start.

    Where only successes count, several episodes may come before each that does.
    """
    if wanted.episodes is not None:
        return wanted.episodes <= (BLOCK // 2 if wanted.only_successful else BLOCK)
    return wanted.steps is not None and wanted.steps <= _FEW_STEPS


def _in_order(
    recipe: Mapping[str, Any], blocks: Path, pool: Workers, ahead: int
) -> Iterator[Episode]:
    """Yield the attempts' episodes by number, while the next blocks are being recorded."""
    running: deque[concurrent.futures.Future[None]] = deque()
    words = json.dumps(dict(recipe), sort_keys=True)
    for block in itertools.count():
        while len(running) <= ahead:
            number = block + len(running)
            task = (record_block, words, number, str(blocks / str(number)))
            running.append(pool.threads.submit(pool.call, *task))
        first = running.popleft()
        pool.await_some([first])
        first.result()
        yield from load_minari(blocks / str(block)).episodes


class Stage:
    """A recipe's environment, and what makes the controllers that act in it.

    Args:
        recipe: see :func:`record_episodes`.
    """

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        options = recipe.get("env_options") or {}
        controller = dict(recipe["controller"])
        self.recipe = recipe
        spec = get_spec(recipe["env"], **options)
        self.task, self.horizon = spec.task, spec.horizon
        acts: Any = class_of(controller.pop("_target_"), "dataset.controller._target_")
        self.factory = functools.partial(acts, **controller)
        self.env = make(recipe["env"], **options)

    def play(self, attempt: int) -> Episode:
        """Return the episode of one attempt.

        Raises:
            TrimtabError: if the controller refuses its settings.
        """
        try:
            with in_a_line():
                return play(
                    self.env,
                    self.task,
                    self.factory,
                    seed=int(self.recipe["seed"]),
                    attempt=attempt,
                    success_key=self.env.success_key,
                )
        except (TrimtabError, OSError, MemoryError):
            raise
        except Exception as error:  # a setting that the controller refuses
            raise TrimtabError(
                f"recipe {self.recipe['id']}: its controller cannot act with these settings: "
                f"{' '.join(str(error).split())[:300]}; check dataset.controller.*"
            ) from error

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def record_block(recipe_json: str, block: int, folder: str) -> None:
    """Record a block of attempts as a dataset of its own, unless it is there."""
    if not is_dataset(Path(folder)):
        stage = _worker_stage(recipe_json)
        numbers = range(block * BLOCK, (block + 1) * BLOCK)
        with one_thread():
            played = [stage.play(number) for number in numbers]
        with sigterm_as_event():  # told to end while it writes, it writes the whole block first
            save_minari(dataset_of(stage.recipe, played), Path(folder))


@functools.cache
def _worker_stage(recipe_json: str) -> Stage:
    """Return the stage of a worker process, which lives as long as its pool."""
    return Stage(json.loads(recipe_json))


def dataset_of(recipe: Mapping[str, Any], episodes: list[Episode]) -> Dataset:
    """Return a recipe's episodes as a dataset."""
    options = recipe.get("env_options") or {}
    spec = get_spec(recipe["env"], **options)
    return Dataset(
        id=recipe["id"],
        env=recipe["env"],
        env_options=options,
        episodes=tuple(episodes),
        action_low=spec.action_low,
        action_high=spec.action_high,
        control_rate=spec.control_rate,
        recipe=dict(recipe),
        fingerprint=spec.fingerprint,
    )
