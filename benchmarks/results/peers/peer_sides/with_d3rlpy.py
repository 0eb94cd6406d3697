"""d3rlpy takes the transitions of a D4RL file that Trimtab wrote."""

from __future__ import annotations

from pathlib import Path

import exchange
import h5py
import numpy as np
from d3rlpy.dataset import BasicTransitionPicker, MDPDataset


def answer(part: Path) -> exchange.Answers:
    """Return episodes and transitions as d3rlpy sees them."""
    with h5py.File(part / "dataset.hdf5", "r") as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        columns = {name: file[name][()] for name in names}
    dataset = MDPDataset(
        columns["observations"],
        columns["actions"],
        columns["rewards"],
        columns["terminals"].astype(np.float32),
        columns["timeouts"].astype(np.float32),
    )
    picker = BasicTransitionPicker()
    episodes = dataset.episodes
    transitions = [
        picker(episode, index) for episode in episodes for index in range(episode.transition_count)
    ]
    return {
        "returns": [episode.compute_return() for episode in episodes],
        "steps": [len(episode) for episode in episodes],
        "terminated": [float(episode.terminated) for episode in episodes],
        "observations": np.stack([x.observation for x in transitions]),
        "actions": np.stack([x.action for x in transitions]),
        "rewards": np.concatenate([x.reward for x in transitions]),
        "next observations": np.stack([x.next_observation for x in transitions if not x.terminal]),
        "terminals": [x.terminal for x in transitions],
    }


if __name__ == "__main__":
    exchange.main(answer, "d3rlpy")
