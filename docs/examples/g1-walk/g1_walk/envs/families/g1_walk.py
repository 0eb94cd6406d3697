"""A Unitree G1 (29 joints) that walks at a commanded speed, in MuJoCo.

The robot's description and the gains of its joints are in files of the package
``holosoma-inference`` 0.1.3. They are read from the installed files; no code of it is imported.
Visual meshes are left out: the description's spheres and cylinders touch the floor.

Every 20 ms the robot observes, in SI units and in the order of ``dof_names``:

- angular velocity of the pelvis, in its own axes (3), and the direction of gravity in them (3);
- the command: forward and sideways (m/s), turning (rad/s);
- angles (29) and speeds (29) of the joints, and the angles that they were last sent (29);
- sine (2) and cosine (2) of the phases of the legs.

An action is the angles that the joints shall have; motors hold them by stiffness and damping at
200 Hz. ``delay`` is the number of ticks after which an action reaches the motors. An episode ends
where the pelvis falls; it succeeds after ten seconds. The reward of a tick is
``exp(-4 |v - command|^2)``, at most 1.
"""

from __future__ import annotations

import json
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium
import mujoco
import numpy as np
import onnx

from trimtab.envs.core.spec import Family, Task

PACKAGE = "holosoma-inference"
WALKING = "holosoma_inference/models/loco/g1_29dof/{}_g1_29dof.onnx"
_DESCRIBED = "holosoma_inference/models/wbt/ppo_g1_29dof_dancing.onnx"
STEP, SUBSTEPS, TICKS = 0.005, 4, 500
PERIOD = 50  # ticks of a walking cycle
# Angles of the legs, waist and arms at rest, rad: config/config_values/robot.py of the package.
_LEG, _ARM = (-0.312, 0.0, 0.0, 0.669, -0.363, 0.0), (0.0, 0.6, 0.0, 0.0, 0.0)
POSE = np.array([*_LEG, *_LEG, 0, 0, 0, 0.2, 0.2, *_ARM, 0.2, -0.2, *_ARM])
REACH = 2.5  # rad about the pose that an action may command
_HEIGHT = 0.8  # m, of the pelvis as an episode begins


def installed(name: str) -> Path:
    """Return where a file of the package lies."""
    found = [file for file in metadata.files(PACKAGE) or [] if file.as_posix() == name]
    return Path(str(found[0].locate()))


def described(name: str) -> dict[str, Any]:
    """Return what a network's file says beside its weights."""
    model = onnx.load(str(installed(name)))
    return {entry.key: json.loads(entry.value) for entry in model.metadata_props}


def floored(urdf: str) -> mujoco.MjModel:
    """Return the robot of a description on a floor, free to move."""
    root = ElementTree.fromstring(urdf)
    for link in root.iter("link"):
        for number, part in enumerate([*link.findall("visual"), *link.findall("collision")]):
            part.set("name", f"{link.get('name')}_{number}")
            if part.tag == "visual" or part.find("geometry/mesh") is not None:
                link.remove(part)
    spec = mujoco.MjSpec.from_string(ElementTree.tostring(root, encoding="unicode"))
    spec.option.timestep = STEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], friction=[1, 0.005, 0.0001]
    )
    spec.worldbody.first_body().add_freejoint()
    for joint in spec.joints:
        if joint.type == mujoco.mjtJoint.mjJNT_HINGE:
            joint.armature = 0.01
    return spec.compile()


class Walk(gymnasium.Env[Any, Any]):
    """The task of this module.

    Args:
        speed: commanded, forward, m/s.
        delay: ticks after which an action reaches the motors.
    """

    def __init__(self, speed: float, delay: int) -> None:
        told = described(_DESCRIBED)
        self.model = floored(told["robot_urdf"])
        self.data = mujoco.MjData(self.model)
        self.names: list[str] = told["dof_names"]
        self.stiffness, self.damping = np.array(told["kp"]), np.array(told["kd"])
        joints = [self.model.joint(name) for name in self.names]
        self._at = np.array([joint.qposadr[0] for joint in joints])
        self._moves = np.array([joint.dofadr[0] for joint in joints])
        self.command = np.array([speed, 0.0, 0.0])
        self._delay = delay
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (100,))
        low, high = (POSE - REACH).astype(np.float32), (POSE + REACH).astype(np.float32)
        self.action_space = gymnasium.spaces.Box(low, high)
        self._tick = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Stand near the pose, in the air by a few millimetres."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:7] = 0, 0, _HEIGHT, 1, 0, 0, 0
        self.data.qpos[self._at] = POSE + self.np_random.uniform(-0.02, 0.02, len(POSE))
        self.data.qvel[:2] = self.np_random.uniform(-0.1, 0.1, 2)
        mujoco.mj_forward(self.model, self.data)
        self._tick, self._last = 0, POSE.copy()
        self._sent = deque([POSE.copy()] * self._delay)
        self._phase = np.array([0.0, np.pi]) if self.command.any() else np.full(2, np.pi)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Hold the joints at angles [29] for 20 ms."""
        self._last = np.asarray(action, float)
        self._sent.append(self._last)
        target, data = self._sent.popleft(), self.data
        start = data.qpos[:2].copy()
        for _ in range(SUBSTEPS):
            torque = self.stiffness * (target - data.qpos[self._at])
            data.qfrc_applied[self._moves] = torque - self.damping * data.qvel[self._moves]
            mujoco.mj_step(self.model, data)
        self._tick += 1
        if self.command.any():
            self._phase = (self._phase + 2 * np.pi / PERIOD + np.pi) % (2 * np.pi) - np.pi
        velocity = (data.qpos[:2] - start) / (SUBSTEPS * STEP)
        reward = float(np.exp(-4 * np.sum((velocity - self.command[:2]) ** 2)))
        fallen = bool(data.qpos[2] < 0.4 or self._gravity()[2] > -0.5)
        done = {"success": self._tick >= TICKS and not fallen, "distance": float(data.qpos[0])}
        return self._observation(), reward, fallen, False, done

    def _gravity(self) -> Any:
        """Return the direction of gravity in the axes of the pelvis."""
        turned = np.zeros(9)
        mujoco.mju_quat2Mat(turned, self.data.qpos[3:7])
        return -turned.reshape(3, 3)[2]

    def _observation(self) -> Any:
        data = self.data
        return np.concatenate(
            [
                data.qvel[3:6], self._gravity(), self.command, data.qpos[self._at],
                data.qvel[self._moves], self._last, np.sin(self._phase), np.cos(self._phase),
            ]
        )  # fmt: skip


FAMILY = Family(
    name="g1_walk",
    install="g1-walk",
    packages=("mujoco", PACKAGE),
    tasks={
        "Walk-v0": Task(
            horizon=TICKS,
            success_key="success",
            tags=("locomotion",),
            options={"speed": (0.5, 0.0, 1.0), "delay": tuple(range(7))},
        )
    },
    build=lambda task, *, render, speed, delay: Walk(speed, delay),
    frames=lambda env: (STEP, SUBSTEPS, "implicitfast"),
)
