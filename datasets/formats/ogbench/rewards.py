"""The rewards of OGBench's single tasks, told from the states that its files hold.

OGBench's files serve several tasks and have no rewards; its own loader works them out from each
row's state when a single task is asked for (``ogbench/relabel_utils.py``). Here that takes no
simulator: what the tasks ask for is in ``goals.yaml``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

__all__ = ["REWARDS_OF", "numbered", "same_scene", "solved_parts"]

REWARDS_OF = "rewards_of"
"""Key of a recipe: the task, by its number, whose rewards were told from the states."""

_TASK = re.compile(r"ogbench/(?P<scene>.+)-singletask(-task(?P<number>[1-5]))?-v0", re.ASCII)
_ARM = 14  # columns of qpos for the arm and the hand, before those of what they move
_CUBE = 7  # columns of a cube: its place and its orientation
_TOLERANCE = 0.04  # of cubes, in metres, and of the drawer and the window
_QPOS, _BUTTONS = "qpos", "button_states"


def numbered(env: str) -> str | None:
    """Return the id of a single task with its number in it, or None where it is none of these."""
    match = _TASK.fullmatch(env)
    if match is None or match["scene"] not in _goals():
        return None
    number = match["number"] or _goals()[match["scene"]]["default"]
    return f"ogbench/{match['scene']}-singletask-task{number}-v0"


def same_scene(env: str, other: str) -> bool:
    """Return whether both are single tasks of one scene, so that one file serves both."""
    scenes = [(numbered(id) or "").rpartition("-task")[0] for id in (env, other)]
    return bool(scenes[0]) and scenes[0] == scenes[1]


def solved_parts(env: str, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Return which parts of a task are solved in each row's state, ``[N, parts]``.

    A maze has one part; the others one for each cube and button, the drawer and the window.

    Args:
        env: id of the task, such as ``ogbench/cube-single-singletask-v0``.
        arrays: what a file holds, ``[N, ...]`` each.

    Raises:
        ValueError: why it cannot be told, in a few words.
    """
    match = _TASK.fullmatch(numbered(env) or "")
    if match is None:
        raise ValueError(f"{env} is no single task of ogbench/")
    goals, index = _goals()[match["scene"]], int(match["number"]) - 1
    goal = {name: value[index] for name, value in goals.items() if isinstance(value, list)}
    with np.errstate(over="ignore", invalid="ignore"):  # absurd states are far from any goal
        if "places" in goal:
            return _reached(goal, goals, _states(arrays, _QPOS, goals["columns"]))
        return _arranged(goal, arrays)


@functools.cache
def _goals() -> Mapping[str, Mapping[str, Any]]:
    file = Path(__file__).with_name("goals.yaml")
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def _states(arrays: Mapping[str, npt.NDArray[Any]], key: str, columns: int) -> npt.NDArray[Any]:
    if key not in arrays:
        raise ValueError(f"it has no {key}")
    if arrays[key].ndim != 2 or arrays[key].shape[1] != columns:
        raise ValueError(f"{key} has the shape {arrays[key].shape}, not (N, {columns})")
    return arrays[key]


def _near(values: npt.NDArray[Any], goal: Any, tolerance: float) -> npt.NDArray[np.bool_]:
    """Return whether vectors (the last axis) lie within ``tolerance`` of a goal."""
    near: npt.NDArray[np.bool_] = np.linalg.norm(values - np.array(goal), axis=-1) <= tolerance
    return near


def _reached(
    goal: Mapping[str, Any], goals: Mapping[str, Any], qpos: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    first = goals["from"]
    return _near(qpos[:, None, first : first + 2], goal["places"], goals["tolerance"])


def _arranged(
    goal: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> npt.NDArray[np.bool_]:
    cubes, buttons = (np.array(goal.get(name, [])) for name in ("cubes", "buttons"))
    parts = []
    first = _ARM + _CUBE * len(cubes) + len(buttons)  # the columns of the drawer and the window
    slides = [name for name in ("drawer", "window") if name in goal]
    if len(cubes) or slides:
        qpos = _states(arrays, _QPOS, first + len(slides))
        moved = qpos[:, _ARM : _ARM + _CUBE * len(cubes)].reshape(len(qpos), len(cubes), _CUBE)
        parts.append(_near(moved[:, :, :3], cubes, _TOLERANCE))
    if len(buttons):
        parts.append(_states(arrays, _BUTTONS, len(buttons)) == buttons)
    for column, name in enumerate(slides, first):
        parts.append(np.abs(qpos[:, [column]] - goal[name]) <= _TOLERANCE)
    return np.concatenate(parts, axis=1)
