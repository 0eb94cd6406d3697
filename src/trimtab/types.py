"""What the folders of Trimtab hand to one another.

``Batch`` and ``Rollout`` stand between gathering and learning, ``Source`` is whatever can be
sampled, ``PolicySpec`` is the shape of a policy. Everything here is in raw units: normalisation is
part of a policy and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trimtab.errors import TrimtabError

__all__ = [
    "Batch", "BatchSpec", "Metrics", "PolicySpec", "Rollout", "RowLog", "Source", "Statistics",
    "Tensor", "TrimtabError",
]  # fmt: skip

Metrics = dict[str, float | Tensor]
"""Named scalars of one update, in the order in which they were computed.

Tensors, of no dimension, stay where they are until they are logged: an update waits for no device.
"""

_EMPTY: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Batch:
    """Transitions as a learner sees them; n-step, chunks and time limits are already in it.

    ``reward`` is the discounted sum over the k rows of the window that were really taken, and
    ``discount`` is ``gamma**k``, or 0 after a true termination (never after a time limit), so that
    a target is always ``reward + discount * value(next_obs)``.
    """

    obs: Tensor  # [B, O]
    action: Tensor  # [B, H, A]; the last one that was really taken is repeated after it
    reward: Tensor  # [B]
    next_obs: Tensor  # [B, O]
    discount: Tensor  # [B]
    valid: Tensor  # [B, H] bool: which actions of the window were really taken
    next_action: Tensor | None = None  # [B, H, A], where BatchSpec.next_action asks for it
    mc_return: Tensor | None = None  # [B], of every dataset, and where BatchSpec.mc_return asks
    aux: Mapping[str, Tensor] = field(default_factory=lambda: _EMPTY)
    """What ``Algorithm.explore`` asked to have back, by name, each ``[B, ...]``."""
    whole: bool = False
    """Whether ``valid`` is known to be true everywhere, without a look at the tensor."""

    def __len__(self) -> int:
        return int(self.reward.shape[0])


@dataclass(frozen=True)
class Rollout:
    """What N environments did in T decisions one after another, for on-policy learning.

    Row t + 1 of a column follows row t, except where ``cut`` is true. ``discount`` is gamma, or 0
    after a true termination (never after a time limit), so that a value is always
    ``reward + discount * value(next_obs)``; where an episode was cut, ``next_obs`` is its true last
    observation and not the first of the next one.
    """

    obs: Tensor  # [T, N, O]
    action: Tensor  # [T, N, H, A], as executed
    reward: Tensor  # [T, N]
    next_obs: Tensor  # [T, N, O]
    discount: Tensor  # [T, N]
    cut: Tensor  # [T, N] bool: the episode ended here, for any reason
    aux: Mapping[str, Tensor] = field(default_factory=lambda: _EMPTY)
    """What ``Algorithm.explore`` asked to have back, by name, each ``[T, N, ...]``."""
    cut_rows: Tensor | None = None
    """Where ``cut`` is true, ``[K]`` indices of ``cut.flatten()``, so that nobody has to look."""

    @property
    def cuts(self) -> Tensor:
        """``cut_rows``; told from ``cut`` where they were not given, which waits for its device."""
        return self.cut.flatten().nonzero()[:, 0] if self.cut_rows is None else self.cut_rows

    def __len__(self) -> int:
        return int(self.reward.numel())


@dataclass(frozen=True)
class BatchSpec:
    """What a method wants of its batches beside the usual.

    A decision is an action chunk of ``act_steps`` steps, or a single action.

    Attributes:
        n_step: decisions whose rewards are summed before the bootstrap; ``next_obs`` lies behind
            the last of them, ``discount`` counts each of them.
        next_action: fill ``Batch.next_action`` with what was done at ``next_obs``. Decisions whose
            successor was cut off (a time limit, the end of a recording, the newest one that is
            stored) are then not drawn; after a true end the last action stands there, which no
            target counts, as ``discount`` is 0.
        mc_return: fill ``Batch.mc_return`` with what is collected from ``obs`` to its episode's
            end, each decision discounted, with nothing bootstrapped. Of what is gathered, decisions
            are drawn once their episode has ended.
    """

    n_step: int = 1
    next_action: bool = False
    mc_return: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.n_step, bool) or not isinstance(self.n_step, int) or self.n_step < 1:
            raise TrimtabError(f"n_step={self.n_step}: must be a whole number of at least 1")


class Source(Protocol):
    """Anything that a learner can draw transitions from."""

    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` transitions."""
        ...


@dataclass(frozen=True, eq=False)
class RowLog(Mapping[str, npt.NDArray[Any]]):
    """The rows of a ring, numbered from the first that was ever written, for who saves what is new.

    Row i lies at place ``i % rows`` of every array. As a mapping it gives each array's filled
    places ``[size, ...]``. Nothing is copied: what is written into the ring later is seen here.

    Attributes:
        arrays: by name, ``[rows, ...]``, or ``[size, ...]`` where only ``size`` places are filled.
        rows: places of the ring.
        written: how many rows were ever written.
        settled: rows with a lower number keep their values until they are written over.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    rows: int
    written: int
    settled: int

    @property
    def size(self) -> int:
        """How many rows are there."""
        return min(self.written, self.rows)

    @property
    def oldest(self) -> int:
        """Number of the oldest row that is there."""
        return self.written - self.size

    def part(self, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
        """Return the rows with numbers from ``start`` to below ``stop``, by name, oldest first."""
        places = np.arange(start, stop) % self.rows
        return {name: array[places] for name, array in self.arrays.items()}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.arrays[name][: self.size]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


@dataclass(frozen=True)
class PolicySpec:
    """Shapes and limits of a policy: what it reads and what it commands.

    Attributes:
        obs_dim: length of the flat observation, in the environment's raw units.
        horizon: length H of the action chunk that one call returns.
        action_dim: length A of one action.
        action_low: lower limit of each action dimension, raw units, length A.
        action_high: upper limit of each action dimension, raw units, length A.
    """

    obs_dim: int
    horizon: int
    action_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "action_low", tuple(float(x) for x in self.action_low))
        object.__setattr__(self, "action_high", tuple(float(x) for x in self.action_high))
        if min(self.obs_dim, self.horizon, self.action_dim) < 1:
            raise TrimtabError(f"policy spec: sizes must be at least 1, got {self}")
        if not len(self.action_low) == len(self.action_high) == self.action_dim:
            raise TrimtabError(
                f"policy spec: action limits have {len(self.action_low)} and "
                f"{len(self.action_high)} entries for {self.action_dim} action dimensions"
            )
        for index, (low, high) in enumerate(zip(self.action_low, self.action_high, strict=True)):
            if not (low < high and math.isfinite(low) and math.isfinite(high)):
                raise TrimtabError(
                    f"policy spec: action dimension {index} has limits {low} and {high}; they must "
                    "be finite, the lower one first"
                )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}


@dataclass(frozen=True)
class Statistics:
    """Per-dimension statistics of a dataset in raw units; what normalisers are fitted to."""

    obs_mean: Tensor  # [O]
    obs_std: Tensor  # [O]
    obs_min: Tensor  # [O]
    obs_max: Tensor  # [O]
    action_min: Tensor  # [A]
    action_max: Tensor  # [A]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not bool(torch.isfinite(value).all()):
                raise TrimtabError(f"dataset statistics: {name} is not finite; check the dataset")
