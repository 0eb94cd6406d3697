"""Playground's tasks that are not compiled, for time: JAX traces them, C MuJoCo steps their models.

They are built, and their reset and their step (where another task of the same class has the step,
their reset by itself and their reward) are traced. This file comes behind the others that compile
tasks, of which a process keeps only a few.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.envs.engines.mjx_programs import load_suite, programs
from trimtab.envs.registry import get_spec

pytestmark = pytest.mark.slow

TASKS = load_module(Path(__file__).with_name("tasks.py"))
TRACED: list[str] = TASKS.TRACED
STEPPED_AS: dict[str, str] = TASKS.STEPPED_AS


@pytest.mark.parametrize("id", TRACED)
def test_a_task_that_is_not_compiled_is_traced(
    id: str, as_published: Callable[[str], None]
) -> None:
    """JAX follows its reset and a chunk of steps: what goes in comes out with the same types.

    No number is computed by MJX; ``get_spec`` plays the same model in C MuJoCo. A task's own code
    never sees how many rows there are, so one is enough. A task that shares another's step has its
    class too: that one's reset is followed in rows, this one's as ``get_spec`` does it, by itself.
    """
    import jax

    as_published(id)
    count, chunk = 1, 3
    spec = get_spec(id)
    compiled = programs(spec.task, "cpu")
    assert np.shape(spec.action_low) == (spec.action_dim,) and spec.fingerprint
    if id in STEPPED_AS:
        rewards_are_traced(compiled.env, STEPPED_AS[id], compiled.first)
        assert compiled.first.obs.shape == (spec.obs_dim,) and compiled.first.obs.dtype == "f4"
        return
    state, begun = jax.eval_shape(compiled.begin, jax.ShapeDtypeStruct((count, 2), np.uint32))
    assert (begun.shape, begun.dtype) == ((count, spec.obs_dim), "f4")
    actions = jax.ShapeDtypeStruct((count, chunk, spec.action_dim), np.float32)
    after, obs, reward, terminated = jax.eval_shape(
        compiled.play, state, actions, jax.ShapeDtypeStruct((count,), np.int32)
    )
    assert (obs.shape, obs.dtype) == (begun.shape, begun.dtype)
    assert (reward.shape, reward.dtype) == ((count, chunk), np.float32)
    assert (terminated.shape, terminated.dtype) == ((count, chunk), np.bool_)
    assert kinds_of(state) == kinds_of(after)


def kinds_of(tree: Any) -> list[tuple[Any, ...]]:
    """Return the shape and the type of each leaf of a tree."""
    import jax

    return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(tree)]


def rewards_are_traced(env: Any, stepped: str, state: Any) -> None:
    """A task of the same class as another, whose steps differ by the reward; its own fits."""
    import jax

    made = load_suite()._envs[stepped.split("/")[1]]
    assert type(env) is getattr(made, "func", made)

    def rewarded(data: Any, action: Any, info: Any, metrics: Any) -> Any:
        reward = env._get_reward(data, action, info, metrics)
        return reward, metrics  # it has written into them

    action = jax.ShapeDtypeStruct((env.action_size,), np.float32)
    reward, metrics = jax.eval_shape(rewarded, state.data, action, state.info, state.metrics)
    assert (reward.shape, reward.dtype) == (state.reward.shape, state.reward.dtype)
    assert jax.tree.map(np.shape, metrics) == jax.tree.map(np.shape, state.metrics)
