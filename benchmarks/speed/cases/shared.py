"""What the rows of several groups are made of: Hopper's sizes, filled buffers, the peer's name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.algorithms.base import Setup
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import PolicySpec

TASK = "Hopper-v5"
OBS_DIM, ACTION_DIM = 11, 3
BATCH = 256
HIDDEN = (256, 256)
EPISODE = 200
"""Steps after which a filled buffer has the end of an episode."""

SB3 = "Stable-Baselines3"

Floats = NDArray[np.float32]


def hopper(horizon: int = 1) -> PolicySpec:
    """Return Hopper's sizes and limits, with chunks of ``horizon`` actions."""
    return PolicySpec(OBS_DIM, horizon, ACTION_DIM, (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)


def setup(num_envs: int = 1) -> Setup:
    """Return what an algorithm is made with."""
    return Setup(spec=hopper(), num_envs=num_envs)


def transitions(count: int, chunk: int = 1) -> dict[str, Floats]:
    """Return random transitions of whole episodes by name, the same ones every time.

    Args:
        count: how many.
        chunk: actions of each; with 1, ``action`` is ``[count, A]``, else ``[count, chunk, A]``.
    """
    rng = np.random.default_rng(0)
    actions = (ACTION_DIM,) if chunk == 1 else (chunk, ACTION_DIM)
    shapes = {"obs": (OBS_DIM,), "action": actions, "next_obs": (OBS_DIM,)}
    values = {
        name: rng.standard_normal((count, *shape), dtype=np.float32)
        for name, shape in shapes.items()
    }
    np.clip(values["action"], -1, 1, out=values["action"])
    values["reward"] = rng.standard_normal(count, dtype=np.float32)
    values["done"] = (np.arange(count) % EPISODE == EPISODE - 1).astype(np.float32)
    goes_on = values["done"][:, None] == 0
    values["next_obs"] = np.where(goes_on, np.roll(values["obs"], -1, axis=0), values["next_obs"])
    return values


def filled_replay(
    count: int, *, chunk: int = 1, window: int = 1, chunked: bool = False
) -> ReplayBuffer:
    """Return a full replay buffer of ``count`` random decisions of one environment.

    Args:
        count: how many.
        chunk: actions of each decision, all of which were executed.
        window: as for the buffer.
        chunked: as for the buffer.
    """
    buffer = ReplayBuffer(count, OBS_DIM, (chunk, ACTION_DIM), window=window, chunked=chunked)
    values = transitions(count, chunk)
    # Through its own saved form, because a million calls of add would take most of a minute.
    state = buffer.state_dict()
    arrays = {
        name: np.empty((count, *array.shape[1:]), array.dtype)
        for name, array in state["arrays"].items()
    }
    arrays["obs"][:, 0] = values["obs"]
    arrays["action"][:, 0] = values["action"].reshape(count, chunk, ACTION_DIM)
    arrays["reward"][:, 0] = values["reward"]
    arrays["next_obs"][:, 0] = values["next_obs"]
    arrays["flags"][:, 0] = 3 * values["done"]  # terminated, and so ended
    arrays["taken"][:] = chunk
    buffer.load_state_dict({**state, "arrays": arrays, "size": count, "position": 0})
    return buffer


def fill_sb3(buffer: Any) -> None:
    """Fill Stable-Baselines3's replay buffer of one environment with the same transitions."""
    values = transitions(buffer.buffer_size)
    buffer.observations[:, 0] = values["obs"]
    buffer.next_observations[:, 0] = values["next_obs"]
    buffer.actions[:, 0] = values["action"]
    buffer.rewards[:, 0] = values["reward"]
    buffer.dones[:, 0] = values["done"]
    buffer.pos, buffer.full = 0, True


def silenced(model: Any) -> Any:
    """Give a model of Stable-Baselines3 a logger; its own leaves a temporary folder a ``learn``."""
    from stable_baselines3.common.logger import Logger

    model.set_logger(Logger(None, []))
    return model
