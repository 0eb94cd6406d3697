"""Judge a finished policy, a bundle, on a task: the one it was trained in, or another that fits."""

from __future__ import annotations

import functools
import gc
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trimtab.benchmarks.training.base import training
from trimtab.benchmarks.training.evaluate import (
    Evaluator,
    FloatArray,
    Scores,
    torch_act,
)
from trimtab.benchmarks.training.identity import HASH_VERSION
from trimtab.benchmarks.training.matching import check_policy_fits
from trimtab.benchmarks.training.record import protocol_of
from trimtab.benchmarks.training.rows import EpisodeRow
from trimtab.benchmarks.training.settings.words import nearest
from trimtab.benchmarks.training.shapes import observation_mode, spec_of
from trimtab.benchmarks.training.without_task import has_task
from trimtab.envs.registry import checked_names, get_spec
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json
from trimtab.policies.agent import NOISE, RESTART, ArrayObs, Decide, PolicyInputs
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.bundle.files import Array, Contract, inputs_of
from trimtab.policies.bundle.golden import golden_rows
from trimtab.policies.bundle.onnx_policy import open_policy
from trimtab.policies.robot.delayed import Latency, Timing
from trimtab.policies.robot.modes import (
    Blended,
    Mode,
    RealTimeChunking,
    RealTimeIteration,
    RecedingHorizon,
    TemporalEnsemble,
)
from trimtab.policies.serving.protocol import is_server

__all__ = ["BACKENDS", "TIMED_MODES", "BundleJudge", "task_of"]

logger = logging.getLogger(__name__)


