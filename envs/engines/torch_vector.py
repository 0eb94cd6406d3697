"""MJX environments whose tensors never leave their device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.envs.engines.mjx_programs import episode_keys
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from torch import Tensor

    from trimtab.envs.engines.mjx_vector import MjxVectorEnv

__all__ = ["TorchVectorEnv"]

_OTHER_START = 1 << 33
"""Makes of an episode's seed another one, which no episode has: theirs are below 2**32."""


class TorchVectorEnv(gymnasium.vector.VectorWrapper):
    """The same environments with tensors on ``device``; a step reads none of them back.

    Actions go to JAX and observations come from it by DLPack, uncopied: read observations and never
    write into them. All episodes begin together and none terminates, so this process knows when
    their time is up, and looks at no tensor for it. A simulation that is no longer finite starts
    again within the compiled step, in a state that was drawn for it when the episode began;
    ``restarted`` counts these, and the row's episode ends with the others.

    Args:
        env: the environments, whose simulations are on ``device``; they are started here alone.
        device: torch's name of it.

    Raises:
        TrimtabError: if torch has no such device.
    """

    def __init__(self, env: MjxVectorEnv, device: str) -> None:
        import torch

        super().__init__(env)
        self._envs, self.id = env, env.id
        self.act_steps, self.horizon = env.act_steps, env.horizon
        try:
            self.device = torch.empty(0, device=device).device
        except (AssertionError, ImportError, RuntimeError) as error:  # as torch was built
            raise TrimtabError(f"torch has no device {device!r} here; use device=cpu") from error
        self._programs = env.programs
        weights = env.discount ** np.arange(env.act_steps, dtype=np.float32)
        self._weights = self._placed(weights)
        self._counts = {
            count: self._placed(np.int32(count))
            for count in (env.act_steps, env.horizon % env.act_steps)
        }
        self._return = torch.zeros(env.num_envs, device=self.device)
        self.restarted = torch.zeros((), dtype=torch.int64, device=self.device)
        """Simulations that were no longer finite, so far."""
        self._taken: Tensor | None = None
        self._state: Any = None
        self._spare: Any = None
        self._episode, self._chunks = -1, 0
        self.observations: Any = None
        """The present observations [N, O] as JAX holds them."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Start the next episode everywhere; return observations [N, O] and no infos."""
        if seed is not None:
            self._episode = -1
        self._envs.check_reset(seed=seed, options=options)
        return self._start(self._episode + 1), {}

    def _start(self, episode: int) -> Tensor:
        """Start an episode, given by its number, in all environments."""
        self._episode, self._chunks = episode, 0
        seeds = self._seeds()
        others = [seed ^ _OTHER_START for seed in seeds]
        self._spare, _ = self._programs.begin(self._placed(episode_keys(others)))
        self._state, self.observations = self._programs.begin(self._placed(episode_keys(seeds)))
        self._return.zero_()
        return self._tensor(self.observations)

    def step(
        self, actions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, NDArray[np.bool_], dict[str, Any]]:
        """Apply ``actions`` [N, act_steps, A]; episodes whose time is up are followed by new ones.

        Returns:
            Observations [N, O] (of the new episodes, if the time is up), rewards [N] float32,
            terminated [N] (what was started again), truncated [N], an array, and infos:
            ``final_obs`` [N, O], the observations before new episodes began; ``final_info``, with
            the ``return`` [N] of each episode if the time is up, else empty; ``steps``, the
            environment steps of each row.
        """
        import jax

        left = self._envs.horizon - self._chunks * self._envs.act_steps
        steps = min(left, self._envs.act_steps)
        # It is kept until the next step has been asked for: JAX may not have read it yet.
        self._taken = actions.detach().contiguous()
        taken = jax.dlpack.from_dlpack(self._taken)
        self._state, self.observations, *outcome = self._programs.play_on(
            self._state, taken, self._counts[steps], self._weights, self._spare
        )
        reward, restarted = map(self._tensor, outcome)
        self._chunks += 1
        self._return += reward
        self.restarted += restarted.sum()
        obs = final_obs = self._tensor(self.observations)
        truncated = np.full(self.num_envs, left == steps)
        final_info: dict[str, Tensor] = {}
        if left == steps:
            final_info["return"] = self._return.clone()
            obs = self._start(self._episode + 1)
        infos = {"final_obs": final_obs, "final_info": final_info, "steps": steps}
        return obs, reward, restarted, truncated, infos

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the exact state as arrays: the simulations themselves, so nothing is repeated."""
        import jax

        leaves = jax.tree.leaves((self._state, self._spare))
        return {
            "run_seed": np.array(self._envs.run_seed, np.int64),
            "episode": np.array(self._episode, np.int64),
            "chunks": np.array(self._chunks, np.int64),
            "seed": np.array(self._seeds(), np.int64),
            "return": self._return.cpu().numpy(),
            **{f"simulation_{number}": np.array(leaf) for number, leaf in enumerate(leaves)},
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a state.

        Raises:
            TrimtabError: if the state belongs to other environments.
        """
        import jax
        import torch

        self._envs.run_seed = int(state["run_seed"])
        self._start(int(state["episode"]))
        leaves, structure = jax.tree.flatten((self._state, self._spare))
        saved = [state.get(f"simulation_{number}") for number in range(len(leaves))]
        alike = all(
            one is not None and (one.shape, one.dtype) == (leaf.shape, leaf.dtype)
            for one, leaf in zip(saved, leaves, strict=True)
        )
        if not alike or state["seed"].tolist() != self._seeds():
            raise TrimtabError(
                f"{self.id}: the saved state is of other simulations or of episodes of other "
                "seeds; use the same num_envs, seed and versions of MJX and Playground"
            )
        self._state, self._spare = jax.tree.unflatten(structure, [*map(self._placed, saved)])
        self.observations = self._state.obs
        self._chunks = int(state["chunks"])
        self._return.copy_(torch.from_numpy(state["return"]))

    def _seeds(self) -> list[int]:
        """Return the seeds of the present episodes."""
        return [self._envs.episode_seed(row, self._episode) for row in range(self.num_envs)]

    def _placed(self, value: Any) -> Any:
        """Return a number or an array as JAX's, on the device of the simulations."""
        import jax

        return jax.device_put(value, self._programs.device)

    def _tensor(self, array: Any) -> Tensor:
        """Return JAX's array as a tensor that shares its memory."""
        from torch.utils.dlpack import from_dlpack

        found: Tensor = from_dlpack(array)
        return found
