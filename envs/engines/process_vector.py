"""Many environments that live in a process of their own, which steps them while this one works."""

from __future__ import annotations

import atexit
import base64
import logging
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trimtab.child import Child, ChildDied, end_children, reference, resolve
from trimtab.envs.core.dict_observations import space_of
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

__all__ = ["ProcessVectorEnv"]

logger = logging.getLogger(__name__)

_ENDING = 10.0
"""Seconds that the process has to close its environments."""
_RANDOM = ("numpy_random", "torch_random")
"""What a saved state has beside that of the environments."""

Outcome = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class ProcessVectorEnv(gymnasium.vector.VectorEnv[Any, Any, NDArray[Any]]):
    """The same environments in another process, which steps them while this one does other work.

    ``begin_step`` sends the actions and ``finish_step`` waits for what came of them. Values are the
    same to the last bit, as arrays travel as their bytes. What the simulators draw from the global
    generators of NumPy and torch is drawn in that process, and a saved state holds where these are.

    Gymnasium's ``AsyncVectorEnv`` and ``multiprocessing`` pickle what they send, and have no state
    to resume from; here nothing is unpickled.

    An exception of the simulators' is one line here, a ``TrimtabError``.

    Args:
        make: function of a module that makes the environments there, flat or as dictionaries:
            ``make(id, num_envs, seed=…, act_steps=…, observations=…, **options)``.
        id: as for :func:`trimtab.envs.vector.make_vec`, with those that follow.
        num_envs: as there.
        seed: as there.
        act_steps: as there.
        observations: as there.
        options: as there.
        global_seed: of the global generators of NumPy and torch in the process.
        torch_threads: number of threads that torch uses there.

    Raises:
        TrimtabError: as :func:`trimtab.envs.vector.make_vec`, or if the process ends.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        id: str,
        num_envs: int,
        *,
        seed: int,
        act_steps: int,
        observations: str,
        options: Mapping[str, Any],
        global_seed: int,
        torch_threads: int,
    ) -> None:
        self.closed = True  # there is no process yet
        self.id, self.num_envs, self.act_steps = id, num_envs, act_steps
        self.options = dict(options)
        spec = self.env_spec
        low, high = (
            np.tile(np.asarray(limit, np.float32), (act_steps, 1))
            for limit in (spec.action_low, spec.action_high)
        )
        self.single_action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.single_observation_space = (
            space_of(spec.obs_parts)
            if observations == "dict"
            else gymnasium.spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float32)
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        arguments = {"seed": seed, "act_steps": act_steps, "observations": observations, **options}
        self._child, self.closed = Child(), False
        try:
            with self._told():
                self._child.call(
                    open_envs, reference(make), id, num_envs, arguments, global_seed, torch_threads
                )
        except BaseException:
            self.close()
            raise

    @property
    def env_spec(self) -> EnvSpec:
        """What is known about the environment."""
        return get_spec(self.id, **self.options)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode everywhere, as the environments themselves do."""
        obs, infos = self._call(reset_envs, seed, options)
        return obs, infos

    def step(self, actions: Any) -> Outcome:
        """Apply ``actions`` [N, act_steps, A], as the environments themselves do."""
        self.begin_step(actions)
        return self.finish_step()

    def begin_step(self, actions: Any) -> None:
        """Send ``actions`` [N, act_steps, A]; ``finish_step`` comes before any other call.

        Raises:
            TrimtabError: if the process has ended.
        """
        with self._told():
            self._child.begin(step_envs, _encode(np.asarray(actions, np.float32)))

    def finish_step(self) -> Outcome:
        """Wait for what came of the actions; return it as ``step`` of the environments does.

        Raises:
            TrimtabError: as the environments, if a simulator fails, or if the process ends.
        """
        with self._told():
            obs, reward, terminated, truncated, infos = _decode(self._child.answer())
        return obs, reward, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """Return the exact state of the environments, and of the process's global generators."""
        state: dict[str, Any] = self._call(save_envs)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a state.

        Raises:
            TrimtabError: as the environments, or if the state was not saved by such a process.
        """
        if missing := [name for name in _RANDOM if name not in state]:
            raise TrimtabError(f"{self.id}: the saved state lacks {' and '.join(missing)}")
        self._call(load_envs, state)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments and end their process."""
        end_children([self._child], _ENDING)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self.closed:
            raise TrimtabError(f"{self.id}: it is closed; make another one")
        with self._told():
            return _decode(self._child.call(function, *map(_encode, arguments)))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell in one line what goes wrong in the process."""
        try:
            yield
        except ChildDied as died:
            raise TrimtabError(
                f"{self.id}: the process of the environments ended ({died}), such as for want of "
                "memory; run the same command to resume"
            ) from died
        except RuntimeError as error:  # its note has the traceback
            logger.debug("%s", self.id, exc_info=error)
            words = " ".join(str(error).split())[:300]
            raise TrimtabError(
                f"{self.id}: in the process of the environments: {words}; TRIMTAB_LOG=debug shows "
                "its traceback"
            ) from error


def _encode(value: Any) -> Any:
    """Return arrays, in lists and mappings with text as keys, as JSON values without loss."""
    if isinstance(value, np.ndarray):
        data = base64.b64encode(value.tobytes()).decode()
        return {"array": [value.dtype.str, value.shape, data]}
    if isinstance(value, Mapping):
        return {"mapping": {key: _encode(one) for key, one in value.items()}}
    return [_encode(one) for one in value] if isinstance(value, list | tuple) else value


def _decode(value: Any) -> Any:
    """Return what :func:`_encode` was given, with lists for tuples."""
    if isinstance(value, list):
        return [_decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "mapping" in value:
        return {key: _decode(one) for key, one in value["mapping"].items()}
    dtype, shape, data = value["array"]
    return np.ndarray(shape, dtype, base64.b64decode(data)).copy()


# What follows is carried out in the process of the environments, which has these alone.

_open: list[Any] = []


def open_envs(
    make: str,
    id: str,
    num_envs: int,
    arguments: dict[str, Any],
    global_seed: int,
    torch_threads: int,
) -> None:
    """Make the environments of this process."""
    import torch

    # The caller handles it: it needs what comes of a step that goes on, to save its state.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(torch_threads)
    torch.manual_seed(global_seed)
    np.random.seed(global_seed)
    _open.append(resolve(make)(id, num_envs, **arguments))
    atexit.register(_open[0].close)


def reset_envs(seed: int | None, options: Any) -> Any:
    """Start the next episode everywhere."""
    return _encode(_open[0].reset(seed=seed, options=_decode(options)))


def step_envs(actions: Any) -> Any:
    """Apply actions."""
    return _encode(_open[0].step(_decode(actions)))


def save_envs() -> Any:
    """Return the state of the environments and of this process's global generators."""
    import torch

    random = np.random.get_state(legacy=True), torch.get_rng_state().numpy()
    return _encode({**_open[0].state_dict(), **dict(zip(_RANDOM, random, strict=True))})


def load_envs(encoded: Any) -> None:
    """Go back to such a state."""
    import torch

    state = _decode(encoded)
    numpy_random, torch_random = (state.pop(name) for name in _RANDOM)
    _open[0].load_state_dict(state)
    np.random.set_state(tuple(numpy_random))
    torch.set_rng_state(torch.from_numpy(torch_random))
