"""Every environment by its id; a new family is a module of ``families/``, and no edit elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import json
import logging
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, overload

import gymnasium

from trimtab.discovery import modules_in
from trimtab.envs.core.dict_observations import DictEnv, dict_env
from trimtab.envs.core.fingerprint import (
    Confirmation,
    confirmation,
    definition,
    fingerprint,
    reference_key,
    source_digest,
)
from trimtab.envs.core.spec import EnvSpec, Family, OwnVector, RawEnv, Task
from trimtab.envs.core.task_env import TaskEnv
from trimtab.errors import TrimtabError

__all__ = [
    "checked_names",
    "OUTSIDE",
    "OUTSIDE_GROUP",
    "check_observations",
    "confirm",
    "get_spec",
    "list_envs",
    "list_families",
    "list_tasks",
    "make",
    "own_vector",
]

logger = logging.getLogger(__name__)

OUTSIDE = "TRIMTAB_FAMILIES"
"""Environment variable with the names of modules that define further families, after commas."""
OUTSIDE_GROUP = "trimtab.envs"
"""Entry points by which an installed package names such modules."""
_REWARDS = ("native", "sparse")
LONGEST = 2**31 - 1
"""Largest horizon in steps: arrays cannot be as long as every whole number."""
_RESERVED = frozenset({"id", "render", "observations"})  # arguments of make that are no options
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"horizon": None, "reward": "native", "terminate_on_success": False}
)


@functools.cache
def _families() -> Mapping[str, Family]:
    """Find every module that defines ``FAMILY``; simulators are not imported."""
    found: dict[str, Family] = {}
    for module in modules_in("envs", "families"):
        family = getattr(module, "FAMILY", None)
        if isinstance(family, Family):
            if family.name not in module.__name__.split(".")[-2:]:  # the module's or its folder's
                raise TrimtabError(
                    f"environment family {family.name!r} lies in {module.__name__}; "
                    "give both the same name"
                )
            found[family.name] = family
    for name in _outside():
        family = _family_outside(name)
        if family.name in found:
            raise TrimtabError(
                f"the module {name} brings a family {family.name!r}, which there is already; "
                "give it another name"
            )
        found[family.name] = family
    return found


def _in_a_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _outside() -> list[str]:
    """Return the modules that users bring: named in a variable, or by an installed package."""
    named = [name.strip() for name in os.environ.get(OUTSIDE, "").split(",") if name.strip()]
    installed = importlib.metadata.entry_points(group=OUTSIDE_GROUP)
    return list(dict.fromkeys([*named, *(point.value for point in installed)]))


@functools.cache
def _sources() -> Mapping[str, str]:
    """Return the SHA-256 of the module that brings a family, for those from outside, by name."""
    return {_family_outside(name).name: source_digest(name) for name in _outside()}


def _family_outside(name: str) -> Family:
    try:
        family = getattr(importlib.import_module(name), "FAMILY", None)
    except (Exception, SystemExit) as error:  # it is a user's, and may hold any fault
        raise TrimtabError(
            f"{OUTSIDE} or an installed package names the module {name}, which cannot be imported "
            f"({_in_a_line(error)})"
        ) from error
    if not isinstance(family, Family):
        raise TrimtabError(f"the module {name} defines no FAMILY of trimtab.envs.core.spec.Family")
    wrong = _wrong_field(family)
    if wrong is not None:
        raise TrimtabError(
            f"the module {name}: its FAMILY has {wrong}={getattr(family, wrong)!r}, which is not "
            "what trimtab.envs.core.spec.Family describes"
        )
    return family


def _wrong_field(family: Family) -> str | None:
    """Return the name of a field of a user's family that would break us later, or None."""
    tasks: Any = family.tasks
    right = {
        "name": isinstance(family.name, str) and re.fullmatch("[^/]+", family.name),
        "install": isinstance(family.install, str),
        "packages": isinstance(family.packages, tuple | list)
        and all(isinstance(package, str) for package in family.packages),
        "tasks": isinstance(tasks, Mapping)
        and all(isinstance(n, str) and isinstance(task, Task) for n, task in tasks.items()),
        "build": callable(family.build),
        "frames": callable(family.frames),
        "revision": type(family.revision) is int and family.revision >= 1,
    }
    return next((field for field, is_right in right.items() if not is_right), None)


def list_envs() -> tuple[str, ...]:
    """Return every registered id, sorted; whether its simulator is installed or not."""
    return tuple(
        sorted(f"{name}/{task}" for name, family in _families().items() for task in family.tasks)
    )


