"""Playground's tasks that are not compiled, for time: JAX traces them, C MuJoCo steps their models.

They are built, and their reset is traced; their step, too, unless a task of the same class has it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.envs.engines.mjx_programs import programs
from trimtab.envs.registry import get_spec

pytestmark = pytest.mark.slow

TASKS = load_module(Path(__file__).with_name("tasks.py"))
TRACED: list[str] = TASKS.TRACED
STEPPED_AS: set[str] = TASKS.STEPPED_AS


@pytest.mark.parametrize("id", TRACED)
def test_a_task_that_is_not_compiled_is_traced(
    id: str, as_published: Callable[[str], None]
) -> None:
    """JAX follows its reset and a chunk of steps: what goes in comes out with the same types.

    No number is computed by MJX; ``get_spec`` plays the same model in C MuJoCo. A task's own code
    never sees how many rows there are, so one is enough.
    """
    import jax

    as_published(id)
    count, chunk = 1, 3
    spec = get_spec(id)
    compiled = programs(spec.task, "cpu")
    assert np.shape(spec.action_low) == (spec.action_dim,) and spec.fingerprint
    if id in STEPPED_AS:
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
