"""Brax's PPO on a Playground task, as the peer of the runs of ``scripts/gpu_training.py``.

It has the same copies, rollout, minibatches, epochs and widths of networks as ours. Its copies
start every episode in a first state that is kept, and its policy's spread depends on the
observation; ours start each episode anew, and have one spread.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab.envs.engines.mjx_programs import load_suite

__all__ = ["steps_per_second"]

EPOCHS = 9
"""Parts of the training that are timed; the first one has the compilation and does not count."""


def steps_per_second(
    task: str, *, copies: int, steps: int, rollout: int, minibatches: int, epochs: int, hidden: int
) -> float:
    """Train, and return the median rate over the parts of the training, without evaluations.

    Args:
        task: Playground's name of the task.
        copies: environments side by side.
        steps: environment steps in all.
        rollout: steps of each copy in an iteration.
        minibatches: parts of a rollout that an epoch learns from, one after another.
        epochs: passes over each rollout.
        hidden: width of the two hidden layers of either network.
    """
    suite = load_suite()
    import jax
    import jax.numpy as jnp
    from flax import linen

    if not hasattr(jax, "device_put_replicated"):  # the newest JAX lacks what Brax 0.14 calls
        replicate = functools.partial(jax.tree_util.tree_map, lambda x: jnp.asarray(x)[None])
        setattr(jax, "device_put_replicated", lambda tree, devices: replicate(tree))  # noqa: B010
    ppo: Any = importlib.import_module("brax.training.agents.ppo.train")
    networks: Any = importlib.import_module("brax.training.agents.ppo.networks")
    wrapper = _wrapper(suite)
    rates: list[float] = []
    ppo.train(
        suite.load(task),
        num_timesteps=steps,
        num_envs=copies,
        max_devices_per_host=1,
        wrap_env_fn=wrapper.wrap_for_brax_training,
        episode_length=1000,
        unroll_length=rollout,
        batch_size=copies // minibatches,
        num_minibatches=minibatches,
        num_updates_per_batch=epochs,
        num_evals=EPOCHS + 1,
        run_evals=False,
        num_eval_envs=8,
        progress_fn=lambda _, metrics: rates.append(float(metrics["training/sps"])),
        normalize_observations=True,
        learning_rate=3e-4,
        discounting=0.99,
        max_grad_norm=0.5,
        network_factory=functools.partial(
            networks.make_ppo_networks,
            policy_hidden_layer_sizes=(hidden, hidden),
            value_hidden_layer_sizes=(hidden, hidden),
            activation=linen.tanh,
        ),
    )
    return statistics.median(rates[1:])


def _wrapper(suite: ModuleType) -> Any:
    """Return Playground's module of wrappers; to import it by its name would import its package."""
    assert suite.__file__ is not None
    file = Path(suite.__file__).parents[1] / "wrapper.py"
    spec = importlib.util.spec_from_file_location("playground_wrapper", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