def task_of(
    bundle: Bundle, env: str | None, options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Return the task on which a bundle is judged, and the options that it is made with.

    Args:
        bundle: the policy.
        env: task id; None for the one that it was trained in.
        options: None for those of its training, or on another task for none.

    Raises:
        TrimtabError: if no task is given for one that was trained without a task.
    """
    trained = bundle.config["env"]
    task = env or trained["id"]
    if not has_task(task):
        raise TrimtabError(
            f"{bundle.folder} names no task to play; add env=… for a task with the same spaces. A "
            "policy of data alone can be compared with held-out actions (train … holdout=0.1)"
        )
    if options is not None:
        return task, dict(options)
    return task, checked_names(trained["options"]) if task == trained["id"] else {}


class BundleJudge:
    """Judges one bundle on one task.

    Args:
        bundle: the policy.
        task: task id.
        options: what the task is made with.
        inputs: values of the policy's inputs that differ from their defaults.

    Raises:
        TrimtabError: if the task or an input is unknown, or the policy does not fit the task.
    """

    def __init__(
        self,
        bundle: Bundle,
        task: str,
        options: Mapping[str, Any],
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self.bundle, self.task, self.options = bundle, task, options
        self.inputs = _unlike_defaults(bundle.policy.inputs, inputs or {})
        self.act_steps = int(bundle.config["chunking"]["act_steps"])
        self.observations = observation_mode(bundle.policy.inputs)
        self.spec = get_spec(task, **options)
        asked = spec_of(self.spec, self.act_steps, self.observations)
        asked = asked.with_history(bundle.policy.spec.history)
        check_policy_fits(bundle, asked, self.spec, called="policy")
        trained = bundle.config["env"]
        if self.spec.fingerprint != trained.get("fingerprint") and task == trained["id"]:
            logger.warning(
                "%s has another physics fingerprint (%s) here than where the policy was trained "
                "(%s)", task, self.spec.fingerprint, trained.get("fingerprint"),
            )  # fmt: skip

    def judge(
        self,
        *,
        episodes: int,
        seed: int,
        backend: str = "torch",
        deterministic: bool,
        watch: Callable[[int, FloatArray], None] | None = None,
        timing: Timing | None = None,
    ) -> Scores:
        """Play all episodes and return their scores.

        Args:
            episodes: number of episodes.
            seed: that of the first one.
            backend: what runs the policy, ``torch`` or ``onnx``.
            deterministic: zero noise instead of sampled noise.
            watch: called with an episode's number and each chunk [act_steps, A] that it plays.
            timing: as :meth:`timing` returns it; None: the simulator waits for the policy.

        Raises:
            TrimtabError: if there is no such backend, or ``episodes`` is less than 1.
        """
        act = self._act(backend)
        evaluator = Evaluator(
            self.task,
            episodes=episodes,
            seed=seed,
            act_steps=self.act_steps if timing is None else 1,
            options=self.options,
            observations=self.observations,
        )
        try:
            return evaluator.judge(
                act,
                self.bundle.policy.inputs,
                deterministic=deterministic,
                watch=watch,
                inputs=self.inputs,
                timing=timing,
            )
        finally:
            evaluator.close()
            # Simulators are in cycles of references. Their memory, 200 MB in 50 copies of push, is
            # not Python's own, so its collector would hardly ever come by itself.
            del evaluator
            gc.collect()

    def _act(self, backend: str) -> Decide:
        if backend not in BACKENDS:
            raise TrimtabError(f"evaluate: backend={backend}: {nearest(backend, BACKENDS)}")
        return BACKENDS[backend](self.bundle)

    def usual_decision(self, mode: str) -> tuple[ArrayObs, Array]:
        """Return observation and noise of one row, as a robot in a mode usually asks with them."""
        golden = {name: rows[:1].numpy() for name, rows in golden_rows(self.bundle.policy).items()}
        golden |= {
            name: value[None]
            for name, value in self.bundle.policy.inputs.values(self.inputs).items()
            if self.bundle.policy.inputs.parts[name].choices
        }
        if RESTART in golden:  # there is a plan, but at an episode's start
            golden[RESTART][:] = mode == "rti"
        return inputs_of(golden, Contract.parse(self.bundle.config, str(self.bundle.folder)))

    def measured_ms(self, backend: str, mode: str) -> float:
        """Return how many milliseconds one decision takes on this machine: the median of 100."""
        act, (obs, noise) = self._act(backend), self.usual_decision(mode)
        seconds = []
        for _ in range(110):
            begun = time.perf_counter()
            act(obs, noise)
            seconds.append(time.perf_counter() - begun)
        return round(1e3 * float(np.median(seconds[10:])), 3)

    def timed(
        self,
        backend: str = "torch",
        *,
        mode: str = "",
        interval: int = 0,
        delay_ms: float | str = 0,
        jitter: float = 0.0,
        drop: float = 0.0,
    ) -> dict[str, Any]:
        """Return the arguments of :meth:`timing` with the usual ones filled in; empty if all are.

        A policy that reads each tick is played by ticks in any case.

        Args:
            backend: what runs the policy.
            mode: empty for ``receding``.
            interval: 0 for the usual one, in :data:`TIMED_MODES`.
            delay_ms: a number, as text too, or ``measured``.
            jitter: as of :meth:`timing`.
            drop: likewise.

        Raises:
            TrimtabError: if the mode is unknown, or the delay is neither.
        """
        measured = delay_ms == MEASURED
        if measured:
            delay_ms = self.measured_ms(backend, mode)
        try:
            delay = math.nan if isinstance(delay_ms, bool) else float(delay_ms)
        except (TypeError, ValueError):
            delay = math.nan
        if not 0 <= delay <= 1e9:
            raise TrimtabError(
                f"evaluate: delay_ms={delay_ms}: give a number from 0 to 1e9, or {MEASURED}"
            )
        by_ticks = self.bundle.policy.inputs.needs_ticks(self.act_steps)
        if not (mode or interval or delay or jitter or drop or by_ticks):
            return {}
        mode = mode or "receding"
        if mode not in TIMED_MODES:
            raise TrimtabError(f"evaluate: mode={mode}: {nearest(mode, TIMED_MODES)}")
        told = {"measured": True} if measured else {}
        return {
            "mode": mode,
            "interval": interval or TIMED_MODES[mode][1] or self.act_steps,
            "jitter": jitter,
            "drop": drop,
            "delay_ms": delay,
            **told,
        }

    def timing(
        self,
        mode: str,
        interval: int,
        delay_ms: float,
        jitter: float,
        drop: float,
        measured: bool = False,
    ) -> Timing:
        """Return how the policy is played in simulated time.

        Args:
            mode: one of :data:`TIMED_MODES`.
            interval: ticks from one chunk to the next that is asked for.
            delay_ms: milliseconds from an observation to the answer.
            jitter: standard deviation of the delay's logarithm.
            drop: share of ticks without an observation.
            measured: whether the delay is that of :meth:`measured_ms`; only the rows tell it.

        Raises:
            TrimtabError: if a value does not fit, or the task has no clock.
        """
        del measured
        rate = self.spec.control_rate
        if rate is None:
            raise TrimtabError(f"{self.task}: has no control rate, so that a delay has no meaning")
        latency = Latency(delay_ms / 1e3, jitter, drop)
        make = functools.partial(TIMED_MODES[mode][0], interval)
        if mode == "rtc":
            make = functools.partial(make, delay=latency.median_ticks(1.0 / rate))
        horizon = self.bundle.policy.spec.horizon
        return Timing(make, latency, horizon, self.act_steps, 1.0 / rate)

    def rows(
        self,
        scores: Scores,
        *,
        deterministic: bool,
        timed: Mapping[str, Any] | None = None,
    ) -> list[EpisodeRow]:
        """Return a row for each episode.

        A policy with other inputs than its defaults, or in simulated time, is one of its own in a
        table: what differs stands behind its name, and its rows are of no run.

        Args:
            scores: of the episodes.
            deterministic: whether the noise was zero.
            timed: the arguments of :meth:`timing`, where the policy was played so.
        """
        differs = {**self.inputs, **(timed or {})}
        trained = training(self.bundle)
        known = trained.get("config_hash")
        config = str(known or self.bundle.hash[:10])
        name = trained.get("policy") or self.bundle.policy.label
        if differs:
            known = None
            told = {"inputs": self.inputs} | ({"timed": dict(timed)} if timed else {})
            config = sha256_json({"config": config, **told})[:10]
            name = ", ".join([name, *(f"{key}={_short(x)}" for key, x in differs.items())])
        return [
            EpisodeRow(
                suite=None,
                env=self.task,
                algorithm=str(trained.get("algorithm") or "policy"),
                policy=name,
                dataset=trained.get("dataset"),
                base=trained.get("base"),
                seed=int(trained.get("seed") or 0),
                env_steps=int(trained.get("env_steps") or 0),
                updates=int(trained.get("updates") or 0),
                config_hash=config,
                hash_version=HASH_VERSION if known else None,
                delay_ms=float(timed["delay_ms"]) if timed else 0.0,
                device="cpu",
                **protocol_of(self.spec, self.act_steps, deterministic=deterministic),
                **vars(score),
            )
            for score in scores.episodes
        ]


def _short(value: Any) -> str:
    """Return an input's value as a name has it; of many numbers, such as a noise, their hash."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else sha256_json({"value": value})[:8]


def _unlike_defaults(policy_inputs: PolicyInputs, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs that differ from their defaults, in one form however they are written.

    Raises:
        TrimtabError: if one is unknown or does not fit.
    """
    values, defaults = policy_inputs.values(chosen), policy_inputs.values({})
    fixed = policy_inputs.fixed_noise(chosen)
    found = {} if fixed is None else {NOISE: fixed.tolist()}
    for name in sorted(chosen.keys() - {NOISE}):
        if not np.array_equal(values[name], defaults[name]):
            value = values[name].item() if values[name].size == 1 else values[name].tolist()
            choices = policy_inputs.parts[name].choices
            found[name] = choices[int(value)] if choices else value
    return found


def _on_torch(bundle: Bundle) -> Decide:
    return torch_act(bundle.policy)


def _on_onnx(bundle: Bundle) -> Decide:
    if is_server(str(bundle.folder)):
        raise TrimtabError(
            f"{bundle.folder}: backend=onnx: the server says what runs its policy; leave it out, "
            "and serve with backend=…"
        )
    return open_policy(bundle.folder).predict


BACKENDS: Mapping[str, Callable[[Bundle], Decide]] = {"torch": _on_torch, "onnx": _on_onnx}
"""What can run a bundle's policy."""

MEASURED = "measured"
"""The delay that a decision takes on this machine."""

TIMED_MODES: Mapping[str, tuple[type[Mode], int]] = {
    "receding": (RecedingHorizon, 0),
    "ensemble": (TemporalEnsemble, 1),
    "blended": (Blended, 0),
    "rtc": (RealTimeChunking, 0),
    "rti": (RealTimeIteration, 0),
}
"""Modes in simulated time, and their usual interval in ticks; 0: the act_steps of the training."""
