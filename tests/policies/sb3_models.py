"""Small models of Stable-Baselines3, trained for a moment on a random walk and saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common.logger import Logger
from torch import nn

from trimtab.types import PolicySpec

SPEC = PolicySpec(4, 1, 2, (-1.0, -0.5), (1.0, 2.0))
OFF_POLICY: dict[str, Any] = {"learning_starts": 5, "buffer_size": 100, "batch_size": 4}
ON_POLICY: dict[str, Any] = {"n_steps": 16}


def small(**keywords: Any) -> dict[str, Any]:
    return {"policy_kwargs": {"net_arch": [12, 8], **keywords}}


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (stable_baselines3.PPO, {**ON_POLICY, "batch_size": 8}),
    "ppo_relu": (
        stable_baselines3.PPO,
        {**ON_POLICY, "batch_size": 8}
        | small(activation_fn=nn.ReLU, net_arch={"pi": [16], "vf": [8, 8]}, log_std_init=-1.0),
    ),
    "ppo_linear": (stable_baselines3.PPO, {**ON_POLICY, "batch_size": 8} | small(net_arch=[])),
    "a2c": (stable_baselines3.A2C, {**ON_POLICY, **small(activation_fn=nn.ELU)}),
    "sac": (stable_baselines3.SAC, {**OFF_POLICY, **small()}),
    "sac_tanh": (stable_baselines3.SAC, {**OFF_POLICY, **small(activation_fn=nn.Tanh)}),
    "td3": (stable_baselines3.TD3, {**OFF_POLICY, **small()}),
    "ddpg": (stable_baselines3.DDPG, {**OFF_POLICY, **small(net_arch=[10])}),
}
KINDS = {"ppo": "diagonal_gaussian", "sac": "tanh_gaussian", "td3": "deterministic"}


class Walk(gymnasium.Env[Any, Any]):
    """A random walk that actions push."""

    action_space: Any = gymnasium.spaces.Box(
        np.float32(SPEC.action_low), np.float32(SPEC.action_high)
    )
    observation_space: Any = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=4).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs = self.np_random.normal(size=4).astype(np.float32)
        return obs, float(np.sum(action)), bool(self.np_random.random() < 0.1), False, {}


def trained(kind: Any, env: Any = None, *, policy: str = "MlpPolicy", **keywords: Any) -> Any:
    model = kind(policy, Walk() if env is None else env, seed=0, device="cpu", **keywords)
    model.set_logger(Logger(None, []))
    return model.learn(40)


Saved = Callable[[str], tuple[Any, Path]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Train and save the model of an example once."""
    root = tmp_path_factory.mktemp("models")
    models: dict[str, Any] = {}

    def save(example: str) -> tuple[Any, Path]:
        if example not in models:
            kind, keywords = CASES[example]
            models[example] = trained(kind, **keywords)
            models[example].save(root / example)
        return models[example], root / f"{example}.zip"

    return save
