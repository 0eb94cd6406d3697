"""Importing this module registers every environment with Gymnasium.

Gymnasium's ids have one slash, so ``family/task`` becomes ``trimtab/family.task``:
``gymnasium.make("trimtab.envs.register:trimtab/gym.Hopper-v5")``.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from trimtab.envs.registry import list_envs, make
from trimtab.envs.task_env import TaskEnv
from trimtab.errors import TrimtabError

__all__ = ["gymnasium_id", "make_registered"]


def gymnasium_id(id: str) -> str:
    """Return the id under which Gymnasium knows the environment ``family/task``."""
    family, task = id.split("/", 1)
    return f"trimtab/{family}.{task}"


def make_registered(*, task: str, render_mode: str | None = None, **options: Any) -> TaskEnv:
    """Return the environment ``task`` as Gymnasium asks for it.

    Args:
        task: its id here.
        render_mode: None, or ``rgb_array`` to be able to render.
        options: as for :func:`trimtab.envs.registry.make`.

    Raises:
        TrimtabError: as :func:`trimtab.envs.registry.make`, or for another mode.
    """
    if render_mode not in (None, *TaskEnv.metadata["render_modes"]):
        raise TrimtabError(f"{task}: render_mode={render_mode}: it is rgb_array or none")
    env: TaskEnv = make(task, render=render_mode is not None, **options)
    return env


for _id in list_envs():
    if gymnasium_id(_id) not in gymnasium.registry:
        # Time limit, types and order are the environment's own: Gymnasium's wrappers would only
        # repeat them.
        gymnasium.register(
            gymnasium_id(_id),
            entry_point="trimtab.envs.register:make_registered",
            kwargs={"task": _id},
            order_enforce=False,
            disable_env_checker=True,
        )
