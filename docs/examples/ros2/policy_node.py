"""A ROS 2 node around ``joint_policy.py``: glue alone, and callbacks only store."""

from __future__ import annotations

import time
from types import SimpleNamespace

import rclpy
from builtin_interfaces.msg import Duration as DurationMessage
from builtin_interfaces.msg import Time
from joint_policy import JointPolicy, Now
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from sensor_msgs.msg import JointState
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from trimtab.policies.runtime import Hold, Limits, load_policy

TYPES = SimpleNamespace(
    Duration=DurationMessage, Header=Header, JointTrajectory=JointTrajectory,
    JointTrajectoryPoint=JointTrajectoryPoint, Time=Time,
)  # fmt: skip


class PolicyNode(Node):  # type: ignore[misc]
    """Reads ``joint_states`` and sends ``arm_controller/joint_trajectory``."""

    def __init__(self) -> None:
        super().__init__("policy")
        bundle = self.declare_parameter("bundle", "my-bundle").value
        joints = self.declare_parameter("joints", ["shoulder", "elbow"]).value
        self.policy = load_policy(
            bundle, fallback=Hold(patience=2), limits=Limits(velocity=1.0), apart=True
        )
        period = 1.0 / self.policy.control_rate
        self.logic = JointPolicy(self.policy, joints, TYPES, stale=3 * period)
        self.messages: list[JointState] = []
        # Best effort receives from any sender. No deadline: a sender that offers none would not
        # be connected, without a word.
        newest = QoSProfile(depth=1, reliability=QoSReliabilityPolicy.BEST_EFFORT)
        self.create_subscription(JointState, "joint_states", self.keep, newest)
        # Reliable reaches any receiver, and a command that is late by two ticks is thrown away.
        commands = QoSProfile(
            depth=1, reliability=QoSReliabilityPolicy.RELIABLE,
            deadline=Duration(seconds=2 * period), lifespan=Duration(seconds=2 * period),
        )  # fmt: skip
        topic = "arm_controller/joint_trajectory"
        self.commands = self.create_publisher(JointTrajectory, topic, commands)
        self.create_timer(period, self.tick, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def keep(self, message: JointState) -> None:
        """Store a message for the next tick."""
        self.messages.append(message)

    def tick(self) -> None:
        """Send the command of a control tick."""
        messages, self.messages = self.messages, []
        now = Now(time.monotonic_ns(), self.get_clock().now().nanoseconds)
        commands = self.logic.step(now, messages)
        for command in commands:
            self.commands.publish(command)
        if not commands:
            told = f"no command; joint states that were not used: {dict(self.logic.counts)}"
            self.get_logger().warning(told, throttle_duration_sec=1.0)


def main() -> None:
    """Run until Ctrl+C, the end of ROS, or an error."""
    rclpy.init()
    node = PolicyNode()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.logic.stop()
        node.policy.close()
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
