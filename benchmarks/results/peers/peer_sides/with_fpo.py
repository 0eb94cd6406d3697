"""FPO's own agent, out of a checkout that the user names.

The agent needs no simulator to act and to learn, but its files import several; empty modules stand
for them. Its networks, losses and optimiser stay as they are; only what it draws is given to it,
and everything is in double precision.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import exchange
import jax
import jax.numpy as jnp
import jax_dataclasses as jdc
import numpy as np

SIMULATORS = {
    "mujoco_playground": ("MjxEnv", "State"),
    "mujoco": ("mjx",),
    "mujoco.mjx": ("Data",),
    "wandb": (),
    "wandb.sdk": (),
    "wandb.sdk.wandb_run": ("Run",),
}
"""What the files import for their rollouts alone, and the names that their annotations use."""


class Sizes:
    """An environment of which the agent knows the sizes alone."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.observation_size, self.action_size = settings["obs_dim"], settings["action_dim"]


def agent_of(folder: Path) -> Any:
    """Return the agent's module and the statistics' one."""
    for name, words in SIMULATORS.items():
        module = types.ModuleType(name)
        for word in words:
            setattr(module, word, type(word, (), {}))
        sys.modules[name] = module
    package = types.ModuleType("flow_policy")
    package.__path__ = [str(folder)]
    sys.modules["flow_policy"] = package
    # Python 3.11 reads no parameters of types behind a name: they are written in the older way.
    text = (folder / "rollouts.py").read_text(encoding="utf-8")
    text = re.sub(r"(class \w+)\[(\w+)\](?=:)", r"\1(typing.Generic[\2])", text)
    text = re.sub(r"(class \w+)\[(\w+)\]\(Protocol\)", r"\1(Protocol[\2])", text)
    text = re.sub(r"(def \w+)\[\w+\]", r"\1", text)
    rollouts = types.ModuleType("flow_policy.rollouts")
    rollouts.__package__ = "flow_policy"
    rollouts.__dict__.update(typing=typing, TActionInfo=typing.TypeVar("TActionInfo"))
    sys.modules["flow_policy.rollouts"] = rollouts
    exec(compile(text, str(folder / "rollouts.py"), "exec"), rollouts.__dict__)
    package.rollouts = rollouts  # type: ignore[attr-defined]
    return importlib.import_module("flow_policy.fpo")


def given_weights(name: str, inputs: Mapping[str, Any]) -> Any:
    """Return a network's weights, pairs of a matrix and a bias."""
    layers = sum(word.startswith(f"start {name} ") for word in inputs) // 2
    return tuple(
        (
            jnp.asarray(inputs[f"start {name} {index} weight"].T),
            jnp.asarray(inputs[f"start {name} {index} bias"]),
        )
        for index in range(layers)
    )


def taken_weights(name: str, weights: Any) -> dict[str, Any]:
    """Return a network's weights under the names of the question."""
    found = {}
    for index, (matrix, bias) in enumerate(weights):
        found[f"{name} {index} weight"] = np.asarray(matrix).T
        found[f"{name} {index} bias"] = np.asarray(bias)
    return found


@contextlib.contextmanager
def drawing(inputs: Mapping[str, Any]) -> Iterator[None]:
    """Let the agent draw the given numbers while it acts, and the given orders while it learns."""
    # The noise of its steps and that on its actions are multiplied by 0.
    normals = iter([None, inputs["noise"], None, inputs["epsilon"]])
    orders = iter(inputs["orders"])

    def normal(key: Any, shape: tuple[int, ...]) -> Any:
        given = next(normals)
        return jnp.zeros(shape) if given is None else jnp.asarray(given).reshape(shape)

    def levels(key: Any, shape: tuple[int, ...], minval: int, maxval: int) -> Any:
        return jnp.asarray(inputs["level"]).reshape(shape)

    with (
        exchange.replaced(jax.random, "normal", normal),
        exchange.replaced(jax.random, "randint", levels),
        exchange.replaced(jax.random, "permutation", lambda key, size: next(orders)),
    ):
        yield


def answer(part: Path) -> exchange.Answers:
    """Return what it did, the losses of every minibatch, and the weights after the last."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    jax.config.update("jax_enable_x64", True)
    fpo = agent_of(Path(settings["checkout"]))
    env, config = Sizes(settings), fpo.FpoConfig(**settings["config"])
    state = fpo.FpoState.init(jax.random.key(0), env, config)
    params = fpo.FpoParams(given_weights("actor", inputs), given_weights("critic", inputs))
    state = jdc.replace(state, params=params, opt_state=state.opt.init(params))
    with jax.disable_jit(), drawing(inputs):
        action, info = state.sample_action(inputs["obs"], state.prng, deterministic=False)
        levels = np.asarray(state.get_schedule().t_current)
        transitions = fpo.rollouts.TransitionStruct(
            obs=jnp.asarray(inputs["obs"]),
            next_obs=jnp.asarray(inputs["next_obs"]),
            action=jnp.asarray(inputs["latent"]),
            action_info=fpo.FpoActionInfo(
                loss_eps=jnp.asarray(inputs["epsilon"]),
                loss_t=jnp.asarray(levels[inputs["level"]])[..., None],
                initial_cfm_loss=jnp.asarray(inputs["loss"]),
            ),
            reward=jnp.asarray(inputs["reward"]),
            truncation=jnp.asarray(inputs["truncation"]),
            discount=jnp.asarray(inputs["discount"]),
        )
        stats = state.obs_stats.update(transitions.obs)
        seen = jdc.replace(state, obs_stats=stats)
        obs = (transitions.obs - stats.mean) / stats.std
        details = transitions.action_info
        fresh = seen._compute_cfm_loss(
            obs, transitions.action, eps=details.loss_eps, t=details.loss_t
        )
        change = details.initial_cfm_loss - fresh
        if config.average_losses_before_exp:
            change = change.mean(-1)
        after, told = state.training_step(transitions)
    return {
        "action": action,
        "stored losses": info.initial_cfm_loss,
        "deviation": stats.std,
        "later deviation": stats.update(jnp.asarray(inputs["later"])).std,
        "ratio": jnp.exp(change).mean(),
        "policy losses": told["policy_loss"].flatten(),
        "value losses": told["v_loss"].flatten(),
        "clipped": told["clipped_ratio_mean"].flatten(),
        **taken_weights("actor", after.params.policy),
        **taken_weights("critic", after.params.value),
    }


if __name__ == "__main__":
    exchange.main(answer, "jax")
