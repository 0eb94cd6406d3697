"""What becomes of the decisions that a run gathers: kept and replayed, or learned from at once."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.training.data.offline_data import open_source
from trimtab.benchmarks.training.generated import GeneratedData
from trimtab.benchmarks.training.goals import RelabelledData
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.benchmarks.training.shapes import spec_of
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.sources.device_replay import DeviceReplayBuffer, fits_device
from trimtab.datasets.sources.device_rollout import DeviceRolloutBuffer
from trimtab.datasets.sources.mixture import Mixture
from trimtab.datasets.sources.relabel import Relabelled
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.datasets.sources.weighting import episode_weights
from trimtab.envs.vector import simulator_device, why_on_processor
from trimtab.policies.memory import state_parts
from trimtab.types import Batch, BatchSpec, Part, PolicySpec, Rollout, Source

logger = logging.getLogger(__name__)


class ReplayedExperience:
    """Keeps decisions in a ring and draws batches, after a warm-up, several or less a decision.

    Args:
        buffer: where decisions go.
        algorithm: says how large batches are and how many are due.
        dataset: offline data that shares the batches, or None.
        offline_share: share of every batch that comes from ``dataset`` (RLPD: a half).
        relabelled: gives what is drawn of ``buffer`` other goals, where the method wants that.
    """

    def __init__(
        self,
        buffer: ReplayBuffer | DeviceReplayBuffer,
        algorithm: Algorithm,
        dataset: Source | None = None,
        offline_share: float = 0.0,
        relabelled: Relabelled | None = None,
    ) -> None:
        self.buffer, self.algorithm, self.relabelled = buffer, algorithm, relabelled
        self.source: Source = relabelled or buffer
        if dataset is not None and offline_share > 0:
            self.source = Mixture([dataset, self.source], [offline_share, 1 - offline_share])
        self.credit = 0.0

    def count(self, env_steps: int) -> None:
        """Count ``updates_per_decision`` updates for each decision once the warm-up is over.

        Args:
            env_steps: environment steps of the run so far.
        """
        if env_steps >= self.algorithm.pace.warmup_steps:
            self.credit += self.algorithm.pace.updates_per_decision * self.buffer.num_envs

    def due(self, source: Source | None = None) -> Iterator[Batch | Rollout]:
        """Yield a batch for each update that is due, and for those that come on top.

        Args:
            source: what batches are drawn from instead of the experience itself.
        """
        while self.credit >= 1.0 and self.buffer.ready:
            self.credit -= 1.0 if self.algorithm.paced else 0.0
            yield (source or self.source).sample(self.algorithm.pace.batch_size)

    def skip(self) -> None:
        """Do nothing: a ring has room."""

    def clear(self) -> None:
        """Empty the ring and owe no update."""
        self.buffer.clear()
        self.credit = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the ring and the updates that are owed."""
        goals = None if self.relabelled is None else self.relabelled.state_dict()
        return {"buffer": self.buffer.state_dict(), "credit": self.credit, "goals": goals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        self.buffer.load_state_dict(state["buffer"])
        self.credit = float(state["credit"])
        if self.relabelled is not None:
            self.relabelled.load_state_dict(state["goals"])


class RolloutExperience:
    """Gives every rollout to the learner once, as soon as it is full.

    A rollout has no values and no likelihoods. The learner computes them, with the weights that
    gathered the rollout, so acting needs the network of the policy alone.

    Args:
        buffer: where decisions go.
    """

    def __init__(self, buffer: RolloutBuffer | DeviceRolloutBuffer) -> None:
        self.buffer = buffer

    def count(self, env_steps: int) -> None:
        """Count nothing: whether an update is due, the rollout itself shows."""

    def due(self, source: Source | None = None) -> Iterator[Batch | Rollout]:
        """Yield the rollout if it is full, or a batch of ``source`` in its place."""
        if self.buffer.full:
            rollout = self.buffer.take()
            yield rollout if source is None else source.sample(len(rollout))

    def skip(self) -> None:
        """Drop the rollout if it is full."""
        if self.buffer.full:
            self.buffer.clear()

    def clear(self) -> None:
        """Begin the rollout again."""
        self.buffer.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the rows of the rollout so far."""
        return {"buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        self.buffer.load_state_dict(state["buffer"])


Experience = ReplayedExperience | RolloutExperience


def batch_spec_of(algorithm: Algorithm) -> BatchSpec:
    """Return what a method's batches have: what it says, and the history that its policy reads."""
    read = algorithm.policy.spec.history
    return replace(algorithm.batch_spec, history=read)


def make_dataset_source(
    plan: Plan,
    progress: Callable[[float], None] = lambda share: None,
) -> ReplayBuffer | RelabelledData | GeneratedData | None:
    """Return where a run's offline batches come from, or None where it has no dataset.

    Args:
        plan: what the run is made of.
        progress: called with the share of what has to be computed first.
    """
    config, algorithm, dataset = plan.config, plan.algorithm, plan.split.training
    if dataset is None:
        return None
    opened = functools.partial(
        open_source,
        dataset,
        progress,
        window=plan.act_steps,
        discount=config["discount"],
        chunked=True,
        device=config["device"],
        weights=_weights(config, dataset),
        parts=plan.env.obs_parts if plan.observations != "flat" else None,
    )
    batch_spec = batch_spec_of(algorithm)
    source = opened(
        seed=config["seed"], successors=algorithm.needs.next_observations, batch_spec=batch_spec
    )
    if (generator := plan.initial_state.generator) is not None:
        learned = opened(seed=_seed(config, 4), successors=True, batch_spec=generator.batch_spec)
        return GeneratedData(generator, learned, source)
    share = algorithm.batch_spec.goal
    if share is None:
        return source
    assert plan.goals is not None
    return RelabelledData(source, plan.goals, share, _seed(config, 2))


def _weights(config: RunConfig, dataset: Dataset) -> NDArray[np.float64] | None:
    """Return the weights that episodes are drawn by, or None where none are asked for.

    Where nothing tells the episodes apart, all are drawn alike, with a warning.
    """
    by, temperature = config["dataset_weighting"], config["weighting_temperature"]
    if by is None:
        return None
    weights = episode_weights(dataset, by, temperature)
    if np.ptp(weights) == 0 and math.isfinite(temperature):
        logger.warning(
            "dataset_weighting=%s has no effect: none of the %d episodes of dataset %s has a "
            "better %s than another", by, len(weights), dataset.id, by,
        )  # fmt: skip
    return weights


def make_experience(plan: Plan, dataset: Source | None, steps: int) -> Experience:
    """Return what a run's decisions become: a rollout where its method wants one, else a replay.

    With simulations on a GPU they stay there, unless a method's batches have a field that only a
    ring in this process's memory can fill (``fits_device``).

    Args:
        plan: what the run is made of.
        dataset: offline data that may share the batches, or None.
        steps: environment steps that the run gathers.
    """
    config, algorithm, env = plan.config, plan.algorithm, plan.env
    action_shape = (plan.act_steps, plan.env.action_dim)
    observed = spec_of(plan.env, plan.act_steps, plan.observations)
    simulated = simulator_device(env.id, config["device"], **env.options)
    if reason := why_on_processor(env.id, config["device"], **env.options):
        logger.warning("simulations stay on the processor: %s", reason)
    if algorithm.pace.rollout_steps:
        seen = _rows_of(observed, batch_spec_of(algorithm).history)
        size = algorithm.pace.rollout_steps, config["num_envs"]
        rollout: dict[str, Any] = {"discount": config["discount"], "aux": algorithm.aux_shapes}
        if simulated != "cpu":
            assert isinstance(seen, tuple)  # simulations on a GPU give one vector
            return RolloutExperience(
                DeviceRolloutBuffer(*size, seen, action_shape, device=simulated, **rollout)
            )
        return RolloutExperience(
            RolloutBuffer(*size, seen, action_shape, device=config["device"], **rollout)
        )
    capacity = max(min(config["buffer_size"], steps + config["num_envs"]), config["num_envs"])
    ring: dict[str, Any] = {
        "num_envs": config["num_envs"],
        "discount": config["discount"],
        "chunked": True,
        "aux": algorithm.aux_shapes,
        "batch_spec": batch_spec_of(algorithm),
    }
    if simulated != "cpu" and fits_device(ring["batch_spec"]):
        # The learner draws by torch's generator of the run's seed: this one has another.
        ring |= {"seed": _seed(config, 6), "device": simulated}
        on_device = DeviceReplayBuffer(capacity, observed.obs_dim, action_shape, **ring)
        return ReplayedExperience(on_device, algorithm, dataset, config["offline_share"])
    # Beside a dataset's source, which draws by the run's seed, the ring draws by another: two equal
    # generators would always pair rows of the same age.
    seed = config["seed"] if dataset is None else _seed(config, 1)
    seen_parts = _stored(observed, algorithm.policy.spec)
    ring |= {"seed": seed, "device": config["device"]}
    buffer = ReplayBuffer(capacity, seen_parts, action_shape, **ring)
    share, relabelled = algorithm.batch_spec.goal, None
    if share is not None:
        assert plan.goals is not None
        relabelled = Relabelled(buffer, plan.goals, share, _seed(config, 3))
    return ReplayedExperience(buffer, algorithm, dataset, config["offline_share"], relabelled)


def _stored(observed: PolicySpec, read: PolicySpec) -> int | Mapping[str, Part]:
    """Return what a ring holds of an observation: also the state that a base hands on."""
    if not (states := state_parts(read.parts)):
        return observed.parts or observed.obs_dim
    return {**observed.layout, **{name: Part(part.shape) for name, part in states.items()}}


def _seed(config: RunConfig, purpose: int) -> int:
    """Return a seed of a run for one purpose, different from those for others."""
    return int(np.random.SeedSequence([config["seed"], purpose]).generate_state(1)[0])


def _rows_of(observed: PolicySpec, history: int) -> tuple[int, ...] | Mapping[str, Part]:
    """Return what a rollout holds of an observation: all that the learner sees of it, at once."""
    past = (history,) if history > 1 else ()
    if not observed.parts:
        return (*past, observed.obs_dim)
    return {name: Part((*past, *p.shape), p.dtype) for name, p in observed.parts.items()}
