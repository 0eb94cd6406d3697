"""Known faults of DSRL's public code in stepping and in time limits, each put back into a copy.

Every check first passes with the harness as it is, and then has to fail with the fault: steps that
are counted in chunks, time limits that are taken for ends, and chunks that go on after the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.steering.dsrl_sac import DSRLSAC
from trimtab.benchmarks.training.collector import Collector
from trimtab.benchmarks.training.shapes import spec_of
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.core.chunk import ChunkWrapper
from trimtab.envs.core.task_env import TaskEnv
from trimtab.envs.engines import sync_vector
from trimtab.envs.vector import make_vec
from trimtab.policies.kinds.flow import FlowPolicy

TASK, COUNT, CHUNK, HORIZON, GAMMA = "robotics/PointMaze-TwoRoutes-v0", 2, 4, 10, 0.9


def gathered(
    collects: type[Collector] = Collector, keeps: type[ReplayBuffer] = ReplayBuffer
) -> tuple[Any, ReplayBuffer]:
    """Return a collector that steers a base by DSRL, and its buffer."""
    envs: Any = make_vec(TASK, COUNT, seed=3, act_steps=CHUNK, horizon=HORIZON)
    torch.manual_seed(0)
    spec = spec_of(envs.env_spec, CHUNK, "flat")
    base = FlowPolicy(spec, hidden=(16,), sampling_steps=2)
    algorithm = DSRLSAC(Setup(spec, base=base, num_envs=COUNT), hidden=(16,))
    buffer = keeps(
        100, spec.obs_dim, (CHUNK, spec.action_dim), num_envs=COUNT, discount=GAMMA, chunked=True,
        aux=algorithm.aux_shapes,
    )  # fmt: skip
    return collects(envs, algorithm, buffer, "cpu"), buffer


# Steps are those of the environment, not decisions, and not chunks' full lengths.


class CountsDecisions(Collector):
    """A decision counts as one step, whatever its chunk."""

    def step(self, *, warmup: bool) -> int:
        """Return the number of decisions."""
        super().step(warmup=warmup)
        return COUNT


class CountsWholeChunks(Collector):
    """A chunk counts in full, also where its episode has cut it short."""

    def step(self, *, warmup: bool) -> int:
        """Return the number of planned steps."""
        super().step(warmup=warmup)
        return COUNT * CHUNK


def check_steps(collects: type[Collector], monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    step = TaskEnv.step

    def counted(env: TaskEnv, action: Any) -> Any:
        taken.append(1)
        return step(env, action)

    with monkeypatch.context() as patch:
        patch.setattr(TaskEnv, "step", counted)
        one, _ = gathered(collects)
        taken.clear()
        said = sum(one.step(warmup=number < 3) for number in range(6))
    assert len(taken) == 2 * COUNT * HORIZON  # chunks of 4, 4 and 2 steps, twice
    assert said == len(taken), "other steps are counted than were taken"


def test_steps_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    check_steps(Collector, monkeypatch)
    for fault in (CountsDecisions, CountsWholeChunks):
        with pytest.raises(AssertionError, match="other steps are counted"):
            check_steps(fault, monkeypatch)


# A time limit bootstraps.


class LimitsAreEnds(ReplayBuffer):
    """What was cut by its time limit is stored as terminated."""

    def add(self, *row: Any, **more: Any) -> None:
        """Store a row whose limit is an end."""
        obs, action, reward, next_obs, terminated, truncated, *rest = row
        super().add(
            obs, action, reward, next_obs, np.asarray(terminated) | truncated, truncated, *rest,
            **more,
        )  # fmt: skip


def check_limits(keeps: type[ReplayBuffer]) -> None:
    one, buffer = gathered(keeps=keeps)
    for _ in range(9):
        one.step(warmup=True)
    assert one.episodes == 3 * COUNT  # all of them ran out of time: nothing ends this task
    batch = buffer.sample(500)
    assert bool((~batch.valid.all(1)).any())  # rows of cut chunks are among them
    assert torch.equal(batch.discount, torch.full((500,), GAMMA)), "a limit is taken for an end"


def test_a_time_limit_is_not_stored_as_an_end() -> None:
    check_limits(ReplayBuffer)
    with pytest.raises(AssertionError, match="taken for an end"):
        check_limits(LimitsAreEnds)


# A chunk ends with its episode.


class Counter(gymnasium.Env[Any, Any]):
    """Ends at its third step, and would go on if it were stepped; reward i at step i."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start again."""
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        """Count."""
        self.steps += 1
        return np.full(1, self.steps), float(self.steps), self.steps >= 3, False, {}


class StepsOn(ChunkWrapper):
    """Plays every action of a chunk, also after the episode has ended."""

    def step(self, action: Any) -> Any:
        """Step on to the chunk's last action."""
        total, ended, cut = 0.0, False, False
        for single in action:
            obs, reward, terminated, truncated, info = self.env.step(single)
            total, ended, cut = total + reward, ended or terminated, cut or truncated
        return obs, total, ended, cut, {**info, "steps": len(action)}


def check_end(wraps: type[ChunkWrapper]) -> None:
    raw = Counter()
    env = wraps(TaskEnv(raw, horizon=99, success_key=None), CHUNK)
    env.reset(seed=0)
    obs, reward, terminated, _, info = env.step(np.zeros((CHUNK, 2), np.float32))
    assert terminated
    assert (raw.steps, info["steps"], reward, float(obs[0])) == (3, 3, 6.0, 3.0), "it steps on"


def test_a_chunk_ends_with_its_episode() -> None:
    check_end(ChunkWrapper)
    with pytest.raises(AssertionError, match="it steps on"):
        check_end(StepsOn)


def check_stored_steps(prepare: Callable[[], Any]) -> None:
    """What is stored of a cut chunk is what was played, and marks the rest as never taken."""
    prepare()
    one, buffer = gathered()
    for _ in range(3):
        one.step(warmup=True)
    arrays: Any = buffer.state_dict()["arrays"]
    assert arrays["taken"].tolist() == [[4, 4], [4, 4], [2, 2]], "steps after the end are stored"


def test_nothing_after_the_end_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    check_stored_steps(lambda: None)

    class Longer(ChunkWrapper):
        """Says that every chunk was played in full."""

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, {**info, "steps": len(action)}

    with pytest.raises(AssertionError, match="after the end are stored"):
        check_stored_steps(lambda: monkeypatch.setattr(sync_vector, "ChunkWrapper", Longer))
