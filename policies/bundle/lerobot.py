"""A bundle in the layout of LeRobot's policies, and its policy behind LeRobot's batches.

LeRobot loads ``config.json`` and ``model.safetensors``, from a folder or from its hub. Here the
second file has the files of the bundle, as bytes by their names: the policy in it is the bundle's,
with its hashes and golden rows. Nothing here imports LeRobot; the package of
``docs/examples/lerobot_policy_trimtab`` does, which LeRobot finds by its name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.files import atomic_directory, read_whole, resolved
from trimtab.observations import FLAT, called
from trimtab.policies.agent import Agent, ArrayObs
from trimtab.policies.bundle.checked import checked_array
from trimtab.policies.bundle.files import (
    CARD,
    CONFIG,
    MODEL,
    Array,
    Contract,
    checked_config,
    described_in,
    read_files,
    read_safetensors,
)
from trimtab.policies.bundle.onnx_policy import OnnxPolicy, PolicyFiles, policy_files

__all__ = [
    "ACTION",
    "LEROBOT_FILES",
    "BatchPolicy",
    "input_features",
    "read_packed",
    "write_lerobot",
]

ACTION, STATE, PICTURES = "action", "observation.state", "observation.images."
_PREPROCESSOR, _POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
LEROBOT_FILES = (CONFIG, MODEL, _PREPROCESSOR, _POSTPROCESSOR, CARD)
"""All files of such a folder."""

_ON_PROCESSOR = {"device": "cpu", "float_dtype": None}
_STEPS: Mapping[str, list[tuple[str, dict[str, Any]]]] = {
    _PREPROCESSOR: [
        ("rename_observations_processor", {"rename_map": {}}),
        ("to_batch_processor", {}),
        ("device_processor", _ON_PROCESSOR),
    ],
    _POSTPROCESSOR: [("device_processor", _ON_PROCESSOR)],
}
"""LeRobot's steps around a policy; the graph reads and gives raw units, so none normalises."""

_CARD = f"""
## LeRobot

This folder is for LeRobot, which runs its policy by the package `lerobot_policy_trimtab` and
onnxruntime. The bundle that is described above is in `{MODEL}`, file by file.
"""


def write_lerobot(bundle: str | Path, folder: str | Path) -> Path:
    """Write a bundle as a policy folder of LeRobot 0.6; return the folder.

    Args:
        bundle: with ``policy.onnx``.
        folder: an older one there is replaced.

    Raises:
        TrimtabError: if ``bundle`` is none or has no graph, or reads each tick of its chunks; if
            LeRobot has no place for a part of its observation, or ``folder`` holds other files or
            cannot be written.
    """
    import safetensors.numpy  # not on a robot

    config, files = read_files(bundle)
    folder = resolved(folder)
    contract = policy_files(config, files, f"bundle {bundle}").contract
    contract.inputs.check_whole_chunks(contract.act_steps)
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if folder.exists() and (not folder.is_dir() or not found <= set(LEROBOT_FILES)):
        raise TrimtabError(f"{folder}: holds other files; choose a new or empty folder")
    packed = {**files, CONFIG: (Path(bundle) / CONFIG).read_bytes()}
    tensors = {name: np.frombuffer(data, np.uint8) for name, data in packed.items()}
    described = {
        "type": "trimtab",
        "n_obs_steps": 1,
        "input_features": input_features(contract),
        "output_features": {ACTION: {"type": "ACTION", "shape": [contract.action_dim]}},
        "device": "cpu",
        "use_amp": False,
        "chunk_size": contract.horizon,
        "n_action_steps": contract.act_steps,
        "action_feature_names": described_in(config).get("action_names"),
    }
    with atomic_directory(folder) as draft:
        (draft / MODEL).write_bytes(safetensors.numpy.save(tensors))
        (draft / CONFIG).write_text(json.dumps(described, indent=4) + "\n")
        for name, steps in _STEPS.items():
            chain = [{"registry_name": step, "config": settings} for step, settings in steps]
            text = json.dumps({"name": name.removesuffix(".json"), "steps": chain}, indent=2)
            (draft / name).write_text(text + "\n")
        card = (Path(bundle) / CARD).read_text(encoding="utf-8")
        (draft / CARD).write_text(f"{card.rstrip()}\n{_CARD}", encoding="utf-8")
    return folder


def read_packed(path: str | Path) -> PolicyFiles:
    """Return what a robot reads of the bundle in a ``model.safetensors``, checked.

    Raises:
        TrimtabError: if it holds no bundle, or one that was changed.
    """
    where = str(path)
    tensors = read_safetensors(read_whole(path), where)
    files = {name: part.tobytes() for name, part in tensors.items()}
    try:
        config = checked_config(json.loads(files.pop(CONFIG, b"")), where)
    except (ValueError, RecursionError) as error:
        raise TrimtabError(f"{where}: holds no bundle; export it again with as=lerobot") from error
    hashes = {name: hashlib.sha256(part).hexdigest() for name, part in files.items()}
    if hashes != config["files"]:
        raise TrimtabError(f"{where}: was changed (its hashes differ); export it again")
    return policy_files(config, files, where)


