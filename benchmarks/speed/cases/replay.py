"""Batches of 256 drawn from a full buffer of a million of Hopper's transitions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from trimtab.benchmarks.speed.cases.shared import (
    ACTION_DIM,
    BATCH,
    OBS_DIM,
    SB3,
    fill_sb3,
    filled_replay,
)
from trimtab.benchmarks.speed.measure import Pair, Side, Stage, Work, repeated

CAPACITY = 1_000_000
BATCHES = 5_000


def capacity(stage: Stage) -> int:
    """Return a million, less only where the scale is below 1."""
    return min(CAPACITY, stage.amount(CAPACITY, least=10_000))


def ours(*, window: int = 1, chunked: bool = False) -> Side:
    """Return the side of our buffer, with windows of ``window`` steps."""

    def side(stage: Stage) -> Work:
        buffer = filled_replay(capacity(stage), window=window, chunked=chunked)
        return sampling(buffer, stage)

    return side


def sampling(buffer: Any, stage: Stage) -> Work:
    """Return the work of drawing batches from a buffer."""
    return repeated(lambda: buffer.sample(BATCH), stage.amount(BATCHES))


def sb3(stage: Stage) -> Work:
    """Set Stable-Baselines3's buffer up, filled with the same transitions."""
    from stable_baselines3.common.buffers import ReplayBuffer

    observations = gymnasium.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)
    actions = gymnasium.spaces.Box(-1, 1, (ACTION_DIM,), np.float32)
    buffer = ReplayBuffer(capacity(stage), observations, actions, device="cpu")
    fill_sb3(buffer)
    return sampling(buffer, stage)


PAIRS = [
    Pair("sample", "replay", "batches/s", ours(), sb3, SB3),
    Pair("sample_5_step_returns", "replay", "batches/s", ours(window=5)),
    Pair("sample_chunks_of_8", "replay", "batches/s", ours(window=8, chunked=True)),
]
