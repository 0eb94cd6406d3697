"""LeRobotDataset reads folders that Trimtab wrote."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import exchange
import numpy as np

FRAMES = {
    "observations": "observation.state",
    "actions": "action",
    "rewards": "next.reward",
    "dones": "next.done",
    "episode of each frame": "episode_index",
    "timestamps": "timestamp",
}


@functools.cache
def import_torchvision() -> None:
    """Import torchvision, which LeRobot imports and here makes no use of, in any build of it.

    One that was built for a GPU does not load its operators beside a torch for CPUs, and cannot
    be imported for one module alone, that which tells torch the shapes that its operators give.
    """
    with contextlib.suppress(RuntimeError):
        importlib.import_module("torchvision")
        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    shapes = "torchvision._meta_registrations"
    sys.modules[shapes] = types.ModuleType(shapes)
    importlib.import_module("torchvision")


def answer(part: Path) -> exchange.Answers:
    """Return every frame of the folder below ``part``, and the statistics that are read with it."""
    import_torchvision()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("trimtab/peers", root=part / "dataset")
    items = [dataset[index] for index in range(len(dataset))]
    answers: dict[str, Any] = {
        name: np.stack([np.asarray(item[feature]) for item in items])
        for name, feature in FRAMES.items()
    }
    stats = dataset.meta.stats["observation.state"]
    answers["mean of the observations"] = stats["mean"]
    answers["standard deviation of the observations"] = stats["std"]
    answers["task"] = str(items[0]["task"])
    answers["frames a second"] = dataset.fps
    return answers


if __name__ == "__main__":
    exchange.main(answer, "lerobot")
