"""Gymnasium-Robotics: the Fetch arm, mazes for a ball and an ant, the Adroit hand, the kitchen.

Fetch (Plappert et al., 2018, "Multi-Goal Reinforcement Learning"): four actions in ``[-1, 1]``,
gripper displacement and opening, 25 times a second; the observation is Gymnasium-Robotics' own of
10 numbers (reach) or 25, followed by the goal (m). The achieved goal is the gripper's or the
object's position, which the observation holds. Rewards are 0 at the goal and -1 elsewhere, or minus
the distance (``Dense``); an episode goes on at the goal.

Adroit (Rajeswaran et al., 2018, "Learning Complex Dexterous Manipulation"): positions of the 24
joints of a hand, and of up to six that carry it, 100 times a second; rewards as Gymnasium-Robotics
shapes them, or 10 on success and -0.1 elsewhere (``Sparse``). An episode goes on after success.

Mazes are described in ``mazes.py``, ``two_doors.py``, ``four_goals.py`` and ``gusts.py``, the
kitchen in ``kitchen.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, RawEnv, Task
from trimtab.envs.engines.mujoco_frames import mujoco_frames
from trimtab.envs.families.robotics.four_goals import FOUR_GOALS, build_four_goals
from trimtab.envs.families.robotics.goals import FlatGoalEnv, registered
from trimtab.envs.families.robotics.gusts import GUSTS, build_gusts
from trimtab.envs.families.robotics.kitchen import KITCHENS, build_kitchen
from trimtab.envs.families.robotics.mazes import (
    ANT_MAZES,
    OWN_MAZES,
    POINT_MAZES,
    build_ant_maze,
    build_own_maze,
    build_point_maze,
)
from trimtab.envs.families.robotics.two_doors import TWO_DOORS, build_two_doors

__all__ = ["FAMILY"]

# By task, the index in the observation at which the achieved goal starts: gripper, or object.
_FETCH_TASKS = {"FetchReach": 0, "FetchPush": 3, "FetchSlide": 3, "FetchPickAndPlace": 3}
_FETCH_REWARDS = {"": ("sparse",), "Dense": ()}  # suffix of the name, and tags

_FETCH = {
    f"{name}{suffix}-v4": Task(50, "is_success", tags=("manipulation", "goal", *tags))
    for name in _FETCH_TASKS
    for suffix, tags in _FETCH_REWARDS.items()
}
_FETCH_ACHIEVED = {
    f"{name}{suffix}-v4": index for name, index in _FETCH_TASKS.items() for suffix in _FETCH_REWARDS
}

# Minimum and maximum returns of D4RL's tables (Fu et al., 2020), taken under mujoco-py with the
# dense rewards; Gymnasium-Robotics gives the hand's distance to handle, hammer or ball the opposite
# sign, which moves a return by some tens. The pen is left out: D4RL's episode ends when it is
# dropped and has half as many steps.
_D4RL = {
    "AdroitHandDoor-v1": (-56.512833, 2880.5693087298737),
    "AdroitHandHammer-v1": (-274.856578, 12794.134825156867),
    "AdroitHandRelocate-v1": (-6.425911, 4233.877797728884),
}
# By task, whether the observation says where to and that changes from episode to episode.
_ADROIT_TAGS = {"Door": (), "Hammer": (), "Pen": ("goal",), "Relocate": ("goal",)}
_ADROIT_REWARDS = {"": (), "Sparse": ("sparse",)}

_ADROIT = {
    name: Task(
        200,
        "success",
        score_references={"d4rl": _D4RL[name]} if name in _D4RL else {},
        tags=("manipulation", "dexterous", *tags),
    )
    for name, tags in (
        (f"AdroitHand{task}{suffix}-v1", (*task_tags, *reward_tags))
        for task, task_tags in _ADROIT_TAGS.items()
        for suffix, reward_tags in _ADROIT_REWARDS.items()
    )
}


class _FlatFetch(FlatGoalEnv):
    """Fetch as one array, with pictures that leave the episode as it is."""

    def render(self) -> Any:
        """Return a picture [H, W, 3].

        Gymnasium-Robotics' own ``render`` moves the mark of the goal with ``mj_forward``, after
        which the next steps are others.
        """
        self._env.data.site("target0").xpos[:] = self._env.goal
        return self._env.mujoco_renderer.render(self._env.render_mode)


def _build_fetch(task: str, *, render: bool) -> RawEnv:
    with quiet():
        env = registered(task, render=render)
        return _FlatFetch(env, achieved_at=_FETCH_ACHIEVED[task], frame_skip=env.n_substeps)


def _build_adroit(task: str, *, render: bool) -> RawEnv:
    with quiet():
        return cast(RawEnv, registered(task, render=render))


_BUILDERS: dict[str, Callable[..., RawEnv]] = {
    **dict.fromkeys(_FETCH, _build_fetch),
    **dict.fromkeys(OWN_MAZES, build_own_maze),
    **dict.fromkeys(TWO_DOORS, build_two_doors),
    **dict.fromkeys(FOUR_GOALS, build_four_goals),
    **dict.fromkeys(GUSTS, build_gusts),
    **dict.fromkeys(POINT_MAZES, build_point_maze),
    **dict.fromkeys(ANT_MAZES, build_ant_maze),
    **dict.fromkeys(_ADROIT, _build_adroit),
    **dict.fromkeys(KITCHENS, build_kitchen),
}


def _build(task: str, *, render: bool, **options: Any) -> RawEnv:
    return _BUILDERS[task](task, render=render, **options)


FAMILY = Family(
    name="robotics",
    install="trimtab[robotics]",
    packages=("mujoco", "gymnasium", "gymnasium-robotics"),
    tasks={
        **_FETCH,
        **OWN_MAZES,
        **TWO_DOORS,
        **FOUR_GOALS,
        **GUSTS,
        **POINT_MAZES,
        **ANT_MAZES,
        **_ADROIT,
        **KITCHENS,
    },
    build=_build,
    frames=mujoco_frames,
)
