"""A bundle's policy played by onnxruntime, one action a control tick; numpy and no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, called, count, tree_map
from trimtab.policies.agent import Agent, ArrayObs
from trimtab.policies.bundle.checked import checked_array, checked_parts, checked_rows
from trimtab.policies.bundle.files import ONNX, Array, Contract, inputs_of, replay_error

__all__ = ["PolicyRunner"]


class PolicyRunner:
    """Plays a policy one action a control tick.

    A chunk of H actions is predicted when none is left to play, and its first ``act_steps`` actions
    are played open loop, as at training time. Made by
    :func:`trimtab.policies.runtime.load_policy`.

    An observation is an array ``[O]``, or a mapping of the parts that ``contract.parts`` names. A
    policy that reads a history is given one observation a tick all the same: the runner remembers
    those of its last decisions, and whatever else of an episode its policy reads.

    Attributes:
        contract: shapes, limits, rate and defaults.
        obs_dim: how many numbers the policy reads: the length O of a flat observation.
        action_dim: length A of an action, raw units.
        horizon: length H of a predicted chunk.
        act_steps: actions played from each chunk.
        control_rate: Hz at which to call :meth:`step`, or None where the task has no clock.
        action_low: lower limits ``[A]``, raw units, float32.
        action_high: upper limits ``[A]``, raw units, float32.
        deterministic: whether :meth:`step` uses zero noise.
    """

    def __init__(
        self,
        contract: Contract,
        model: bytes,
        where: str,
        *,
        seed: int = 0,
        deterministic: bool | None = None,
    ) -> None:
        self.contract = contract
        self.obs_dim = contract.obs_dim
        self.action_dim = contract.action_dim
        self.horizon = contract.horizon
        self.act_steps = contract.act_steps
        self.control_rate = contract.control_rate
        self.action_low: Array = np.array(contract.action_low, dtype=np.float32)
        self.action_high: Array = np.array(contract.action_high, dtype=np.float32)
        self._where = where
        self._session = _session(model, contract, where)
        given = contract.evaluate_deterministic if deterministic is None else deterministic
        self._agent = Agent(
            self._run, 1, contract.inputs, act_steps=contract.act_steps, deterministic=given
        )
        self.reset(seed)

    @property
    def deterministic(self) -> bool:
        """Whether :meth:`step` uses zero noise."""
        return self._agent.deterministic

    def reset(self, seed: int | None = None, **inputs: ArrayLike) -> None:
        """Forget the actions still to be played, and the history; call it before every episode.

        Args:
            seed: start the noise again from this seed; None lets the noise go on, so that episodes
                differ.
            inputs: values, from now on, of inputs that the policy's user chooses, by name
                (``contract.parts`` with ``given``); the others keep theirs.

        Raises:
            TrimtabError: if an input is unknown or does not fit.
        """
        if inputs:
            self._agent.set_inputs(inputs)
        self._agent.reset(seeds=None if seed is None else [seed])

    def step(
        self, obs: ArrayLike | Mapping[str, ArrayLike], reward: ArrayLike | None = None
    ) -> Array:
        """Return the action ``[A]`` of this control tick, raw units, inside the limits.

        Args:
            obs: the observation of this tick ``[O]``, or its parts, raw units. It is checked on
                every tick, also on those that play an action predicted earlier.
            reward: what came of the action before, where it is known. A policy that is asked for a
                return takes it off what is still to come; without it, it goes on being asked for
                all of it. Other policies do not look at it.

        Raises:
            TrimtabError: if the observation has another shape, is not numeric or not finite, has a
                masked value, lacks a part, if the reward is no finite number, or if the policy
                gives an action that is not finite.
        """
        if reward is not None:
            self._agent.rewarded(checked_array(reward, (), "reward")[None])
        action: Array = self._agent.step(tree_map(lambda part: part[None], self._observed(obs)))[0]
        return action

    def predict(self, obs: ArrayLike | Mapping[str, ArrayLike], noise: ArrayLike) -> Array:
        """Return the action chunks ``[B, H, A]`` of ``obs [B, O]`` and ``noise [B, *noise_shape]``.

        Observations have their history, ``[B, K, ...]``, and all inputs, where there are any.

        Raises:
            TrimtabError: as :meth:`step`; the noise is checked in the same way.
        """
        checked = checked_rows(obs, self.contract)
        drawn = checked_array(noise, (count(checked), *self.contract.noise_shape), "noise")
        return self._run(checked if self.contract.parts else checked[FLAT], drawn)

    def sample_noise(self, rows: int) -> Array:
        """Return the next noise ``[rows, *noise_shape]``: standard normal, or zeros."""
        return self._agent.draw_noise(rows)

    def _observed(self, obs: ArrayLike | Mapping[str, ArrayLike]) -> ArrayObs:
        """Return what the environment has to give of one observation, checked."""
        parts = self.contract.parts
        names = [name for name, part in parts.items() if part.given is None] or [FLAT]
        if names == [FLAT]:
            width = parts[FLAT].shape if parts else (self.obs_dim // self.contract.history,)
            return checked_array(obs, width, "observation")
        given = checked_parts(obs, parts, names)
        return {
            name: checked_array(given[name], parts[name].shape, called(name), parts[name].dtype)
            for name in names
        }

    def check(self, golden: Mapping[str, NDArray[Any]]) -> float:
        """Replay golden rows, all at once and one alone; return the largest difference.

        Raises:
            TrimtabError: if it is above 1e-4.
        """
        # A graph that was traced for one batch size would pass the first and fail the second.
        errors = []
        for rows in (slice(None), slice(0, 1)):
            part = {name: values[rows] for name, values in golden.items()}
            action = self._run(*inputs_of(part, self.contract))
            errors.append(
                replay_error(
                    action, golden["action"][rows], self._where, "onnxruntime",
                    self.contract.tolerance,
                )
            )  # fmt: skip
        return max(errors)

    def _run(self, obs: ArrayObs, noise: Array) -> Array:
        parts = obs if isinstance(obs, Mapping) else {FLAT: obs}
        try:
            (action,) = self._session.run(["action"], {**parts, "noise": noise})
        except Exception as error:  # onnxruntime's errors share no public base class
            raise TrimtabError(f"{self._where}: onnxruntime failed: {error}") from error
        if not np.isfinite(action).all():
            raise TrimtabError(
                f"{self._where}: the policy gave an action that is not finite; stop the robot and "
                "look at the observations"
            )
        clipped: Array = np.clip(action, self.action_low, self.action_high)
        return clipped


def _session(model: bytes, contract: Contract, where: str) -> onnxruntime.InferenceSession:
    """Return an onnxruntime session of one thread whose inputs and output fit the contract."""
    onnxruntime.disable_telemetry_events()  # a robot reports to nobody
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no public base class
        raise TrimtabError(
            f"{where}: onnxruntime cannot open {ONNX} ({error}); export the bundle again"
        ) from error
    found = {port.name: list(port.shape[1:]) for port in session.get_inputs()}
    found |= {port.name: list(port.shape[1:]) for port in session.get_outputs()}
    expected = {name: list(shape) for name, shape in contract.input_shapes.items()}
    expected["action"] = [contract.horizon, contract.action_dim]
    if found != expected:
        raise TrimtabError(
            f"{where}: {ONNX} has inputs and outputs {found}, the contract says {expected}; "
            "export the bundle again"
        )
    return session
