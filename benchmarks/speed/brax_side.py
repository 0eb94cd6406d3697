"""Brax's PPO on a Playground task, as a peer with the same numbers as ours.

It has the same copies, rollout, minibatches, epochs and widths of networks as ours. Its copies
start every episode in a first state that is kept, and its policy's spread depends on the
observation; ours start each episode anew, and have one spread.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab.envs.engines.mjx_programs import load_suite

__all__ = ["Numbers", "train", "wrap", "wrapper_of"]


@dataclass(frozen=True)
class Numbers:
    """What both sides of a row of PPO have in common.

    Attributes:
        copies: environments side by side.
        rollout: steps of each copy in an iteration.
        minibatches: parts of a rollout that an epoch learns from, one after another.
        epochs: passes over each rollout.
        hidden: width of the two hidden layers of either network.
    """

    copies: int
    rollout: int = 32
    minibatches: int = 8
    epochs: int = 5
    hidden: int = 64

    def words(self) -> list[str]:
        """Return our words of these numbers, without the device."""
        return [
            "algorithm=ppo", f"num_envs={self.copies}", f"algorithm.rollout_steps={self.rollout}",
            f"algorithm.batch_size={self.copies * self.rollout // self.minibatches}",
            f"algorithm.epochs={self.epochs}", f"algorithm.hidden=[{self.hidden},{self.hidden}]",
        ]  # fmt: skip


def train(
    task: str, numbers: Numbers, parts: int, steps: int, done: Callable[[float], None]
) -> None:
    """Train in parts, without evaluations; the first part has the compilation.

    Args:
        task: Playground's name of the task.
        numbers: of environments, networks and minibatches.
        parts: of the training.
        steps: environment steps in all.
        done: called after each part with Brax's own rate of it, in steps a second.
    """
    suite = load_suite()
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "device_put_replicated"):  # the newest JAX lacks what Brax 0.14 calls
        replicate = functools.partial(jax.tree_util.tree_map, lambda x: jnp.asarray(x)[None])
        setattr(jax, "device_put_replicated", lambda tree, devices: replicate(tree))  # noqa: B010
    ppo: Any = importlib.import_module("brax.training.agents.ppo.train")
    networks: Any = importlib.import_module("brax.training.agents.ppo.networks")
    linen: Any = importlib.import_module("flax.linen")
    # On a GPU both sides multiply whole float32 numbers, in networks as in physics.
    with jax.default_matmul_precision("highest"):
        ppo.train(
            suite.load(task),
            num_timesteps=steps,
            num_envs=numbers.copies,
            max_devices_per_host=1,
            wrap_env_fn=wrapper_of(suite).wrap_for_brax_training,
            episode_length=1000,
            unroll_length=numbers.rollout,
            batch_size=numbers.copies // numbers.minibatches,
            num_minibatches=numbers.minibatches,
            num_updates_per_batch=numbers.epochs,
            num_evals=parts + 1,
            run_evals=False,
            num_eval_envs=8,
            progress_fn=lambda _, metrics: done(float(metrics["training/sps"])),
            normalize_observations=True,
            learning_rate=3e-4,
            discounting=0.99,
            max_grad_norm=0.5,
            network_factory=functools.partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=(numbers.hidden, numbers.hidden),
                value_hidden_layer_sizes=(numbers.hidden, numbers.hidden),
                activation=linen.tanh,
            ),
        )


def wrap(task: str) -> Any:
    """Return a task as Brax's training wraps it: copies, time limit, restarts."""
    suite = load_suite()
    return wrapper_of(suite).wrap_for_brax_training(suite.load(task), episode_length=1000)


def wrapper_of(suite: ModuleType) -> Any:
    """Return Playground's module of wrappers; to import it by its name would import its package."""
    assert suite.__file__ is not None
    file = Path(suite.__file__).parents[1] / "wrapper.py"
    spec = importlib.util.spec_from_file_location("playground_wrapper", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