def input_features(contract: Contract) -> dict[str, dict[str, Any]]:
    """Return LeRobot's ``input_features`` of a policy: type and shape by LeRobot's names.

    A flat observation is ``observation.state``, a picture ``observation.images.<part>``, and any
    other part ``observation.<part>``.

    Raises:
        TrimtabError: if a part has bytes and is no picture.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, (shape, dtype) in contract.observed.items():
        key = _key(name, dtype)
        if dtype == "uint8":
            if len(shape) != 3:
                raise TrimtabError(f"LeRobot has no place for the part {name} of shape {shape}")
            found[key] = {"type": "VISUAL", "shape": [shape[2], *shape[:2]]}
        else:
            kind = "ENV" if key == "observation.environment_state" else "STATE"
            found[key] = {"type": kind, "shape": list(shape)}
    return found


def _key(name: str, dtype: str) -> str:
    if dtype == "uint8":
        return PICTURES + name
    return STATE if name == FLAT else f"observation.{name}"


class BatchPolicy:
    """A policy that LeRobot's batches ask: B robots or environments side by side.

    Args:
        files: the bundle's (:func:`read_packed`); its golden rows are replayed.
        features: shapes of LeRobot's input features, by name. A flat observation is all of them,
            flattened, one after another in this order.
        act_steps: how many actions of each chunk are played; None for as many as in training.
        seed: of the noise of the first row; row i has seed + i.
        deterministic: zero noise if True; None for what the contract says.
        inputs: of those that the policy's user chooses, by name.

    Raises:
        TrimtabError: if the golden rows do not replay, or a setting does not fit the policy.
    """

    def __init__(
        self,
        files: PolicyFiles,
        features: Mapping[str, tuple[int, ...]],
        *,
        act_steps: int | None = None,
        seed: int = 0,
        deterministic: bool | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self.contract, self.features = files.contract, dict(features)
        self._policy = OnnxPolicy(files.contract, files.model, "LeRobot policy")
        self._policy.check(files.golden)
        self.act_steps = files.contract.act_steps if act_steps is None else act_steps
        self._seed, self._inputs = seed, dict(inputs or {})
        given = files.contract.evaluate_deterministic
        self._deterministic = given if deterministic is None else deterministic
        self._agent: Agent | None = None
        self._flat = list(files.contract.observed) == [FLAT]
        self._check()

    def reset(self) -> None:
        """Begin an episode in every row; the noise goes on."""
        if self._agent is not None:
            self._agent.reset()

    def chunk(self, batch: Mapping[str, NDArray[Any]], noise: Array | None = None) -> Array:
        """Return action chunks ``[B, H, A]``, raw units, inside the contract's limits.

        Args:
            batch: the features ``[B, ...]``; pictures ``[B, C, H, W]``, from 0 to 1. Others are not
                read. What is observed is remembered where the policy has a history.
            noise: ``[B, *noise_shape]`` in place of the policy's own.

        Raises:
            TrimtabError: if a feature is missing, has another shape or is not finite.
        """
        for name in self.features:
            if name not in batch:
                raise TrimtabError(f"observation: lacks {name}, which the policy reads")
        rows = len(batch[next(iter(self.features))])
        obs = self._observation(batch, rows)
        if self._agent is None or self._agent.rows != rows:
            self._agent = Agent(
                self._policy.infer, rows, self._policy.inputs, act_steps=self.act_steps,
                deterministic=self._deterministic, inputs=self._inputs,
            )  # fmt: skip
            self._agent.reset(seeds=[self._seed + row for row in range(rows)])
        read, drawn = self._agent.read(obs)
        if noise is not None:
            drawn = checked_array(noise, (rows, *self.contract.noise_shape), "noise")
        chunk = self._policy.limited(self._policy.infer(read, drawn))
        self._agent.decided(obs, chunk[:, : self.act_steps])
        return chunk

    def _observation(self, batch: Mapping[str, NDArray[Any]], rows: int) -> ArrayObs:
        found = {
            name: checked_array(batch[name], (rows, *shape), name)
            for name, shape in self.features.items()
        }
        if self._flat:
            flat: Array = np.concatenate([part.reshape(rows, -1) for part in found.values()], 1)
            return flat
        parts = {}
        for name, (shape, dtype) in self.contract.observed.items():
            part = found[_key(name, dtype)]
            if dtype == "uint8":
                if part.min() < 0 or part.max() > 1:
                    raise TrimtabError(f"{called(name)}: LeRobot's pictures are from 0 to 1")
                part = np.rint(255 * part.transpose(0, 2, 3, 1)).astype(np.uint8)
            parts[name] = checked_array(part, (rows, *shape), called(name), dtype)
        return parts

    def _check(self) -> None:
        expected = {
            name: tuple(entry["shape"]) for name, entry in input_features(self.contract).items()
        }
        given = {name: tuple(shape) for name, shape in self.features.items()}
        sizes = [sum(math.prod(shape) for shape in all.values()) for all in (given, expected)]
        if not (sizes[0] == sizes[1] if self._flat else given == expected):
            raise TrimtabError(f"input_features: are {given}; the policy reads {expected}")
        reads_past = self.contract.history > 1 or bool(self.contract.inputs.memories(1))
        if self.act_steps != self.contract.act_steps and (
            reads_past or not 1 <= self.act_steps <= self.contract.horizon
        ):
            raise TrimtabError(
                f"n_action_steps={self.act_steps}: the policy was trained to play "
                f"{self.contract.act_steps} of {self.contract.horizon} actions; give that"
            )
        self.contract.inputs.check_whole_chunks(self.act_steps)
        self.contract.inputs.values(self._inputs)
