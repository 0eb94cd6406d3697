"""The plan of one robot along its control ticks: when it asks, what arrives, what it plays."""

from __future__ import annotations

from trimtab.policies.robot.modes import Mode
from trimtab.policies.robot.plan import Array, Chunk

__all__ = ["Timeline"]


class Timeline:
    """Keeps a mode's chunks at the ticks that they are for.

    At most one request is in flight. A robot for which there was no plan stood still, and has
    consumed nothing: the chunk that it waited for begins that many ticks later.

    Attributes:
        mode: which entries of which chunks are played.
        tick: the last tick; -1 before the first one.
        waiting: whether a request is in flight.

    Args:
        mode: of this robot alone.
        horizon: length H of a chunk.
    """

    def __init__(self, mode: Mode, horizon: int) -> None:
        self.mode, self._horizon = mode, horizon
        self.waiting = self._wanted = False
        self.begin()

    def begin(self) -> None:
        """Begin an episode."""
        self.tick = -1
        self._idle = 0  # ticks of the episode that had no plan
        self.drop_plan()

    def drop_plan(self) -> None:
        """Forget all chunks; the answer that is in flight is thrown away when it comes."""
        self.mode.begin()
        self._wanted = False

    def advance(self, now: int) -> None:
        """Go on to a later tick; those between were left out, and their actions with them."""
        skipped = range(self.tick + 1, now)
        ahead = skipped[: self._horizon + 1]  # no plan is longer
        self._idle += len(skipped) - sum(self.mode.at(tick) is not None for tick in ahead)
        self.tick = now

    @property
    def due(self) -> bool:
        """Whether a chunk is to be asked for at this tick."""
        return not self.waiting and self.mode.due(self.tick)

    def ask(self) -> None:
        """Note a request with the observation of this tick."""
        self.waiting = self._wanted = True
        self._asked, self._idle_then = self.tick, self._idle

    def fail(self) -> bool:
        """Note that the request has failed; return whether its answer was still wanted."""
        self.waiting = False
        return self._wanted

    def answer(self, actions: Array) -> bool:
        """Add the answer ``[H, A]`` to the plan; return False if it is thrown away."""
        self.waiting = False
        if self._wanted:
            start = self._asked + self._idle - self._idle_then
            self.mode.add(Chunk(start, actions), self.tick)
        return self._wanted

    def planned(self) -> Array | None:
        """Return the action ``[A]`` of this tick, or None, and count that; call it once a tick."""
        action = self.mode.at(self.tick)
        self._idle += action is None
        return action
