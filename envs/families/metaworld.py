"""Meta-World's fifty Sawyer tasks, version 3, with the goal visible and a new goal every episode.

Yu et al., 2019, "Meta-World: A Benchmark and Evaluation for Multi-Task and Meta Reinforcement
Learning". Meta-World sets a task from pickled bytes; here the same attributes are set directly, so
nothing is unpickled.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames

__all__ = ["FAMILY"]


class _SeededMetaWorld(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Meta-World whose ``reset(seed=...)`` seeds, which Meta-World's own does not.

    Nothing else has to be cleared for a seed to decide the episode: Meta-World's ``reset`` runs
    the task's own reset twice, with MuJoCo's in between, so that what the last episode left
    behind is overwritten by values that follow from the seed. The contract tests hold every
    task to it.

    Args:
        env: the bare environment.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.model = env.model
        self.frame_skip = env.frame_skip
        self._bare = env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode. Returns the observation [O] and info."""
        if seed is not None:
            self._bare.seed(seed)
        return self._bare.reset()  # type: ignore[no-any-return]

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply ``action`` [A]; return observation [O], reward, terminated, truncated, info."""
        return self._bare.step(action)  # type: ignore[no-any-return]


def _build(task: str, *, render: bool) -> RawEnv:
    with quiet():
        from metaworld.env_dict import ENV_CLS_MAP

        env: Any = ENV_CLS_MAP[task](render_mode="rgb_array" if render else None)
        # The goal is part of the observation: the space is computed anew from this attribute.
        env._partially_observable = False
        vars(env).pop("sawyer_observation_space", None)
        env.observation_space = env.sawyer_observation_space
        # A new goal and a new start every episode, drawn from the environment's own generator.
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        env._set_task_called = True
        # Meta-World raises when stepped beyond this; episodes are cut by the suite's own limit.
        env.max_path_length = np.iinfo(np.int64).max
    return _SeededMetaWorld(env)


_TASK_NAMES = (
    "assembly basketball bin-picking box-close button-press-topdown button-press-topdown-wall "
    "button-press button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble "
    "door-close door-lock door-open door-unlock hand-insert drawer-close drawer-open faucet-open "
    "faucet-close hammer handle-press-side handle-press handle-pull-side handle-pull lever-pull "
    "peg-insert-side pick-place-wall pick-out-of-hole reach push-back push pick-place plate-slide "
    "plate-slide-side plate-slide-back plate-slide-back-side peg-unplug-side soccer stick-push "
    "stick-pull push-wall reach-wall shelf-place sweep-into sweep window-open window-close "
)

FAMILY = Family(
    name="metaworld",
    install="trimtab[metaworld]",
    packages=("mujoco", "gymnasium", "metaworld"),
    tasks={
        f"{name}-v3": Task(horizon=500, success_key="success", tags=("manipulation", "goal"))
        for name in _TASK_NAMES.split()
    },
    build=_build,
    frames=mujoco_frames,
)
