"""Chunks against a loop written out."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from trimtab.envs.core.chunk import ChunkWrapper
from trimtab.envs.core.task_env import TaskEnv
from trimtab.envs.vector import make_vec
from trimtab.errors import TrimtabError

pytestmark = pytest.mark.bits


class _Counter(gymnasium.Env[Any, Any]):
    """Ends at step ``end``; reward i + 1 and success only at step index 1."""

    def __init__(self, end: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.end, self.steps = end, 0
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action: np.ndarray) -> Any:
        self.actions.append(np.array(action))
        self.steps += 1
        info = {"success": float(self.steps == 2)}
        return np.full(1, self.steps), float(self.steps), self.steps == self.end, False, info


def _wrapped(end: int, horizon: int, steps: int, discount: float = 1.0) -> Any:
    raw = _Counter(end)
    task = TaskEnv(raw, horizon=horizon, success_key="success")
    return raw, ChunkWrapper(task, steps, discount)


@pytest.mark.parametrize("discount", [1.0, 0.5])
@pytest.mark.parametrize(("end", "horizon"), [(99, 99), (5, 99), (99, 5), (3, 3), (1, 99)])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_chunks_equal_a_loop(size: int, end: int, horizon: int, discount: float) -> None:
    raw, env = _wrapped(end, horizon, size, discount)
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    done, at, given = False, 0, []
    while not done and at < 8:
        chunk = generator.uniform(-1, 1, (size, 2)).astype(np.float32)
        taken = list(range(at + 1, min(at + size, end, horizon) + 1))
        given.extend(chunk[: len(taken)])
        obs, reward, terminated, truncated, info = env.step(chunk)
        assert reward == sum(discount**i * step for i, step in enumerate(taken))
        assert info["steps"] == len(taken)
        assert info["success"] is (2 in taken)
        at = taken[-1]
        assert obs[0] == at
        assert (terminated, truncated) == (at == end, at == horizon)
        done = terminated or truncated
    np.testing.assert_array_equal(raw.actions, given)


@pytest.mark.parametrize(("steps", "discount"), [(0, 1.0), (True, 1.0), (2, 0.0), (2, 1.1)])
def test_wrong_chunks(steps: int, discount: float) -> None:
    with pytest.raises(TrimtabError):
        _wrapped(9, 9, steps, discount)


def test_vector_of_chunks_is_the_vector_of_steps() -> None:
    id, count = "gym/Hopper-v5", 2
    fine = make_vec(id, count, seed=3, horizon=10)
    coarse = make_vec(id, count, seed=3, horizon=10, act_steps=4)
    actions = np.random.default_rng(0).uniform(-1, 1, (10, count, 1, 3)).astype(np.float32)
    fine.reset()
    coarse.reset()
    rows = [fine.step(action) for action in actions]
    padded = np.concatenate((actions, np.zeros((2, count, 1, 3), np.float32)))
    for start in (0, 4, 8):
        chunk = padded[start : start + 4, :, 0].transpose(1, 0, 2)
        obs, reward, terminated, truncated, infos = coarse.step(chunk)
        parts = rows[start : start + 4]
        np.testing.assert_array_equal(obs, parts[-1][0])
        np.testing.assert_allclose(reward, sum(part[1] for part in parts), rtol=1e-12)
        np.testing.assert_array_equal(infos["steps"], len(parts))
        np.testing.assert_array_equal(infos["final_obs"], parts[-1][4]["final_obs"])
        assert not terminated.any()
        assert truncated.all() == (start == 8)
    assert (infos["final_info"]["length"] == 10).all()
