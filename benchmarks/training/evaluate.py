"""The one judge: a policy on fixed seeds, in environments of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.benchmarks.core.numerals import lone_number, score_words
from trimtab.benchmarks.training.held_out import Fit
from trimtab.envs.engines.dict_vector import DictVectorEnv
from trimtab.envs.engines.episodes import EpisodeVectorEnv
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.policies.agent import Agent, ArrayObs, Decide, PolicyInputs
from trimtab.policies.base import Policy
from trimtab.policies.robot.delayed import Timing

FloatArray = NDArray[np.float32]

SUCCESS_RULE = "any_step"
"""When an episode counts as a success."""

MOST_ENVS = 10
"""Environments judged side by side: more cost memory and gain little on a processor."""


@dataclass(frozen=True)
class EpisodeScore:
    """One evaluation episode, by the fields of its row.

    ``success`` is that of any step, None where the task has no such notion; ``metrics`` has
    ``success_at_end``, that of the last chunk (in simulated time, of the last tick), and ``cost``,
    that of all steps, where the task has costs.
    """

    eval_episode: int
    eval_seed: int
    return_: float
    success: bool | None
    length: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """All the episodes of one evaluation, in their order; none where a run has no task.

    ``fit`` is how well the policy repeats held-out episodes, or None where none are held out.
    """

    episodes: tuple[EpisodeScore, ...]
    fit: Fit | None = None

    @property
    def mean_return(self) -> float | None:
        """Mean undiscounted return, or None where no episode was played."""
        returns = [episode.return_ for episode in self.episodes]
        return float(np.mean(returns)) if returns else None

    @property
    def success_rate(self) -> float | None:
        """Share of episodes that succeeded, or None where the task has no such notion."""
        flags = [episode.success for episode in self.episodes if episode.success is not None]
        return float(np.mean(flags)) if flags else None

    @property
    def curve(self) -> dict[str, float]:
        """What a run notes of the fit at each evaluation; nothing where none are held out."""
        return {} if self.fit is None else {"held_out_error": self.fit.error}

    @property
    def found(self) -> dict[str, float | None]:
        """What a listener to a run is told of them."""
        return {"return": self.mean_return, "success": self.success_rate, **self.curve}

    @property
    def mean_cost(self) -> float | None:
        """Mean undiscounted cost, or None where the task has none."""
        costs = [one.metrics["cost"] for one in self.episodes if "cost" in one.metrics]
        return float(np.mean(costs)) if costs else None

    @property
    def words(self) -> str:
        """What a line about a run says of them."""
        cost = "" if self.mean_cost is None else f", cost {lone_number(self.mean_cost)}"
        fit = None if self.fit is None else self.fit.error
        return score_words(self.mean_return, self.success_rate, fit) + cost


class Evaluator:
    """Judges policies on one task, always in the same episodes.

    Every environment runs the same number of episodes, so that short episodes are not favoured.
    Episode i is reset with seed ``seed + i`` and the policy's noise in it comes from that seed too,
    so that nothing which is drawn depends on how many episodes run beside it. What is computed for
    all of them at once may differ in its last bits with their number: a policy's network a little,
    and Playground's simulation, which is compiled for that number in float32, so much that an
    episode drifts apart from the same one alone. That number follows from ``episodes`` alone, so
    the same evaluation always has the same.

    Args:
        env: task id.
        episodes: number of episodes.
        seed: that of the first episode.
        act_steps: executed actions of a chunk.
        options: what the task is made with.
        observations: ``flat``, or ``dict`` for the parts that the task names.
        foreign_code: around each call of the environments.

    Raises:
        TrimtabError: if the task is unknown or ``episodes`` is less than 1.
    """

    def __init__(
        self,
        env: str,
        *,
        episodes: int,
        seed: int,
        act_steps: int = 1,
        options: Mapping[str, Any] | None = None,
        observations: str = "flat",
        foreign_code: AbstractContextManager[None] | None = None,
    ) -> None:
        if episodes < 1:
            raise TrimtabError(f"evaluation: episodes must be at least 1, got {episodes}")
        self.episodes, self.seed, self.observations = episodes, seed, observations
        side_by_side = max(n for n in range(1, MOST_ENVS + 1) if episodes % n == 0)
        self.rounds = episodes // side_by_side
        self._foreign_code = foreign_code or contextlib.nullcontext()
        with self._foreign_code:
            self.envs: EpisodeVectorEnv | DictVectorEnv = make_vec(
                env,
                side_by_side,
                seed=seed,
                observations=observations,
                act_steps=act_steps,
                episode_seed=self._seed_of,
                **(options or {}),
            )

    def judge(
        self,
        act: Decide,
        policy_inputs: PolicyInputs,
        *,
        deterministic: bool,
        check: Callable[[], None] = lambda: None,
        watch: Callable[[int, FloatArray], None] | None = None,
        inputs: Mapping[str, Any] | None = None,
        timing: Timing | None = None,
    ) -> Scores:
        """Run all episodes and return their scores.

        Args:
            act: the policy on raw observations and noise.
            policy_inputs: what it reads at each decision.
            deterministic: zero noise instead of sampled noise.
            check: called before every decision; what it raises ends the evaluation.
            watch: called with an episode's number and each chunk [act_steps, A] that it plays.
            inputs: values of the policy's inputs that differ from their defaults.
            timing: how late the policy answers, and how its chunks are played until then; None: the
                simulator waits for it. It needs an evaluator with ``act_steps`` = 1.

        Raises:
            TrimtabError: if an input is unknown or does not fit.
        """
        n, act_steps = self.envs.num_envs, self.envs.act_steps
        if timing is not None:
            assert act_steps == 1, "simulated time goes by ticks"
            act_steps = timing.act_steps
        returns, costs, lengths = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
        success = np.zeros(n, dtype=bool)
        done_rounds = np.zeros(n, dtype=np.int64)
        waiting = Agent(
            act, n, policy_inputs, act_steps=act_steps, deterministic=deterministic, inputs=inputs
        )
        agent = waiting if timing is None else timing.over(waiting)
        agent.reset(seeds=[self._seed_of(i, 0) for i in range(n)])
        started = [time.perf_counter()] * n
        scores: dict[int, EpisodeScore] = {}
        self.envs.active[:] = True
        with self._foreign_code:
            obs, _ = self.envs.reset(seed=self.seed)  # back to episode 0: always the same episodes
        while self.envs.active.any():
            check()
            action = agent.act(obs, self.envs.active)
            if watch is not None:
                for i in np.flatnonzero(self.envs.active):
                    watch(self._number(int(i), int(done_rounds[i])), action[i])
            with self._foreign_code:
                obs, reward, terminated, truncated, info = self.envs.step(action)
            agent.rewarded(reward)
            returns += reward
            lengths += info["steps"]
            costs += info.get("cost", 0.0)
            if "success" in info:
                success |= info["success"]
            for i in np.flatnonzero((terminated | truncated) & self.envs.active):
                episode = self._number(int(i), int(done_rounds[i]))
                now = time.perf_counter()
                further = {"success_at_end": info["success"]} if "success" in info else {}
                further |= {"cost": costs} if "cost" in info else {}
                scores[episode] = EpisodeScore(
                    episode,
                    self.seed + episode,
                    float(returns[i]),
                    bool(success[i]) if "success" in info else None,
                    int(lengths[i]),
                    now - started[i],
                    {name: float(value[i]) for name, value in further.items()},
                )
                returns[i], costs[i], lengths[i] = 0.0, 0.0, 0
                success[i], started[i] = False, now
                done_rounds[i] += 1
                if done_rounds[i] == self.rounds:
                    self.envs.active[i] = False
                else:
                    agent.reset([i], [self._seed_of(i, int(done_rounds[i]))])
        return Scores(tuple(scores[episode] for episode in sorted(scores)))

    def judge_policy(
        self, policy: Policy, *, deterministic: bool, check: Callable[[], None] = lambda: None
    ) -> Scores:
        """Return the scores of a policy of torch; see ``judge``."""
        return self.judge(
            torch_act(policy), policy.inputs, deterministic=deterministic, check=check
        )

    def _number(self, index: int, done: int) -> int:
        """Return which episode an environment plays after ``done`` others."""
        return index * self.rounds + done

    def _seed_of(self, index: int, episode: int) -> int:
        return int(self.seed + self._number(index, episode))

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def torch_act(policy: Policy) -> Decide:
    """Return ``policy`` as a function of numpy arrays."""
    device = policy.normalizer.obs_shift.device

    @torch.no_grad()
    def act(obs: ArrayObs, noise: FloatArray) -> FloatArray:
        there = tree_map(lambda part: torch.as_tensor(part, device=device), obs)
        action = policy(there, torch.as_tensor(noise, device=device))
        raw: FloatArray = action.cpu().numpy()
        return raw

    return act
