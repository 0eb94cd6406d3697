"""A task that is right, and tasks that are wrong in one thing each: what tests of checks play.

Registered with Gymnasium as ``toys/<name>-v0`` when this module is imported, and declared as the
family ``toys`` (``TRIMTAB_FAMILIES=toys``).
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from trimtab.envs.core.spec import Family, Task

STEPS = 30


class Right(gymnasium.Env[Any, Any]):
    """A point that is pushed about, with a success."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,))
    action_space: Any = spaces.Box(-1.0, 1.0, (2,))
    dt = 0.1

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain
        self.at = np.zeros(3)

    def observe(self) -> Any:
        """Return the state."""
        return self.at.copy()

    def start(self) -> Any:
        """Return a random state."""
        return self.np_random.uniform(-1, 1, 3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start anywhere."""
        super().reset(seed=seed)
        self.at = self.start()
        return self.observe(), {}

    def reward(self) -> Any:
        """Return how near the middle it is."""
        return -float(np.abs(self.at).sum())

    def info(self) -> Any:
        """Return whether it is in the middle."""
        return {"success": bool(np.abs(self.at).sum() < 0.3)}

    def step(self, action: Any) -> Any:
        """Move."""
        self.at[:2] += 0.1 * self.gain * np.asarray(action)
        return self.observe(), self.reward(), False, False, self.info()


class Parts(Right):
    observation_space = spaces.Dict(
        {"speed": spaces.Box(-9.0, 9.0, (2, 1)), "at": spaces.Box(-9, 9, ())}
    )

    def observe(self) -> Any:
        return {"at": np.float32(self.at[2]), "speed": self.at[:2, None].copy()}


class MissingPart(Parts):
    def observe(self) -> Any:
        return {"at": np.float32(self.at[2])}


class FlatBoxOfActions(Right):
    action_space = spaces.Box(-1.0, 1.0, (1, 2))

    def step(self, action: Any) -> Any:
        return super().step(action[0])


class Discrete(Right):
    action_space = spaces.Discrete(3)


class DiscreteState(Right):
    observation_space = spaces.Discrete(3)


class Infinite(Right):
    action_space = spaces.Box(-np.inf, np.inf, (2,))


class Picture(Right):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class OtherShape(Right):
    def observe(self) -> Any:
        return self.at[:2].copy()


class OtherShapeLater(Right):
    def step(self, action: Any) -> Any:
        super().step(action)
        self.count = getattr(self, "count", 0) + 1
        size = 3 if self.count < 5 else 2
        return self.at[:size].copy(), 0.0, False, False, self.info()


class OtherShapeAgain(Right):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        self.starts = getattr(self, "starts", 0) + 1
        return obs[: 3 if self.starts < 2 else 2], info

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, True, truncated, info


class Words(Right):
    def observe(self) -> Any:
        return np.array(["a", "b", "c"])


class NotFinite(Right):
    def observe(self) -> Any:
        return self.at * np.nan


class OldReset(Right):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class OldestReset(Right):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]


class OldStep(Right):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class NoReward(Right):
    def reward(self) -> Any:
        return None


class TextReward(Right):
    def reward(self) -> Any:
        return "1.0"


class TextRewardLater(Right):
    def step(self, action: Any) -> Any:
        obs, reward, *ends, info = super().step(action)
        self.count = getattr(self, "count", 0) + 1
        return obs, reward if self.count < 5 else "1.0", *ends, info


class NanReward(Right):
    def reward(self) -> Any:
        return np.nan


class HugeReward(Right):
    def reward(self) -> Any:
        return 10**400


class ArrayReward(Right):
    def reward(self) -> Any:
        return np.zeros(1)


class TooLarge(Right):
    def observe(self) -> Any:
        return self.at + 1e300


class FarLimits(Right):
    action_space = spaces.Box(np.float32(-3e38), np.float32(3e38), (2,))


class NarrowLimits(Right):
    action_space = spaces.Box(1e6 + 0.1, 1e6 + 0.11, (2,), np.float64)


class Strict(Right):
    """Refuses what is not in its space, by limits that float32 may not have."""

    def __init__(self, low: float = -0.1, high: float = 0.1) -> None:
        super().__init__()
        self.action_space = spaces.Box(low, high, (2,), np.float64)

    def step(self, action: Any) -> Any:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not in {self.action_space}")
        return super().step(action)


class RefusesItsLimits(Right):
    def step(self, action: Any) -> Any:
        assert np.abs(action).max() < 1.0, "too far"
        return super().step(action)


class NeedsAnArgument(Right):
    def __init__(self, weight: float) -> None:
        super().__init__(weight)


class OwnKind(BaseException):
    """What somebody derives from all exceptions there are."""


class RaisesItsOwnKind(Right):
    def step(self, action: Any) -> Any:
        raise OwnKind("a mistake of mine")


class CountedSuccess(Right):
    def info(self) -> Any:
        return {"success": 7}


class NoSuccess(Right):
    def info(self) -> Any:
        return {"other": 1}


class TextSuccess(Right):
    def info(self) -> Any:
        return {"success": "yes"}


class NoInfo(Right):
    def info(self) -> Any:
        return None


class Truncates(Right):
    after = 25

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = self.after
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        self.left -= 1
        return obs, reward, terminated, self.left == 0, info


class UnseededStart(Right):
    def start(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 3)


class UnseededStep(Right):
    def step(self, action: Any) -> Any:
        self.at[2] += np.random.default_rng().normal()
        return super().step(action)


class OfTheProcess(Right):
    def start(self) -> Any:
        return super().start() + os.getpid()


class WrongParts(Right):
    obs_parts = {"observation": (0, 1, 2, 3)}


class Raises(Right):
    def step(self, action: Any) -> Any:
        raise IndexError("a mistake of mine")


class Exits(Right):
    def step(self, action: Any) -> Any:
        sys.exit("no licence")


class ExitsWhenMade(Right):
    def __init__(self) -> None:
        sys.exit()


class ChangesTheAction(Right):
    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


class SeedsTorch(Right):
    def start(self) -> Any:
        torch.manual_seed(3)
        return super().start()


class DrawsFromNumPys(Right):
    def reward(self) -> Any:
        np.random.normal()
        return super().reward()


class SeedsPythonsWhenMade(Right):
    def __init__(self) -> None:
        random.seed(1)
        super().__init__()


class LeavesItsProcess(Right):
    def step(self, action: Any) -> Any:
        os._exit(0)


KINDS: dict[str, type[Right]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, Right)
}
for _name, _kind in KINDS.items():
    gymnasium.register(f"toys/{_name}-v0", entry_point=_kind, max_episode_steps=STEPS)
gymnasium.register("toys/NoLimit-v0", entry_point=Right)


def _build(task: str, *, render: bool) -> Any:
    if task == "Limited":
        return gymnasium.make("toys/Right-v0", disable_env_checker=True)
    return KINDS.get(task, Right)()


def _frames(env: Any) -> Any:
    return FRAMES(env)


def FRAMES(env: Any) -> Any:
    """Replaced by tests."""
    return 0.02, 5, "euler"


FAMILY = Family(
    name="toys",
    install="toys",
    packages=("numpy",),
    tasks={
        **{name: Task(STEPS, "success") for name in KINDS},
        "Limited": Task(STEPS + 20, "success"),
    },
    build=_build,
    frames=_frames,
)
