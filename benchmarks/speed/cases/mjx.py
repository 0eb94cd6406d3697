"""Playground's CheetahRun, compiled by JAX for the processor: steps against copies, and PPO.

The peer of the steps is Playground's own environment as Brax's training wraps it, one compiled call
a step, under the same actions. The peer of PPO is Brax's, which compiles steps and updates to one
program (``trimtab.benchmarks.speed.brax_side``); a turn of it is one part of one training.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
from typing import Any

import numpy as np

from trimtab.benchmarks.speed.brax_side import Numbers, train, wrap
from trimtab.benchmarks.speed.cases.training import ours as our_loop
from trimtab.benchmarks.speed.measure import Pair, Side, Stage, Work, repeated
from trimtab.envs.registry import get_spec
from trimtab.envs.vector import make_vec

COPIES = (64, 256, 1024)
STEPS = 65_536
"""Environment steps of a turn, over all copies."""
TASK = "CheetahRun"
PPO = Numbers(256)
ROLLOUTS = 4
PARTS = 1_000
"""More turns of Brax's training than a row has."""


def chosen(copies: int) -> Any:
    """Return the actions of all copies, ``[N, A]``, the same in every step."""
    dimensions = get_spec(f"playground/{TASK}").action_dim
    return np.random.default_rng(0).uniform(-1, 1, (copies, dimensions)).astype(np.float32)


def ours(copies: int) -> Side:
    """Return the side of our environments, as runs on a processor make them."""

    def side(stage: Stage) -> Work:
        envs = make_vec(f"playground/{TASK}", copies, seed=0)
        stage.exits.callback(envs.close)
        envs.reset()
        actions = chosen(copies)[:, None]
        return repeated(lambda: envs.step(actions), stage.amount(STEPS // copies), copies)

    return side


def playground(copies: int) -> Side:
    """Return the side of Playground's own environments, whose arrays are read after each step."""

    def side(stage: Stage) -> Work:
        env = wrap(TASK)
        import jax

        step, actions = jax.jit(env.step), chosen(copies)
        state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), copies))

        def act() -> None:
            nonlocal state
            state = step(state, actions)
            np.asarray(state.obs), np.asarray(state.reward), np.asarray(state.done)

        return repeated(act, stage.amount(STEPS // copies), copies)

    return side


def our_ppo(stage: Stage) -> Work:
    """Set our PPO's loop up."""
    each = stage.amount(ROLLOUTS) * PPO.copies * PPO.rollout
    return our_loop(*PPO.words(), task=f"playground/{TASK}", steps=lambda _: each)(stage)


def brax_ppo(stage: Stage) -> Work:
    """Set Brax's PPO up, whose training waits in a thread of its own between two turns."""
    each = stage.amount(ROLLOUTS) * PPO.copies * PPO.rollout
    turns: queue.Queue[bool] = queue.Queue()
    done: queue.Queue[bool] = queue.Queue()

    def after(rate: float) -> None:
        done.put(True)
        turns.get()

    def learn() -> None:
        turns.get()
        try:
            train(TASK, PPO, PARTS, PARTS * each, after)
        finally:
            done.put(False)

    threading.Thread(target=learn, daemon=True).start()

    def work() -> float:
        turns.put(True)
        if not done.get():
            raise RuntimeError("Brax's training ended")
        return each

    return work


PAIRS = []
if importlib.util.find_spec("mujoco_playground") is not None:  # no side can do without it
    PAIRS = [
        *(
            Pair(
                f"mjx_{copies}", "mjx", "steps/s", ours(copies), playground(copies),
                "Playground, Brax's wrapper",
            )
            for copies in COPIES
        ),
        Pair("mjx_ppo", "mjx", "steps/s", our_ppo, brax_ppo, "Brax, PPO"),
    ]  # fmt: skip
