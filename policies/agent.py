"""The agent: runs a policy in N environments with its history, memories, noise and inputs.

The evaluator, the collector and the robot use the same class, so that a policy gets the same inputs
wherever it runs. A caller calls ``act`` at each decision, ``rewarded`` after it if rewards are
known, and ``reset`` when episodes end. NumPy is the only library that this module imports.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, Part, count, joined, tree_map
from trimtab.policies.memory import MEMORIES, Memory, NetworkState

__all__ = [
    "NOISE", "PREVIOUS", "RESTART", "WEIGHTS", "Advance", "Agent", "ArrayObs", "Decide",
    "PolicyInputs",
]  # fmt: skip

Array = NDArray[np.float32]

PREVIOUS, WEIGHTS, RESTART = "previous_chunk", "chunk_weights", "restart"
"""Inputs that a robot's mode fills with its plan: the chunk that is being played, from the tick of
the observation on, ``[H, A]`` in raw units; how much each of its actions binds ``[H]``, from 0 to
1; whether the sampler begins with it, 0 or 1. All are 0 where there is no plan."""

NOISE = "noise"
"""Input with which a policy's user fixes its noise: a golden ticket (arXiv 2603.15757)."""

ArrayObs = NDArray[Any] | Mapping[str, NDArray[Any]]
"""Observations of N rows: ``[N, O]``, or named parts ``[N, ...]``."""

Decide = Callable[[ArrayObs, Array], Array]
"""``(observation, noise [N, *noise_shape]) -> action [N, H, A]``, all in raw units.

The observation includes the history and all inputs.
"""

Advance = Callable[[ArrayObs, Array], Mapping[str, Array]]
"""``(observation, noise) -> next value of each part that the policy hands on``, by name."""


