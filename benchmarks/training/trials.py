"""Trials: a policy that a method proposes acts in whole episodes, and the method is told how."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from trimtab.algorithms.phases import Outcome, Trial
from trimtab.benchmarks.training.device_evaluate import DeviceEvaluator, reads_observations_alone
from trimtab.benchmarks.training.evaluate import Evaluator
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.record import is_deterministic
from trimtab.envs.vector import simulator_device
from trimtab.policies.base import Policy

__all__ = ["TrialJudge", "make_evaluator"]

_SPREAD = 2**30
"""How many numbers the first seed of a run's trials is drawn from."""


class TrialJudge:
    """Judges proposed policies as the run's own judge does, in episodes that it never sees.

    Its seeds are apart from those of the evaluation, and follow from the run's seed.

    Args:
        plan: what the run is made of.
        foreign_code: around each call of the environments.
    """

    def __init__(
        self,
        plan: Plan,
        foreign_code: AbstractContextManager[None] | None = None,
    ) -> None:
        self.plan, self._foreign_code = plan, foreign_code
        config = plan.config
        drawn = int(np.random.SeedSequence([config["seed"], 4]).generate_state(1)[0])
        behind = config["eval_seed"] + config["eval_episodes"]
        # Behind the evaluation's, or before them where seeds come to an end.
        self.first_seed = drawn % _SPREAD + (behind if behind < 2 * _SPREAD else 0)
        self._evaluators: dict[tuple[int, int], Evaluator | DeviceEvaluator] = {}
        self.episodes = 0  # that were played so far

    def judge(self, trial: Trial | None, check: Callable[[], None]) -> tuple[Outcome, int]:
        """Carry out a trial; return its outcome, and the environment steps that it took.

        Args:
            trial: what to judge, and in which episodes.
            check: called before every decision; what it raises ends the trial, as if it had never
                begun.
        """
        assert trial is not None  # a phase without a next trial has ended
        scores = self._evaluator(trial).judge_policy(
            trial.policy,
            deterministic=is_deterministic(self.plan.config, trial.policy),
            check=check,
        )
        device, episodes = self.plan.config["device"], scores.episodes
        self.episodes += len(episodes)
        outcome = Outcome(
            success=torch.tensor([float(bool(one.success)) for one in episodes], device=device),
            returns=torch.tensor([one.return_ for one in episodes], device=device),
            steps=torch.tensor([one.length for one in episodes], device=device),
        )
        return outcome, sum(one.length for one in episodes)

    def most_steps(self, trial: Trial) -> int:
        """Return how many environment steps a trial takes if no episode ends before its time."""
        return trial.episodes * self.plan.env.horizon

    def fits(self, trial: Trial | None, steps: int) -> bool:
        """Return whether there is a trial, and it surely ends within so many steps."""
        return trial is not None and self.most_steps(trial) <= steps

    def _evaluator(self, trial: Trial) -> Evaluator | DeviceEvaluator:
        place = (trial.first, trial.episodes)
        if place not in self._evaluators:
            seed = self.first_seed + trial.first
            self._evaluators[place] = make_evaluator(
                self.plan, trial.episodes, seed, trial.policy, self._foreign_code
            )
        return self._evaluators[place]

    def close(self) -> None:
        """Close the environments."""
        for evaluator in self._evaluators.values():
            evaluator.close()


def make_evaluator(
    plan: Plan,
    episodes: int,
    seed: int,
    policy: Policy,
    foreign_code: AbstractContextManager[None] | None,
) -> Evaluator | DeviceEvaluator:
    """Return what judges a run's policies in its task, on a GPU if it is simulated there.

    A policy with inputs of its own (``Part.given``) is judged by ``Evaluator`` everywhere.

    Args:
        plan: what the run is made of.
        episodes: how many it plays.
        seed: of the first.
        policy: one of those that are judged.
        foreign_code: around each call of the environments.
    """
    env = plan.env
    how: dict[str, Any] = {
        "episodes": episodes,
        "seed": seed,
        "act_steps": plan.act_steps,
        "options": env.options,
        "foreign_code": foreign_code,
    }
    device = simulator_device(env.id, plan.config["device"], **env.options)
    flat = plan.observations == "flat" and reads_observations_alone(policy.inputs)
    if device != "cpu" and flat:
        return DeviceEvaluator(env.id, device=device, **how)
    return Evaluator(env.id, observations=plan.observations, **how)
