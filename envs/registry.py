"""Every environment by its id; a new family is a module of ``families/``, and no edit elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, overload

import gymnasium

from trimtab.discovery import modules_here
from trimtab.envs.core.dict_observations import DictEnv, dict_env
from trimtab.envs.core.faults import where_raised
from trimtab.envs.core.fingerprint import (
    Confirmation,
    confirmation,
    definition,
    fingerprint,
    reference_key,
    versions,
)
from trimtab.envs.core.needs import why_not_made
from trimtab.envs.core.options import changed_options, checked_names, checked_options
from trimtab.envs.core.outside import OUTSIDE, families_outside
from trimtab.envs.core.spaces import check_limit, with_flat_spaces
from trimtab.envs.core.spec import EnvSpec, Family, OpenFamily, OwnVector, RawEnv, Task
from trimtab.envs.core.task_env import TaskEnv
from trimtab.errors import TrimtabError, closest

__all__ = [
    "checked_names",
    "OUTSIDE",
    "make_raw",
    "check_observations",
    "confirm",
    "declared",
    "get_spec",
    "is_task",
    "list_envs",
    "list_families",
    "list_open_families",
    "list_tasks",
    "make",
    "own_vector",
]

logger = logging.getLogger(__name__)


@functools.cache
def _families() -> Mapping[str, Family]:
    """Return all families by name: modules that define ``FAMILY``. No simulator is imported."""
    found: dict[str, Family] = {}
    for module in modules_here("envs", "families"):
        family = getattr(module, "FAMILY", None)
        if isinstance(family, Family):
            if (
                family.name not in module.__name__.split(".")[-2:]
            ):  # the module's or its folder's name
                raise TrimtabError(
                    f"environment family {family.name!r} is defined in {module.__name__}; "
                    "give both the same name"
                )
            found[family.name] = family
    for name, family in families_outside():
        if family.name in found:
            raise TrimtabError(
                f"the module {name} defines the family {family.name!r}, which exists already; "
                "give it another name"
            )
        found[family.name] = family
    return found


@functools.cache
def _open_families() -> Mapping[str, OpenFamily]:
    """Return all open families by name: modules of this package that define ``OPEN``."""
    modules = modules_here("envs", "families")
    found = (getattr(module, "OPEN", None) for module in modules)
    return {family.name: family for family in found if isinstance(family, OpenFamily)}


def list_envs() -> tuple[str, ...]:
    """Return every registered id, sorted, including those whose simulator is not installed."""
    return tuple(
        sorted(f"{name}/{task}" for name, family in _families().items() for task in family.tasks)
    )


def is_task(id: str) -> bool:
    """Return whether an id is registered, or has the form of an id in an open family."""
    head, colon, _ = id.partition(":")
    return id in list_envs() or (bool(colon) and head in _open_families())


def list_families() -> tuple[Family, ...]:
    """Return every family, including those whose simulator is not installed."""
    return tuple(_families().values())


def list_open_families() -> tuple[OpenFamily, ...]:
    """Return the families whose tasks cannot be listed, such as Gymnasium's registry."""
    return tuple(_open_families().values())


def list_tasks() -> dict[str, Task]:
    """Return the declared task of every registered id, sorted by id."""
    found = {f"{f.name}/{name}": task for f in list_families() for name, task in f.tasks.items()}
    return dict(sorted(found.items()))


def _find(id: str, options: Mapping[str, Any]) -> tuple[Family, str, Task]:
    """Return the family of a task, the task's name in it, and its declaration."""
    head, colon, rest = str(id).partition(":")
    if colon and head in _open_families():
        family = _open_families()[head].find(rest, options)
        ((task, declared),) = family.tasks.items()
        return family, task, declared
    if id not in list_envs():
        raise TrimtabError(_unknown_id_message(str(id)))
    name, task = id.split("/", 1)
    family = _families()[name]
    return family, task, family.tasks[task]


