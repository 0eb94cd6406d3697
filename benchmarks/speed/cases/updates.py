"""One update of a learner at a time, drawing its batch included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import torch

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.benchmarks.speed.cases.shared import (
    ACTION_DIM,
    BATCH,
    HIDDEN,
    OBS_DIM,
    SB3,
    TASK,
    fill_sb3,
    filled_replay,
    setup,
    silenced,
)
from trimtab.benchmarks.speed.measure import BEST_OF_BOTH, Pair, Side, Stage, Work, repeated
from trimtab.types import Rollout

UPDATES = 400
STORED = 100_000
"""Transitions in the buffer that batches are drawn from."""
ENVS, STEPS, MINIBATCH = 8, 256, 64
"""A rollout of 2048 decisions for PPO, and its minibatches."""


def steps_of_rollout(stage: Stage) -> int:
    """Return the decisions of each environment in a rollout, fewer only below scale 1."""
    return min(STEPS, stage.amount(STEPS, least=MINIBATCH // ENVS))


def ours(make: Callable[[], Algorithm], *, chunk: int = 1, updates: int = UPDATES) -> Side:
    """Return the side of an off-policy method of ours.

    Args:
        make: makes the method.
        chunk: actions of each stored decision.
        updates: how many a turn has.
    """

    def side(stage: Stage) -> Work:
        algorithm, buffer = make(), filled_replay(STORED, chunk=chunk)
        return repeated(lambda: algorithm.update(buffer.sample(BATCH)), stage.amount(updates))

    return side


def sb3(kind: str) -> Side:
    """Return the side of an off-policy method of Stable-Baselines3, called as its loop does."""

    def side(stage: Stage) -> Work:
        import stable_baselines3

        env = gymnasium.make(TASK)
        stage.exits.callback(env.close)
        model = getattr(stable_baselines3, kind)(
            "MlpPolicy", env, learning_rate=3e-4, buffer_size=STORED, learning_starts=0,
            batch_size=BATCH, train_freq=1, policy_kwargs={"net_arch": list(HIDDEN)}, device="cpu",
        )  # fmt: skip
        model = silenced(model)
        model.learn(1)  # sets up what train() reads
        fill_sb3(model.replay_buffer)
        return repeated(
            lambda: model.train(gradient_steps=1, batch_size=BATCH), stage.amount(UPDATES)
        )

    return side


def rollout(steps: int) -> Rollout:
    """Return a rollout of random decisions, without an end of an episode."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(steps, ENVS, *shape, generator=generator)

    obs, action = normal(OBS_DIM), normal(1, ACTION_DIM)
    return Rollout(
        obs=obs,
        action=action.clamp(-1, 1),
        reward=normal(),
        next_obs=torch.cat([obs[1:], obs[:1]]),
        discount=torch.full((steps, ENVS), 0.99),
        cut=torch.zeros(steps, ENVS, dtype=torch.bool),
        aux={"unclipped": action},
    )


def our_ppo(stage: Stage) -> Work:
    """Set our PPO up with one rollout, which it learns from again and again."""
    steps = steps_of_rollout(stage)
    algorithm = PPO(setup(ENVS), rollout_steps=steps, batch_size=MINIBATCH)
    data = rollout(steps)
    return repeated(lambda: algorithm.update(data), stage.amount(2))


def sb3_ppo(stage: Stage) -> Work:
    """Set Stable-Baselines3's PPO up with one rollout that it has gathered itself."""
    model = silenced(make_sb3_ppo(stage))
    model.learn(ENVS * model.n_steps)
    return repeated(model.train, stage.amount(2))


def make_sb3_ppo(stage: Stage) -> Any:
    """Return Stable-Baselines3's PPO; its own networks have the widths of ours."""
    from stable_baselines3 import PPO as Theirs
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(TASK, ENVS, seed=0)
    stage.exits.callback(envs.close)
    steps = steps_of_rollout(stage)
    return Theirs("MlpPolicy", envs, n_steps=steps, batch_size=MINIBATCH, device="cpu")


def sac(**keywords: Any) -> Callable[[], Algorithm]:
    """Return what makes a SAC with Hopper's sizes."""
    return lambda: SAC(setup(), hidden=HIDDEN, **keywords)


PAIRS = [
    Pair("sac_update", "updates", "updates/s", ours(sac()), sb3("SAC"), SB3, BEST_OF_BOTH),
    Pair(
        "td3_update", "updates", "updates/s", ours(lambda: TD3(setup(), hidden=HIDDEN)),
        sb3("TD3"), SB3, BEST_OF_BOTH,
    ),
    Pair("ppo_update", "updates", "updates/s", our_ppo, sb3_ppo, SB3, BEST_OF_BOTH),
    Pair(
        "sac_update_10_critics", "updates", "updates/s", ours(sac(critics=10, target_critics=2)),
    ),
]  # fmt: skip
