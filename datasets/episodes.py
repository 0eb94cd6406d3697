"""The one in-memory schema of offline data: episodes of T steps with T+1 observations.

Every reader of a file format returns this schema, and every learner reads it. Units are raw:
nothing is normalised. Termination and truncation are kept apart. The true last observation is
stored; if a file does not have it, ``Episode.last_observed`` says so.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from trimtab.datasets.precision import Rounding, rounding_of
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtab.types import Statistics, Tensor

__all__ = [
    "COST", "ContentHash", "Dataset", "Episode", "EpisodesOnAccess", "check_episode",
    "check_limits", "validate",
]  # fmt: skip

COST = "cost"
"""Name among an episode's infos of what each step cost, where its task has costs."""
_SUCCESS_KEYS = ("success", "is_success")
_ADVICE = "make the dataset again or repair the file"


def _frozen(value: Any, dtype: npt.DTypeLike | None, name: str) -> npt.NDArray[Any]:
    """Return a contiguous read-only view, so that a content hash stays true."""
    try:
        array = np.ascontiguousarray(value, dtype=dtype).view()
    except (TypeError, ValueError) as error:
        raise TrimtabError(f"episode: key '{name}' is not an array of numbers ({error})") from error
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of T steps. Arrays are converted to these types and made read-only.

    Attributes:
        observations: ``[T+1, O]`` float32, raw units; the last one is the true final observation.
        actions: ``[T, A]`` float32, raw units.
        rewards: ``[T]`` float32.
        terminations: ``[T]`` bool, true where the task itself ended (value 0 afterwards).
        truncations: ``[T]`` bool, true where only the clock ran out.
        infos: further arrays ``[T, ...]`` by name, for example ``success`` (bool).
        seed: seed that the episode's reset was given, or None where unknown.
        last_observed: whether the last observation was recorded. If it was not, and the task did
            not end there, the observation before stands in its place. The last step can then be
            cloned, but no value can be bootstrapped from its next observation.
        roundings: how far the conversion to float32 rounded ``observations`` and ``actions``;
            without those that were given in a type that float32 holds exactly.
    """

    observations: npt.NDArray[np.float32]
    actions: npt.NDArray[np.float32]
    rewards: npt.NDArray[np.float32]
    terminations: npt.NDArray[np.bool_]
    truncations: npt.NDArray[np.bool_]
    infos: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    seed: int | None = None
    last_observed: bool = True
    roundings: Mapping[str, Rounding] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("observations", "actions", "rewards")}
        for name, array in given.items():
            object.__setattr__(self, name, _frozen(array, np.float32, name))
        roundings = {name: rounding_of(array, getattr(self, name)) for name, array in given.items()}
        found = {name: rounding for name, rounding in roundings.items() if rounding is not None}
        object.__setattr__(self, "roundings", found)
        for name in ("terminations", "truncations"):
            object.__setattr__(self, name, _frozen(getattr(self, name), np.bool_, name))
        infos = {name: _frozen(self.infos[name], None, name) for name in sorted(self.infos)}
        object.__setattr__(self, "infos", infos)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def num_transitions(self) -> int:
        """Number of steps with a known next observation: T, or T - 1 without ``last_observed``."""
        return len(self) - (not self.last_observed)

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the rewards."""
        return float(self.rewards.sum(dtype=np.float64))

    @property
    def success(self) -> bool | None:
        """Whether any step succeeded; None where success was not recorded."""
        for key in _SUCCESS_KEYS:
            if key in self.infos:
                return bool(np.any(self.infos[key]))
        return None

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return every array by its stored name, infos as ``infos/<name>``, in a fixed order."""
        core = {
            "observations": self.observations,
            "actions": self.actions,
            "rewards": self.rewards,
            "terminations": self.terminations,
            "truncations": self.truncations,
        }
        return {**core, **{f"infos/{name}": array for name, array in self.infos.items()}}


class ContentHash:
    """Computes a dataset's content hash, one episode after another.

    Args:
        id: id of the dataset.
        env: id of its environment.
        env_options: options of its environment.
        action_low: lower limits of its actions.
        action_high: upper limits of its actions.
    """

    def __init__(
        self,
        id: str,
        env: str,
        env_options: Mapping[str, Any],
        action_low: Sequence[float],
        action_high: Sequence[float],
    ) -> None:
        head = [id, env, dict(env_options), list(action_low), list(action_high)]
        self._digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())

    def add(self, episode: Episode) -> None:
        """Add the next episode to the hash."""
        self._digest.update(f"episode seed {episode.seed}".encode())
        if not episode.last_observed:
            self._digest.update(b"last observation not recorded")
        for name, array in episode.arrays().items():
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            self._digest.update(f"{name} {little.dtype.str} {little.shape}".encode())
            self._digest.update(little.tobytes())

    def hexdigest(self) -> str:
        """Return the hash over all episodes so far."""
        return self._digest.hexdigest()


class EpisodesOnAccess(Sequence[Episode], ABC):
    """Episodes that are built, or read, each time they are asked for."""

    @abstractmethod
    def episode(self, number: int) -> Episode:
        """Return the episode with this number, from 0 to the length less 1."""

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | Sequence[Episode]:
        """Return an episode, or a tuple of them."""
        numbers = range(len(self))[index]
        return (
            self.episode(numbers) if isinstance(numbers, int) else tuple(map(self.episode, numbers))
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """Episodes of one environment, with what is needed to use and to recreate them.

    Attributes:
        id: name of the form ``namespace/name-v0``.
        env: id of the environment.
        env_options: non-default options that the environment was made with (JSON values).
        episodes: the data. A list becomes a tuple; any other sequence may read an episode when it
            is asked for.
        action_low: lower limit of each action dimension, raw units, length A.
        action_high: upper limit of each action dimension, raw units, length A.
        control_rate: actions per second (Hz), or None where unknown.
        recipe: how the dataset was made (JSON values).
        fingerprint: physics fingerprint of the environment, or None where unknown.
    """

    id: str
    env: str
    env_options: Mapping[str, Any]
    episodes: Sequence[Episode]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_rate: float | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.episodes, list):
            object.__setattr__(self, "episodes", tuple(self.episodes))
        object.__setattr__(self, "action_low", tuple(float(x) for x in self.action_low))
        object.__setattr__(self, "action_high", tuple(float(x) for x in self.action_high))

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def num_steps(self) -> int:
        """Number of transitions."""
        return sum(len(episode) for episode in self.episodes)

    @property
    def obs_dim(self) -> int:
        """Length O of an observation."""
        return int(self.episodes[0].observations.shape[1])

    @property
    def action_dim(self) -> int:
        """Length A of an action."""
        return int(self.episodes[0].actions.shape[1])

    @cached_property
    def only_reward(self) -> float | None:
        """The reward of every step if all are equal, such as 0 where none was recorded; or None."""
        first = float(self.episodes[0].rewards[0])
        varied = any((episode.rewards != first).any() for episode in self.episodes)
        return None if varied else first

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over names, seeds and arrays in order; the file format does not change it."""
        digest = ContentHash(self.id, self.env, self.env_options, self.action_low, self.action_high)
        for episode in self.episodes:
            digest.add(episode)
        return digest.hexdigest()

    def statistics(self, *, transitions_only: bool = False) -> Statistics:
        """Return per-dimension statistics over every recorded observation and every action.

        Means and deviations are accumulated in float64 and returned as float32. The deviation is
        the population's (divided by the count), and 0 for a dimension that never changes.

        Args:
            transitions_only: count only observations that a transition begins with, and so leave
                out the last one of each episode.

        Raises:
            TrimtabError: if the data holds NaN or infinity, or no observation is left to count.
        """
        # Not at the top: the processes that read external files use this module without torch.
        import torch

        from trimtab.types import Statistics

        observations = [
            rows
            for episode in self.episodes
            if len(rows := episode.observations[: episode.num_transitions + (not transitions_only)])
        ]
        if not observations:
            raise TrimtabError(
                f"dataset {self.id}: none of its steps has a recorded next observation, so that no "
                "value can be learned from it; clone it instead"
            )
        actions = [episode.actions for episode in self.episodes]
        count = sum(len(rows) for rows in observations)
        mean = np.sum([rows.sum(0, dtype=np.float64) for rows in observations], axis=0) / count
        squares = np.sum([((rows - mean) ** 2).sum(0) for rows in observations], axis=0) / count

        def tensor(value: Any) -> Tensor:
            return torch.from_numpy(np.asarray(value, dtype=np.float32))

        return Statistics(
            obs_mean=tensor(mean),
            obs_std=tensor(np.sqrt(squares)),
            obs_min=tensor(np.min([rows.min(0) for rows in observations], axis=0)),
            obs_max=tensor(np.max([rows.max(0) for rows in observations], axis=0)),
            action_min=tensor(np.min([rows.min(0) for rows in actions], axis=0)),
            action_max=tensor(np.max([rows.max(0) for rows in actions], axis=0)),
            best_return=max(episode.total_reward for episode in self.episodes),
        )


