"""Whether a dataset's episodes happen again: their actions played from their seeds in its task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.lint import Finding
from trimtab.envs.core.task_env import TaskEnv
from trimtab.envs.registry import get_spec, is_task, make
from trimtab.errors import TrimtabError

__all__ = ["check_replay", "not_replayed", "with_task_limits"]

Array = npt.NDArray[Any]

_EPISODES = 3
_TOLERANCE = 1e-4  # relative and absolute: another processor may round otherwise


def with_task_limits(dataset: Dataset) -> Dataset:
    """Return a stranger's dataset with the action limits of its task, where that is known.

    Its file names none, so that those of the dataset are as wide as what was seen.
    """
    if not is_task(dataset.env) or dataset.fingerprint is not None:
        return dataset
    try:
        spec = get_spec(dataset.env, **dataset.env_options)
    except (TrimtabError, TypeError):  # told by the replay
        return dataset
    if spec.action_dim != dataset.action_dim:
        return dataset
    return dataclasses.replace(dataset, action_low=spec.action_low, action_high=spec.action_high)


def not_replayed(dataset: Dataset) -> str:
    """Return why no episode of ``dataset`` can be played again, in a few words; or nothing."""
    if not is_task(dataset.env):
        return f"its environment {dataset.env} is no task of Trimtab; name its task with env="
    if dataset.fingerprint is None or all(e.seed is None for e in dataset.episodes):
        return "it has no seeds, or does not say in which physics they were played"
    return ""


def check_replay(dataset: Dataset) -> list[Finding]:
    """Replay up to three seeded episodes and return where they differ from what is stored.

    Nothing is replayed where :func:`not_replayed` has a reason.

    Codes: ``no-replay``, ``other-physics``, ``other-shape``, ``replay-observation``,
    ``replay-reward``, ``replay-termination``.
    """
    if not is_task(dataset.env):
        return []
    seeded = [i for i, episode in enumerate(dataset.episodes) if episode.seed is not None]
    try:
        spec = get_spec(dataset.env, **dataset.env_options)
    except (TrimtabError, TypeError) as error:
        return [Finding("warning", "no-replay", dataset.env, f"it cannot be made here: {error}")]
    if (spec.obs_dim, spec.action_dim) != (dataset.obs_dim, dataset.action_dim):
        return [
            Finding(
                "error",
                "other-shape",
                dataset.env,
                f"it has {spec.obs_dim} observation and {spec.action_dim} action dimensions, the "
                f"dataset {dataset.obs_dim} and {dataset.action_dim}; correct env",
            )  # fmt: skip
        ]
    if dataset.fingerprint not in (None, spec.fingerprint):
        return [
            Finding(
                "warning",
                "other-physics",
                dataset.env,
                f"it was recorded with physics {dataset.fingerprint}, here is {spec.fingerprint}: "
                "nothing was replayed; make it again for exact results",
            )  # fmt: skip
        ]
    if not seeded or dataset.fingerprint is None:
        return []
    chosen = sorted({seeded[0], seeded[len(seeded) // 2], seeded[-1]})[:_EPISODES]
    env = make(dataset.env, **dataset.env_options)
    try:
        return [
            finding for index in chosen for finding in _replay(env, dataset.episodes[index], index)
        ]
    finally:
        env.close()


def _replay(env: TaskEnv, episode: Episode, index: int) -> Iterator[Finding]:
    """Yield the first difference of each kind."""
    obs, _ = env.reset(seed=episode.seed)
    told: set[str] = set()
    kinds = ("observation", "reward", "termination")
    stored: tuple[Array, ...] = (
        episode.observations[1:], episode.rewards, episode.terminations,
    )  # fmt: skip
    if _differ(obs, episode.observations[0]):
        yield _finding(kinds[0], index, 0, obs, episode.observations[0])
        return
    for step, action in enumerate(episode.actions):
        obs, reward, terminated, truncated, _ = env.step(action)
        played: tuple[Any, ...] = (obs, reward, terminated)
        for kind, seen, wanted in zip(kinds, played, stored, strict=True):
            if kind not in told and _differ(seen, wanted[step]):
                told.add(kind)
                yield _finding(kind, index, step + 1, seen, wanted[step])
        if terminated or truncated or kinds[0] in told:
            return


def _differ(seen: npt.ArrayLike, stored: npt.ArrayLike) -> bool:
    one, two = (np.asarray(value, dtype=np.float64) for value in (seen, stored))
    return not np.allclose(one, two, rtol=_TOLERANCE, atol=_TOLERANCE)


def _finding(
    kind: str, index: int, step: int, seen: npt.ArrayLike, stored: npt.ArrayLike
) -> Finding:
    far = float(np.abs(np.asarray(seen, float) - np.asarray(stored, float)).max())
    return Finding(
        "error", f"replay-{kind}", f"episode {index}, step {step}",
        f"played again, its {kind} differs by {far:g}: the data, the seed, the options or the "
        "physics are not what the dataset says",
    )  # fmt: skip
