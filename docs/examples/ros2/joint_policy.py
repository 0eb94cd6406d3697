"""A bundle's policy between joint states and joint commands: messages in, messages out.

``policy_node.py`` is the glue between this and ROS 2. Nothing here imports ROS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from trimtab.errors import TrimtabError
from trimtab.policies.runtime import PolicyRunner


class Now(NamedTuple):
    """The time of a tick, in nanoseconds.

    Attributes:
        steady: of a clock that is never set: ticks and time-outs go by it.
        ros: of the clock by which messages are stamped.
    """

    steady: int
    ros: int


class JointPolicy:
    """Plays a policy that observes joints and commands their positions.

    Attributes:
        counts: messages that were not used. ``other``: without one of the joints, or without what
            the policy reads of them; ``old``: with the stamp of the one before, or a stamp that is
            further from now than ``stale``.

    Args:
        policy: with a fallback.
        joints: names, in the order of the policy's observation and action.
        types: ROS's message classes, by their names.
        stale: seconds after which a joint state counts as missing.
        commanded: the joints of a ``forward_command_controller`` in its order, which is sent arrays
            without names; None for a ``joint_trajectory_controller``.

    Raises:
        TrimtabError: if the policy, the joints and the controller do not fit one another.
    """

    def __init__(
        self,
        policy: PolicyRunner,
        joints: Sequence[str],
        types: Any,
        *,
        stale: float,
        commanded: Sequence[str] | None = None,
    ) -> None:
        if policy.control_rate is None or policy.fallback is None:
            raise TrimtabError("joint policy: it needs a control rate and a fallback")
        if policy.limits.of_velocities:
            raise TrimtabError("joint policy: it sends positions, and the policy has velocities")
        count, observed = len(joints), policy.contract.observed
        kinds = [n for n in (1, 2) if observed == {"obs": ((n * count,), "float32")}]
        if policy.action_dim != count or not kinds:
            raise TrimtabError(f"joint policy: the policy is not one of {count} joints")
        if sorted(set(joints)) != sorted(joints if commanded is None else commanded):
            raise TrimtabError("joint policy: a joint is missing or there twice")
        self.policy, self.joints, self._types = policy, list(joints), types
        self._kinds = kinds[0]  # 1: positions; 2: velocities too
        self._period, self._stale = round(1e9 / policy.control_rate), round(1e9 * stale)
        self._order = None if commanded is None else [self.joints.index(one) for one in commanded]
        self.counts: Counter[str] = Counter()
        self.start()

    def start(self) -> None:
        """Begin with the next joint state."""
        self._running = True
        self._begun: int | None = None  # the steady time of tick 0
        self._state = np.zeros(0)
        self._arrived = self._stamp = self._called = -1

    def stop(self) -> None:
        """Send nothing until :meth:`start`; the plan is forgotten."""
        self._running = False
        self.policy.reset()

    def step(self, now: Now, messages: Iterable[Any]) -> list[Any]:
        """Return the commands of a control tick: one, or none if there is nothing to go by yet.

        Args:
            now: the time.
            messages: the joint states that came since the last call.
        """
        if not self._running:
            return []
        if now.steady - self._called > self._stale:  # held up: the robot has stopped meanwhile
            self._begun = None
        self._called = now.steady
        for message in messages:
            self._take(message, now)
        fresh = self._arrived >= 0 and now.steady - self._arrived <= self._stale
        if self._begun is None:
            if not fresh:
                return []
            self.policy.reset(action=self._state[: len(self.joints)])
            self._begun = now.steady
        tick = round((now.steady - self._begun) / self._period)
        if tick <= self.policy.tick:  # the timer was late, and then early
            return []
        action = self.policy.step(self._state if fresh else None, tick=tick)
        return [self._command(now, action.astype(float))]

    def _take(self, message: Any, now: Now) -> None:
        """Keep a joint state: all robots' messages may share a topic, in any order of names."""
        names = list(message.name)
        read = [message.position, message.velocity][: self._kinds]
        if any(names.count(one) != 1 for one in self.joints) or any(
            len(values) != len(names) for values in read
        ):
            self.counts["other"] += 1
            return
        stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        if stamp == self._stamp or abs(now.ros - stamp) > self._stale:
            self.counts["old"] += 1
            return
        order = [names.index(one) for one in self.joints]
        self._state = np.concatenate([np.asarray(values)[order] for values in read])
        self._arrived, self._stamp = now.steady, stamp

    def _command(self, now: Now, action: Any) -> Any:
        types = self._types
        if self._order is not None:
            layout = types.MultiArrayLayout(dim=[], data_offset=0)
            return types.Float64MultiArray(layout=layout, data=action[self._order].tolist())
        # One point, due at the next tick. Of a longer trajectory, a controller would play the rest
        # after this process has ended; fallback and limits would hold for its first point alone.
        sec, nanosec = divmod(self._period, 10**9)
        point = types.JointTrajectoryPoint(
            positions=action.tolist(), velocities=[], accelerations=[], effort=[],
            time_from_start=types.Duration(sec=sec, nanosec=nanosec),
        )  # fmt: skip
        sec, nanosec = divmod(now.ros, 10**9)
        header = types.Header(stamp=types.Time(sec=sec, nanosec=nanosec), frame_id="")
        return types.JointTrajectory(header=header, joint_names=self.joints, points=[point])
