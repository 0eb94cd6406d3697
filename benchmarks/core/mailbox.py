"""Where workers on other machines say how far they are, and hear whether they are to stop.

It knows nothing of what carries it; it imports nothing, so that a process that only holds it is
there at once.
"""

from __future__ import annotations

__all__ = ["Mailbox"]


class Mailbox:
    """The last words of each worker, until they are taken; and whether all are to stop."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, str]] = {}
        self._stop = False

    def say(self, label: str, share: float, text: str) -> bool:
        """Keep what a worker says of its work; return whether it is to stop."""
        self._said[label] = share, text
        return self._stop

    def take(self) -> dict[str, tuple[float, str]]:
        """Return what was said since the last time, by label."""
        said, self._said = self._said, {}
        return said

    def stop(self) -> None:
        """Have every worker told to stop the next time it says something."""
        self._stop = True