def _unknown_id_message(id: str) -> str:
    """Return the message for an unknown id: the nearest id, and how to name a user's task."""
    known, opened = list_envs(), _open_families().values()
    lower = {name.lower(): name for name in known}
    by_task = {name.lower().split("/", 1)[1]: name for name in known}
    by_task = {name.partition("-v")[0]: id for name, id in by_task.items()} | by_task
    near = closest(id, [*lower, *by_task])
    hint = (lower | by_task)[near] if near else ""
    in_open_families = [found for family in opened if (found := family.nearest(id)) is not None]
    head, _, rest = id.partition(":")
    of_a_family = head in _families() and "/" not in rest  # a colon in place of the slash
    if in_open_families and not of_a_family and id.lower() not in by_task:
        hint = in_open_families[0]
    nearest = f"the nearest is {hint!r}" if hint else "trimtab list env shows all"
    forms = [*(family.how for family in opened), f"<family>/<task> with {OUTSIDE}=<your module>"]
    return (
        f"unknown environment {id!r}; {nearest}; a task of your own is named "
        f"{', or '.join(forms)} (docs/environments.md)"
    )


def make_raw(id: str, options: Mapping[str, Any], *, render: bool = False) -> RawEnv:
    """Return the bare environment of a task, unwrapped and unchecked.

    Args:
        id: as for :func:`make`.
        options: those of :func:`make`.
        render: whether ``render()`` will be called.

    Raises:
        TrimtabError: if the id or an option is wrong, or it cannot be made.
    """
    family, name, task = _find(id, options)
    values = checked_options(id, task, options)
    try:
        made: Any = family.build(name, render=render, **{key: values[key] for key in task.options})
    except (TrimtabError, OSError):  # callers report a full disk better
        raise
    except (Exception, SystemExit) as error:  # a user's family may raise anything
        raise TrimtabError(why_not_made(id, family, error)) from error
    if not isinstance(made, gymnasium.Env):
        kind = type(made).__name__
        raise TrimtabError(f"{id}: build() of its family returned {kind}; return a gymnasium.Env")
    return made


def declared(id: str, options: Mapping[str, Any]) -> tuple[int, str | None]:
    """Return the horizon and the success key of a task with these options, without making it.

    Raises:
        TrimtabError: if the id or an option is wrong.
    """
    _, _, task = _find(id, options)
    return checked_options(id, task, options)["horizon"] or task.horizon, task.success_key


