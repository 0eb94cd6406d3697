"""Importing this module registers every environment with Gymnasium.

Gymnasium's ids have one slash, so ``family/task`` becomes ``trimtab/family.task``:
``gymnasium.make("trimtab.envs.register:trimtab/gym.Hopper-v5")``.
"""

from __future__ import annotations

import gymnasium

from trimtab.envs.registry import list_envs

__all__ = ["gymnasium_id"]


def gymnasium_id(id: str) -> str:
    """Return the id under which Gymnasium knows the environment ``family/task``."""
    family, task = id.split("/", 1)
    return f"trimtab/{family}.{task}"


for _id in list_envs():
    if gymnasium_id(_id) not in gymnasium.registry:
        # Time limit, types and order are the environment's own: Gymnasium's wrappers would only
        # repeat them.
        gymnasium.register(
            gymnasium_id(_id),
            entry_point="trimtab.envs.registry:make",
            kwargs={"id": _id},
            order_enforce=False,
            disable_env_checker=True,
        )
