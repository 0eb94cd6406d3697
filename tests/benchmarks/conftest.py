"""A synthetic table of episode rows for the tests of results, leaderboard and report, and runs so
small that a test can train them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from here import launcher_here
from hydra.utils import get_class

from trimtab.algorithms.base import Algorithm
from trimtab.benchmarks.suites import launch
from trimtab.benchmarks.training.rows import EpisodeRow, episodes_table
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.groups import load_group
from trimtab.benchmarks.training.train import train
from trimtab.settings import keywords_of

FINGERPRINTS = {
    "robotics/PointMaze-TwoRoutes-v0": "3f0c9a1be2d4",
    "robotics/PointMaze-TwoRoutes-Blocked-v0": "81d2c07e5a90",
    "metaworld/push-v3": "c4417be09f21",
    "gym/HalfCheetah-v5": "77aa01de4c3b",
}


@dataclass(frozen=True)
class Method:
    """One configuration of the synthetic benchmark.

    ``levels`` are chances of success, or returns, at the evaluations, which are made at ``points``
    of (env_steps, updates).
    """

    env: str
    algorithm: str
    policy: str | None
    base: str | None
    levels: Sequence[float]
    points: Sequence[tuple[int, int]]
    config_hash: str
    seeds: Sequence[int] = (0, 1, 2)
    episodes: int = 50
    scored_by_return: bool = False


def rows_of(method: Method) -> list[EpisodeRow]:
    """Return a method's evaluation episodes, drawn from a generator seeded by its hash."""
    rng = np.random.default_rng(int(method.config_hash, 16))
    rows = []
    for seed in method.seeds:
        luck = 0.05 * rng.standard_normal()
        for level, (env_steps, updates) in zip(method.levels, method.points, strict=True):
            for episode in range(method.episodes):
                if method.scored_by_return:
                    success, total = None, level * (1 + luck + 0.1 * rng.standard_normal())
                else:
                    success = bool(rng.random() < np.clip(level + luck, 0.0, 1.0))
                    total = float(success)
                rows.append(
                    EpisodeRow(
                        suite="quickstart",
                        env=method.env,
                        algorithm=method.algorithm,
                        policy=method.policy,
                        dataset=None,
                        base=method.base,
                        seed=seed,
                        env_steps=env_steps,
                        updates=updates,
                        eval_episode=episode,
                        eval_seed=1000 + episode,
                        return_=float(total),
                        success=success,
                        length=100,
                        seconds=0.25,
                        fingerprint=FINGERPRINTS.get(method.env, "000000000000"),
                        config_hash=method.config_hash,
                    )
                )
    return rows


def quickstart_methods() -> list[Method]:
    """Return a benchmark like the quickstart suite: offline, steered and from scratch."""
    maze, blocked, push = list(FINGERPRINTS)[:3]
    methods = [
        Method(maze, "bc", policy, None, (0.6 * level, level), ((0, 2000), (0, 4000)), name)
        for policy, level, name in (
            ("gaussian", 0.62, "a0"), ("diffusion", 0.9, "a1"), ("flow", 0.93, "a2"),
        )
    ]  # fmt: skip
    steps = [(k * 5000, k * 1250) for k in range(7)]
    for policy, name in (("flow", "b"), ("diffusion", "c")):
        base = f"bc_{policy}"
        methods += [
            Method(blocked, "frozen", policy, base, (0.25,), ((0, 0),), name + "0"),
            Method(blocked, "dsrl_sac", policy, base,
                   (0.25, 0.3, 0.55, 0.78, 0.86, 0.9, 0.92), steps, name + "1"),
            Method(blocked, "dsrl_na", policy, base,
                   (0.25, 0.27, 0.4, 0.6, 0.72, 0.8, 0.82), steps, name + "2"),
        ]  # fmt: skip
    methods += [
        Method(blocked, "sac", "tanh_gaussian", None, (0.0,) * 7, steps, "d0"),
        *(
            Method(push, "bc", policy, None, (level,), ((0, 4000),), name)
            for policy, level, name in (
                ("gaussian", 0.4, "e0"), ("diffusion", 0.55, "e1"), ("flow", 0.58, "e2"),
            )
        ),
        Method(push, "frozen", "flow", "bc_flow", (0.58,), ((0, 0),), "e3"),
        Method(push, "dsrl_sac", "flow", "bc_flow",
               (0.58, 0.6, 0.62, 0.7, 0.66, 0.71, 0.74), steps, "e4"),
    ]  # fmt: skip
    return methods


def table_of(methods: Sequence[Method]) -> pa.Table:
    """Return the rows of several methods as a table."""
    return episodes_table(row for method in methods for row in rows_of(method))


@pytest.fixture(scope="session")
def quickstart_table() -> pa.Table:
    """Rows of a benchmark like the quickstart suite."""
    return table_of(quickstart_methods())


