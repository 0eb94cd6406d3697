"""Whole training loops: acting, stepping, storing and learning, as in a run."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from trimtab.benchmarks.speed.cases.shared import ACTION_DIM, BATCH, HIDDEN, SB3, TASK, silenced
from trimtab.benchmarks.speed.cases.updates import ENVS, MINIBATCH, make_sb3_ppo, steps_of_rollout
from trimtab.benchmarks.speed.measure import BEST_OF_BOTH, Pair, Side, Stage, Work
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.run import Run
from trimtab.benchmarks.training.settings.config import compose_run

WARMUP = 20
"""Environment steps before the first update; they are taken before anything is timed."""
STEPS = 500
ROLLOUTS = 2
NEVER = 1_000_000_000
SLOW = "robosuite/Lift"
"""A task whose step takes about as long as an update."""


def ours(
    *overrides: str, task: str = f"gym/{TASK}", warmup: int = 0, steps: Callable[[Stage], int]
) -> Side:
    """Return the side of a real run's loop, without its evaluations and checkpoints.

    Args:
        overrides: words of ``trimtab train``.
        task: its id.
        warmup: environment steps that are not timed.
        steps: environment steps of a turn.
    """

    def side(stage: Stage) -> Work:
        folder = Path(stage.exits.enter_context(tempfile.TemporaryDirectory()))
        words = [
            f"env={task}", f"out={folder}", f"online_steps={NEVER}",
            f"checkpoint_every={NEVER}", "eval_episodes=1", f"threads={stage.threads}",
        ]  # fmt: skip
        config = compose_run([*words, *overrides])
        run = Run(checked_plan(config), folder, lambda share, text: None)
        stage.exits.callback(run.close)
        advance(run, warmup)
        each = steps(stage)

        def work() -> float:
            advance(run, each)
            return each

        return work

    return side


def advance(run: Run, steps: int) -> None:
    """Go through the run's own loop for ``steps`` environment steps."""
    end = run.env_steps + steps
    while run.env_steps < end:
        run.advance(0)


def off_policy(algorithm: str, *more: str, task: str = f"gym/{TASK}") -> Side:
    """Return our side for a method that learns at every step.

    Args:
        algorithm: its name.
        more: further words of ``trimtab train``.
        task: its id.
    """
    return ours(
        f"algorithm={algorithm}",
        f"algorithm.hidden={list(HIDDEN)}",
        f"algorithm.batch_size={BATCH}",
        f"algorithm.warmup_steps={WARMUP}",
        *more,
        task=task,
        warmup=2 * WARMUP,
        steps=lambda stage: stage.amount(STEPS),
    )


def our_ppo(stage: Stage) -> Work:
    """Set our PPO's loop up."""
    each = steps_of_rollout(stage)
    return ours(
        "algorithm=ppo",
        f"num_envs={ENVS}",
        f"algorithm.rollout_steps={each}",
        f"algorithm.batch_size={MINIBATCH}",
        steps=lambda stage: stage.amount(ROLLOUTS) * each * ENVS,
    )(stage)


def sb3(make: Callable[[Stage], Any], steps: Callable[[Stage, Any], int], warmup: int = 0) -> Side:
    """Return the side of a model of Stable-Baselines3 or sbx and its own ``learn``."""

    def side(stage: Stage) -> Work:
        model = silenced(make(stage))
        if warmup:
            model.learn(warmup)
        each = steps(stage, model)

        def work() -> float:
            model.learn(each, reset_num_timesteps=False)
            return each

        return work

    return side


def sb3_off_policy(library: str, kind: str, **keywords: Callable[[], Any]) -> Side:
    """Return the peer's side for a method that learns at every step.

    Args:
        library: module of the method's class.
        kind: its name.
        keywords: what makes further keywords of it.
    """

    def make(stage: Stage) -> Any:
        model_class = getattr(importlib.import_module(library), kind)
        env = gymnasium.make(TASK)
        stage.exits.callback(env.close)
        made = {name: make() for name, make in keywords.items()}
        return model_class(
            "MlpPolicy", env, learning_rate=3e-4, learning_starts=WARMUP, batch_size=BATCH,
            train_freq=1, gradient_steps=1, policy_kwargs={"net_arch": list(HIDDEN)}, **made,
        )  # fmt: skip

    return sb3(make, lambda stage, model: stage.amount(STEPS), warmup=2 * WARMUP)


def cpu() -> str:
    """Return the device of both sides; sbx takes no such keyword."""
    return "cpu"


def td3_noise() -> Any:
    """Return the exploration noise of TD3, of the width that ours has."""
    from stable_baselines3.common.noise import NormalActionNoise

    return NormalActionNoise(np.zeros(ACTION_DIM), 0.1 * np.ones(ACTION_DIM))


def rollouts(stage: Stage, model: Any) -> int:
    """Return the environment steps of a turn of PPO, whole rollouts."""
    return stage.amount(ROLLOUTS) * int(model.n_steps) * ENVS


SB3_SAC = sb3_off_policy("stable_baselines3", "SAC", device=cpu)
SB3_TD3 = sb3_off_policy("stable_baselines3", "TD3", device=cpu, action_noise=td3_noise)

PAIRS = [
    Pair("sac_loop", "training", "steps/s", off_policy("sac"), SB3_SAC, SB3, BEST_OF_BOTH),
    Pair(
        "sac_loop_sbx", "training", "steps/s", off_policy("sac"), sb3_off_policy("sbx", "SAC"),
        "sbx", BEST_OF_BOTH,
    ),
    Pair("td3_loop", "training", "steps/s", off_policy("td3"), SB3_TD3, SB3, BEST_OF_BOTH),
    Pair(
        "ppo_loop", "training", "steps/s", our_ppo, sb3(make_sb3_ppo, rollouts), SB3, BEST_OF_BOTH
    ),
]  # fmt: skip
if importlib.util.find_spec("robosuite") is not None:  # neither side can be measured without it
    PAIRS.append(
        Pair(
            "sac_overlap", "training", "steps/s", off_policy("sac", "overlap=true", task=SLOW),
            off_policy("sac", task=SLOW), "overlap=false",
        )
    )  # fmt: skip
