"""Options of an environment: what there is for every task, and what values they may have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trimtab.envs.core.spec import NO_HORIZON, Task
from trimtab.errors import TrimtabError

__all__ = ["EVERYWHERE", "LONGEST", "changed_options", "checked_names", "checked_options"]

LONGEST = 2**31 - 1
"""Largest horizon in steps: arrays cannot be as long as every whole number."""
_REWARDS = ("native", "sparse")
_RESERVED = frozenset(
    {"id", "render", "observations"}  # arguments of make that are no options, and of make_vec
    | {"num_envs", "seed", "act_steps", "discount", "device", "episode_seed", "threads"}
)
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"horizon": None, "reward": "native", "terminate_on_success": False}
)
EVERYWHERE = frozenset(_DEFAULTS)
"""Names of the options that every task has."""


def checked_names(options: Mapping[Any, Any]) -> dict[str, Any]:
    """Return options that a user wrote, none of which is an argument of ours.

    Raises:
        TrimtabError: if a name is no text, or one that options cannot have.
    """
    for name in options:
        if not isinstance(name, str) or name in _RESERVED:
            raise TrimtabError(
                f"env_options: {name!r} is no option of an environment; give the argument of its "
                f"constructor another name, as text and none of {', '.join(sorted(_RESERVED))}"
            )
    return dict(options)


def _defaults(task: Task) -> dict[str, Any]:
    return {**_DEFAULTS, **{name: choices[0] for name, choices in task.options.items()}}


def checked_options(id: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options with defaults filled in; the native horizon, when given, is a default.

    Args:
        id: the environment's.
        task: what its family declares.
        options: what a user gave.

    Raises:
        TrimtabError: if an option is unknown, has a wrong value, or is missing.
    """
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
    if horizon is None and task.horizon == NO_HORIZON:
        raise TrimtabError(
            f"{id} says no length of its episodes; add env_options.horizon=<steps>, after which "
            "they are cut"
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


def changed_options(id: str, task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults.

    The arguments are those of :func:`checked_options`.

    Raises:
        TrimtabError: as :func:`checked_options`.
    """
    values, defaults = checked_options(id, task, options), _defaults(task)
    return {key: value for key, value in values.items() if value != defaults[key]}
