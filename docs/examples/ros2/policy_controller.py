"""A policy as a controller of ros2_control, in Python.

A controller manager loads C++ alone. This class says call by call what a controller in C++, around
the bundle's graph and onnxruntime, has to do; its tests are those of the port.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from trimtab.errors import TrimtabError
from trimtab.policies.runtime import PolicyRunner


class CallbackReturn(Enum):
    """What a change of a controller's state returns."""

    SUCCESS = 0
    FAILURE = 1


class ReturnType(Enum):
    """What an update returns; after ERROR, the manager starts the fallback controllers."""

    OK = 0
    ERROR = 1


class PolicyController:
    """Commands the positions of joints whose positions and velocities a policy observes.

    Attributes:
        states: values of the state interfaces by name, which the hardware writes.
        commands: values of the command interfaces by name, which the hardware reads.

    Args:
        policy: as it was loaded; what its fallback would play counts as an error here.
        joints: names, in the order of the policy's observation and action.
    """

    def __init__(self, policy: PolicyRunner, joints: Sequence[str]) -> None:
        self.policy, self.joints = policy, list(joints)
        self.states = {
            f"{joint}/{kind}": math.nan for kind in ("position", "velocity") for joint in joints
        }
        self.commands = {f"{joint}/position": math.nan for joint in joints}

    def on_configure(self, update_rate: float) -> CallbackReturn:
        """Refuse another rate than the policy's, and joints that do not fit it."""
        observed = {"obs": ((len(self.states),), "float32")}
        fits = self.policy.contract.observed == observed
        fits &= self.policy.action_dim == len(self.joints)
        fits &= not self.policy.limits.of_velocities  # it sends positions
        right = fits and update_rate == self.policy.control_rate
        return CallbackReturn.SUCCESS if right else CallbackReturn.FAILURE

    def on_activate(self) -> CallbackReturn:
        """Begin at the joints' positions, with no plan."""
        try:
            self.policy.reset(action=[self.states[name] for name in self.commands])
        except TrimtabError:  # a position is not known yet
            return CallbackReturn.FAILURE
        self._acted = False
        return CallbackReturn.SUCCESS

    def update(self, time: float, period: float) -> ReturnType:
        """Write the commands of an update; after an error, those before stay as they are.

        Args:
            time: of the update, in seconds; a clock that may be set, and is not used.
            period: since the update before, in seconds; it shows updates that were left out.
        """
        del time
        before = self.policy.counts["fallback"]
        ticks = max(1, round(period * (self.policy.control_rate or 0.0)))
        try:
            tick = self.policy.tick + ticks if self.policy.tick >= 0 else 0
            action = self.policy.step(list(self.states.values()), tick=tick)
        except TrimtabError:
            return ReturnType.ERROR
        fell_back = self.policy.counts["fallback"] > before
        if fell_back and self._acted:  # before the first plan, the robot only waits
            return ReturnType.ERROR
        self._acted |= not fell_back
        self.commands.update(zip(self.commands, action.tolist(), strict=True))
        return ReturnType.OK

    def on_deactivate(self) -> CallbackReturn:
        """Forget the plan."""
        self.policy.reset()
        return CallbackReturn.SUCCESS