def validate(dataset: Dataset, where: str) -> None:
    """Check that a dataset has episodes, right shapes, finite values and fitting action limits.

    Args:
        dataset: what is checked.
        where: path or name of the dataset; the error message begins with it.

    Raises:
        TrimtabError: if there is no episode, an episode is empty, a shape is wrong or differs
            between episodes, a value is NaN or infinite, or the action limits do not fit. The
            message names the episode and the key.
    """
    if not dataset.episodes:
        raise TrimtabError(f"{where}: the dataset has no episodes; {_ADVICE}")
    dims: tuple[int, int] | None = None
    for index, episode in enumerate(dataset.episodes):
        dims = check_episode(episode, f"{where}: episode {index}, key", dims)
    assert dims is not None
    check_limits(dataset.action_low, dataset.action_high, dims[1], where)


def check_episode(episode: Episode, place: str, dims: tuple[int, int] | None) -> tuple[int, int]:
    """Check one episode's shapes and finiteness; return its (O, A).

    Args:
        episode: what is checked.
        place: text that the error message begins with.
        dims: (O, A) of the episodes before, or None for the first.

    Raises:
        TrimtabError: if a shape is wrong or a value is not a finite number. The message names the
            key.
    """
    steps = episode.actions.shape[0] if episode.actions.ndim == 2 else -1
    if steps < 1 or episode.actions.shape[1] < 1:
        raise TrimtabError(
            f"{place} 'actions': shape {episode.actions.shape} is not (T, A) with T and A "
            f"at least 1; {_ADVICE}"
        )
    if dims is None:
        obs_dim = episode.observations.shape[1] if episode.observations.ndim == 2 else -1
        dims = obs_dim, episode.actions.shape[1]
    if dims[0] < 1:
        raise TrimtabError(
            f"{place} 'observations': shape {episode.observations.shape} is not "
            f"(T+1, O) with O at least 1; {_ADVICE}"
        )
    expected: dict[str, tuple[int, ...]] = {
        "observations": (steps + 1, dims[0]),
        "actions": (steps, dims[1]),
        "rewards": (steps,),
        "terminations": (steps,),
        "truncations": (steps,),
    }
    for name, array in episode.arrays().items():
        wanted = expected.get(name, (steps, *array.shape[1:]))
        if array.shape != wanted:
            raise TrimtabError(
                f"{place} '{name}': shape {array.shape}, expected {wanted}; {_ADVICE}"
            )
        if array.dtype.kind not in "biuf":
            raise TrimtabError(f"{place} '{name}': {array.dtype} is not a number; {_ADVICE}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise TrimtabError(f"{place} '{name}': NaN or infinity in it; {_ADVICE}")
    return dims


def check_limits(low: Sequence[float], high: Sequence[float], action_dim: int, where: str) -> None:
    """Check action limits against the length A of an action.

    Args:
        low: lower limits, raw units.
        high: upper limits, raw units.
        action_dim: length A of an action.
        where: path or name of the dataset; the error message begins with it.

    Raises:
        TrimtabError: if their number is not A, a limit is NaN, or a lower limit exceeds its upper
            limit.
    """
    if not len(low) == len(high) == action_dim:
        raise TrimtabError(
            f"{where}: action limits have {len(low)} and {len(high)} entries for {action_dim} "
            f"action dimensions; {_ADVICE}"
        )
    limits = np.array([low, high])
    if np.isnan(limits).any() or (limits[0] > limits[1]).any():
        raise TrimtabError(f"{where}: an action limit is NaN or low exceeds high; {_ADVICE}")
