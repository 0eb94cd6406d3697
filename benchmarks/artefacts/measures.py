"""What is measured of a finished policy beside its score: its decision's time, its distance.

These numbers are of one machine or of one sample, so they stand beside a suite's rows
(``runs.json``) and not in them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.benchmarks.artefacts.export import export_bundle
from trimtab.benchmarks.core.threads import one_thread
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.evaluate import Evaluator, torch_act
from trimtab.benchmarks.training.shapes import observation_mode
from trimtab.envs.registry import checked_names
from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.policies.agent import ArrayObs
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.bundle.onnx_policy import open_policy

__all__ = ["base_distance", "decision_times", "held_out_states"]

HELD_OUT_SEED = 77_000
"""Seed of the first episode in which the base is followed: below those of judges and trials."""
EPISODES = 5
STATES = 128
_CALLS = 40
_Recorded = list[ArrayObs]


def decision_times(run: Path, obs: ArrayObs) -> dict[str, float | None]:
    """Return the median milliseconds of one decision for one observation, in torch and in ONNX.

    Args:
        run: folder of a run or a bundle.
        obs: observations, of which the first is decided on.
    """
    bundle = load_base(str(run))
    one = tree_map(lambda part: part[:1], obs)
    act = torch_act(bundle.policy)
    noise = np.zeros((1, *bundle.policy.noise_shape), np.float32)
    with one_thread():
        found: dict[str, float | None] = {"torch": _milliseconds(lambda: act(one, noise))}
    with tempfile.TemporaryDirectory() as place:
        try:
            export_bundle(run, Path(place) / "bundle")
        except TrimtabError:  # a policy that has no graph is told by the empty cell
            return {**found, "onnx": None}
        policy = open_policy(Path(place) / "bundle")
        return {**found, "onnx": _milliseconds(lambda: policy.predict(one, noise))}


def _milliseconds(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(_CALLS + 5):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return round(1000 * statistics.median(times[5:]), 4)


def held_out_states(base: Path, env: str, options: dict[str, Any]) -> ArrayObs:
    """Return observations ``[STATES, ...]`` that a base met in episodes of its own on a task.

    Args:
        base: folder of its run or bundle.
        env: task id.
        options: what the task is made with.
    """
    bundle = load_base(str(base))
    policy = bundle.policy
    seen: _Recorded = []
    decide = torch_act(policy)

    def watched(obs: ArrayObs, noise: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(tree_map(np.copy, obs))
        return decide(obs, noise)

    evaluator = Evaluator(
        env,
        episodes=EPISODES,
        seed=HELD_OUT_SEED,
        act_steps=int(bundle.config["chunking"]["act_steps"]),
        options=checked_names(options),
        observations=observation_mode(policy.inputs),
    )
    try:
        evaluator.judge(watched, policy.inputs, deterministic=False)
    finally:
        evaluator.close()

    def chosen(*parts: NDArray[Any]) -> NDArray[Any]:
        rows: NDArray[Any] = np.concatenate(parts)
        picked: NDArray[Any] = rows[np.linspace(0, len(rows) - 1, STATES).astype(int)]
        return picked

    states: ArrayObs = tree_map(chosen, *seen)
    return states


def base_distance(run: Path, base: Path, obs: ArrayObs) -> float:
    """Return how far a policy's actions are from its base's, in half ranges of an action.

    The root mean square over held-out states of the difference between the action that the policy
    takes as it is judged and one that the base samples; only executed actions count. The frozen
    base's own distance is that of two of its samples.

    Args:
        run: folder of the policy's run.
        base: folder of its base's run.
        obs: states ``[N, ...]``.
    """
    ours, theirs = load_base(str(run)), load_base(str(base))
    spec = ours.policy.spec
    half = (np.array(spec.action_high) - np.array(spec.action_low)) / 2
    steps = int(ours.config["chunking"]["act_steps"])
    first = _actions(ours, obs, 1, sampled=not ours.policy.evaluate_deterministic)
    second = _actions(theirs, obs, 2, sampled=True)
    gap = (first[:, :steps] - second[:, :steps]) / half
    return round(float(np.sqrt(np.mean(np.square(gap)))), 4)


def _actions(bundle: Bundle, obs: ArrayObs, seed: int, *, sampled: bool) -> NDArray[np.float64]:
    policy: Policy = bundle.policy
    parts = obs.values() if isinstance(obs, dict) else (obs,)
    shape = (len(next(iter(parts))), *policy.noise_shape)
    noise = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    with torch.no_grad():
        raw = torch_act(policy)(obs, noise if sampled else np.zeros_like(noise))
    return raw.astype(np.float64)
