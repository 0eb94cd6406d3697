"""MJX simulations behind the suite's interfaces: one alone, and N side by side in one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.envs.core.spec import FloatArray
from trimtab.envs.engines.episodes import Bools, EpisodeSeed, EpisodeVectorEnv, Played
from trimtab.envs.engines.mjx_programs import episode_keys, programs

__all__ = ["MjxEnv", "MjxVectorEnv"]

_PICTURE = (480, 480)


class MjxEnv(gymnasium.Env[FloatArray, FloatArray]):
    """One simulation: the program of a vector of one, so their episodes are equal to the last bit.

    Args:
        task: name of the task in Playground's dm_control suite.
        render: whether :meth:`render` is going to be called.
    """

    def __init__(self, task: str, *, render: bool) -> None:
        self.render_mode = "rgb_array" if render else None
        self._programs = programs(task, "cpu")
        env = self._programs.env
        self.model = env.mj_model
        self.frame_skip = int(env.n_substeps)
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, (self._programs.obs_dim,), np.float32
        )
        self._steps = np.ones(1, np.int32)
        self._state: Any = None
        self._picture: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start the episode of ``seed``, or of a number drawn after the last seed."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**32)) if seed is None else seed
        self._state, obs = self._programs.begin(_placed(self._programs, episode_keys([number])))
        return np.array(obs)[0], {}

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; it terminates only where the simulation is no longer finite."""
        actions = np.asarray(action, np.float32)[None, None]
        self._state, obs, reward, terminated = self._programs.play(
            self._state, actions, self._steps
        )
        return np.array(obs)[0], float(reward[0, 0]), bool(terminated[0, 0]), False, {}

    def render(self) -> NDArray[np.uint8]:
        """Return a picture [480, 480, 3] of the state, drawn by MuJoCo from the first camera."""
        import mujoco

        if self._picture is None:
            self._picture = mujoco.Renderer(self.model, *_PICTURE), mujoco.MjData(self.model)
        renderer, drawn = self._picture
        state = self._state.data
        for name in ("qpos", "qvel", "mocap_pos", "mocap_quat"):
            getattr(drawn, name)[:] = np.asarray(state[name][0])
        mujoco.mj_forward(self.model, drawn)
        renderer.update_scene(drawn, camera=0 if self.model.ncam else -1)
        picture: NDArray[np.uint8] = renderer.render()
        return picture

    def close(self) -> None:
        """Free the renderer."""
        if self._picture is not None:
            self._picture[0].close()
            self._picture = None


def _placed(own: Any, keys: NDArray[np.uint32]) -> Any:
    """Return the keys on the device of the programs, which then run there."""
    import jax

    return jax.device_put(keys, own.device)


class MjxVectorEnv(EpisodeVectorEnv):
    """N simulations as one compiled program that plays a whole chunk; float32 throughout.

    Episodes start in all rows at once, and a mask says which of them are kept. No task of
    Playground's ends before its horizon while its simulation stays finite, so all rows end in the
    same step and nothing is simulated in vain; and a row's start comes from the same program
    whatever the other rows do, which makes a restored state equal to the last bit.

    The same N, row, seed and actions give the same bits on the same kind of processor. Another N is
    another program, which may round differently: its observations agree at first to about six
    digits, and drift apart as float32 does. A vector of one equals the single environment to the
    last bit.

    On ``"cuda"`` the simulations and :attr:`observations` stay on the GPU, and everything else is
    as on a processor: :class:`trimtab.envs.engines.torch_vector.TorchVectorEnv` hands tensors out.

    Args:
        id: as for :class:`trimtab.envs.engines.sync_vector.SyncVectorEnv`, with those that follow.
        num_envs: as there.
        seed: as there.
        act_steps: as there.
        discount: as there.
        episode_seed: as there.
        options: as there; ``horizon`` is the one that may differ from its default.
        threads: not used: XLA has threads of its own.
        device: ``"cpu"`` or ``"cuda"``: where the simulations are.

    Raises:
        TrimtabError: if JAX has no such device.
    """

    most_envs = 1 << 20  # rows of the arrays of one program

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
        threads: int | None = None,
        device: str = "cpu",
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
        self.programs = programs(id.split("/", 1)[1], device)
        self._state: Any = None
        self.observations: Any = None
        """The present observations [N, O] as a JAX array on the device of the simulations."""

    def _begin(self, rows: Sequence[int], seeds: Sequence[int]) -> FloatArray:
        keys = np.zeros((self.num_envs, 2), np.uint32)
        keys[rows] = episode_keys(seeds)
        state, self.observations = self.programs.begin(_placed(self.programs, keys))
        if self._state is not None and len(rows) < self.num_envs:
            started = np.zeros(self.num_envs, np.bool_)
            started[rows] = True
            state = self.programs.keep(started, state, self._state)
            self.observations = state.obs
        self._state = state
        return np.asarray(self.observations)[np.asarray(rows, np.intp)]

    def _play(self, rows: Bools, actions: FloatArray) -> Played:
        left = np.minimum(self.horizon - self._length, self.act_steps)
        allowed = np.where(rows, left, 0).astype(np.int32)
        self._state, self.observations, *outcome = self.programs.play(self._state, actions, allowed)
        rewards, terminations = map(np.asarray, outcome)
        terminated: Bools = np.asarray(terminations.any(axis=1))
        steps = np.where(terminated, terminations.argmax(axis=1) + 1, allowed).astype(np.int64)
        total, weight = np.zeros(self.num_envs), 1.0
        for number in range(self.act_steps):
            total += weight * rewards[:, number].astype(np.float64)
            weight *= self.discount
        truncated = rows & (self._length + steps >= self.horizon)
        success = np.zeros(self.num_envs, np.bool_)
        # The one copy on the way out: the books write into it, and JAX's array must not change.
        obs = np.array(self.observations)
        return Played(obs, total, terminated, truncated, steps, success)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the single environment; what is compiled stays for the next vector."""
        self._first.close()
