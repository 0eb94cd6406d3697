"""Robots of LeRobot, driven by a bundle or a server: entries are found by their names.

    policy, link = connect(robot, "my-bundle")  # or ws://127.0.0.1:8000
    policy.reset(action=link.position())
    control_loop(policy, link.observe, link.act, ticks=500)

LeRobot's ``Robot`` gives and takes dictionaries, such as ``{"shoulder_pan.pos": 3.1}``. A bundle
names its entries where its data or its contract do. A name that the robot does not have is refused
before anything moves. Nothing here imports LeRobot.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.errors import TrimtabError, nearest
from trimtab.policies.bundle.files import described_in, read_files
from trimtab.policies.robot.plan import Array
from trimtab.policies.robot.runner import PolicyRunner
from trimtab.policies.runtime import load_policy
from trimtab.policies.serving.protocol import is_server

__all__ = ["LeRobotLink", "connect"]


class LeRobotLink:
    """Turns a robot's dictionaries into a policy's arrays, and back.

    Args:
        robot: of LeRobot's class ``Robot``, connected.
        config: the ``config.json`` of the bundle.
        names: the robot's keys by the bundle's names, of those that differ.

    Raises:
        TrimtabError: if the bundle does not name its entries, the robot has no such key, or it has
            a key for its actions that the policy does not command.
    """

    def __init__(
        self, robot: Any, config: Mapping[str, Any], names: Mapping[str, str] | None = None
    ) -> None:
        for name in ("observation_features", "action_features", "get_observation", "send_action"):
            if not hasattr(robot, name):
                raise TrimtabError(
                    f"robot: {type(robot).__name__} is no Robot of LeRobot, it has no {name}; give "
                    "the robot itself, such as make_robot_from_config(config), and not its config"
                )
        self._robot = robot
        described, renamed = described_in(config), dict(names or {})
        for side in ("obs_names", "action_names"):
            if side not in described:
                raise TrimtabError(
                    f"the bundle has no {side}, by which the robot's entries would be found; its "
                    "training names them by the data's names or by contract="
                )
        for name in renamed.keys() - {*described["obs_names"], *described["action_names"]}:
            raise TrimtabError(f"names: the bundle has no entry {name}")
        self._observed = _keys(
            described["obs_names"], robot.observation_features, renamed, "observation"
        )
        self._commanded = _keys(described["action_names"], robot.action_features, renamed, "action")
        for key in sorted(robot.action_features.keys() - set(self._commanded)):
            raise TrimtabError(f"the policy does not command the robot's {key}")

    def observe(self) -> Array:
        """Return what the policy reads of the robot's observation, ``[O]``.

        Raises:
            TrimtabError: if an entry is missing or no number.
        """
        return _numbers(self._robot.get_observation(), self._observed)

    def position(self) -> Array:
        """Return the robot's present values of what is commanded ``[A]``, such as its joints'.

        Raises:
            TrimtabError: if the robot does not observe one of them.
        """
        return _numbers(self._robot.get_observation(), self._commanded)

    def act(self, action: Array) -> None:
        """Send an action ``[A]``."""
        self._robot.send_action(dict(zip(self._commanded, map(float, action), strict=True)))


def connect(
    robot: Any, policy: str | Path, *, names: Mapping[str, str] | None = None,
    **settings: Any,
) -> tuple[PolicyRunner, LeRobotLink]:  # fmt: skip
    """Open a policy for a robot, and compare their names.

    Args:
        robot: of LeRobot's class ``Robot``, connected.
        policy: folder of a bundle, or a server's address.
        names: as of :class:`LeRobotLink`.
        settings: of ``load_policy``, or of ``ServedRunner``.

    Returns:
        The policy, and what it observes and acts by; close the policy at the end.

    Raises:
        TrimtabError: if the policy cannot be opened, or a name does not fit.
    """
    if not is_server(str(policy)):
        link = LeRobotLink(robot, read_files(policy)[0], names)
        return load_policy(policy, **settings), link
    from trimtab.policies.serving.runner import ServedRunner  # needs websockets

    runner = ServedRunner(str(policy), **settings)
    try:
        return runner, LeRobotLink(robot, runner.config, names)
    except TrimtabError:
        runner.close()
        raise


def _keys(
    names: list[str], features: Mapping[str, Any], renamed: Mapping[str, str], side: str
) -> list[str]:
    keys = [renamed.get(name, name) for name in names]
    for key in keys:
        if key not in features:
            raise TrimtabError(f"the robot has no {key} in its {side}; {nearest(key, features)}")
        if isinstance(features[key], tuple):
            raise TrimtabError(f"the robot's {key} is a picture; the policy's is a number")
    if len(set(keys)) != len(keys):
        raise TrimtabError(f"two names of the {side} are one key of the robot")
    return keys


def _numbers(found: Mapping[str, Any], keys: list[str]) -> Array:
    for key in keys:
        if key not in found:
            raise TrimtabError(f"observation: the robot gave no {key}")
    try:
        return np.array([float(found[key]) for key in keys], np.float32)
    except (TypeError, ValueError) as error:
        raise TrimtabError(f"observation: an entry of the robot is no number ({error})") from error