def list_families() -> tuple[Family, ...]:
    """Return every family; whether its simulator is installed or not."""
    return tuple(_families().values())


def list_tasks() -> dict[str, Task]:
    """Return what every family declares of its tasks, by id, sorted."""
    found = {f"{f.name}/{name}": task for f in list_families() for name, task in f.tasks.items()}
    return dict(sorted(found.items()))


def checked_names(options: Mapping[Any, Any]) -> dict[str, Any]:
    """Return options that a user wrote, none of which is an argument of ours.

    Raises:
        TrimtabError: if a name is no text, or one that options cannot have.
    """
    for name in options:
        if not isinstance(name, str) or name in _RESERVED:
            raise TrimtabError(f"env_options: {name!r} is no option of an environment")
    return dict(options)


def _find(id: str) -> tuple[Family, str, Task]:
    known = list_envs()
    if id not in known:
        lower = {name.lower(): name for name in known}
        by_task = {name.lower().split("/", 1)[1]: name for name in known}
        near = difflib.get_close_matches(str(id).lower(), [*lower, *by_task], 1, 0.3)
        hint = (lower | by_task)[near[0]] if near else known[0]
        raise TrimtabError(f"unknown environment {id!r}; the nearest is {hint!r}")
    name, task = id.split("/", 1)
    family = _families()[name]
    return family, task, family.tasks[task]


def _defaults(task: Task) -> dict[str, Any]:
    return {**_DEFAULTS, **{name: choices[0] for name, choices in task.options.items()}}


