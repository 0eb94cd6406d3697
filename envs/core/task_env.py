"""The one wrapper around every bare environment: float32, time limit, reward and success."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.envs.core.faults import OLD_RESET, faults_of_reset, faults_of_step, in_a_line
from trimtab.envs.core.pictures import as_picture
from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import FloatArray, RawEnv
from trimtab.errors import TrimtabError
from trimtab.limits import inward

__all__ = ["TaskEnv"]


class TaskEnv(gymnasium.Env[FloatArray, FloatArray]):
    """A single environment as Trimtab uses it.

    The observation is a flat float32 array ``[O]`` and the action a float32 array ``[A]`` in the
    environment's raw units. The action reaches the simulator unchanged, so the simulator enforces
    limits, or does not. Observations are not clipped: a declared bound of a simulator that does
    not hold after a reset would otherwise change data.

    Args:
        raw: bare environment whose ``reset(seed=...)`` decides the whole episode.
        horizon: environment steps after which an episode is truncated.
        success_key: key of ``info`` for success, or None.
        sparse: reward 1.0 on steps where success is true and 0.0 elsewhere, instead of the
            simulator's own reward.
        terminate_on_success: end the episode, with ``terminated``, as soon as success is true.
        render: whether ``raw`` was made to be rendered.
        id: what errors name.

    The first ``reset`` and the first ``step`` are checked in full. Later calls make only cheap
    checks; what would fail anyway is then explained.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        raw: RawEnv,
        *,
        horizon: int,
        success_key: str | None,
        sparse: bool = False,
        terminate_on_success: bool = False,
        render: bool = False,
        id: str = "the environment",
    ) -> None:
        self.id = id
        self.render_mode = "rgb_array" if render else None
        self.raw = raw
        self.horizon = horizon
        self.success_key = success_key
        self._sparse = sparse
        self._terminate_on_success = terminate_on_success
        own_reward = None if sparse else getattr(raw, "goal_reward", None)
        self.goal_reward: Callable[[Any, Any], Any] | None = own_reward
        """Rewards [...] of achieved and desired goals [..., G]; None where others decide it."""
        self.costly: bool = getattr(raw, "costly", False)
        """Whether ``info`` of each step says what it costs."""
        self._closed = False
        self._drawn_in: threading.Thread | None = None
        self._elapsed = 0
        self._reset_seen = self._step_seen = False
        observation, action = raw.observation_space, raw.action_space
        assert isinstance(observation, gymnasium.spaces.Box)
        assert isinstance(action, gymnasium.spaces.Box)
        self._shape = observation.shape
        every = {"observation": tuple(range(observation.shape[0]))}
        self.obs_parts: Mapping[str, tuple[int, ...]] = getattr(raw, "obs_parts", every)
        with quiet():
            self.observation_space = gymnasium.spaces.Box(
                -np.inf, np.inf, observation.shape, np.float32
            )
            self.action_space = gymnasium.spaces.Box(
                *inward(action.low, action.high), dtype=np.float32
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start an episode; ``seed`` decides all of it. Returns the observation [O] and info.

        Raises:
            TrimtabError: if the environment returns something else, or is closed.
        """
        if self._closed:
            raise self._closed_error()
        if seed is not None:
            super().reset(seed=seed)
        result: Any = self._reset_raw(seed, options)
        self._elapsed = 0
        try:
            obs, info = result
            if self.success_key is not None:
                info[self.success_key] = bool(info.get(self.success_key, False))
            first = np.asarray(obs, np.float32)
            if first.shape != self._shape:
                raise ValueError(first.shape)
            return first, info
        except (AttributeError, TypeError, ValueError) as error:
            raise self._first_fault(faults_of_reset(result, self._shape), error) from error

    def _reset_raw(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Return what the bare environment's ``reset`` does; the first time, look at all of it."""
        if self._reset_seen:
            return self.raw.reset(seed=seed, options=options)
        try:
            result: Any = self.raw.reset(seed=seed, options=options)
        except TypeError as error:
            if "unexpected keyword argument" in str(error):
                raise TrimtabError(f"{self.id}: {OLD_RESET}") from error
            raise
        self._raise_first(faults_of_reset(result, self._shape))
        self._reset_seen = True
        return result

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info.

        Raises:
            TrimtabError: if the environment returns something else, such as a reward that is no
                finite number, or is closed.
        """
        if self._closed:
            raise self._closed_error()
        # A copy: what an environment writes into it must not reach the policy.
        result: Any = self.raw.step(np.array(action))
        if not self._step_seen:
            self._raise_first(faults_of_step(result, self._shape, self.success_key))
            self._step_seen = True
        self._elapsed += 1
        try:
            obs, reward, terminated, truncated, info = result
            if self.success_key is not None:
                success = info[self.success_key]
                if not isfinite(success):  # a text, which would count as true, raises here
                    raise ValueError(success)
                info[self.success_key] = success = bool(success)
                if self._sparse:
                    reward = 1.0 if success else 0.0
                if success and self._terminate_on_success:
                    terminated = True
            obs = np.asarray(obs, np.float32)
            if not isfinite(reward) or obs.shape != self._shape:
                raise ValueError(reward, obs.shape)
            return (
                obs,
                float(reward),
                bool(terminated),
                bool(truncated) or self._elapsed >= self.horizon,
                info,
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            faults = faults_of_step(result, self._shape, self.success_key)
            raise self._first_fault(faults, error) from error

    def _raise_first(self, faults: Iterator[str]) -> None:
        if line := next(faults, None):
            raise TrimtabError(f"{self.id}: {line}")

    def _first_fault(self, faults: Iterator[str], error: Exception) -> TrimtabError:
        """Return the first of the faults as an error; the exception itself where none explains."""
        return TrimtabError(f"{self.id}: {next(faults, in_a_line(error))}")

    def render(self) -> NDArray[np.uint8]:
        """Return a picture [H, W, 3] of the present state.

        Raises:
            TrimtabError: if the environment was not made with ``render=True`` or returns no
                picture, if another thread has drawn it, if it is closed, or if nothing can be drawn
                on this machine.
        """
        if self._closed:
            raise self._closed_error()
        if self.render_mode is None:
            raise TrimtabError(f"{self.id}: make the environment with render=True to see it")
        # What a simulator draws with belongs to one thread; in another, MuJoCo's picture is black.
        here = threading.current_thread()
        if self._drawn_in not in (None, here):
            raise TrimtabError(
                f"{self.id}: it was drawn in the thread {self._drawn_in.name}, and is drawn "
                "there alone; make an environment for each thread that draws"
            )
        try:
            found = cast(Any, self.raw.render())
        except Exception as error:  # simulators and drivers raise anything
            line = in_a_line(error)
            raise TrimtabError(
                f"{self.id}: it cannot be drawn ({line}); trimtab doctor says how"
            ) from error
        self._drawn_in = here
        return as_picture(found)

    def close(self) -> None:
        """Close the simulator."""
        self._closed = True
        self.raw.close()

    def _closed_error(self) -> TrimtabError:
        return TrimtabError(f"{self.id}: it is closed; make another one")
