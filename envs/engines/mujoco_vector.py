"""Many simulations of one MuJoCo model: threads for the physics, arrays for all the rest."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trimtab.envs.core.spec import FloatArray
from trimtab.envs.engines.episodes import Bools, EpisodeSeed, EpisodeVectorEnv, Played

__all__ = ["MujocoTask", "MujocoVectorEnv", "State"]

Floats = NDArray[np.float64]

# More threads than this wait for Python's lock more than they simulate.
_MOST_THREADS = 4


class State:
    """N simulations as arrays [N, ...], which :meth:`read` fills.

    Attributes:
        env: one bare environment of the task, for its constants.
        simulations: the N ``mujoco.MjData``.
        actions: the last actions [N, A] float32.
        velocity: by how much the task's position changed in the last step, per second, [N].
        motion: positions and velocities of the joints side by side, [N, nq + nv].
        qpos: the former.
        qvel: the latter.
        ctrl: and so on: the fields of ``mujoco.MjData`` that the task reads; no others are set.
    """

    actions: FloatArray
    velocity: Floats
    motion: Floats
    qpos: Floats
    qvel: Floats
    ctrl: Floats
    xpos: Floats
    site_xpos: Floats
    cinert: Floats
    cvel: Floats
    cfrc_ext: Floats
    qfrc_actuator: Floats
    qfrc_constraint: Floats

    def __init__(self, env: Any, simulations: Sequence[Any], fields: Sequence[str]) -> None:
        self.env = env
        self.simulations = simulations
        count, first = len(simulations), simulations[0]
        fields = ("qpos", "qvel", *fields)
        self._sources = [getattr(data, name).reshape(-1) for data in simulations for name in fields]
        width = sum(source.size for source in self._sources[: len(fields)])
        table = np.zeros((count, width))
        self._flat = table.reshape(-1)
        start = 0
        for name in fields:
            shape = getattr(first, name).shape
            stop = start + int(np.prod(shape))
            setattr(self, name, table[:, start:stop].reshape(count, *shape))
            start = stop
        self.motion = table[:, : first.qpos.size + first.qvel.size]
        self._bodies: dict[str | int, int] = {}

    def read(self) -> None:
        """Copy the fields out of the simulations."""
        np.concatenate(self._sources, out=self._flat)

    def body(self, name: str | int) -> Floats:
        """Return the positions [N, 3] of a body."""
        if name not in self._bodies:
            self._bodies[name] = int(self.env.model.body(name).id)
        return self.xpos[:, self._bodies[name]]


@dataclass(frozen=True)
class MujocoTask:
    """What a task adds to the physics, over N simulations at once.

    Attributes:
        fields: names of the fields of ``mujoco.MjData`` that it reads besides qpos and qvel.
        observation: pieces [N, k] of the observation, in order.
        reward: rewards [N] and whether the episodes terminated [N], after a step.
        position: positions [N] whose change over a step is ``State.velocity``, or None.
    """

    fields: tuple[str, ...]
    observation: Callable[[State], Sequence[Floats]]
    reward: Callable[[State], tuple[Floats, Bools]]
    position: Callable[[State], Floats] | None = None


def _default_threads() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, _MOST_THREADS)


class MujocoVectorEnv(EpisodeVectorEnv):
    """N simulations of one of Gymnasium's MuJoCo tasks, equal to its own class to the last bit.

    There is one ``mujoco.MjModel`` and one bare environment; the latter gives its constants and
    starts every episode, each in the simulation that is put into it. Threads step the simulations;
    observations, rewards and ends are computed for all simulations at once.

    Args:
        id: as for :class:`trimtab.envs.engines.sync_vector.SyncVectorEnv`, with those that follow.
        num_envs: as there.
        tasks: the descriptions, by the part of ``id`` after the family.
        seed: as there.
        act_steps: as there.
        discount: as there.
        episode_seed: as there.
        options: as there; ``horizon`` is the one that may differ from its default.
        threads: how many threads simulate, the caller included; None for as many as there are
            processors, up to 4. No result depends on it.
    """

    def __init__(
        self,
        id: str,
        num_envs: int,
        *,
        tasks: Mapping[str, MujocoTask],
        seed: int,
        act_steps: int = 1,
        discount: float = 1.0,
        episode_seed: EpisodeSeed | None = None,
        options: Mapping[str, Any] | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(
            id,
            num_envs,
            seed=seed,
            act_steps=act_steps,
            discount=discount,
            episode_seed=episode_seed,
            options=options,
        )
        import mujoco

        self._task = task = tasks[id.split("/", 1)[1]]
        self._env = cast(Any, self._first.env.raw)
        model, more = self._env.model, range(num_envs - 1)
        self._simulations = [self._env.data, *(mujoco.MjData(model) for _ in more)]
        self._controls = [data.ctrl for data in self._simulations]
        self._helpers = min(threads or _default_threads(), num_envs) - 1
        self._pool = ThreadPoolExecutor(max(1, self._helpers), "trimtab-physics")
        self._state = State(self._env, self._simulations, task.fields)
        self._position = np.zeros(num_envs)
        self._seconds = float(self._env.dt)
        step, models, frames = mujoco.mj_step, repeat(model), repeat(int(self._env.frame_skip))
        # A map drained by a deque: no bytecode, so hardly any time with Python's lock held.
        self._simulate: Callable[[Iterator[Any]], object] = lambda work: deque(
            map(step, models, work, frames), maxlen=0
        )
        self._contacts = mujoco.mj_rnePostConstraint if "cfrc_ext" in task.fields else None

    def _read(self) -> None:
        """Read the state and the position that goes with it."""
        self._state.read()
        if self._task.position is not None:
            self._position = self._task.position(self._state)

    def _observe(self) -> FloatArray:
        obs = np.empty(self._obs.shape, np.float32)
        np.concatenate(self._task.observation(self._state), axis=1, out=obs)
        return obs

    def _begin(self, rows: Sequence[int], seeds: Sequence[int]) -> FloatArray:
        for row, seed in zip(rows, seeds, strict=True):
            self._env.data = self._simulations[row]
            self._env.reset(seed=seed)
        self._read()
        return self._observe()[np.asarray(rows, np.intp)]

    def _step(self, rows: Bools, actions: FloatArray) -> tuple[Floats, Bools]:
        """Step once where ``rows`` is true; return rewards [N] and terminations [N]."""
        goes = rows.tolist()
        whole = False not in goes
        simulations = self._simulations if whole else list(compress(self._simulations, goes))
        for control, row in zip(self._controls, actions, strict=True):
            control[:] = row
        work = iter(simulations)  # all threads take from it
        helpers = [self._pool.submit(self._simulate, work) for _ in range(self._helpers)]
        self._simulate(work)
        for helper in helpers:
            if not helper.cancel():  # a thread that has not begun is not waited for
                helper.result()
        if self._contacts is not None:
            for data in simulations:
                self._contacts(self._env.model, data)
        before = self._position
        self._read()
        self._state.actions = actions
        if self._task.position is not None:
            self._state.velocity = (self._position - before) / self._seconds
        reward, terminated = self._task.reward(self._state)
        if whole:
            return reward, terminated
        return np.where(rows, reward, 0.0), terminated & rows

    def _play(self, rows: Bools, actions: FloatArray) -> Played:
        reward, terminated = self._step(rows, actions[:, 0])
        truncated = rows & (self._length >= self.horizon - 1)
        steps = rows.astype(np.int64)
        weight = 1.0
        for number in range(1, self.act_steps):
            going = rows & ~(terminated | truncated)
            if not going.any():
                break
            gained, failed = self._step(going, actions[:, number])
            weight *= self.discount
            reward += weight * gained
            terminated |= failed
            steps += going
            truncated |= going & (self._length + steps >= self.horizon)
        success = np.zeros(self.num_envs, np.bool_)
        return Played(self._observe(), reward, terminated, truncated, steps, success)

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads and close the environment."""
        self._pool.shutdown()
        self._first.close()
