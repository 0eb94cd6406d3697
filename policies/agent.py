"""What acts in an environment: history, memory, noise, inputs and the chunk that is being played.

One object for the evaluator, the collector and the robot, so that a policy sees the same of its
past wherever it acts. It needs numpy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, Part, count, joined, tree_map
from trimtab.policies.memory import MEMORIES, Memory

__all__ = ["Agent", "ArrayObs", "Decide", "Reading"]

Array = NDArray[np.float32]

ArrayObs = NDArray[Any] | Mapping[str, NDArray[Any]]
"""Observations of N rows: ``[N, O]``, or named parts ``[N, ...]``."""

Decide = Callable[[ArrayObs, Array], Array]
"""``(observation, noise [N, *noise_shape]) -> action [N, H, A]``, all raw, on any backend.

The observation has its history, and all inputs.
"""


@dataclass(frozen=True)
class Reading:
    """What a policy reads at each decision.

    Attributes:
        noise_shape: shape of one row's noise.
        parts: parts of its observation by name; empty where it is flat.
        history: observations that it reads, those of the last decisions.
    """

    noise_shape: tuple[int, ...] = (0,)
    parts: Mapping[str, Part] = field(default_factory=dict)
    history: int = 1

    @property
    def observed(self) -> tuple[str, ...]:
        """Names of the parts that the environment has to give; none where it gives one vector."""
        names = tuple(name for name, part in self.parts.items() if part.given is None)
        return () if names == (FLAT,) else names

    def inputs(self, chosen: Mapping[str, Any]) -> dict[str, Array]:
        """Return each input of one row: what is chosen, or its default.

        Of what is remembered it is what stands there as an episode begins.

        Raises:
            TrimtabError: if an input is unknown, or has another shape or no finite numbers.
        """
        given = {name: part for name, part in self.parts.items() if part.given is not None}
        free = [
            name
            for name, part in given.items()
            if not part.remembered or MEMORIES[part.remembered].chosen
        ]
        for name in chosen:
            if name not in free:
                known = f"it has {', '.join(free)}" if free else "it has none"
                raise TrimtabError(f"the policy has no input {name!r}; {known}")
        return {name: _input(name, part, chosen) for name, part in given.items()}

    def memories(self, rows: int) -> dict[str, Memory]:
        """Return what N rows remember, by the names of the parts that ask for it."""
        return {
            name: MEMORIES[part.remembered](rows, part)
            for name, part in self.parts.items()
            if part.remembered
        }


def _input(name: str, part: Part, chosen: Mapping[str, Any]) -> Array:
    try:
        given = np.asarray(chosen.get(name, part.given))
        if given.dtype.kind not in "biuf":  # a text is no number, though numpy would read it
            raise TypeError(given.dtype)
        with np.errstate(over="ignore"):  # it is infinite then
            value: Array = np.array(np.broadcast_to(given.astype(np.float32), part.shape))
    except (OverflowError, TypeError, ValueError) as error:
        raise TrimtabError(
            f"input {name}: give a number, or numbers of shape {part.shape}"
        ) from error
    if not np.isfinite(value).all():
        raise TrimtabError(f"input {name}: is not finite; give another value")
    return value


class Agent:
    """Acts in N environments side by side.

    The history of a row is the observations of its last decisions, the newest last; at an episode's
    start its first observation stands for those before it. What a policy wants remembered besides
    (``memory.py``) begins anew with every episode, too.

    Args:
        decide: the policy.
        rows: number N of environments.
        reading: what the policy reads.
        act_steps: actions played of each chunk.
        deterministic: zero noise instead of sampled noise.
        inputs: values of inputs that differ from their defaults.

    Raises:
        TrimtabError: if an input is unknown or does not fit.
    """

    def __init__(
        self,
        decide: Decide,
        rows: int,
        reading: Reading,
        *,
        act_steps: int = 1,
        deterministic: bool = False,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self.decide, self.rows, self.reading = decide, rows, reading
        self.act_steps, self.deterministic = act_steps, deterministic
        self._chosen: dict[str, Any] = {}
        self._memories = reading.memories(rows)
        self.choose(inputs or {})
        self._remember_anew(slice(None))
        self._noise: Array = np.zeros((rows, *reading.noise_shape), np.float32)
        self._streams: list[np.random.Generator | None] = [None] * rows
        self._fresh = np.ones(rows, np.bool_)  # rows whose episode has had no decision
        self._past: Any = None  # [N, K, ...] of each part
        self._chunks: list[list[Array]] = [[] for _ in range(rows)]  # what is left to play

    def choose(self, inputs: Mapping[str, Any]) -> None:
        """Set inputs from now on; those that are not named keep their values.

        What is remembered along an episode has its new start from the next one on.

        Raises:
            TrimtabError: if an input is unknown or does not fit.
        """
        chosen = {**self._chosen, **inputs}
        self._inputs = self.reading.inputs(chosen)
        self._chosen = chosen

    def draw(self, count: int, row: int = 0) -> Array:
        """Return the next noise of a row, ``[count, *noise_shape]``: normal, or zeros.

        Raises:
            TrimtabError: if the row has no seed yet.
        """
        shape = (count, *self.reading.noise_shape)
        if self.deterministic:
            return np.zeros(shape, np.float32)
        stream = self._streams[row]
        if stream is None:
            raise TrimtabError("the agent's noise has no seed; call reset with seeds first")
        return stream.standard_normal(shape, dtype=np.float32)

    def reset(self, rows: Iterable[int] | None = None, seeds: Sequence[int] | None = None) -> None:
        """Begin an episode: forget history, memory and chunk.

        Args:
            rows: in which environments; None: in all.
            seeds: one for each of them, from which its noise starts; None: the noise goes on.
        """
        chosen = list(range(self.rows) if rows is None else rows)
        self._fresh[chosen] = True
        self._remember_anew(chosen)
        for place, row in enumerate(chosen):
            self._chunks[row] = []
            if seeds is not None:
                self._streams[row] = np.random.Generator(np.random.Philox(seeds[place]))

    def act(self, obs: ArrayObs, where: NDArray[np.bool_] | None = None) -> Array:
        """Decide in every environment: return the chunks ``[N, act_steps, A]`` to play.

        Args:
            obs: the observations now, ``[N, O]`` or parts.
            where: ``[N]`` which rows are really acting; what the others get means nothing, and they
                draw no noise.
        """
        deciding = range(self.rows) if where is None else np.flatnonzero(where).tolist()
        if not self.deterministic:
            for row in deciding:
                self._noise[row] = self.draw(1, row)[0]
        seen = self.seen(obs, where)
        if self._inputs:
            rows = {
                name: np.repeat(value[None], self.rows, axis=0)
                for name, value in self._inputs.items()
                if name not in self._memories
            }
            kept = {name: memory.read() for name, memory in self._memories.items()}
            seen = joined(seen, **rows, **kept)
        chunk = self.decide(seen, self._noise)[:, : self.act_steps]
        if self._memories:
            decided = np.ones(self.rows, np.bool_) if where is None else where
            for memory in self._memories.values():
                memory.decided(self._vector(obs), chunk, decided)
        return chunk

    def rewarded(self, reward: NDArray[Any]) -> None:
        """Tell what came of the last actions, before an episode that ended there is forgotten.

        Args:
            reward: ``[N]``; of rows that are not acting it means nothing.
        """
        for memory in self._memories.values():
            memory.rewarded(reward)

    def _remember_anew(self, rows: Any) -> None:
        for name, memory in self._memories.items():
            memory.begin(rows, self._inputs[name])

    def _vector(self, obs: ArrayObs) -> Array:
        """Return what is observed as one vector a row, parts in the policy's order."""
        parts = [obs[n] for n in self.reading.observed] if isinstance(obs, Mapping) else [obs]
        flat = [part.reshape(self.rows, -1) for part in parts]
        vector: Array = np.concatenate(flat, axis=1).astype(np.float32)
        return vector

    def seen(self, obs: ArrayObs, where: NDArray[np.bool_] | None = None) -> ArrayObs:
        """Return observations with their history, ``[N, K, ...]``, and remember them.

        Args:
            obs: the observations now.
            where: ``[N]`` whose decisions they are for; None: all.
        """
        length = self.reading.history
        if length == 1:
            return obs
        if self._past is None:
            self._past = tree_map(lambda now: np.repeat(now[:, None], length, axis=1), obs)
        deciding = np.ones(self.rows, np.bool_) if where is None else where
        first, later = deciding & self._fresh, deciding & ~self._fresh

        def remember(past: NDArray[Any], now: NDArray[Any]) -> NDArray[Any]:
            past[later, :-1] = past[later, 1:]
            past[later, -1] = now[later]
            past[first] = now[first][:, None]
            return past.copy()

        self._fresh[deciding] = False
        found: ArrayObs = tree_map(remember, self._past, obs)
        return found

    def step(self, obs: ArrayObs) -> Array:
        """Return the action ``[N, A]`` of this control tick, for robots.

        A chunk is decided where none is left to play; its first ``act_steps`` actions are played
        one a tick, whatever is observed meanwhile.
        """
        if count(obs) != self.rows:
            raise TrimtabError(f"the agent acts in {self.rows} rows, got {count(obs)}")
        due = np.array([not left for left in self._chunks])
        if due.any():
            chunks = self.act(obs, due)
            for row in np.flatnonzero(due):
                self._chunks[row] = list(chunks[row])
        return np.stack([left.pop(0) for left in self._chunks])

    def state_dict(self) -> dict[str, Any]:
        """Return the history; noise is not part of it: gathering draws the learner's own.

        Nor are further memories: what gathers tries actions of the learner, which reads none.
        """
        return {"past": self._past, "fresh": self._fresh.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the history that ``state_dict`` returned."""
        self._past = state["past"]
        self._fresh = np.asarray(state["fresh"], np.bool_).copy()
