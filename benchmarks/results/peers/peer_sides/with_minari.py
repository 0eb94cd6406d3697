"""Minari opens datasets that Trimtab wrote, and makes the environment that they name.

The environment is made only where Trimtab is installed beside Minari: its tasks are Trimtab's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import exchange
import numpy as np

COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations")


def answer(part: Path) -> exchange.Answers:
    """Return every array of the dataset in ``part``, and who acted in it."""
    # Minari reads the variable when a dataset is opened.
    os.environ["MINARI_DATASETS_PATH"] = str(part)
    import minari

    settings = exchange.settings_of(part)
    dataset = minari.load_dataset(settings["id"])
    if settings["recover"]:
        return recovered(dataset)
    episodes = list(dataset.iterate_episodes())
    answers: dict[str, Any] = {
        name: np.concatenate([getattr(episode, name) for episode in episodes]) for name in COLUMNS
    }
    answers["steps"] = [len(episode.rewards) for episode in episodes]
    answers["total steps"] = dataset.total_steps
    answers["algorithm_name"] = str(dataset.storage.metadata.get("algorithm_name", "unknown"))
    return answers


def recovered(dataset: Any) -> exchange.Answers:
    """Return the id of the dataset's environment, and what five steps of it give."""
    env = dataset.recover_environment()
    observations, rewards = [env.reset(seed=0)[0]], []
    for _ in range(5):
        observation, reward, *_ = env.step(np.zeros(env.action_space.shape, np.float32))
        observations.append(observation)
        rewards.append(reward)
    env.close()
    return {
        "environment": env.spec.id,
        "observations of five steps": np.stack(observations),
        "rewards of five steps": rewards,
    }


if __name__ == "__main__":
    exchange.main(answer, "minari")
