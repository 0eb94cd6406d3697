"""What the folders of Trimtab hand to one another.

``Batch`` and ``Rollout`` stand between gathering and learning, ``Source`` is whatever can be
sampled, ``PolicySpec`` is the shape of a policy. Everything here is in raw units: normalisation is
part of a policy and of nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.limits import inward
from trimtab.observations import FLAT, RESERVED, Part

__all__ = [
    "Batch", "BatchSpec", "Metrics", "Obs", "Part", "PolicySpec", "Rollout", "RowLog", "Sequences",
    "Source", "Statistics", "Tensor", "TrimtabError",
]  # fmt: skip

Obs = Tensor | Mapping[str, Tensor]
"""Observations of B rows: a flat tensor ``[B, O]``, or named parts ``[B, ...]``.

With a history of K observations each has one more axis, ``[B, K, ...]``, the newest one last.
``trimtab.observations.tree_map`` goes over both kinds.
"""

Metrics = dict[str, float | Tensor]
"""Named scalars of one update, in the order in which they were computed.

Scalar tensors stay on their device until they are logged, so that an update waits for no device.
"""

_EMPTY: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Batch:
    """Transitions as a learner sees them; n-step sums, chunks and time limits are accounted for.

    ``reward`` is the discounted sum over the k rows of the window that were really taken, and
    ``discount`` is ``gamma**k``, or 0 after a true termination (never after a time limit), so that
    a target is always ``reward + discount * value(next_obs)``.
    """

    obs: Obs  # [B, O], or parts
    action: Tensor  # [B, H, A]; the last one that was really taken is repeated after it
    reward: Tensor  # [B]
    next_obs: Obs  # as obs
    discount: Tensor  # [B]
    valid: Tensor  # [B, H] bool: which actions of the window were really taken
    next_action: Tensor | None = None  # [B, H, A], where BatchSpec.next_action asks for it
    mc_return: Tensor | None = None  # [B], of every dataset, and where BatchSpec.mc_return asks
    goal: Tensor | None = None  # [B, G], where BatchSpec.goal asks for it; it is in obs, too
    goal_steps: Tensor | None = None  # [B] int64, beside goal: steps to it; 0: it is the task's own
    sequence: Sequences | None = None  # from obs on, where BatchSpec.sequence asks for it
    cost: Tensor | None = None  # [B], summed as reward is, where BatchSpec.cost asks for it
    aux: Mapping[str, Tensor] = field(default_factory=lambda: _EMPTY)
    """What ``Algorithm.explore`` asked to have back, by name, each ``[B, ...]``.

    DSRL-SAC keeps its latents here, so that ``action`` is what was executed, whatever the method.
    """
    whole: bool = False
    """Whether ``valid`` is known to be true everywhere, without a look at the tensor."""
    fixed: bool = False
    """Whether a captured update will find other numbers here: nothing is to be decided by them."""

    def __len__(self) -> int:
        return int(self.reward.shape[0])


@dataclass(frozen=True)
class Sequences:
    """B stretches of L decisions one after another, each within one episode.

    Where an episode ends sooner, its last row is repeated and ``valid`` is false.
    """

    obs: Obs  # [B, L, O], or parts
    action: Tensor  # [B, L, H, A]
    reward: Tensor  # [B, L]; the sum over each decision's own steps
    valid: Tensor  # [B, L] bool
    step: Tensor  # [B] int64: stored decisions of the episode before the first one
    mc_return: Tensor | None = None  # [B, L], where the batch has it


@dataclass(frozen=True)
class Rollout:
    """What N environments did in T decisions one after another, for on-policy learning.

    Row t + 1 of a column follows row t, except where ``cut`` is true. ``discount`` is gamma, or 0
    after a true termination (never after a time limit), so that a value is always
    ``reward + discount * value(next_obs)``; where an episode was cut, ``next_obs`` is its true last
    observation and not the first of the next one.
    """

    obs: Obs  # [T, N, O], or parts
    action: Tensor  # [T, N, H, A], as executed
    reward: Tensor  # [T, N]
    next_obs: Obs  # as obs
    discount: Tensor  # [T, N]
    cut: Tensor  # [T, N] bool: the episode ended here, for any reason
    aux: Mapping[str, Tensor] = field(default_factory=lambda: _EMPTY)
    """What ``Algorithm.explore`` asked to have back, by name, each ``[T, N, ...]``."""
    cut_rows: Tensor | None = None
    """Where ``cut`` is true, ``[K]`` indices of ``cut.flatten()``, so that nobody searches it."""
    ended_rows: Tensor | None = None
    """Which decisions' episodes ended in this rollout, ``[M]`` indices of ``cut.flatten()``."""

    @property
    def cuts(self) -> Tensor:
        """``cut_rows``; computed from ``cut``, which waits for its device, if not given."""
        return self.cut.flatten().nonzero()[:, 0] if self.cut_rows is None else self.cut_rows

    @property
    def ended(self) -> Tensor:
        """``ended_rows``; computed from ``cut``, which waits for its device, if not given."""
        if self.ended_rows is not None:
            return self.ended_rows
        return self.cut.flip(0).cummax(0).values.flip(0).flatten().nonzero()[:, 0]

    def __len__(self) -> int:
        return int(self.reward.numel())


