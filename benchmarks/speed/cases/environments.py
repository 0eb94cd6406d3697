"""Steps of vector environments under random actions, episodes' ends and starts included."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.benchmarks.speed.measure import Pair, Side, Stage, Work, repeated
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.envs.engines.sync_vector import SyncVectorEnv
from trimtab.envs.vector import make_vec

TASKS = {"half_cheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "ant": "Ant-v5"}
STEPS = {"half_cheetah": 16_000, "hopper": 16_000, "ant": 8_000}
"""Environment steps of a turn, over all copies."""
MANY = 16


def actions(space: Any, count: int, dtype: Any) -> NDArray[Any]:
    """Return 256 steps of random actions ``[256, N, A]`` in the limits of one copy's space."""
    rng = np.random.default_rng(0)
    return rng.uniform(space.low, space.high, (256, count, *space.shape)).astype(dtype)


def stepping(task: str, envs: Any, chosen: NDArray[Any], stage: Stage) -> Work:
    """Return work that takes steps of all copies, going through ``chosen`` actions."""
    stage.exits.callback(envs.close)
    envs.reset()
    order, count = itertools.cycle(chosen), len(chosen[0])
    return repeated(lambda: envs.step(next(order)), stage.amount(STEPS[task]) // count or 1, count)


def ours(task: str, count: int, make: Callable[..., EpisodeVectorEnv] = make_vec) -> Side:
    """Return the side of one of our vector environments, as runs make it."""

    def side(stage: Stage) -> Work:
        envs = make(f"gym/{TASKS[task]}", count, seed=0)
        return stepping(task, envs, actions(envs.single_action_space, count, np.float32), stage)

    return side


def gymnasium_sync(task: str, count: int) -> Side:
    """Return the side of Gymnasium's own vector environment."""

    def side(stage: Stage) -> Work:
        envs = gymnasium.make_vec(TASKS[task], num_envs=count, vectorization_mode="sync")
        envs.reset(seed=0)
        return stepping(task, envs, actions(envs.single_action_space, count, np.float32), stage)

    return side


def envpool(task: str, count: int) -> Side:
    """Return the side of EnvPool, waiting for all copies, with the threads it chooses itself."""

    def side(stage: Stage) -> Work:
        import envpool as pool

        envs = pool.make_gymnasium(TASKS[task], num_envs=count, seed=0)
        space = envs.action_space
        return stepping(task, envs, actions(space, count, space.dtype), stage)

    return side


def rows(task: str) -> list[Pair]:
    """Return the rows of one task."""

    def pair(name: str, count: int, peer: Side, peer_name: str) -> Pair:
        return Pair(name, "environments", "steps/s", ours(task, count), peer, peer_name)

    generic = ours(task, MANY, SyncVectorEnv)
    many, one = f"{task}_{MANY}", f"{task}_1"
    return [
        pair(many, MANY, gymnasium_sync(task, MANY), "Gymnasium, sync"),
        pair(f"{many}_envpool", MANY, envpool(task, MANY), "EnvPool"),
        pair(f"{many}_generic", MANY, generic, "Trimtab's SyncVectorEnv"),
        pair(one, 1, gymnasium_sync(task, 1), "Gymnasium, sync"),
        pair(f"{one}_envpool", 1, envpool(task, 1), "EnvPool"),
    ]


PAIRS = [pair for task in TASKS for pair in rows(task)]
