"""What locomotion stacks read beside a network: metadata of the ONNX file, or a YAML next to it.

Three dialects. mjlab writes lists as text with commas, rounded to three decimals; holosoma writes
JSON; unitree_rl_lab has ``deploy.yaml``. A stack sends ``default + scale * output`` to the motors.
So the graph that is written gives ``(action - default) / scale``, with the very numbers that the
file says: what is rounded there changes no action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory
from trimtab.observations import FLAT
from trimtab.policies.bundle.files import ONNX, Contract, read_files
from trimtab.policies.bundle.inlining import add_prefix
from trimtab.policies.imports.onnx_file import float_port, starts_of

__all__ = ["DIALECTS", "write_dialect"]

DEPLOY = "deploy.yaml"


def write_dialect(bundle: str | Path, folder: str | Path, dialect: str) -> None:
    """Write a bundle's policy as a locomotion stack reads it: ``policy.onnx``, and what it needs.

    Its input are the terms that the bundle observes, in their units, as one row: in their order, or
    sorted by name for a stack that puts them together in that way.

    Args:
        bundle: made of a contract with names of joints and gains.
        folder: a new folder.
        dialect: one of :data:`DIALECTS`.

    Raises:
        TrimtabError: if the bundle lacks what the stack reads, or the folder cannot be written.
    """
    config, files = read_files(bundle)
    contract = Contract.parse(config, f"bundle {bundle}")
    joints = (config.get("training") or {}).get("joints") or {}
    lacking = [n for n in ("names", "stiffness", "damping") if not joints.get(n)]
    if lacking or ONNX not in files:
        raise TrimtabError(
            f"export: as={dialect}: {bundle} has no {', '.join(lacking) or ONNX} of its "
            "joints; add joints: and gains: to the contract that it is made of"
        )
    if contract.parts or contract.history > 1 or contract.act_steps > 1:
        raise TrimtabError(
            f"export: as={dialect}: {bundle} remembers or plans ahead, which stacks do not; "
            "give what it remembers as a term of the observation"
        )
    if Path(folder).exists():
        raise TrimtabError(f"export: out={folder}: is there already; name a new folder")
    tensors, rounded, in_order, describe = DIALECTS[dialect]
    told = {
        name: [rounded(x) for x in joints[name]]
        for name in ("default", "scale", "stiffness", "damping")
    }
    if not all(told["scale"]):
        raise TrimtabError(f"export: as={dialect}: a scale of the action is rounded to 0")
    ours = dict(config["training"].get("observed") or {FLAT: contract.obs_dim})
    terms = {name: ours[name] for name in in_order(ours)}
    index = _places(ours, terms)
    model = _relative(files[ONNX], contract, tensors, index, told["default"], told["scale"])
    beside = describe(model, joints["names"], told, terms, contract)
    with atomic_directory(folder) as draft:
        (draft / "policy.onnx").write_bytes(model.SerializeToString(deterministic=True))
        for name, text in beside.items():
            (draft / name).write_text(text, encoding="utf-8")


def _relative(
    graph: bytes, contract: Contract, tensors: tuple[str, str], index: Sequence[int],
    pose: Sequence[float], scale: Sequence[float],
) -> onnx.ModelProto:  # fmt: skip
    """Return ``(action - pose) / scale`` of one row, without noise.

    Args:
        graph: of the bundle.
        contract: of the bundle.
        tensors: names of the input and of the output.
        index: where the numbers that the bundle reads stand in the input.
        pose: of the joints.
        scale: of the output.
    """
    model = onnx.load_from_string(graph)
    inner = model.graph
    add_prefix(inner, "policy_")
    given, gives = tensors
    constants: dict[str, NDArray[Any]] = {
        "stack_noise": np.zeros((1, *contract.noise_shape), np.float32),
        "stack_low": np.array(contract.action_low, np.float32),
        "stack_high": np.array(contract.action_high, np.float32),
        "stack_pose": np.array(pose, np.float32),
        "stack_scale": np.array(scale, np.float32),
        "stack_first": np.array(0, np.int64),
        "stack_order": np.array(index, np.int64),
    }
    nodes = [
        helper.make_node("Gather", [given, "stack_order"], [f"policy_{FLAT}"], axis=1),
        helper.make_node("Identity", ["stack_noise"], ["policy_noise"]),
        *inner.node,
        helper.make_node("Gather", ["policy_action", "stack_first"], ["stack_action"], axis=1),
        helper.make_node("Max", ["stack_action", "stack_low"], ["stack_above"]),
        helper.make_node("Min", ["stack_above", "stack_high"], ["stack_within"]),
        helper.make_node("Sub", ["stack_within", "stack_pose"], ["stack_relative"]),
        helper.make_node("Div", ["stack_relative", "stack_scale"], [gives]),
    ]
    made = helper.make_graph(
        nodes,
        "policy",
        [float_port(given, [1, contract.obs_dim])],
        [float_port(gives, [1, contract.action_dim])],
        [*inner.initializer, *(numpy_helper.from_array(x, n) for n, x in constants.items())],
    )
    found = helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(found)
    return found


def _places(ours: Mapping[str, int], theirs: Mapping[str, int]) -> list[int]:
    """Return where each number of ``ours``, sizes of terms in an order, stands in ``theirs``."""
    begins = starts_of(theirs)
    return [begins[name] + i for name, size in ours.items() for i in range(size)]


Told = Mapping[str, Sequence[float]]


def _mjlab(
    model: onnx.ModelProto, names: Sequence[str], told: Told, terms: Mapping[str, int], _: Contract
) -> dict[str, str]:
    numbers = {
        "joint_stiffness": told["stiffness"], "joint_damping": told["damping"],
        "default_joint_pos": told["default"], "action_scale": told["scale"],
    }  # fmt: skip
    texts = {
        "run_path": "trimtab", "joint_names": ",".join(names), "command_names": "",
        "observation_names": ",".join(terms),
    }  # fmt: skip
    texts |= {key: ",".join(f"{x:.3f}" for x in values) for key, values in numbers.items()}
    _tell(model, texts)
    return {}


def _holosoma(
    model: onnx.ModelProto, names: Sequence[str], told: Told, terms: Mapping[str, int], _: Contract
) -> dict[str, str]:
    values = {
        "dof_names": list(names), "kp": told["stiffness"], "kd": told["damping"],
        "action_scale": told["scale"], "default_dof_angles": told["default"],
        "observation_names": list(terms),
    }  # fmt: skip
    _tell(model, {key: json.dumps(value) for key, value in values.items()})
    return {}


def _unitree(
    _: onnx.ModelProto, names: Sequence[str], told: Told, terms: Mapping[str, int],
    contract: Contract,
) -> dict[str, str]:  # fmt: skip
    rate = contract.control_rate
    content: dict[str, Any] = {
        "joint_ids_map": list(range(len(names))), "step_dt": None if rate is None else 1.0 / rate,
        "stiffness": told["stiffness"], "damping": told["damping"],
        "default_joint_pos": told["default"], "commands": {},
        "actions": {"JointPositionAction": {
            "clip": None, "joint_names": list(names), "scale": told["scale"],
            "offset": told["default"], "joint_ids": None,
        }},
        "observations": {
            name: {"params": {}, "clip": None, "scale": [1.0] * size, "history_length": 1}
            for name, size in terms.items()
        },
    }  # fmt: skip
    return {DEPLOY: yaml.safe_dump(content, sort_keys=False, default_flow_style=None)}


def _tell(model: onnx.ModelProto, texts: Mapping[str, str]) -> None:
    for key, text in texts.items():
        model.metadata_props.add(key=key, value=text)


def _rounded(form: str) -> Callable[[float], float]:
    return lambda value: float(f"{value:{form}}")


Describe = Callable[
    [onnx.ModelProto, Sequence[str], Told, Mapping[str, int], Contract], dict[str, str]
]
Order = Callable[[Iterable[str]], list[str]]

DIALECTS: Mapping[str, tuple[tuple[str, str], Callable[[float], float], Order, Describe]] = {
    "mjlab": (("obs", "actions"), _rounded(".3f"), list, _mjlab),
    "holosoma": (("actor_obs", "action"), float, sorted, _holosoma),
    "unitree": (("obs", "actions"), _rounded(".3g"), list, _unitree),
}
"""For each stack: its tensors' names, how it rounds numbers, in which order it puts the terms of an
observation together, and what writes what it reads."""