@dataclass(frozen=True)
class BatchSpec:
    """Extra fields that a method needs in its batches.

    A decision is an action chunk of ``act_steps`` steps, or a single action.

    Attributes:
        n_step: decisions whose rewards are summed before the bootstrap; ``next_obs`` lies behind
            the last of them, ``discount`` counts each of them.
        next_action: fill ``Batch.next_action`` with what was done at ``next_obs``. Decisions whose
            successor was cut off (a time limit, the end of a recording, the newest stored
            decision) are then not drawn; after a true end the last action stands there, which no
            target counts, as ``discount`` is 0.
        mc_return: fill ``Batch.mc_return`` with what is collected from ``obs`` to its episode's
            end, each decision discounted, with nothing bootstrapped. A gathered decision is
            drawn only after its episode has ended.
        history: observations K that a policy reads: those of this decision and of the K - 1 before
            it in its episode, whose first one stands for those that there were not.
        sequence: decisions L of ``Batch.sequence``; 0: none.
        goal: None where there are no goals. Otherwise the share of rows whose desired goal is
            replaced by one that the same episode reached later, drawn uniformly, and whose reward
            is that of the new goal (Andrychowicz et al., "Hindsight Experience Replay", arXiv
            1707.01495, strategy "future"); 0 leaves all goals as they were. It is for single steps:
            ``n_step`` 1, chunks of one action.
        cost: fill ``Batch.cost`` with what each step cost, beside its reward. Only a dataset whose
            episodes have a cost, as an info ``cost``, can give it.
    """

    n_step: int = 1
    next_action: bool = False
    mc_return: bool = False
    history: int = 1
    sequence: int = 0
    goal: float | None = None
    cost: bool = False

    def __post_init__(self) -> None:
        for name, least in (("n_step", 1), ("history", 1), ("sequence", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise TrimtabError(f"{name}={value}: must be a whole number of at least {least}")
        if self.goal is not None and not 0.0 <= self.goal <= 1.0:
            raise TrimtabError(f"goal={self.goal}: the share of relabelled rows is from 0 to 1")
        if self.sequence and self.history > 1:
            raise TrimtabError(
                f"sequence={self.sequence}: its observations have no history; leave out history"
            )
        if self.sequence and self.goal:
            raise TrimtabError(
                f"sequence={self.sequence}: its goals are not relabelled; use goal=0 or none"
            )
        if self.goal is not None and self.n_step > 1:
            raise TrimtabError(f"n_step={self.n_step}: goals are relabelled with n_step=1")


class Source(Protocol):
    """Anything that a learner can draw transitions from."""

    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` transitions."""
        ...


@dataclass(frozen=True, eq=False)
class RowLog(Mapping[str, npt.NDArray[Any]]):
    """The rows of a ring, numbered from the first that was ever written, to save what is new.

    Row i lies at place ``i % rows`` of every array. As a mapping it gives each array's filled
    places ``[size, ...]``. Nothing is copied: what is written into the ring later is seen here.

    Attributes:
        arrays: by name, ``[rows, ...]``, or ``[size, ...]`` where only ``size`` places are filled.
        rows: places of the ring.
        written: how many rows were ever written.
        settled: rows with a lower number keep their values until they are written over.
        cleared: number of the first row after the ring was last emptied, which lies at place 0.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    rows: int
    written: int
    settled: int
    cleared: int = 0

    @property
    def size(self) -> int:
        """How many rows are there."""
        return min(self.written - self.cleared, self.rows)

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
        obs_dim: how many numbers its networks read: a flat observation's, in the environment's raw
            units; with ``parts`` and ``history``, those of all of them.
        horizon: length H of the action chunk that one call returns.
        action_dim: length A of one action.
        action_low: lower limit of each action dimension, raw units, length A. Both limits are kept
            as the nearest float32 numbers inside those given.
        action_high: upper limit of each action dimension, raw units, length A.
        parts: the parts of an observation by name, in order; empty where it is one flat vector.
        history: how many observations it reads, those of the last decisions, the newest last.
            Inputs that are given (``Part.given``) have no history.
        every_tick: whether the history is of the last control ticks, and not of the decisions.
    """

    obs_dim: int
    horizon: int
    action_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    parts: Mapping[str, Part] = field(default_factory=dict, hash=False)
    history: int = 1
    every_tick: bool = False

    def __post_init__(self) -> None:
        least, most = inward(self.action_low, self.action_high)
        object.__setattr__(self, "action_low", tuple(least.tolist()))
        object.__setattr__(self, "action_high", tuple(most.tolist()))
        parts = {n: p if isinstance(p, Part) else Part(**p) for n, p in self.parts.items()}
        object.__setattr__(self, "parts", parts)
        if min(self.obs_dim, self.horizon, self.action_dim, self.history) < 1:
            raise TrimtabError(f"policy spec: sizes must be at least 1, got {self}")
        self._check_parts()
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

    def _check_parts(self) -> None:
        if list(self.parts) == [FLAT]:
            raise TrimtabError("policy spec: obs alone is a flat observation; leave parts out")
        for name in RESERVED & self.parts.keys():
            raise TrimtabError(f"policy spec: a part cannot be called {name!r}; rename it")
        if self.parts:
            observed = [part.size for part in self.parts.values() if part.given is None]
            given = [part.size for part in self.parts.values() if part.given is not None]
            wanted = self.history * sum(observed) + sum(given)
            if wanted != self.obs_dim or not observed:
                raise TrimtabError(
                    f"policy spec: obs_dim is {self.obs_dim}, its parts with a history of "
                    f"{self.history} have {wanted}"
                )
        elif self.obs_dim % self.history:
            raise TrimtabError(
                f"policy spec: obs_dim {self.obs_dim} is no multiple of its history {self.history}"
            )

    @property
    def layout(self) -> Mapping[str, Part]:
        """The parts by name; a flat observation is one part, ``obs``."""
        return self.parts or {FLAT: Part((self.obs_dim // self.history,))}

    @property
    def observed(self) -> Mapping[str, Part]:
        """Those of the parts that the environment gives."""
        return {name: part for name, part in self.layout.items() if part.given is None}

    def with_history(self, length: int) -> PolicySpec:
        """Return the spec of a policy that reads ``length`` observations in place of one."""
        given = sum(part.size for part in self.parts.values() if part.given is not None)
        observed = (self.obs_dim - given) // self.history
        return replace(self, obs_dim=observed * length + given, history=length)

    def with_input(
        self,
        name: str,
        default: float,
        shape: tuple[int, ...] = (1,),
        remembered: str = "",
        choices: tuple[float | str, ...] = (),
    ) -> PolicySpec:
        """Return the spec of a policy that reads a further input, which its user gives.

        Args:
            name: of the part.
            default: value of all its numbers unless told otherwise.
            shape: of one row.
            remembered: see ``Part``; then nobody gives it but what acts.
            choices: see ``Part``.

        Raises:
            TrimtabError: if there is a part of this name.
        """
        if name in self.layout:
            raise TrimtabError(
                f"policy spec: there is a part {name!r} already; choose another name"
            )
        part = Part(shape, given=default, remembered=remembered, choices=choices)
        return replace(self, obs_dim=self.obs_dim + part.size, parts={**self.layout, name: part})

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values; parts and history only where they are in use."""
        values: dict[str, Any] = {
            "obs_dim": self.obs_dim,
            "horizon": self.horizon,
            "action_dim": self.action_dim,
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
        }
        if self.parts:
            values["parts"] = {name: part.to_json() for name, part in self.parts.items()}
        if self.history > 1:
            values["history"] = self.history
        if self.every_tick:
            values["every_tick"] = True
        return values


@dataclass(frozen=True)
class Statistics:
    """Per-dimension statistics of a dataset in raw units; what normalisers are fitted to."""

    obs_mean: Tensor  # [O]
    obs_std: Tensor  # [O]
    obs_min: Tensor  # [O]
    obs_max: Tensor  # [O]
    action_min: Tensor  # [A]
    action_max: Tensor  # [A]
    best_return: float = math.nan
    """Highest undiscounted return of an episode; not a number where nobody has looked."""

    def of_parts(self, entries: Mapping[str, Sequence[int]]) -> Statistics:
        """Return those of observations that are split into parts, one after another.

        Args:
            entries: which numbers of the flat observation each part has.
        """
        order = [entry for part in entries.values() for entry in part]
        names = ("obs_mean", "obs_std", "obs_min", "obs_max")
        return replace(self, **{name: getattr(self, name)[order] for name in names})

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                raise TrimtabError(f"dataset statistics: {name} is not finite; check the dataset")
