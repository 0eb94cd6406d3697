"""Single environments, stepped one after another: what there is for every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.envs.core.chunk import ChunkWrapper
from trimtab.envs.core.spec import FloatArray
from trimtab.envs.engines.episodes import Bools, EpisodeSeed, EpisodeVectorEnv, Played
from trimtab.envs.registry import make

__all__ = ["SyncVectorEnv"]


class SyncVectorEnv(EpisodeVectorEnv):
    """N single environments, stepped one after another; for every task there is.

    The arguments are those of :func:`trimtab.envs.vector.make_vec`.
    """

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
        super().__init__(
            id,
            num_envs,
            seed=seed,
            act_steps=act_steps,
            discount=discount,
            episode_seed=episode_seed,
            options=options,
        )
        more = range(num_envs - 1)
        self.envs = [
            self._first,
            *(ChunkWrapper(make(id, **self.options), act_steps, discount) for _ in more),
        ]

    def _begin(self, rows: Sequence[int], seeds: Sequence[int]) -> FloatArray:
        starts = [self.envs[row].reset(seed=seed)[0] for row, seed in zip(rows, seeds, strict=True)]
        return np.array(starts, np.float32).reshape(len(starts), *self._obs.shape[1:])

    def _play(self, rows: Bools, actions: FloatArray) -> Played:
        count, key = self.num_envs, self.success_key
        played = Played(
            obs=np.zeros_like(self._obs),
            reward=np.zeros(count),
            terminated=np.zeros(count, np.bool_),
            truncated=np.zeros(count, np.bool_),
            steps=np.zeros(count, np.int64),
            success=np.zeros(count, np.bool_),
            cost=np.zeros(count) if self._first.env.costly else None,
        )
        for index in np.flatnonzero(rows).tolist():
            obs, reward, terminated, truncated, info = self.envs[index].step(actions[index])
            played.obs[index] = obs
            played.reward[index] = reward
            played.terminated[index] = terminated
            played.truncated[index] = truncated
            played.steps[index] = info["steps"]
            if key is not None:
                played.success[index] = info[key]
            if played.cost is not None:
                played.cost[index] = info["cost"]
        return played

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()
