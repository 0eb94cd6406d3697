"""What the receiver of commands plays once they stop coming.

It belongs to where the commands arrive, such as the motors' driver: in another process than the
policy, best on another computer. A process that hangs, is stopped or killed sends nothing, and only
its receiver can notice. The receiver's own process may hang too: this is no safety function.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.checked import checked_array
from trimtab.policies.robot.fallback import Fallback
from trimtab.policies.robot.plan import Array
from trimtab.settings import fits

__all__ = ["CommandWatchdog"]

_NOT_BEGUN = "watchdog: the command in force is not known; call begin(<the command in force>) first"


class CommandWatchdog:
    """Gives the newest command, and the fallback once none has come for some time.

    It stays with the fallback then: what a sender that wakes up again would send belongs to a plan
    that was made before. :meth:`begin` takes commands again. A command that is not finite, or has
    another length, is not taken, and the time goes on. Before the first :meth:`begin`, no command
    is taken, and the motors get the fallback's safe action, where it has one.

    Attributes:
        expired: whether the time has run out.
        refused: commands that were not taken since the last :meth:`begin`, or before the first one.
        why: in words, why the last of them was not; empty for none.

    Args:
        fallback: ``Hold()`` for positions; for velocities and torques, ``SafeAction`` or ``Damp``.
        timeout: seconds without a command; at least two or three control ticks.

    Raises:
        TrimtabError: if the time is no positive number.
    """

    def __init__(self, fallback: Fallback, timeout: float) -> None:
        if not (fits(timeout, float) and 0 < timeout < math.inf):
            raise TrimtabError(f"watchdog: timeout={timeout}: give a positive number of seconds")
        self._fallback, self._timeout = fallback, timeout
        self._command: Array | None = None
        self._since = math.inf  # when the newest command came
        self.expired, self.refused, self.why = False, 0, ""

    def begin(self, action: ArrayLike) -> None:
        """Begin; the time runs from the first command on.

        Args:
            action: the command in force ``[A]``, such as the joints' positions.

        Raises:
            TrimtabError: if it is not finite, or the fallback has another length.
        """
        force = checked_array(action, (np.size(action),), "action")
        self._fallback.check(np.full(len(force), -np.inf), np.full(len(force), np.inf))
        self._command, self._since = force, math.inf
        self.expired, self.refused, self.why = False, 0, ""

    def receive(self, command: ArrayLike, now: float) -> None:
        """Take a command ``[A]`` at a time in seconds of a steady clock.

        It raises nothing: what is not taken is counted (``refused``), and ``why`` says the reason.
        """
        self._look(now)
        try:
            if self._command is None:
                raise TrimtabError(_NOT_BEGUN)
            found = checked_array(command, self._command.shape, "command")
            if self.expired:
                raise TrimtabError("command: came after the time-out; begin takes commands again")
        except TrimtabError as error:
            self.refused, self.why = self.refused + 1, str(error)
            return
        self._command, self._since = found, now

    def command(self, now: float) -> Array:
        """Return what the motors get ``[A]``; call it once a tick of theirs.

        Raises:
            TrimtabError: before the first :meth:`begin`, if the fallback has no safe action.
        """
        self._look(now)
        played = self._command
        if played is None or self.expired:
            played = self._fallback.action(played, None)
            if played is None:
                name = type(self._fallback).__name__
                raise TrimtabError(f"{_NOT_BEGUN}; {name} has none to repeat")
            if self.expired:
                self._command = played
        return played.copy()

    def _look(self, now: float) -> None:
        self.expired |= now - self._since > self._timeout
