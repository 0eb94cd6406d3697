"""A bundle's policy, run by onnxruntime; numpy and no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, count
from trimtab.policies.agent import ArrayObs, PolicyInputs
from trimtab.policies.bundle.checked import NotFinite, checked_array, checked_rows
from trimtab.policies.bundle.files import (
    GOLDEN,
    ONNX,
    WARNING,
    Array,
    Contract,
    inputs_of,
    read_files,
    read_golden,
    replay_error,
)
from trimtab.policies.memory import following, state_parts
from trimtab.policies.onnx_session import open_session, run_session

__all__ = ["OnnxPolicy", "PolicyFiles", "open_policy", "policy_files", "read_policy"]


class PolicyFiles(NamedTuple):
    """What a robot reads of a bundle.

    Attributes:
        contract: shapes, limits, rate and defaults.
        model: the bytes of the graph.
        golden: rows that the graph has to replay.
        sha256: the hash of the bundle: of its config, which has those of its files.
        config: all of ``config.json``.
        warning: the bytes of what its warning compares with; None if it has no warning.
    """

    contract: Contract
    model: bytes
    golden: dict[str, NDArray[Any]]
    sha256: str
    config: Mapping[str, Any]
    warning: bytes | None


def read_policy(folder: str | Path) -> PolicyFiles:
    """Return what a robot reads of a bundle, checked.

    Raises:
        TrimtabError: if a file is missing or was changed, or the bundle has no graph.
    """
    return policy_files(*read_files(folder), f"bundle {folder}")


def policy_files(config: Mapping[str, Any], files: Mapping[str, bytes], where: str) -> PolicyFiles:
    """Return what a robot reads of files that were checked against their hashes.

    Raises:
        TrimtabError: if they do not fit one another, or there is no graph; ``where`` names them.
    """
    contract = Contract.parse(config, where)
    golden = read_golden(files[GOLDEN], contract, f"{where}: {GOLDEN}")
    if ONNX not in files:
        raise TrimtabError(
            f"{where}: has no {ONNX}; make a complete bundle of its run by trimtab export"
        )
    return PolicyFiles(
        contract, files[ONNX], golden, str(config["sha256"]), config, files.get(WARNING)
    )


def open_policy(folder: str | Path) -> OnnxPolicy:
    """Return the policy of a bundle, checked: one that answers, and drives no robot.

    Raises:
        TrimtabError: as :func:`read_policy`, and if its golden rows do not replay.
    """
    files = read_policy(folder)
    policy = OnnxPolicy(files.contract, files.model, f"bundle {folder}")
    policy.check(files.golden)
    return policy


class OnnxPolicy:
    """A bundle's policy: ``(observation, noise) -> action chunk``, run by onnxruntime.

    Attributes:
        contract: shapes, limits, rate and defaults.
        obs_dim: how many numbers one observation of a tick has, in all its parts; what is
            remembered of earlier ticks, and what the user chooses, does not count.
        action_dim: length A of an action, raw units.
        horizon: length H of a predicted chunk.
        act_steps: actions played from each chunk in training.
        control_rate: control ticks a second in Hz, or None where the task has no clock.
        action_low: lower limits ``[A]``, raw units, float32.
        action_high: upper limits ``[A]``, raw units, float32.

    Args:
        contract: of the bundle.
        model: the bytes of its graph; None where a subclass computes elsewhere.
        where: what errors call it.

    Raises:
        TrimtabError: if onnxruntime cannot open the graph, or the graph does not fit the contract.
    """

    def __init__(self, contract: Contract, model: bytes | None, where: str) -> None:
        self.contract = contract
        self.obs_dim = sum(math.prod(shape) for shape, _ in contract.observed.values())
        self.action_dim = contract.action_dim
        self.horizon = contract.horizon
        self.act_steps = contract.act_steps
        self.control_rate = contract.control_rate
        self.action_low: Array = np.array(contract.action_low, dtype=np.float32)
        self.action_high: Array = np.array(contract.action_high, dtype=np.float32)
        self._where = where
        self._session = None if model is None else _session(model, contract, where)
        self._handed_on = list(state_parts(contract.parts))

    @property
    def inputs(self) -> PolicyInputs:
        """What the policy reads at each decision, and what it hands on to the next one."""
        found = self.contract.inputs
        return replace(found, advance=self.advance) if self._handed_on else found

    def predict(self, obs: ArrayLike | Mapping[str, ArrayLike], noise: ArrayLike) -> Array:
        """Return the action chunks ``[B, H, A]`` of ``obs [B, O]`` and ``noise [B, *noise_shape]``.

        Observations have their history, ``[B, K, ...]``, and all inputs, where there are any.

        Raises:
            TrimtabError: if an observation has another shape, is not numeric or not finite, has a
                masked value or lacks a part, likewise the noise, or if the policy gives an action
                that is not finite.
        """
        checked = checked_rows(obs, self.contract)
        drawn = checked_array(noise, (count(checked), *self.contract.noise_shape), "noise")
        return self.limited(self.infer(checked if self.contract.parts else checked[FLAT], drawn))

    def check(self, golden: Mapping[str, NDArray[Any]]) -> float:
        """Replay golden rows, all at once and one alone; return the largest difference.

        Raises:
            TrimtabError: if it is above 1e-4.
        """
        # A graph that was traced for one batch size would pass the first and fail the second.
        errors = []
        for rows in (slice(None), slice(0, 1)):
            part = {name: values[rows] for name, values in golden.items()}
            inputs = inputs_of(part, self.contract)
            replayed = {"action": self.limited(self.infer(*inputs))}
            if self._handed_on:
                replayed |= {following(n): part for n, part in self.advance(*inputs).items()}
            errors += [
                replay_error(
                    values, golden[name][rows], self._where, "onnxruntime", self.contract.tolerance
                )
                for name, values in replayed.items()
            ]
        return max(errors)

    def infer(self, obs: ArrayObs, noise: Array) -> Array:
        """Return what the graph gives ``[B, H, A]``, for inputs that were checked.

        Raises:
            TrimtabError: if onnxruntime fails.
        """
        (action,) = self._run(["action"], obs, noise)
        return action

    def advance(self, obs: ArrayObs, noise: Array) -> dict[str, Array]:
        """Return what the policy hands on to its next decision, by the part that will have it.

        Args:
            obs: as of :meth:`infer`.
            noise: as of :meth:`infer`.

        Raises:
            NotFinite: if a value is NaN or infinite.
            TrimtabError: if onnxruntime fails.
        """
        values = self._run([following(name) for name in self._handed_on], obs, noise)
        if not all(np.isfinite(value).all() for value in values):
            raise NotFinite(f"{self._where}: the policy's state is not finite; reset it")
        return dict(zip(self._handed_on, values, strict=True))

    def _run(self, names: list[str], obs: ArrayObs, noise: Array) -> list[Array]:
        parts = obs if isinstance(obs, Mapping) else {FLAT: obs}
        assert self._session is not None
        return run_session(self._session, names, {**parts, "noise": noise}, self._where)

    def limited(self, action: Array) -> Array:
        """Return actions inside the limits of the contract.

        Raises:
            NotFinite: if one is NaN or infinite.
        """
        if not np.isfinite(action).all():
            raise NotFinite(
                f"{self._where}: the policy gave an action that is not finite; stop the robot and "
                "look at the observations"
            )
        clipped: Array = np.clip(action, self.action_low, self.action_high)
        return clipped


def _session(model: bytes, contract: Contract, where: str) -> onnxruntime.InferenceSession:
    """Return an onnxruntime session whose inputs and outputs fit the contract."""
    session = open_session(model, f"{where}: {ONNX}")
    found = {port.name: list(port.shape[1:]) for port in session.get_inputs()}
    found |= {port.name: list(port.shape[1:]) for port in session.get_outputs()}
    expected = {name: list(shape) for name, shape in contract.input_shapes.items()}
    expected |= {name: list(shape) for name, shape in contract.output_shapes.items()}
    if found != expected:
        raise TrimtabError(
            f"{where}: {ONNX} has inputs and outputs {found}, the contract says {expected}; "
            "export the bundle again"
        )
    return session
