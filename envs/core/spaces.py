"""Spaces of bare environments: one vector of numbers each way, or a line that says what to do.

Inside the suite an observation is a flat vector and so is an action. A ``Box`` of another shape and
a ``Dict`` of boxes are laid flat here; what cannot be is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import RawEnv
from trimtab.errors import TrimtabError
from trimtab.limits import inward

__all__ = ["FlatSpaces", "check_limit", "faults_of_spaces", "with_flat_spaces"]


class FlatSpaces(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations and actions are laid flat.

    The entries of a ``Dict`` follow one another in the order of the space (``Dict`` sorts the keys
    of a plain dictionary), each in C order. ``obs_parts`` names them by their keys, unless the
    environment names them itself. All other attributes are those of the environment.

    Args:
        id: what errors name.
        env: bare environment, without :func:`faults_of_spaces`.
    """

    def __init__(self, id: str, env: RawEnv) -> None:
        super().__init__(env)
        self._id = id
        observation, action = env.observation_space, env.action_space
        assert isinstance(action, spaces.Box)
        self._keys = list(observation.spaces) if isinstance(observation, spaces.Dict) else None
        boxes = _boxes(observation)
        low = [np.ravel(box.low) for box in boxes.values()]
        high = [np.ravel(box.high) for box in boxes.values()]
        with quiet():
            self.observation_space = spaces.Box(
                np.concatenate(low).astype(np.float64),
                np.concatenate(high).astype(np.float64),
                dtype=np.float64,
            )
            self.action_space = spaces.Box(
                action.low.ravel(), action.high.ravel(), dtype=np.dtype(action.dtype).type
            )
        self._shapes = {key: box.shape for key, box in boxes.items()}
        self._action_shape = action.shape
        if self._keys is not None and not hasattr(env, "obs_parts"):
            ends = np.cumsum([part.size for part in low]).tolist()
            starts = [0, *ends[:-1]]
            self.obs_parts: Mapping[str, tuple[int, ...]] = {
                key: tuple(range(start, end))
                for key, start, end in zip(boxes, starts, ends, strict=True)
            }

    def __getattr__(self, attribute: str) -> Any:
        """Return what the environment has by that name, such as its simulator's model."""
        if attribute == "env" or attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(self.env, attribute)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode. Returns the flat observation [O] and info."""
        result: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(result, tuple) or len(result) != 2:
            return result  # the check of what reset returns has the words for it
        return self._flat(result[0], "reset()"), result[1]

    def step(self, action: Any) -> Any:
        """Apply ``action`` [A]; return the observation [O] and the rest as it is."""
        result: Any = self.env.step(np.asarray(action).reshape(self._action_shape))
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        return (self._flat(result[0], "step()"), *result[1:])

    def _flat(self, observation: Any, where: str) -> Any:
        if self._keys is None:
            array = np.asarray(observation)
            return array.ravel() if array.shape == self._shapes[""] else array
        if not isinstance(observation, Mapping) or set(observation) != set(self._keys):
            had = ", ".join(map(str, observation)) if isinstance(observation, Mapping) else "none"
            raise TrimtabError(
                f"{self._id}: {where} returned an observation with the keys {had}, but "
                f"observation_space has {', '.join(self._keys)}; make the two the same"
            )
        parts: list[NDArray[Any]] = []
        for key in self._keys:
            part = np.asarray(observation[key])
            if part.shape != self._shapes[key]:
                raise TrimtabError(
                    f"{self._id}: {where} returned {key!r} of shape {part.shape}, but "
                    f"observation_space has {self._shapes[key]}; make the two the same"
                )
            parts.append(part.ravel())
        return np.concatenate(parts)


def _boxes(observation: Any) -> dict[str, spaces.Box]:
    """Return the boxes of a space by their keys; a box alone has the key ``""``."""
    parts: Any = observation.spaces if isinstance(observation, spaces.Dict) else {"": observation}
    return dict(parts)


def with_flat_spaces(id: str, raw: RawEnv) -> RawEnv:
    """Return an environment with flat spaces: itself where it has them.

    Args:
        id: what errors name.
        raw: bare environment.

    Raises:
        TrimtabError: if its spaces cannot be laid flat, or are not finite where they have to be.
    """
    for line in faults_of_spaces(raw):
        raise TrimtabError(f"{id}: {line}")
    flat = all(
        isinstance(space, spaces.Box) and len(space.shape) == 1
        for space in (raw.observation_space, raw.action_space)
    )
    return raw if flat else FlatSpaces(id, raw)


def check_limit(id: str, raw: RawEnv, horizon: int) -> None:
    """Check that no time limit of Gymnasium's cuts episodes before the horizon does.

    Args:
        id: what errors name.
        raw: bare environment, with the wrappers it came with.
        horizon: environment steps of an episode.

    Raises:
        TrimtabError: if one does.
    """
    layer: Any = raw
    while isinstance(layer, gymnasium.Wrapper):
        steps = getattr(layer, "_max_episode_steps", None)
        if isinstance(layer, TimeLimit) and isinstance(steps, int) and steps < horizon:
            raise TrimtabError(
                f"{id}: Gymnasium's TimeLimit around it ends episodes after {steps} steps, inside "
                f"the horizon of {horizon}; make it with gymnasium.make(…, max_episode_steps=-1), "
                f"or give the horizon {steps}"
            )
        layer = layer.env


def faults_of_spaces(raw: RawEnv) -> Iterator[str]:
    """Yield what is wrong with the spaces of a bare environment, each in one line."""
    observation: Any = getattr(raw, "observation_space", None)
    action: Any = getattr(raw, "action_space", None)
    if isinstance(observation, spaces.Dict):
        if not observation.spaces:
            yield "its observation_space is a Dict without entries; give it a Box of numbers"
        for key, space in observation.spaces.items():
            yield from _faults_of_observation_space(space, f"the entry {key!r} of its observation")
    else:
        yield from _faults_of_observation_space(observation, "its observation_space")
    yield from _faults_of_action_space(action)
    parts: Any = getattr(raw, "obs_parts", None)
    if parts is not None and isinstance(observation, spaces.Box):
        yield from _faults_of_parts(parts, math.prod(observation.shape))


def _faults_of_parts(parts: Any, size: int) -> Iterator[str]:
    if not isinstance(parts, Mapping) or not all(
        isinstance(name, str)
        and isinstance(entries, tuple | list | range)
        and len(entries) > 0
        and all(isinstance(entry, int) and 0 <= entry < size for entry in entries)
        for name, entries in parts.items()
    ):
        yield (
            f"its obs_parts are {parts!r}; give a dictionary from names to the entries of the "
            f"observation that they consist of, each from 0 to {size - 1}"
        )


def _faults_of_observation_space(space: Any, what: str) -> Iterator[str]:
    if not isinstance(space, spaces.Box):
        yield (
            f"{what} is {_named(space)}; Trimtab reads a Box of numbers, or a Dict of such: wrap "
            "the environment in gymnasium.wrappers.FlattenObservation, which makes a Box of it, "
            "and register that"
        )
    elif len(space.shape) >= 3 or (space.dtype == np.uint8 and len(space.shape) >= 2):
        yield (
            f"{what} is a picture, {_named(space)}, which the methods do not learn from; observe "
            "states, or features that an encoder of your own computes in a wrapper "
            "(gymnasium.wrappers.TransformObservation)"
        )
    elif math.prod(space.shape) == 0:
        yield f"{what} has no entries, {_named(space)}; observe at least one number"


def _faults_of_action_space(space: Any) -> Iterator[str]:
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        yield (
            f"its action_space is {_named(space)}; Trimtab's policies act in a Box of real numbers "
            "with finite limits: choose a variant of the task with continuous actions, or wrap it "
            "(gymnasium.wrappers.TransformAction)"
        )
    elif math.prod(space.shape) == 0:
        yield f"its action_space has no entries, {_named(space)}; take at least one number"
    else:
        low, high = space.low.ravel(), space.high.ravel()
        least, most = inward(low, high)
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = np.flatnonzero(~(np.isfinite(most - least) & (least < most)))
        if wrong.size:
            place = int(wrong[0])
            yield (
                f"its action_space has the limits {low[place]!s} to {high[place]!s} in entry "
                f"{place}; give finite limits, the lower one first and float32 numbers between "
                "them, such as Box(-1.0, 1.0, (A,)): policies act there"
            )


def _named(space: Any) -> str:
    text = " ".join(str(space).split()) if space is not None else "missing"
    return text if len(text) <= 80 else f"{text[:77]}..."