@pytest.fixture
def synthetic() -> Callable[[Sequence[Method]], pa.Table]:
    """What turns methods into a table."""
    return table_of


@pytest.fixture
def method() -> Method:
    """One method with two seeds and one evaluation, which a test changes."""
    return Method("gym/X-v0", "sac", "gaussian", None, (0.5,), ((100, 10),), "aa", seeds=(0, 1))


@dataclass(frozen=True)
class Tiny:
    """Runs of a second: a short point maze, four demonstrations, networks of 16 units.

    Attributes:
        dataset: folder of the demonstrations.
        base: folder of a finished run that cloned a flow policy from them.
    """

    dataset: Path
    base: Path

    @staticmethod
    def task(out: Path) -> list[str]:
        """Return the settings that every tiny run has."""
        return [
            "env=robotics/PointMaze-TwoRoutes-v0",
            "env_options.horizon=28",
            "other_task=true",  # the demonstrations are of the task's own horizon
            "act_steps=4",
            "eval_episodes=2",
            f"out={out}",
        ]

    def cloning(self, out: Path) -> list[str]:
        """Return the settings of a behaviour-cloning run."""
        return [
            *self.task(out),
            "algorithm=bc",
            "policy=flow",
            "policy.hidden=[16]",
            "policy.sampling_steps=2",
            f"dataset={self.dataset}",
            "offline_steps=120",
            "eval_every=50",
            "checkpoint_every=25",
            "algorithm.batch_size=16",
        ]

    def online(self, out: Path, algorithm: str) -> list[str]:
        """Return the settings of a run that learns by acting, or from data if it does not act.

        What starts from a base gets one, what learns from demonstrations gets those.
        """
        group = load_group("algorithm", algorithm)
        kind = get_class(group["algorithm"]["_target_"])
        small = {
            "hidden": "[16]",
            "batch_size": "16",
            "rollout_steps": "9",
            "warmup_steps": "48",
            "tickets": "3",
            "episodes": "2",
            "epochs": "2",
            "distill_updates": "40",
            "gate_every": "5",
            "gate_decisions": "4",
            "samples": "2",
            "value_hidden": "[16]",
            "value_steps": "2",
            "pretraining_updates": "1",
            "rollin_decisions": "5",
            "references": "64",
            "actor_width": "16",
            "critic_width": "16",
        }
        words = [
            *self.task(out),
            f"algorithm={algorithm}",
            *([f"base={self.start(kind)}"] if kind.needs.required & {"base", "start"} else []),
            *([f"oracles=[{self.base}]"] if "oracles" in kind.needs.required else []),
        ]
        known = keywords_of(kind)
        words += [f"algorithm.{key}={value}" for key, value in small.items() if key in known]
        if "dataset" in kind.needs.required or group.get("offline_share"):
            words += [f"dataset={self.dataset}", "offline_steps=60"]
        if kind.batch_spec.cost:  # the demonstrations have none
            words = [word for word in words if not word.startswith("dataset=")]
            words += ["env_options.cost=upper", "dataset=two_routes", "dataset.episodes=4"]
            words += ["dataset.env_options.cost=upper"]
        if kind.explore is Algorithm.explore:
            return [*words, "eval_every=25", "checkpoint_every=10"]
        return [*words, "num_envs=2", "online_steps=320", "eval_every=150", "checkpoint_every=60"]

    def start(self, method: type[Algorithm]) -> Path:
        """Return the folder of a base that a method can start from; a flow where it takes any."""
        if method.needs.base_kind in ("", "flow"):
            return self.base
        words = [*self.task(self.base.parents[4]), "algorithm=bc", "policy.hidden=[16]"]
        words += [f"policy={method.needs.base_kind}", f"dataset={self.dataset}", "offline_steps=60"]
        words += ["policy.sampling_steps=2"] if method.needs.base_kind == "diffusion" else []
        return train(compose_run([*words, "algorithm.batch_size=16"])).folder  # made once


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Demonstrations and a cloned base, made once; tests leave them as they are."""
    out = tmp_path_factory.mktemp("tiny")
    words = [*Tiny.task(out), "algorithm=bc", "policy=flow", "policy.hidden=[16]"]
    words += ["policy.sampling_steps=2", "dataset=two_routes", "dataset.episodes=4"]
    words += ["offline_steps=60", "algorithm.batch_size=16"]
    base = train(compose_run(words)).folder
    (dataset,) = (path.parent.parent for path in out.rglob("data/main_data.hdf5"))
    return Tiny(dataset, base)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> str:
    """The word that has a suite's or a sweep's runs carried out here; processes take seconds."""
    kinds = {**launch.launcher_kinds(), "here": launcher_here()}
    monkeypatch.setattr(launch, "launcher_kinds", lambda: kinds)
    return "launcher=here"