def _checked_options(id: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options with defaults filled in; the native horizon, when given, is a default."""
    defaults = _defaults(task)
    unknown = sorted(set(options) - set(defaults))
    if unknown:
        raise TrimtabError(
            f"{id}: unknown environment option {unknown[0]!r}; there are {', '.join(defaults)}"
        )
    values = {**defaults, **options}
    for name, choices in task.options.items():
        if not any(values[name] is choice or values[name] == choice for choice in choices):
            raise TrimtabError(
                f"{id}: {name} must be one of {', '.join(map(str, choices))}, got {values[name]!r}"
            )
    horizon, reward = values["horizon"], values["reward"]
    if horizon is not None and (
        isinstance(horizon, bool) or not isinstance(horizon, int) or not 1 <= horizon <= LONGEST
    ):
        raise TrimtabError(
            f"{id}: horizon must be a whole number of steps >= 1 and <= {LONGEST}, got {horizon!r}"
        )
    if horizon == task.horizon:
        values["horizon"] = None
    if reward not in _REWARDS:
        raise TrimtabError(f"{id}: reward must be one of {', '.join(_REWARDS)}, got {reward!r}")
    if not isinstance(values["terminate_on_success"], bool):
        raise TrimtabError(
            f"{id}: terminate_on_success must be true or false, "
            f"got {values['terminate_on_success']!r}"
        )
    if task.success_key is None and (reward == "sparse" or values["terminate_on_success"]):
        raise TrimtabError(
            f"{id} has no notion of success; leave reward=native and terminate_on_success=false"
        )
    return values


def _changed_options(id: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    values, defaults = _checked_options(id, task, options), _defaults(task)
    return {key: value for key, value in values.items() if value != defaults[key]}


def _build(
    id: str, options: Mapping[str, Any], *, render: bool = False
) -> tuple[TaskEnv, Family, str, Task]:
    family, name, task = _find(id)
    values = _checked_options(id, task, options)
    try:
        raw = family.build(name, render=render, **{key: values[key] for key in task.options})
    except ImportError as error:
        raise TrimtabError(
            f"{id} needs the extra: pip install '{family.install}' ({error})"
        ) from error
    except (TrimtabError, OSError):  # a full disk is told of by who knows what it was for
        raise
    except Exception as error:  # a family may be a user's own
        raise TrimtabError(f"{id} cannot be made ({_in_a_line(error)})") from error
    env = TaskEnv(
        raw,
        horizon=values["horizon"] or task.horizon,
        success_key=task.success_key,
        sparse=values["reward"] == "sparse",
        terminate_on_success=values["terminate_on_success"],
        render=render,
    )
    return env, family, name, task


@overload
def make(
    id: str, *, render: bool = ..., observations: Literal["flat"] = ..., **options: Any
) -> TaskEnv: ...
@overload
def make(
    id: str, *, render: bool = ..., observations: Literal["dict"], **options: Any
) -> DictEnv: ...
def make(
    id: str,
    *,
    render: bool = False,
    observations: Literal["flat", "dict"] = "flat",
    **options: Any,
) -> TaskEnv | DictEnv:
    """Make one environment.

    Args:
        id: ``family/task``, as :func:`list_envs` gives them.
        render: whether its ``render()`` is going to be called; the episodes are the same.
        observations: one vector, or a dictionary of its parts (``EnvSpec.obs_parts``); then there
            is a ``compute_reward`` where the reward follows from the goals.
        options: ``horizon`` (int, environment steps; None for the task's own), ``reward``
            (``"native"`` or ``"sparse"``), ``terminate_on_success`` (bool), and the task's own.

    Raises:
        TrimtabError: if the id or an option is unknown, an option does not fit the task, or the
            simulator is not installed.
    """
    check_observations(id, observations)
    env = _build(id, options, render=render)[0]
    return dict_env(env) if observations == "dict" else env


def check_observations(id: str, observations: str) -> None:
    """Check how observations are wanted.

    Raises:
        TrimtabError: if it is neither ``"flat"`` nor ``"dict"``.
    """
    if observations not in ("flat", "dict"):
        raise TrimtabError(f"{id}: observations must be flat or dict, got {observations!r}")


def get_spec(id: str, **options: Any) -> EnvSpec:
    """Return what is known about an environment, its physics and its fingerprint.

    The first call for an id and its options plays a few seeded steps, where there is a reference to
    compare them with; later ones in the same process are free.

    Raises:
        TrimtabError: as :func:`make`.
    """
    _, _, task = _find(id)
    changed = _changed_options(id, task, options)
    return _spec(id, json.dumps(changed, sort_keys=True))


def own_vector(id: str, **options: Any) -> OwnVector | None:
    """Return the family's own vector environment, where it plays this task with these options.

    Raises:
        TrimtabError: as :func:`make`, except that no simulator is imported.
    """
    family, name, task = _find(id)
    own, changed = family.vector, _changed_options(id, task, options)
    if own is None or name not in own.tasks:
        return None
    unknown = sorted(changed.keys() - own.options)
    if unknown:
        logger.info(
            "%s: single environments are stepped, because the family's own vector environment "
            "does not know the option %s",
            id,
            unknown[0],
        )
        return None
    return own


@functools.cache
def _spec(id: str, options_json: str) -> EnvSpec:
    options: dict[str, Any] = json.loads(options_json)
    env, family, name, task = _build(id, options)
    observation, action = env.observation_space, env.action_space
    assert isinstance(observation, gymnasium.spaces.Box)
    assert isinstance(action, gymnasium.spaces.Box)
    time_step, frame_skip, integrator = family.frames(env.raw)
    spec = EnvSpec(
        id=id,
        family=family.name,
        task=name,
        obs_dim=int(observation.shape[0]),
        obs_parts=dict(env.obs_parts),
        action_dim=int(action.shape[0]),
        action_low=tuple(float(x) for x in action.low),
        action_high=tuple(float(x) for x in action.high),
        control_rate=round(1.0 / (time_step * frame_skip), 9),
        horizon=env.horizon,
        success_key=task.success_key,
        score_references=task.score_references,
        tags=task.tags,
        options=options,
        physics={
            **{package: importlib.metadata.version(package) for package in family.packages},
            "timestep": time_step,
            "frame_skip": frame_skip,
            "integrator": integrator,
        },
    )
    with contextlib.closing(env):
        known = definition(spec, family, _sources().get(family.name))
        name_of_physics = fingerprint(known, family, _reference_key(known, task), env.raw)
    return dataclasses.replace(spec, fingerprint=name_of_physics)


def _reference_key(known: Mapping[str, Any], task: Task) -> str:
    own = {key: value for key, value in known["options"].items() if key in task.options}
    return reference_key(known, own)


def confirm(spec: EnvSpec) -> Confirmation:
    """Compare how an environment moves here with its committed reference.

    The horizon, a sparse reward and an end at success do not change what is simulated: one
    reference serves them all. The trajectory is played once a process.

    Raises:
        TrimtabError: as :func:`make`.
    """
    family, _, task = _find(spec.id)
    known = definition(spec, family, _sources().get(family.name))
    with contextlib.ExitStack() as closing:

        def raw() -> RawEnv:
            env = closing.enter_context(contextlib.closing(_build(spec.id, spec.options)[0]))
            return env.raw

        return confirmation(family, _reference_key(known, task), raw)
