"""The dm_control tasks of MuJoCo Playground as compiled functions of N simulations at once."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.envs.core.quiet import quiet
from trimtab.errors import TrimtabError

__all__ = ["Programs", "episode_keys", "load_suite", "programs"]

_PACKAGE = "mujoco_playground"

# XLA's newer emitters on a processor take two to three times as long to compile these programs,
# which then run no faster. The newest XLA always uses them, and does not know the option.
_QUICKER = {"xla_cpu_use_fusion_emitters": False}

# MuJoCo's mjSTATE_INTEGRATION: a step computes all else anew from it. The other hundred arrays of
# MJX's data would be written, chosen and handed over in each step for nothing.
_CARRIED = (
    "time", "qpos", "qvel", "act", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied",
    "eq_active", "mocap_pos", "mocap_quat",
)  # fmt: skip


@dataclass(frozen=True)
class Programs:
    """A task and what is compiled for it, anew for every number N of simulations.

    The state is a tree of JAX arrays [N, ...] and never changed in place: Playground's own, but of
    its data only what MuJoCo integrates, in a mapping. What comes out has the very types that go
    in, so that each function is compiled once and not a second time when it is first given its own
    result. Rows never act on one another.

    Attributes:
        env: the task as Playground has it, with ``mj_model`` and ``n_substeps``.
        obs_dim: length O of an observation.
        first: a single simulation's state behind a reset, in shapes and types alone.
        device: the JAX device that all this runs on.
        begin: ``keys [N, 2] -> state, observations [N, O]``: starts every episode.
        keep: ``rows [N], new, old -> state``: the rows that are true from ``new``.
        play: ``state, actions [N, K, A], steps [N] int32 -> state, observations [N, O], rewards
            [N, K] float32, terminated [N, K]``: up to ``steps`` of the K actions in each row, fewer
            where it terminates; the rest of its rewards is zero.
        play_on: ``state, actions [N, K, A], steps int32, weights [K], spare -> state, observations
            [N, O], rewards [N], restarted [N]``: plays ``steps`` of the actions in every row, and
            sums the rewards with ``weights``. A row that terminates or is no longer finite goes on
            from its row of ``spare``, a state of another start, with reward 0.
    """

    env: Any
    obs_dim: int
    first: Any
    device: Any
    begin: Callable[[Any], tuple[Any, Any]]
    keep: Callable[[Any, Any, Any], Any]
    play: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any]]
    play_on: Callable[[Any, Any, Any, Any, Any], tuple[Any, Any, Any, Any]]


def episode_keys(seeds: Sequence[int]) -> NDArray[np.uint32]:
    """Return JAX's keys [n, 2] for episode seeds: ``jax.random.PRNGKey(seed)``, one a row."""
    words = [((seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF) for seed in map(int, seeds)]
    return np.array(words, np.uint32).reshape(-1, 2)


@functools.cache
def load_suite() -> Any:
    """Import Playground's module of the dm_control tasks, and no other part of it.

    The package's own ``__init__`` imports its locomotion and manipulation tasks, which download
    their models. A bare package stands in for it meanwhile.

    Raises:
        ImportError: if Playground, MJX or JAX is not installed.
    """
    # Otherwise JAX takes most of a GPU's memory at once, and torch finds none.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with quiet():
        found = _PACKAGE in sys.modules
        if not found:
            spec = importlib.util.find_spec(_PACKAGE)
            if spec is None:
                raise ImportError(f"No module named '{_PACKAGE}'")
            sys.modules[_PACKAGE] = importlib.util.module_from_spec(spec)
        try:
            return importlib.import_module(f"{_PACKAGE}._src.dm_control_suite")
        finally:
            if not found:  # a user's own import of it still runs its __init__
                del sys.modules[_PACKAGE]


def _device(jax: Any, kind: str) -> Any:
    try:
        with quiet():
            return jax.devices(kind)[0]
    except RuntimeError as error:
        raise TrimtabError(
            f"JAX finds no {kind} device here; use device=cpu, or install jax[cuda12] on a machine "
            "that has a GPU"
        ) from error


def has_device(kind: str) -> bool:
    """Whether JAX has a device of a kind here, ``"cpu"`` or ``"cuda"``.

    Raises:
        ImportError: if Playground, MJX or JAX is not installed.
    """
    load_suite()
    import jax

    try:
        _device(jax, kind)
    except TrimtabError:
        return False
    return True


@functools.cache
def _compiler_options(device: str) -> dict[str, bool]:
    """Return the options of XLA's compiler for a kind of device; a small program tries them."""
    import jax

    if device != "cpu":
        return {}
    place = _device(jax, device)
    try:
        with jax.default_device(place):
            jax.jit(lambda: 0, compiler_options=_QUICKER)()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return {}
    return _QUICKER


@functools.lru_cache(maxsize=4)  # of a task they take up to 0.2 GB
def programs(task: str, device: str) -> Programs:
    """Return a task's functions on ``"cpu"`` or ``"cuda"``; those used last are kept.

    Raises:
        TrimtabError: if JAX has no such device.
        ImportError: if Playground, MJX or JAX is not installed.
    """
    suite = load_suite()
    import jax
    import jax.numpy as jnp

    place = _device(jax, device)
    with quiet(), jax.default_device(place):
        env = suite.load(task)

    def carried(state: Any) -> Any:
        """Return what is carried of a state of Playground's, for a next step.

        It has no weak types: a plain 0.0 would be another type than a clock.
        """
        state = state.replace(data={name: getattr(state.data, name) for name in _CARRIED})
        return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), state)

    def blank(x: Any) -> Any:
        return jnp.full(x.shape, jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0, x.dtype)

    def step(state: Any, action: Any) -> Any:
        """Step one row. A step that read a float that is not carried would end in NaN.

        What is left are indices of contacts and constraints, which are 0 until they are computed.
        """
        data = jax.tree.map(blank, first.data).replace(**state.data)
        with jax.default_matmul_precision("highest"):
            return carried(env.step(state.replace(data=data), action))

    def keep(rows: Any, new: Any, old: Any) -> Any:
        def chosen(a: Any, b: Any) -> Any:
            return jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        return jax.tree.map(chosen, new, old)

    # Followed once in one row, from which JAX derives every number of rows; nothing of it is left
    # in the program.
    reset = jax.jit(env.reset, inline=True)

    def begin(keys: Any) -> tuple[Any, Any]:
        with jax.default_matmul_precision("highest"):  # a GPU would round to 10 bits otherwise
            state = carried(jax.vmap(reset)(keys))
        return state, state.obs

    def play(state: Any, actions: Any, steps: Any) -> tuple[Any, Any, Any, Any]:
        def one(carry: Any, number_action: Any) -> Any:
            state, ended = carry
            number, action = number_action
            going = (number < steps) & ~ended
            new = jax.vmap(step)(state, action)
            terminated = going & (new.done > 0)
            reward = jnp.where(going, new.reward, 0.0)
            return (keep(going, new, state), ended | terminated), (reward, terminated)

        count, length = actions.shape[:2]
        numbered = jnp.arange(length), actions.swapaxes(0, 1)
        (state, _), (reward, terminated) = jax.lax.scan(
            one, (state, jnp.zeros(count, bool)), numbered
        )
        return state, state.obs, reward.T, terminated.T

    def play_on(state: Any, actions: Any, steps: Any, weights: Any, spare: Any) -> Any:
        everywhere = jnp.full(len(actions), steps)
        state, obs, rewards, terminated = play(state, actions, everywhere)
        reward = (rewards * weights).sum(1)
        restarted = terminated.any(1) | ~jnp.isfinite(obs).all(1) | ~jnp.isfinite(reward)
        # Always chosen from two states: to decide by a number would make the processor wait.
        state = keep(restarted, spare, state)
        return state, state.obs, jnp.where(restarted, 0.0, reward), restarted

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(function, compiler_options=_compiler_options(device))

    with jax.default_matmul_precision("highest"):  # as in begin, which finds it again
        first = jax.eval_shape(reset, np.zeros(2, np.uint32))
    (obs_dim,) = first.obs.shape
    return Programs(
        env, obs_dim, first, place,
        compiled(begin), compiled(keep), compiled(play), compiled(play_on),
    )  # fmt: skip
