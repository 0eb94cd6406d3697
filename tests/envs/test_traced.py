"""Playground's tasks that are not compiled, for time: C MuJoCo steps their models.

Each is built as a run builds it, and its reset is traced, but for those that share another's class
and model. Of two the step is traced, too. ``--every-task`` traces all, up to a minute each; do this
when the version of Playground or JAX changes.
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
STEPPED = ("playground/PointMass", "playground/AcrobotSwingup")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("every_task")
    if "built" in metafunc.fixturenames:
        metafunc.parametrize("built", [id for id in TRACED if every or id not in STEPPED_AS])
    if "stepped" in metafunc.fixturenames:
        metafunc.parametrize("stepped", TRACED if every else STEPPED)


def test_a_task_is_built_as_published(built: str, as_published: Callable[[str], None]) -> None:
    """``get_spec`` traces the reset, and plays the same model in C MuJoCo."""
    as_published(built)
    spec = get_spec(built)
    assert np.shape(spec.action_low) == (spec.action_dim,) and spec.fingerprint
    first = programs(spec.task, "cpu").first
    assert first.obs.shape == (spec.obs_dim,) and first.obs.dtype == "f4"


def test_what_a_task_s_step_takes_it_also_returns(stepped: str) -> None:
    """JAX follows a reset and a chunk of steps: what goes in comes out with the same types.

    No number is computed by MJX. A task's own code never sees how many rows there are, so one is
    enough.
    """
    import jax

    count, chunk = 1, 3
    spec = get_spec(stepped)
    compiled = programs(spec.task, "cpu")
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
