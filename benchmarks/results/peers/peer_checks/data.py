"""Data that Trimtab writes, and peers read: Minari, robomimic, d3rlpy and LeRobot."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from peer_checks.check import Check, Peer, Settings, write_settings

from trimtab.benchmarks.training.data.recording import dataset_of, record_episodes
from trimtab.benchmarks.training.settings.groups import load_group
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.registry import get_format
from trimtab.envs.register import gymnasium_id
from trimtab.envs.registry import make

__all__ = ["PEERS", "RECIPES", "recorded"]

Array = NDArray[Any]

RECIPES = {
    "hopper": ("hopper_random", 8),  # episodes that end by falling
    "reach": ("fetch_reach", 4),  # episodes that the clock ends, with success noted
    "lift": ("robosuite_lift", 2),  # demonstrations with an observation of named parts
}
"""Recipe of Trimtab and number of its episodes, by the name of a part."""


@functools.cache
def recorded(name: str) -> Dataset:
    """Return the first episodes of a recipe."""
    recipe, episodes = RECIPES[name]
    settings = {k: v for k, v in load_group("dataset", recipe).items() if k != "steps"}
    settings |= {"episodes": episodes}
    return dataset_of(settings, record_episodes(settings, Path()))


def joined(dataset: Dataset, value: Callable[[Episode], Array]) -> Array:
    """Return the episodes' rows end to end."""
    return np.concatenate([value(episode) for episode in dataset.episodes])


def lengths(dataset: Dataset) -> Array:
    """Return the number of steps of every episode."""
    return np.array([len(episode) for episode in dataset.episodes])


def described(name: str) -> str:
    """Return what a part's data is, in words."""
    recipe, _ = RECIPES[name]
    return f"{len(recorded(name))} episodes of {recipe}"


def rows_of(dataset: Dataset) -> dict[str, Array]:
    """Return every step's columns, episodes end to end."""
    return {
        "observations": joined(dataset, lambda e: e.observations[:-1]),
        "next observations": joined(dataset, lambda e: e.observations[1:]),
        "actions": joined(dataset, lambda e: e.actions),
        "rewards": joined(dataset, lambda e: e.rewards),
        "dones": joined(dataset, lambda e: e.terminations | e.truncations),
    }


class Minari(Peer):
    """Minari opens a dataset that was written here."""

    name, package, side = "Minari", "minari", "with_minari.py"
    requirements = ("minari[hdf5]==0.5.4", "gymnasium[mujoco]==1.4.0", "mujoco==3.3.0")

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Write a dataset of each of two families."""
        checks: list[Check] = []
        for part in ("hopper", "reach"):
            dataset, data = recorded(part), described(part)
            get_format("minari").save(dataset, folder / part / dataset.id)
            write_settings(folder / part, {"id": dataset.id, "recover": False})
            columns = {
                "observations": joined(dataset, lambda e: e.observations),
                "actions": joined(dataset, lambda e: e.actions),
                "rewards": joined(dataset, lambda e: e.rewards),
                "terminations": joined(dataset, lambda e: e.terminations),
                "truncations": joined(dataset, lambda e: e.truncations),
                "steps": lengths(dataset),
                "total steps": np.array(dataset.num_steps),
            }
            checks += [Check(part, n, f"{n} of {data}", a) for n, a in columns.items()]
            controller = str(dataset.recipe["controller"]["_target_"]).rpartition(".")[2]
            checks.append(
                Check(part, "algorithm_name", "who acted, as the metadata say it", controller)
            )
        return checks


class MinariHere(Peer):
    """Minari makes the environment that a dataset names, where Trimtab is installed beside it."""

    name, package, side, here = "Minari beside Trimtab", "minari", "with_minari.py", True
    requirements = ()

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Write a dataset of each of two families."""
        checks: list[Check] = []
        for part in ("hopper", "reach"):
            dataset = recorded(part)
            get_format("minari").save(dataset, folder / part / dataset.id)
            write_settings(folder / part, {"id": dataset.id, "recover": True})
            env = make(dataset.env, **dataset.env_options)
            observations, rewards = [env.reset(seed=0)[0]], []
            for _ in range(5):
                observation, reward, *_ = env.step(np.zeros(dataset.action_dim, np.float32))
                observations.append(observation)
                rewards.append(reward)
            env.close()
            what = "of the task that recover_environment() makes, from seed 0 with actions of zero"
            values = {"observations": np.stack(observations), "rewards": np.array(rewards)}
            what_id = "id of the environment that recover_environment() makes"
            checks.append(Check(part, "environment", what_id, gymnasium_id(dataset.env)))
            checks += [
                Check(part, f"{name} of five steps", f"{name} {what}", value)
                for name, value in values.items()
            ]
        return checks