@dataclass(frozen=True)
class PolicyInputs:
    """The inputs of a policy at each decision.

    Attributes:
        noise_shape: shape of the noise of one row.
        parts: named parts of the observation; empty if it is one flat vector.
        history: number of observations that the policy reads, the current one included.
        every_tick: whether they are those of the last control ticks, and not of the decisions.
        advance: what the policy hands on to its next decision; None where that is nothing. It is a
            function of the same inputs as the action.
    """

    noise_shape: tuple[int, ...] = (0,)
    parts: Mapping[str, Part] = field(default_factory=dict)
    history: int = 1
    advance: Advance | None = field(default=None, compare=False)
    every_tick: bool = False

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the parts that the environment must provide; empty if it is one flat vector."""
        names = tuple(name for name, part in self.parts.items() if part.given is None)
        return () if names == (FLAT,) else names

    def needs_ticks(self, act_steps: int) -> bool:
        """Return whether it reads what is seen within chunks of ``act_steps`` actions."""
        return self.every_tick and self.history > 1 and act_steps > 1

    def check_whole_chunks(self, act_steps: int) -> None:
        """Check that the policy can be played without being shown what is seen within chunks.

        Raises:
            TrimtabError: as :meth:`needs_ticks` says.
        """
        if self.needs_ticks(act_steps):
            raise TrimtabError(
                f"the policy reads the observations of the last {self.history} control ticks, and "
                f"here it would see one of each {act_steps}; play it by ticks: load_policy(…) on a "
                "robot, or trimtab evaluate"
            )

    def values(self, chosen: Mapping[str, Any]) -> dict[str, Array]:
        """Return the value of each input for one row: the user's, or else its default.

        For an input that a memory fills, it is the value at the start of an episode; for one with
        choices, the number of the choice. ``noise`` may be chosen, and is no input of a graph.

        Raises:
            TrimtabError: if a name is unknown, or a value has another shape or is not finite.
        """
        given = {name: part for name, part in self.parts.items() if part.given is not None}
        choosable = [
            name
            for name, part in given.items()
            if not part.remembered or MEMORIES[part.remembered].chosen
        ]
        choosable += [NOISE] if math.prod(self.noise_shape) else []
        for name in chosen:
            if name not in choosable:
                known = f"it has {', '.join(choosable)}" if choosable else "it has none"
                raise TrimtabError(f"the policy has no input {name!r}; {known}")
        self.fixed_noise(chosen)
        return {name: _input(name, part, chosen) for name, part in given.items()}

    def fixed_noise(self, chosen: Mapping[str, Any]) -> Array | None:
        """Return the noise of one row that the user has fixed; None if it is drawn.

        Raises:
            TrimtabError: if it has another shape, or is not finite.
        """
        given = chosen.get(NOISE)
        if given is None:
            return None
        noise = _input(NOISE, Part(self.noise_shape, given=0.0), {NOISE: given})
        if np.shape(given) != self.noise_shape:
            raise TrimtabError(
                f"input {NOISE}: has shape {np.shape(given)}; the policy's is {self.noise_shape}"
            )
        return noise

    def memories(self, rows: int) -> dict[str, Memory]:
        """Return a new memory for N rows for each part that asks for one, by name."""
        return {
            name: MEMORIES[part.remembered](rows, part)
            for name, part in self.parts.items()
            if part.remembered
        }


def _input(name: str, part: Part, chosen: Mapping[str, Any]) -> Array:
    if part.choices and name in chosen:
        chosen = {name: _number_of(name, part, chosen[name])}
    try:
        given = np.asarray(chosen.get(name, part.given))
        if given.dtype.kind not in "iuf":  # numpy would parse text as a number, and true as 1
            raise TypeError(given.dtype)
        with np.errstate(over="ignore"):  # too large values become infinite, which is refused below
            value: Array = np.array(np.broadcast_to(given.astype(np.float32), part.shape))
    except (OverflowError, TypeError, ValueError) as error:
        raise TrimtabError(
            f"input {name}: give a number, or numbers of shape {part.shape}"
        ) from error
    if not np.isfinite(value).all():
        raise TrimtabError(f"input {name}: must be finite; give another value")
    return value


def _number_of(name: str, part: Part, value: Any) -> int:
    """Return the number of a choice."""
    try:
        plain = np.asarray(value).tolist()
    except ValueError:  # rows of several lengths
        plain = value
    (told,) = plain if isinstance(plain, list) and len(plain) == 1 else (plain,)
    if isinstance(told, bool) or told not in part.choices:
        known = ", ".join(map(str, part.choices))
        raise TrimtabError(
            f"input {name}: {str(told):.60} is no choice of the policy; take {known}"
        )
    return part.choices.index(told)


class Agent:
    """Runs a policy in N environments side by side.

    The history of a row holds the observations of its last decisions, or of its last ticks where
    the policy reads those, the newest last; it starts filled with the first one of an episode.
    Memories (``memory.py``) also start afresh with every episode.

    Args:
        decide: the policy.
        rows: number N of environments.
        policy_inputs: the inputs of the policy.
        act_steps: number of actions that are executed of each chunk.
        deterministic: whether the noise is zero instead of sampled, where it is not fixed.
        inputs: values of inputs that differ from their defaults; ``noise``, of one row, fixes it.

    Raises:
        TrimtabError: if an input is unknown or has a wrong value.
    """

    def __init__(
        self,
        decide: Decide,
        rows: int,
        policy_inputs: PolicyInputs,
        *,
        act_steps: int = 1,
        deterministic: bool = False,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self.decide, self.rows, self.policy_inputs = decide, rows, policy_inputs
        self.act_steps, self.deterministic = act_steps, deterministic
        self._chosen: dict[str, Any] = {}
        self._memories = policy_inputs.memories(rows)
        self.set_inputs(inputs or {})
        self._begin_memories(slice(None))
        self._noise: Array = np.zeros((rows, *policy_inputs.noise_shape), np.float32)
        self._read: tuple[ArrayObs, Array] | None = None  # at the last decision
        self._streams: list[np.random.Generator | None] = [None] * rows
        self._at_start = np.ones(rows, np.bool_)  # rows that have not decided in this episode
        self._history: Any = None  # [N, K, ...] of each part
        # Actions of the current chunk that are still to be executed.
        self._pending: list[list[Array]] = [[] for _ in range(rows)]

    def set_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Change the values of some inputs; the others keep theirs.

        The new start value of a memory applies from the next episode on. ``noise`` is that of every
        decision from now on; None draws it again.

        Raises:
            TrimtabError: if an input is unknown or has a wrong value.
        """
        chosen = {**self._chosen, **copy.deepcopy(dict(inputs))}  # the caller may write to its own
        self._inputs = self.policy_inputs.values(chosen)
        self._fixed = self.policy_inputs.fixed_noise(chosen)
        self._chosen = chosen

    def draw_noise(self, count: int, row: int = 0) -> Array:
        """Return the next noise of a row, ``[count, *noise_shape]``: fixed, zeros or drawn.

        Raises:
            TrimtabError: if the row has no seed yet.
        """
        shape = (count, *self.policy_inputs.noise_shape)
        if self._fixed is not None:
            return np.broadcast_to(self._fixed, shape).copy()
        if self.deterministic:
            return np.zeros(shape, np.float32)
        stream = self._streams[row]
        if stream is None:
            raise TrimtabError("the agent's noise has no seed; call reset with seeds first")
        return stream.standard_normal(shape, dtype=np.float32)

    def reset(self, rows: Iterable[int] | None = None, seeds: Sequence[int] | None = None) -> None:
        """Begin a new episode: clear history, memories and pending actions.

        Args:
            rows: indices of the environments; None: all.
            seeds: a seed of the noise for each of them; None: the noise streams continue.
        """
        chosen = list(range(self.rows) if rows is None else rows)
        self._at_start[chosen] = True
        self._begin_memories(chosen)
        for place, row in enumerate(chosen):
            self._pending[row] = []
            if seeds is not None:
                self._streams[row] = np.random.Generator(np.random.Philox(seeds[place]))

    def act(self, obs: ArrayObs, where: NDArray[np.bool_] | None = None) -> Array:
        """Return the action chunks ``[N, act_steps, A]`` to execute.

        Args:
            obs: current observations, ``[N, O]`` or named parts.
            where: ``[N]`` mask of the rows that decide; None: all. The others draw no noise, and
                their chunks mean nothing.

        Raises:
            TrimtabError: as ``PolicyInputs.check_whole_chunks``.
        """
        self.policy_inputs.check_whole_chunks(self.act_steps)
        return self._act(obs, where)

    def _act(self, obs: ArrayObs, where: NDArray[np.bool_] | None) -> Array:
        chunk = self.decide(*self.read(obs, where))[:, : self.act_steps]
        self.decided(obs, chunk, where)
        return chunk

    def observe(self, obs: ArrayObs, where: NDArray[np.bool_] | None = None) -> None:
        """Show what is observed at a tick without a decision.

        Args:
            obs: current observations.
            where: ``[N]`` mask of the rows that do not decide; None: all.
        """
        if self.policy_inputs.every_tick:
            self._append_history(obs, where)

    def read(self, obs: ArrayObs, where: NDArray[np.bool_] | None = None) -> tuple[ArrayObs, Array]:
        """Return what the policy reads at a decision: the observation with all inputs, the noise.

        It is the first half of :meth:`act`, for callers whose policy answers later; call
        :meth:`decided` with the answer.

        Args:
            obs: current observations, ``[N, O]`` or named parts.
            where: as of :meth:`act`.
        """
        deciding = range(self.rows) if where is None else np.flatnonzero(where).tolist()
        for row in deciding:
            self._noise[row] = self.draw_noise(1, row)[0]
        read = self._append_history(obs, where)
        if self._inputs:
            inputs = {
                name: np.repeat(value[None], self.rows, axis=0)
                for name, value in self._inputs.items()
                if name not in self._memories
            }
            memories = {name: memory.read() for name, memory in self._memories.items()}
            read = joined(read, **inputs, **memories)
        if self.policy_inputs.advance is not None:
            self._read = read, self._noise.copy()
        return read, self._noise

    def decided(self, obs: ArrayObs, chunk: Array, where: NDArray[np.bool_] | None = None) -> None:
        """Tell the memories of a decision.

        Args:
            obs: what was observed at it, as :meth:`read` was given.
            chunk: what is executed of it, ``[N, act_steps, A]``.
            where: as of :meth:`read`.
        """
        if self._memories:
            rows = np.ones(self.rows, np.bool_) if where is None else where
            for memory in self._memories.values():
                memory.decided(self._vector(obs), chunk, rows)
            if self.policy_inputs.advance is not None and self._read is not None:
                for name, state in self.policy_inputs.advance(*self._read).items():
                    kept = self._memories[name]
                    assert isinstance(kept, NetworkState)
                    kept.keep(state, rows)

    def with_memories(self, obs: ArrayObs) -> ArrayObs:
        """Return an observation with what is remembered now, as the next decision would read it."""
        return joined(obs, **{name: memory.read() for name, memory in self._memories.items()})

    def rewarded(self, reward: NDArray[Any]) -> None:
        """Pass the rewards of the last actions to the memories; call it before ``reset``.

        Args:
            reward: ``[N]``; the values of rows that do not act mean nothing.
        """
        for memory in self._memories.values():
            memory.rewarded(reward)

    def _begin_memories(self, rows: Any) -> None:
        for name, memory in self._memories.items():
            memory.begin(rows, self._inputs[name])

    def _vector(self, obs: ArrayObs) -> Array:
        """Return the observation flattened to ``[N, O]``, its parts in the policy's order."""
        parts = [obs[n] for n in self.policy_inputs.observed] if isinstance(obs, Mapping) else [obs]
        flat = [part.reshape(self.rows, -1) for part in parts]
        vector: Array = np.concatenate(flat, axis=1).astype(np.float32)
        return vector

    def _append_history(self, obs: ArrayObs, where: NDArray[np.bool_] | None = None) -> ArrayObs:
        """Append observations to the history, and return it, ``[N, K, ...]``.

        Without a history the observations are returned as they are.

        Args:
            obs: current observations.
            where: ``[N]`` mask of the rows that decide; None: all.
        """
        length = self.policy_inputs.history
        if length == 1:
            return obs
        if self._history is None:
            self._history = tree_map(lambda now: np.repeat(now[:, None], length, axis=1), obs)
        deciding = np.ones(self.rows, np.bool_) if where is None else where
        first, later = deciding & self._at_start, deciding & ~self._at_start

        def remember(past: NDArray[Any], now: NDArray[Any]) -> NDArray[Any]:
            past[later, :-1] = past[later, 1:]
            past[later, -1] = now[later]
            past[first] = now[first][:, None]
            return past.copy()

        self._at_start[deciding] = False
        found: ArrayObs = tree_map(remember, self._history, obs)
        return found

    def step(self, obs: ArrayObs) -> Array:
        """Return the action ``[N, A]`` for one control tick of a robot.

        A row without pending actions decides on a new chunk. Its ``act_steps`` actions are executed
        open loop, one a tick.
        """
        if count(obs) != self.rows:
            raise TrimtabError(f"the agent has {self.rows} rows, got observations of {count(obs)}")
        due = np.array([not left for left in self._pending])
        if not due.all():
            self.observe(obs, ~due)
        if due.any():
            chunks = self._act(obs, due)
            for row in np.flatnonzero(due):
                self._pending[row] = list(chunks[row])
        return np.stack([left.pop(0) for left in self._pending])

    def state_dict(self) -> dict[str, Any]:
        """Return the history and the memories, for checkpoints of a collector.

        A collector needs no more: the learner draws its own noise, its policy remembers a state at
        most, and the collector executes whole chunks.
        """
        past = None if self._history is None else tree_map(np.copy, self._history)
        found = {"past": past, "fresh": self._at_start.copy()}
        kept = {name: memory.values.copy() for name, memory in self._memories.items()}
        return {**found, "memories": kept} if kept else found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        past = state["past"]
        self._history = None if past is None else tree_map(np.copy, past)
        self._at_start = np.asarray(state["fresh"], np.bool_).copy()
        for name, memory in self._memories.items():
            memory.values[:] = state["memories"][name]
