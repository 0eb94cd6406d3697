"""A policy's scores in a task, by the judge of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.benchmarks.training.evaluate import Evaluator, Scores
from trimtab.benchmarks.training.shapes import observation_mode
from trimtab.policies.base import Policy


def evaluate(
    policy: Policy,
    env: str,
    *,
    episodes: int,
    seed: int,
    act_steps: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Scores:
    """Judge a policy as its kind is judged, by default in whole chunks."""
    evaluator = Evaluator(
        env, episodes=episodes, seed=seed, act_steps=act_steps or policy.spec.horizon,
        options=options, observations=observation_mode(policy.inputs),
    )  # fmt: skip
    try:
        return evaluator.judge_policy(policy, deterministic=policy.evaluate_deterministic)
    finally:
        evaluator.close()
