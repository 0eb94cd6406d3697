"""What is known about an environment without stepping it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "NO_HORIZON",
    "EnvSpec",
    "Family",
    "FloatArray",
    "OpenFamily",
    "OwnVector",
    "RawEnv",
    "Task",
]

FloatArray = NDArray[np.float32]
RawEnv = gymnasium.Env[Any, Any]

NO_HORIZON = 0
"""Horizon of a task that says none; its user has to."""


@dataclass(frozen=True)
class Task:
    """One task of a simulator family, as the family declares it.

    Attributes:
        horizon: length after which an episode is truncated, in environment steps; in an open
            family (:class:`OpenFamily`) also :data:`NO_HORIZON`.
        success_key: key of ``info`` that says whether the task is solved now, or None.
        score_references: named (minimum, maximum) returns for normalised scores.
        tags: words to select tasks by: locomotion, manipulation, navigation, dexterous, control;
            goal (where to is observed, and differs from episode to episode), sparse, mjx,
            one-start (every episode starts in the same state).
        options: settings of this task alone: the values that each may have, its default first.
    """

    horizon: int
    success_key: str | None = None
    score_references: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def _has_processor(device: str) -> bool:
    return device == "cpu"


@dataclass(frozen=True)
class OwnVector:
    """A family's own vector environment, which plays what single environments would, faster.

    Attributes:
        tasks: names of the tasks it plays.
        options: names of the environment options it knows; with another one changed from its
            default, single environments are stepped instead.
        make: makes it: ``make(id, num_envs, *, threads, seed, act_steps, discount, episode_seed,
            options)``, as :func:`trimtab.envs.vector.make_vec` says; with ``device`` as well where
            it is not ``"cpu"``. What it returns is a
            :class:`trimtab.envs.engines.episodes.EpisodeVectorEnv`, or such a one behind tensors.
        devices: where its simulations can be.
        has_device: whether this machine has one of them for its simulations.
    """

    tasks: frozenset[str]
    options: frozenset[str]
    make: Callable[..., gymnasium.vector.VectorEnv[Any, Any, Any]]
    devices: tuple[str, ...] = ("cpu",)
    has_device: Callable[[str], bool] = _has_processor

    def device_for(self, device: str) -> str:
        """Return ``device`` where the simulations can be there on this machine, else ``"cpu"``."""
        return device if device in self.devices and self.has_device(device) else "cpu"


@dataclass(frozen=True)
class Family:
    """A simulator family: the one thing that a family's module has to define, as ``FAMILY``.

    A family declares its tasks here. With a settings file for each task, hundreds of tasks would
    need hundreds of files of one line.

    Attributes:
        name: prefix of the ids and name of the module.
        install: what to give to pip when the simulator is missing.
        packages: distributions whose versions decide the physics.
        tasks: the tasks by name; known without importing the simulator.
        build: makes the bare environment of a task: ``build(task, render=..., **options)`` with
            the task's own options. Its observations are arrays of numbers, or dictionaries of
            such (:mod:`trimtab.envs.core.spaces`), a family of ours never truncates, and
            ``reset(seed=...)`` decides the whole episode. An attribute
            ``obs_parts`` names entries of the observation (see :class:`EnvSpec`), and one
            ``goal_reward(achieved, desired)`` returns the rewards [...] of goals [..., G], where a
            reward follows from the two alone. One ``costly`` that is true says that ``info`` of
            every step has ``cost``, what the step costs beside its reward. Made with
            ``render=True``, its ``render()`` returns a picture [H, W, 3] uint8.
        frames: (time step in seconds, steps of physics per action, integrator's name) of a bare
            environment; None in place of a time step where the task has no clock.
        vector: its own vector environment, where it has one.
        probe: makes of a bare environment the one whose trajectory confirms its physics, where the
            environment's own is computed in float32; None for itself.
        revision: raised when a change of ours makes the same simulator simulate something else.
        source: SHA-256 of the source that defines the tasks, where they are a user's, whose reward
            may be edited in place; None for our own. It is found, and need not be given.
    """

    name: str
    install: str
    packages: tuple[str, ...]
    tasks: Mapping[str, Task]
    build: Callable[..., RawEnv]
    frames: Callable[[RawEnv], tuple[float | None, int, str]]
    vector: OwnVector | None = None
    probe: Callable[[RawEnv], RawEnv] | None = None
    revision: int = 1
    source: str | None = None


@dataclass(frozen=True)
class OpenFamily:
    """A family whose tasks cannot be listed: whatever another registry knows, by its own name.

    A module defines it as ``OPEN``; ids of its tasks are ``name:task``.

    Attributes:
        name: prefix of the ids and name of the module.
        how: how a task of it is named, in a few words for errors.
        find: returns the family of one task, with that task alone: ``find(task, options)``. It
            raises :class:`trimtab.errors.TrimtabError` if there is no such task. Options that a
            user gives are the task's own, unless every task has them.
        nearest: returns the id of the task that a wrong word may have meant, or None.
    """

    name: str
    how: str
    find: Callable[[str, Mapping[str, Any]], Family]
    nearest: Callable[[str], str | None]


@dataclass(frozen=True)
class EnvSpec:
    """Spaces, rates, limits and physics provenance of one environment with its options.

    Attributes:
        id: ``family/task``, or ``family:task`` in an open family.
        family: first part of the id.
        task: second part of the id.
        obs_dim: length of the flat float32 observation.
        obs_parts: the entries of the observation by what they are; all of it is ``observation``
            where a task has no goals. With goals, ``achieved_goal`` and ``desired_goal``.
        action_dim: length of one action.
        action_low: lower limit of each action dimension, raw units.
        action_high: upper limit of each action dimension, raw units.
        control_rate: actions per simulated second (Hz), or None where the task has no clock.
        horizon: length after which an episode is truncated, in environment steps.
        success_key: key of ``info`` that tells success, None where the task has no such notion.
        score_references: named (minimum, maximum) returns; a score without its table's name means
            nothing, so there is no default one.
        tags: words to select tasks by.
        options: the options that differ from the defaults.
        physics: engine and package versions, time step, frame skip, integrator.
        fingerprint: 12 hexadecimal digits that name the physics on every processor; scores of two
            names cannot be compared (:mod:`trimtab.envs.core.fingerprint`).
    """

    id: str
    family: str
    task: str
    obs_dim: int
    obs_parts: Mapping[str, tuple[int, ...]]
    action_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_rate: float | None
    horizon: int
    success_key: str | None
    score_references: Mapping[str, tuple[float, float]]
    tags: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    physics: Mapping[str, str | float | int | None] = field(default_factory=dict)
    fingerprint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values