def _make_task_env(
    id: str, options: Mapping[str, Any], *, render: bool = False
) -> tuple[TaskEnv, Family, str, Task]:
    family, name, task = _find(id, options)
    values = checked_options(id, task, options)
    horizon = values["horizon"] or task.horizon
    raw = make_raw(id, options, render=render)
    try:
        check_limit(id, raw, horizon)
        env = TaskEnv(
            with_flat_spaces(id, raw),
            horizon=horizon,
            success_key=task.success_key,
            sparse=values["reward"] == "sparse",
            terminate_on_success=values["terminate_on_success"],
            render=render,
            id=id,
        )
    except BaseException:
        raw.close()
        raise
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
        id: ``family/task``, one of :func:`list_envs`, or ``gymnasium:id``.
        render: whether ``render()`` will be called; it does not change the episodes.
        observations: ``flat`` for one vector, ``dict`` for a dictionary of its parts
            (``EnvSpec.obs_parts``). With ``dict`` the environment has ``compute_reward`` if the
            reward depends on the goals alone.
        options: ``horizon`` (int, environment steps; None for the task's own), ``reward``
            (``"native"`` or ``"sparse"``), ``terminate_on_success`` (bool), and the task's own.

    Raises:
        TrimtabError: if the id or an option is unknown, an option does not fit the task, or the
            simulator is not installed.
    """
    check_observations(id, observations)
    env = _make_task_env(id, options, render=render)[0]
    return dict_env(env) if observations == "dict" else env


def check_observations(id: str, observations: str) -> None:
    """Check the form of observations that a caller asks for.

    Raises:
        TrimtabError: if it is neither ``"flat"`` nor ``"dict"``.
    """
    if observations not in ("flat", "dict"):
        raise TrimtabError(f"{id}: observations must be flat or dict, got {observations!r}")


def get_spec(id: str, **options: Any) -> EnvSpec:
    """Return the specification of an environment, with its physics and their fingerprint.

    The first call for an id and its options makes the environment. It plays a few seeded steps if
    there is a reference to compare them with, and one step of a user's task. Later calls in the
    same process are free.

    Raises:
        TrimtabError: as :func:`make`.
    """
    _, _, task = _find(id, options)
    changed = changed_options(id, task, options)
    try:
        text = json.dumps(changed, sort_keys=True)
    except TypeError as error:
        raise TrimtabError(
            f"{id}: options must be numbers, texts, true or false, or lists of these ({error})"
        ) from error
    return _spec(id, text)


def own_vector(id: str, **options: Any) -> OwnVector | None:
    """Return the family's own vector environment if it supports the task and these options.

    Raises:
        TrimtabError: as :func:`make`, except that no simulator is imported.
    """
    family, name, task = _find(id, options)
    own, changed = family.vector, changed_options(id, task, options)
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
    """Return the specification, cached by id and changed options."""
    options: dict[str, Any] = json.loads(options_json)
    env, family, name, task = _make_task_env(id, options)
    with contextlib.closing(env):
        if family.source is not None:
            _try_one_step(env, family)
        observation, action = env.observation_space, env.action_space
        assert isinstance(observation, gymnasium.spaces.Box)
        assert isinstance(action, gymnasium.spaces.Box)
        time_step, frame_skip, integrator = _frames(id, family, env.raw)
        spec = EnvSpec(
            id=id,
            family=family.name,
            task=name,
            obs_dim=int(observation.shape[0]),
            obs_parts=dict(env.obs_parts),
            action_dim=int(action.shape[0]),
            action_low=tuple(float(x) for x in action.low),
            action_high=tuple(float(x) for x in action.high),
            control_rate=None if time_step is None else round(1.0 / (time_step * frame_skip), 9),
            horizon=env.horizon,
            success_key=task.success_key,
            score_references=task.score_references,
            tags=task.tags,
            options=options,
            physics={
                **versions(family),
                "timestep": time_step,
                "frame_skip": frame_skip,
                "integrator": integrator,
            },
        )
        known = definition(spec, family)
        name_of_physics = fingerprint(known, family, _reference_key(known, task), env.raw)
    return dataclasses.replace(spec, fingerprint=name_of_physics)


def _try_one_step(env: TaskEnv, family: Family) -> None:
    """Reset and step a user's task once, so that its faults are reported before a run writes files.

    Raises:
        TrimtabError: if ``reset`` or ``step`` raises, or returns a wrong value.
    """
    action = env.action_space
    assert isinstance(action, gymnasium.spaces.Box)
    with _one_line(env.id, family, "reset()"):
        env.reset(seed=0)
    with _one_line(env.id, family, "step()"):
        env.step(((action.low + action.high) / 2).astype(action.low.dtype))


def _frames(id: str, family: Family, raw: RawEnv) -> tuple[float | None, int, str]:
    """Return time step, frame skip and integrator of a task, checked."""
    expected = "(time step in seconds or None, steps of physics per action, integrator's name)"
    with _one_line(id, family, f"frames of its FAMILY, which returns {expected},"):
        answer = step, skip, integrator = family.frames(raw)
        positive = step is None or 0 < float(step) < math.inf
        right = positive and int(skip) == skip >= 1 and isinstance(integrator, str)
    if not right:
        raise TrimtabError(
            f"{id}: frames of its FAMILY, which returns {expected}: it returned {answer}"
        )
    # Keep Python numbers as they are: published definitions contain their exact text.
    step = step if isinstance(step, int | float | None) else float(step)
    return step, int(skip), integrator


def _reference_key(known: Mapping[str, Any], task: Task) -> str:
    """Return the key of the reference trajectory; only the task's own options enter it."""
    own = {key: value for key, value in known["options"].items() if key in task.options}
    return reference_key(known, own)


def confirm(spec: EnvSpec) -> Confirmation:
    """Compare the physics on this machine with the committed reference trajectory.

    Horizon, sparse reward and ``terminate_on_success`` do not change the simulation, so they share
    one reference. The trajectory is played once in each process.

    Raises:
        TrimtabError: as :func:`make`.
    """
    family, _, task = _find(spec.id, spec.options)
    known = definition(spec, family)
    with contextlib.ExitStack() as closing:

        def raw() -> RawEnv:
            env = closing.enter_context(
                contextlib.closing(_make_task_env(spec.id, spec.options)[0])
            )
            # The wrapper of a user's task reports faults that would break the trajectory.
            return env if family.source is not None and family.probe is None else env.raw

        with _one_line(spec.id, family, "an episode"):
            return confirmation(family, _reference_key(known, task), raw)


@contextlib.contextmanager
def _one_line(id: str, family: Family, where: str) -> Iterator[None]:
    """Turn any exception of a user's task into a TrimtabError of one line.

    Exceptions of our own families, and the operating system's errors, pass unchanged.
    """
    try:
        yield
    except (TrimtabError, OSError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if family.source is None:
            raise
        raise TrimtabError(f"{id}: {where} raises {where_raised(error)}") from error
