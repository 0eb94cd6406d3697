"""Goals of a real task: relabelled rewards are those that the task itself gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.relabel import Goals, Relabelled
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.registry import make
from trimtab.types import Batch, BatchSpec

TASK = "robotics/PointMaze_UMaze-v3"


@pytest.fixture(scope="module")
def recorded() -> tuple[Dataset, Goals]:
    """Random actions in the maze, held for ten steps each so that the ball gets somewhere."""
    env, episodes = make(TASK), []
    generator = np.random.default_rng(0)
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        rows: list[tuple[np.ndarray, np.ndarray, float]] = []
        for step in range(60):
            if step % 10 == 0:
                action = generator.uniform(-1, 1, 2).astype(np.float32)
            after, reward, *_ = env.step(action)
            rows.append((obs, action, float(reward)))
            obs = after
        seen, actions, rewards = zip(*rows, strict=True)
        last = np.arange(60) == 59
        episodes.append(Episode(np.stack([*seen, obs]), actions, rewards, 0 * last, last))
    assert env.goal_reward is not None
    goals = Goals(env.obs_parts["achieved_goal"], env.obs_parts["desired_goal"], env.goal_reward)
    env.close()
    data = Dataset(
        id="trimtab/maze-v0", env=TASK, env_options={}, episodes=tuple(episodes),
        action_low=(-1.0, -1.0), action_high=(1.0, 1.0),
    )  # fmt: skip
    return data, goals


def _steps_by_search(data: Dataset, goals: Goals, batch: Batch) -> list[int]:
    """Find each row and its goal in the episodes, and count the steps between them."""
    assert isinstance(batch.obs, torch.Tensor) and batch.goal is not None
    free = [i for i in range(batch.obs.shape[1]) if i not in goals.desired]
    found = []
    for obs, goal in zip(batch.obs.numpy()[:, free], batch.goal.numpy(), strict=True):
        ways = [
            later - now
            for episode in data.episodes
            for now in np.flatnonzero((episode.observations[:-1, free] == obs).all(1))
            for later in np.flatnonzero((goals.achieved_in(episode.observations) == goal).all(1))
            if later > now
        ]
        assert len(ways) == 1, "the ball was twice in one place"
        found.append(int(ways[0]))
    return found


def test_relabelled_rewards_are_the_tasks(recorded: tuple[Dataset, Goals]) -> None:
    data, goals = recorded
    batch_spec = BatchSpec(goal=1.0)
    batch = Relabelled(ReplayBuffer.from_dataset(data, batch_spec=batch_spec), goals, 1.0).sample(
        500
    )
    assert batch.goal is not None
    reached = goals.achieved_in(batch.next_obs)
    near = (reached - batch.goal).norm(dim=1) <= 0.45  # the radius of the task's goals
    assert 20 < int(near.sum()) < 500
    assert np.array_equal(batch.reward.numpy(), near.numpy().astype(np.float32))
    stored = {tuple(goal) for e in data.episodes for goal in goals.achieved_in(e.observations[1:])}
    assert {tuple(goal) for goal in batch.goal.numpy()} <= stored
    assert np.array_equal(goals.desired_in(batch.obs), batch.goal)
    assert batch.goal_steps is not None
    assert _steps_by_search(data, goals, batch) == batch.goal_steps.tolist()
    assert len(batch.goal_steps.unique()) > 40
    plain = Relabelled(ReplayBuffer.from_dataset(data, batch_spec=batch_spec), goals, 0.0).sample(
        500
    )
    assert plain.goal is not None and plain.mc_return is not None
    assert plain.goal_steps is not None and not plain.goal_steps.any()
    assert np.array_equal(goals.desired_in(plain.obs), plain.goal)
    worth = goals.reward(goals.achieved_in(plain.next_obs).numpy(), plain.goal.numpy())
    assert np.array_equal(plain.reward.numpy(), np.asarray(worth, np.float32))