class Robomimic(Peer):
    """robomimic's reader of demonstrations opens a file that was written here."""

    name, package, side = "robomimic", "robomimic", "with_robomimic.py"
    requirements = (
        "torch==2.13.0", "h5py==3.16.0", "numpy==1.26.4", "tqdm", "psutil", "termcolor",
        "tensorboardX", "imageio",
    )  # fmt: skip
    bare = ("robomimic==0.3.0",)  # it asks for any torchvision, and that for a torch with CUDA

    # Observation keys of robomimic's own low-dimensional data, and robosuite's type of environment:
    # docs/datasets/overview.md and envs/env_base.py of robomimic. They stand in the order in which
    # our vector has them.
    keys = {
        "hopper": ("flat",),
        "lift": ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"),
    }
    environments = {"lift": "Lift of type 1"}

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Write demonstrations of a robosuite task, and episodes of another."""
        checks: list[Check] = []
        for part, keys in self.keys.items():
            dataset, data = recorded(part), described(part)
            (folder / part).mkdir(parents=True)
            get_format("robomimic").save(dataset, folder / part / "dataset.hdf5")
            write_settings(folder / part, {"keys": keys})
            columns = rows_of(dataset) | {"demonstrations": np.array(len(dataset))}
            checks += [Check(part, n, f"{n} of {data}", a) for n, a in columns.items()]
            checks.append(Check(part, "keys", "names of the observations", " ".join(sorted(keys))))
            if part in self.environments:
                what = "name and type of the environment in env_args"
                checks.append(Check(part, "environment", what, self.environments[part]))
        return checks


class D3rlpy(Peer):
    """d3rlpy takes over a D4RL file that was written here."""

    name, package, side = "d3rlpy", "d3rlpy", "with_d3rlpy.py"
    requirements = ("torch==2.13.0", "d3rlpy==2.8.1")

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Write episodes that ended by falling, and episodes that the clock ended.

        A transition that the clock ended is none to d3rlpy, which stores no last observation.
        """
        checks: list[Check] = []
        for part in ("hopper", "reach"):
            dataset, data = recorded(part), described(part)
            (folder / part).mkdir(parents=True)
            get_format("d4rl").save(dataset, folder / part / "dataset.hdf5")
            rows = rows_of(dataset)
            terminated = joined(dataset, lambda e: e.terminations)
            kept = ~joined(dataset, lambda e: e.truncations & ~e.terminations)
            columns = {
                "steps": lengths(dataset),
                "terminated": np.array([e.terminations[-1] for e in dataset.episodes]),
                **{name: rows[name][kept] for name in ("observations", "actions", "rewards")},
                "next observations": rows["next observations"][kept & ~terminated],
                "terminals": terminated[kept],
            }
            checks += [Check(part, n, f"{n} of {data}", a) for n, a in columns.items()]
            returns = np.array([episode.total_reward for episode in dataset.episodes])
            # Sums of up to a hundred rewards in single precision.
            checks.append(Check(part, "returns", f"returns of {data}", returns, 1e-4))
        return checks


class LeRobot(Peer):
    """LeRobotDataset reads a folder that was written here."""

    name, package, side = "LeRobot", "lerobot", "with_lerobot.py"
    requirements = (
        "torch==2.13.0", "torchvision==0.28.0", "datasets>=4,<5", "huggingface-hub>=0.34.2,<0.36",
        "av>=15,<16", "jsonlines>=4,<5", "packaging>=24.2,<26", "einops>=0.8,<0.9",
        "gymnasium>=1.1.1,<2", "termcolor>=2.4,<4", "draccus==0.10.0", "deepdiff>=7.0.1,<9",
        "imageio>=2.34,<3", "opencv-python-headless>=4.9,<4.13", "accelerate>=1.10,<2",
    )  # fmt: skip
    bare = ("lerobot==0.4.4",)  # it asks for torch below 2.11

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Write two datasets as LeRobot's version 3.0."""
        checks: list[Check] = []
        for part in ("hopper", "reach"):
            dataset, data = recorded(part), described(part)
            (folder / part).mkdir(parents=True)
            get_format("lerobot").save(dataset, folder / part / "dataset")
            rows = rows_of(dataset)
            del rows["next observations"]  # LeRobot has none
            steps = lengths(dataset)
            rate = max(1, round(dataset.control_rate or 1))
            columns = rows | {
                "episode of each frame": np.repeat(np.arange(len(steps)), steps),
                "timestamps": np.concatenate([np.arange(t) / rate for t in steps]).astype("f4"),
                "frames a second": np.array(rate),
            }
            checks += [Check(part, n, f"{n} of {data}", a) for n, a in columns.items()]
            seen = rows["observations"].astype(np.float64)
            for name, value in (("mean", seen.mean(0)), ("standard deviation", seen.std(0))):
                name = f"{name} of the observations"
                checks.append(Check(part, name, f"{name} in meta/stats.json", value, 1e-6))
            checks.append(Check(part, "task", "text of the task", dataset.env))
        return checks


PEERS: tuple[Peer, ...] = (Minari(), MinariHere(), Robomimic(), D3rlpy(), LeRobot())
