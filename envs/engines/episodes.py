"""Episodes of many environments in step: their seeds, their books, their states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trimtab.envs.core.chunk import ChunkWrapper
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import EnvSpec, FloatArray
from trimtab.envs.registry import get_spec, make
from trimtab.errors import TrimtabError

__all__ = ["Bools", "EpisodeSeed", "EpisodeVectorEnv", "Played", "default_episode_seed"]

Bools = NDArray[np.bool_]
EpisodeSeed = Callable[[int, int], int]


def default_episode_seed(seed: int, index: int, episode: int) -> int:
    """Return the seed of episode ``episode`` of environment ``index`` under the run's ``seed``."""
    return int(np.random.SeedSequence([seed, index, episode]).generate_state(1)[0])


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise TrimtabError(f"seed must be a whole number >= 0, got {seed!r}")
    return int(seed)


class Played(NamedTuple):
    """What one chunk of actions did, in fresh arrays; zeros in the rows that were not to play.

    Attributes:
        obs: observations [N, O] after the last step taken; elsewhere they mean nothing.
        reward: rewards [N] float64, discounted and summed over the chunk.
        terminated: whether the episode terminated, [N].
        truncated: whether the episode reached its horizon, [N].
        steps: environment steps really taken, [N].
        success: success at any step of the chunk, [N]; false where the task has no success.
        cost: sum of the steps' costs over the chunk, [N] float64; None where the task has none.
    """

    obs: FloatArray
    reward: NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    steps: NDArray[np.int64]
    success: Bools
    cost: NDArray[np.float64] | None = None


