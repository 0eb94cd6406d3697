"""What a run's task has of goals, for methods that relabel them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.datasets.sources.relabel import Goals, Relabelled
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.core.spec import EnvSpec
from trimtab.envs.registry import make
from trimtab.errors import TrimtabError

__all__ = ["RelabelledData", "goals_of"]


class RelabelledData(Relabelled):
    """A dataset whose goals are relabelled, with one state for both.

    Args:
        buffer: draws from the dataset.
        goals: of the task.
        share: of the rows that get another goal.
        seed: of the goals' own random generator.
    """

    def __init__(self, buffer: ReplayBuffer, goals: Goals, share: float, seed: int) -> None:
        super().__init__(buffer, goals, share, seed)
        self.buffer = buffer

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer's state, and that of the goals."""
        return {**self.buffer.state_dict(), "goals": super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken."""
        self.buffer.load_state_dict(state)
        super().load_state_dict(state["goals"])


@functools.cache  # it belongs to an environment, of which one a process is enough
def _reward_of(task: str, options: str) -> Callable[..., Any] | None:
    reward: Callable[..., Any] | None = make(task, **json.loads(options)).goal_reward
    return reward


def goals_of(env: EnvSpec, method: str, act_steps: int) -> Goals:
    """Return which entries of an observation are goals, and the reward that follows from them.

    Args:
        env: the task.
        method: name of the method that wants goals, for errors.
        act_steps: executed actions of a chunk.

    Raises:
        TrimtabError: if the task has no goals, its reward does not follow from them alone, or
            decisions are chunks.
    """
    if not {"achieved_goal", "desired_goal"} <= env.obs_parts.keys():
        raise TrimtabError(
            f"{method} relabels goals, and {env.id} has none; trimtab list env tag=goal shows "
            "tasks that have"
        )
    reward = _reward_of(env.id, json.dumps(dict(env.options), sort_keys=True))
    if reward is None:
        raise TrimtabError(
            f"{method} relabels goals, and the reward of {env.id} with {dict(env.options)} does "
            "not follow from goals alone; choose another task, or reward=native"
        )
    if act_steps > 1:
        raise TrimtabError(
            f"act_steps={act_steps}: {method} relabels goals, a step at a time; leave act_steps out"
        )
    return Goals(env.obs_parts["achieved_goal"], env.obs_parts["desired_goal"], reward)
