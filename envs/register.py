"""Importing this module registers every environment with Gymnasium.

Gymnasium's ids have one slash, so ``family/task`` becomes ``trimtab/family.task``:
``gymnasium.make("trimtab.envs.register:trimtab/gym.Hopper-v5")``.
"""

from __future__ import annotations

import logging
from typing import Any

import gymnasium

from trimtab.envs.core.dict_observations import DictEnv
from trimtab.envs.core.task_env import TaskEnv
from trimtab.envs.registry import list_tasks, make
from trimtab.errors import TrimtabError

__all__ = ["gymnasium_id", "make_registered"]

logger = logging.getLogger(__name__)


def gymnasium_id(id: str) -> str:
    """Return the id under which Gymnasium knows the environment ``family/task``."""
    family, task = id.split("/", 1)
    return f"trimtab/{family}.{task}"


def make_registered(
    *, task: str, render_mode: str | None = None, horizon: int | None = None, **options: Any
) -> TaskEnv | DictEnv:
    """Return the environment ``task`` as Gymnasium asks for it.

    The task cuts its episodes at its horizon. Gymnasium's own limit stands at the same step, so
    that ``spec.max_episode_steps`` tells it.

    Args:
        task: its id here.
        render_mode: None, or ``rgb_array`` to be able to render.
        horizon: another horizon, in environment steps; where it is longer than the task's own,
            ``max_episode_steps`` has to be given to Gymnasium as well.
        options: as for :func:`trimtab.envs.registry.make`.

    Raises:
        TrimtabError: as :func:`trimtab.envs.registry.make`, or for another mode.
    """
    if render_mode not in (None, *TaskEnv.metadata["render_modes"]):
        raise TrimtabError(f"{task}: render_mode={render_mode}: it is rgb_array or none")
    declared = list_tasks().get(task)  # none where the family is open: it has its limit from us
    if declared is not None and isinstance(horizon, int) and horizon > declared.horizon:
        logger.warning(
            "%s: horizon=%d is longer than the task's own: Gymnasium cuts episodes after its "
            "max_episode_steps, which has to be given as well",
            task, horizon,
        )  # fmt: skip
    env: TaskEnv | DictEnv = make(task, render=render_mode is not None, horizon=horizon, **options)
    return env


for _id, _task in list_tasks().items():
    if gymnasium_id(_id) not in gymnasium.registry:
        # Types and order are the environment's own: Gymnasium's wrappers would only repeat them.
        gymnasium.register(
            gymnasium_id(_id),
            entry_point="trimtab.envs.register:make_registered",
            max_episode_steps=_task.horizon,
            kwargs={"task": _id},
            order_enforce=False,
            disable_env_checker=True,
        )
