"""What robomimic calls robosuite's tasks: environments, their arguments, parts of observations.

robomimic makes an environment from ``env_args`` (``robomimic/envs/env_robosuite.py``), and its
configurations name the parts of an observation one by one. Here they are one vector, whose order is
that of ``envs/families/robosuite.py``; a test holds the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.datasets.episodes import Dataset

__all__ = ["PARTS", "Parts", "env_args", "observation_parts"]

Parts = list[tuple[str, int]]
"""Name and length of the parts of an observation, in their order."""

PARTS = "observation_keys"
"""Key of a recipe: the parts, where the file that it comes from names them."""

_ROBOSUITE, _GYM = 1, 2  # robomimic's numbers for kinds of environments
_TASK = re.compile(r"robosuite/(?P<scene>\w+)(-DPPO|-DSRL)?", re.ASCII)
_ARMS = {
    "Lift": 1, "PickPlaceCan": 1, "NutAssemblySquare": 1, "TwoArmTransport": 2, "ToolHang": 1,
    "Door": 1,
}  # fmt: skip
_HAND = (("eef_pos", 3), ("eef_quat", 4), ("gripper_qpos", 2))
_OBJECT = "object"
_WHOLE = "flat"  # robomimic's name for an observation that is one vector

_ARM: Mapping[str, Any] = {
    "type": "OSC_POSE",
    "input_max": 1,
    "input_min": -1,
    "output_max": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
    "output_min": [-0.05, -0.05, -0.05, -0.5, -0.5, -0.5],
    "kp": 150,
    "damping_ratio": 1,
    "impedance_mode": "fixed",
    "kp_limits": [0, 300],
    "damping_ratio_limits": [0, 10],
    "position_limits": None,
    "orientation_limits": None,
    "uncouple_pos_ori": True,
    "input_type": "delta",
    "input_ref_frame": "world",
    "interpolation": None,
    "ramp_ratio": 0.2,
    "gripper": {"type": "GRIP"},
}


def env_args(dataset: Dataset) -> dict[str, Any]:
    """Return robomimic's description of a dataset's environment.

    A stranger's data has that of the file that it comes from. A task of robosuite is named as
    robosuite names it; any other is of Gym's kind, under its name here.
    """
    given = dataset.recipe.get("env_args")
    if isinstance(given, Mapping) and given:
        return dict(given)
    scene = _scene(dataset)
    if scene is None:
        return {"env_name": dataset.env, "type": _GYM, "env_kwargs": dict(dataset.env_options)}
    controller = {"type": "BASIC", "body_parts": {"right": dict(_ARM)}}
    arguments = {
        "robots": ["Panda"] * _ARMS[scene],
        "controller_configs": [controller] * _ARMS[scene],
        "control_freq": 20,
        "lite_physics": False,
        "reward_shaping": False,
    }
    return {"env_name": scene, "type": _ROBOSUITE, "env_kwargs": arguments}


def observation_parts(dataset: Dataset) -> Parts:
    """Return the parts of a dataset's observations; one where nothing tells them apart.

    A stranger's data has those of the file that it comes from, and a recording of a task of
    robosuite has the names of robosuite.
    """
    size = dataset.obs_dim
    given = dataset.recipe.get(PARTS)
    parts = _checked(given) if given is not None else []
    if not parts and (scene := _scene(dataset)) is not None:
        parts = [(f"robot{i}_{name}", n) for i in range(_ARMS[scene]) for name, n in _HAND]
        parts.append((_OBJECT, size - sum(length for _, length in parts)))
    whole = sum(length for _, length in parts) == size and all(length > 0 for _, length in parts)
    return parts if whole else [(_WHOLE, size)]


def _scene(dataset: Dataset) -> str | None:
    """Return robosuite's name of the task in which a dataset was recorded here."""
    match = _TASK.fullmatch(dataset.env)
    recorded = dataset.fingerprint is not None  # a stranger's vector may be in any order
    return match["scene"] if match and recorded and match["scene"] in _ARMS else None


def _checked(value: Any) -> Parts:
    """Return parts that were noted as JSON, or none where it is no list of names and lengths."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    parts: Parts = []
    for part in value:
        if not (isinstance(part, Sequence) and len(part) == 2 and type(part[1]) is int):
            return []
        parts.append((str(part[0]), part[1]))
    return parts if len({name for name, _ in parts}) == len(parts) else []
