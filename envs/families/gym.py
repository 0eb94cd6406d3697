"""Gymnasium's MuJoCo tasks, version 5, bare: no checkers, no order enforcement."""

from __future__ import annotations

from typing import Any, cast

from trimtab.envs.core.quiet import quiet
from trimtab.envs.core.spec import Family, OwnVector, RawEnv, Task
from trimtab.envs.engines.gym_vector import TASKS
from trimtab.envs.engines.mujoco_frames import mujoco_frames
from trimtab.envs.engines.mujoco_vector import MujocoVectorEnv

__all__ = ["FAMILY"]


def _build(task: str, *, render: bool) -> RawEnv:
    with quiet():
        import gymnasium
        import mujoco  # noqa: F401  (a clear ImportError now, rather than Gymnasium's later)
        from gymnasium.envs.registration import load_env_creator

        spec = gymnasium.spec(task)
        entry = spec.entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        assert creator is not None
        return cast(RawEnv, creator(**spec.kwargs, render_mode="rgb_array" if render else None))


# Minimum and maximum returns of the D4RL paper's tables (Fu et al., 2020; shared by all versions of
# a task). They were taken under mujoco-py and Gym's v2 tasks, hence the name of the table.
_D4RL = {
    "HalfCheetah-v5": (-280.178953, 12135.0),
    "Hopper-v5": (-20.272305, 3234.3),
    "Walker2d-v5": (1.629008, 4592.3),
    "Ant-v5": (-325.6, 3879.7),
}

# Returns of uniformly random actions and of the experts of our own tiers, measured on this stack
# (benchmarks/results/tiers).
_TRIMTAB = {
    "HalfCheetah-v5": (-289.82, 6559.06),
    "Hopper-v5": (17.31, 3342.53),
    "Walker2d-v5": (1.63, 4789.51),
}
_REFERENCES = {"d4rl-v2": _D4RL, "trimtab-v0": _TRIMTAB}

# Episode lengths in environment steps, as Gymnasium registers them.
_HORIZONS = {
    "Ant-v5": 1000,
    "HalfCheetah-v5": 1000,
    "Hopper-v5": 1000,
    "Humanoid-v5": 1000,
    "HumanoidStandup-v5": 1000,
    "InvertedDoublePendulum-v5": 1000,
    "InvertedPendulum-v5": 1000,
    "Pusher-v5": 100,
    "Reacher-v5": 50,
    "Swimmer-v5": 1000,
    "Walker2d-v5": 1000,
}

_LOCOMOTION = {"Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d"}


def _vector(id: str, num_envs: int, **arguments: Any) -> MujocoVectorEnv:
    return MujocoVectorEnv(id, num_envs, tasks=TASKS, **arguments)


FAMILY = Family(
    name="gym",
    install="gymnasium[mujoco]",
    packages=("mujoco", "gymnasium"),
    tasks={
        name: Task(
            horizon=horizon,
            score_references={
                table: scores[name] for table, scores in _REFERENCES.items() if name in scores
            },
            tags=("locomotion",) if name.removesuffix("-v5") in _LOCOMOTION else ("control",),
        )
        for name, horizon in _HORIZONS.items()
    },
    build=_build,
    frames=mujoco_frames,
    vector=OwnVector(frozenset(TASKS), frozenset({"horizon"}), _vector),
)