class EpisodeVectorEnv(gymnasium.vector.VectorEnv[FloatArray, FloatArray, NDArray[Any]], ABC):
    """N copies of one task with ``SAME_STEP`` autoreset: episodes, their seeds and their books.

    Every episode has a seed of its own that decides all of it, so a copy's state is its episode's
    number and the actions since: that is what :meth:`state_dict` holds, whatever the simulator.
    States go between the classes that simulate the same task. Such a state is exact for every
    simulator that a seed makes deterministic, also for one with hidden state. To go back to it
    costs at most one episode of steps.

    ``active`` [N] is all true; a judge that wants no more episodes of a copy sets its entry to
    false, and that copy then stands still (reward 0, the same observation, no steps).

    Use :func:`trimtab.envs.vector.make_vec` to make one. Observations are [N, O] float32, actions
    [N, act_steps, A] float32 (other types are converted), rewards [N] float64 (summed over a
    chunk).

    ``infos`` of :meth:`step` always holds
        - ``final_obs`` [N, O]: the last observation of each episode that ended, zeros elsewhere,
          and ``_final_obs`` [N] bool: which rows those are;
        - ``final_info``: arrays [N], meaningful where ``_final_info`` is true: ``episode``,
          ``seed``, ``return`` (undiscounted sum of the rewards above), ``length`` (environment
          steps) and, where the task has success, ``success`` (at any step of the episode) and
          ``success_at_end`` (within the last chunk);
        - ``steps`` [N]: environment steps really taken;
        - ``success`` [N] bool, where the task has success: at any step of this chunk;
        - ``cost`` [N], where the task has costs: their sum over the steps of this chunk.

    A child simulates: :meth:`_begin` starts episodes and :meth:`_play` plays a chunk.
    """

    most_envs: ClassVar[int] = 4096  # each copy is an object of a simulator's, made one by one

    def __init__(
        self,
        id: str,
        num_envs: int,
        *,
        seed: int,
        act_steps: int = 1,
        discount: float = 1.0,
        episode_seed: EpisodeSeed | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise TrimtabError(f"num_envs must be a whole number >= 1, got {num_envs!r}")
        if num_envs > self.most_envs:
            raise TrimtabError(
                f"num_envs={num_envs}: {id} is simulated in at most {self.most_envs} copies"
            )
        self.id = id
        self.num_envs = num_envs
        self.act_steps = act_steps
        self.options = dict(options or {})
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, "render_modes": []}
        self.run_seed = _checked_seed(seed)
        self._custom_seed = episode_seed
        self._first = first = ChunkWrapper(make(id, **self.options), act_steps, discount)
        self.discount = first.discount
        self.success_key = first.env.success_key
        self.horizon = first.env.horizon
        self.obs_parts = first.env.obs_parts
        assert isinstance(first.observation_space, gymnasium.spaces.Box)
        assert isinstance(first.action_space, gymnasium.spaces.Box)
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        with quiet():
            self.observation_space = batch_space(first.observation_space, num_envs)
            self.action_space = batch_space(first.action_space, num_envs)
        self._action_shape = (num_envs, *first.action_space.shape)
        chunks = -(-self.horizon // act_steps)
        self._obs = np.zeros((num_envs, *first.observation_space.shape), np.float32)
        self._actions = np.zeros((num_envs, chunks, *first.action_space.shape), np.float32)
        self._chunks = np.zeros(num_envs, np.int64)
        self._episode = np.full(num_envs, -1, np.int64)
        self._episode_seed = np.zeros(num_envs, np.int64)
        self._branched = np.zeros(num_envs, np.bool_)  # episodes with the seed of another copy's
        self._every = np.arange(num_envs)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, np.int64)
        self._success = np.zeros(num_envs, np.bool_)
        self.active = np.ones(num_envs, np.bool_)

    @abstractmethod
    def _begin(self, rows: Sequence[int], seeds: Sequence[int]) -> FloatArray:
        """Start an episode in each of ``rows``; return its observations [len(rows), O]."""

    @abstractmethod
    def _play(self, rows: Bools, actions: FloatArray) -> Played:
        """Play a chunk of ``actions`` [N, act_steps, A] where ``rows`` [N] is true."""

    @property
    def env_spec(self) -> EnvSpec:
        """What is known about the environment; the first call in a process runs a few steps."""
        return get_spec(self.id, **self.options)

    def episode_seed(self, index: int, episode: int) -> int:
        """Return the seed that decides episode ``episode`` of environment ``index``."""
        if self._custom_seed is not None:
            return int(self._custom_seed(index, episode))
        return default_episode_seed(self.run_seed, index, episode)

    def _start(
        self,
        rows: NDArray[np.intp],
        episodes: NDArray[np.int64],
        seeds: NDArray[np.int64] | None = None,
    ) -> None:
        """Start episodes of ``rows``, by their own seeds or by other ones."""
        indices = rows.tolist()
        chosen = (
            list(map(self.episode_seed, indices, episodes.tolist()))
            if seeds is None
            else seeds.tolist()
        )
        self._obs[rows] = self._begin(indices, chosen)
        self._episode[rows] = episodes
        self._episode_seed[rows] = chosen
        self._branched[rows] = False
        self._chunks[rows] = 0
        self._return[rows] = 0.0
        self._length[rows] = 0
        self._success[rows] = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start the next episode everywhere; the first call starts episode 0.

        Args:
            seed: a new seed for all episodes to come, counted from 0 again.
            options: not used by any task.

        Returns:
            Observations [N, O] and an empty dictionary.

        Raises:
            TrimtabError: on options, a wrong seed, or after ``close``.
        """
        self.check_reset(seed, options)
        self._start(self._every, self._episode + 1)
        return self._obs.copy(), {}

    def check_reset(self, seed: int | None, options: Mapping[str, Any] | None) -> None:
        """Check what ``reset`` is given, and take a new seed.

        Raises:
            TrimtabError: on options, a wrong seed, or after ``close``.
        """
        if self.closed:
            raise TrimtabError(f"{self.id}: it is closed; make another one")
        if options:
            raise TrimtabError(f"{self.id}: reset takes no options, got {sorted(options)}")
        if seed is not None:
            self.run_seed = _checked_seed(seed)
            self._episode[:] = -1

    def _advance(self, rows: Bools, actions: FloatArray) -> Played:
        """Play a chunk where ``rows`` is true and keep the books; no autoreset."""
        played = self._play(rows, actions)
        if False in rows.tolist():  # quicker than numpy's all() and any() on arrays this small
            index = np.flatnonzero(rows)
            self._obs[index] = played.obs[index]
            self._actions[index, self._chunks[index]] = actions[index]
        else:
            self._obs = played.obs
            self._actions[self._every, self._chunks] = actions
        self._chunks += rows
        self._return += played.reward
        self._length += played.steps
        if self.success_key is not None:
            self._success |= played.success
        return played

    def step(
        self, actions: FloatArray
    ) -> tuple[FloatArray, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Apply ``actions`` [N, act_steps, A]; finished episodes are followed by new ones at once.

        Returns:
            Observations [N, O] (of the new episode where one ended), rewards [N] float64,
            terminated [N], truncated [N] and infos as the class describes them.

        Raises:
            TrimtabError: if the actions have another shape or are not finite, before ``reset``, or
                after ``close``.
        """
        if self.closed:
            raise TrimtabError(f"{self.id}: it is closed; make another one")
        actions = np.asarray(actions, np.float32)
        if actions.shape != self._action_shape:
            raise TrimtabError(
                f"{self.id}: actions must have shape {self._action_shape}, got {actions.shape}"
            )
        # A finite sum of squares, quick to have, says that all of them are finite.
        if not (math.isfinite(np.vdot(actions, actions)) or np.isfinite(actions).all()):
            bad = int(np.argmax(~np.isfinite(actions).all(axis=(1, 2))))
            raise TrimtabError(
                f"{self.id}: the action for environment {bad} is not finite; look at what chose "
                "it: a policy whose weights or normaliser are no finite numbers"
            )
        if self._episode[0] < 0:
            raise TrimtabError(f"{self.id}: call reset() before step()")
        played = self._advance(self.active, actions)
        ended = played.terminated | played.truncated
        final_obs = np.zeros(self._obs.shape, np.float32)
        final_info: dict[str, NDArray[Any]] = {
            "episode": np.zeros(self.num_envs, np.int64),
            "seed": np.zeros(self.num_envs, np.int64),
            "return": np.zeros(self.num_envs),
            "length": np.zeros(self.num_envs, np.int64),
        }
        if self.success_key is not None:
            final_info["success"] = ended & self._success
            final_info["success_at_end"] = ended & played.success
        if True in ended.tolist():
            rows = np.flatnonzero(ended)
            final_obs[rows] = self._obs[rows]
            final_info["episode"][rows] = self._episode[rows]
            final_info["seed"][rows] = self._episode_seed[rows]
            final_info["return"][rows] = self._return[rows]
            final_info["length"][rows] = self._length[rows]
            self._start(rows, self._episode[rows] + 1)
        infos: dict[str, Any] = {
            "final_obs": final_obs,
            "_final_obs": ended,
            "final_info": final_info,
            "_final_info": ended.copy(),
            "steps": played.steps,
        }
        if self.success_key is not None:
            infos["success"] = played.success
        if played.cost is not None:
            infos["cost"] = played.cost
        return self._obs.copy(), played.reward, played.terminated, played.truncated, infos

    def branch(self, source: NDArray[np.intp], share: NDArray[Any]) -> FloatArray:
        """Let copies go on from states of others' running episodes, each in an episode of its own.

        A copy starts with the other's seed and repeats its first actions, so this is as exact as a
        saved state, and costs at most one episode of steps. The episodes that were going on in
        these copies are dropped.

        Args:
            source: the copy whose episode each repeats, [N]; its own index where it just goes on,
                as every copy must whose episode others repeat.
            share: how much of the episode so far, [N]: 0 leads to its first state, 1 to the present
                one, and numbers drawn from [0, 1) to each of its states with equal chance.

        Returns:
            Observations [N, O].

        Raises:
            TrimtabError: on another ``source`` or ``share``, before ``reset``, or if copies do not
                arrive at the same observation bit for bit.
        """
        source, share = np.asarray(source), np.asarray(share, np.float64)
        if (
            source.shape != (self.num_envs,)
            or not np.isin(source, self._every).all()
            or not np.array_equal(source[source], source)
        ):
            raise TrimtabError(
                f"{self.id}: branch needs {self.num_envs} indices of copies that go on themselves, "
                f"got {source.tolist()}"
            )
        if share.shape != source.shape or not ((share >= 0) & (share <= 1)).all():
            raise TrimtabError(
                f"{self.id}: branch needs {self.num_envs} shares from 0 to 1, got {share.tolist()}"
            )
        if self._episode[0] < 0:
            raise TrimtabError(f"{self.id}: call reset() before branch()")
        rows = np.flatnonzero(source != self._every)
        if not len(rows):
            return self._obs.copy()
        others, chunks = source[rows], np.zeros_like(self._chunks)
        present = self._chunks[others]
        chunks[rows] = np.minimum((share[rows] * (present + 1)).astype(np.int64), present)
        repeated = [self._actions[i, :many] for i, many in zip(others, chunks[rows], strict=True)]
        self._start(rows, self._episode[rows] + 1, self._episode_seed[others])
        self._branched[rows] = True
        self._repeat(chunks, np.concatenate(repeated))
        # Those that come to the same state show whether it is.
        arrived = self._obs.copy()
        first: dict[tuple[int, int], int] = {}
        for row in rows.tolist():
            one = first.setdefault((int(source[row]), int(chunks[row])), row)
            whole = chunks[row] == self._chunks[source[row]]
            arrived[row] = self._obs[source[row] if whole else one]
        self._check_arrival(rows, chunks, arrived)
        return self._obs.copy()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the exact state as arrays: episode numbers, their seeds and the actions since.

        ``actions`` [sum(chunks), act_steps, A] holds the environments' actions one after another,
        ``chunks`` [N] says how many are whose; ``branched`` [N] whose seeds :meth:`branch` took
        from others.
        """
        taken = [self._actions[i, : self._chunks[i]] for i in range(self.num_envs)]
        return {
            "run_seed": np.array(self.run_seed, np.int64),
            "episode": self._episode.copy(),
            "seed": np.where(self._episode >= 0, self._episode_seed, 0),
            "branched": self._branched.copy(),
            "chunks": self._chunks.copy(),
            "actions": np.concatenate(taken),
            "obs": self._obs.copy(),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a state by starting its episodes with their seeds and repeating the actions.

        Raises:
            TrimtabError: if the state belongs to another number of environments, task or seed, or
                the simulator does not arrive at the stored observation bit for bit.
        """
        names = {"run_seed", "episode", "seed", "chunks", "actions", "obs"}
        if set(state) - {"branched"} != names:  # that of an earlier version has none
            raise TrimtabError(f"{self.id}: a saved state has {sorted(names)}, got {sorted(state)}")
        branched = np.array(state.get("branched", np.zeros(self.num_envs)), np.bool_)
        episode, chunks, obs = (np.asarray(state[name]) for name in ("episode", "chunks", "obs"))
        actions = np.asarray(state["actions"], np.float32)
        if (
            episode.shape != (self.num_envs,)
            or chunks.shape != (self.num_envs,)
            or branched.shape != (self.num_envs,)
            or obs.shape != self._obs.shape
            or actions.shape != (int(chunks.sum()), *self._action_shape[1:])
            or chunks.min() < 0
            or chunks.max() > self._actions.shape[1]
        ):
            raise TrimtabError(
                f"{self.id}: the saved state has observations {obs.shape} and actions "
                f"{actions.shape}; this is {self.num_envs} environments with observations "
                f"{self._obs.shape}; use the same task, num_envs and act_steps"
            )
        self.run_seed = int(state["run_seed"])
        self._episode[episode < 0] = -1
        started = np.flatnonzero(episode >= 0)
        for index in np.flatnonzero((episode >= 0) & ~branched):
            number = int(episode[index])
            if self.episode_seed(int(index), number) != int(state["seed"][index]):
                raise TrimtabError(
                    f"{self.id}: the saved state's episode {number} of environment {index} had "
                    "another seed; use the same episode_seed"
                )
        self._start(started, episode[started], np.asarray(state["seed"])[started])
        self._branched = branched
        self._repeat(chunks, actions)
        self._check_arrival(started, chunks, obs)

    def _check_arrival(
        self, rows: NDArray[np.intp], chunks: NDArray[np.int64], obs: FloatArray
    ) -> None:
        """Check that ``rows`` have repeated ``chunks`` [N] up to observations ``obs`` [N, O]."""
        for index in rows:
            if self._chunks[index] != chunks[index] or not np.array_equal(
                self._obs[index], obs[index], equal_nan=True
            ):
                raise TrimtabError(
                    f"{self.id}: repeating the saved actions of environment {index} did not lead "
                    "to the saved observation; the simulator or the options have changed"
                )

    def _repeat(self, chunks: NDArray[np.int64], actions: FloatArray) -> None:
        """Play ``chunks`` [N] of the saved actions, side by side, up to an episode's end."""
        first = np.cumsum(chunks) - chunks
        going = chunks > 0
        chunk = np.zeros(self._action_shape, np.float32)
        for step in range(int(chunks.max())):
            going &= chunks > step
            if not going.any():
                return
            chunk[going] = actions[first[going] + step]
            played = self._advance(going, chunk)
            going &= ~(played.terminated | played.truncated)
