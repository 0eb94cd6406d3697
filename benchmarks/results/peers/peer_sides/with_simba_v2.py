"""SimbaV2's own agent with its two wrappers, out of a checkout that the user names.

The agent, its networks and updates, and the normalisers of observations and rewards run as they
are; only what they draw is given to them. Gymnasium, which they need for types alone, is left out.
"""

from __future__ import annotations

import importlib
import itertools
import math
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import flax
import jax
import jax.numpy as jnp
import numpy as np

COLUMNS = ("observation", "action", "reward", "next_observation", "terminated")
GROUPS = {
    "actor": "_actor", "critics": "_critic", "targets": "_target_critic",
    "temperature": "_temperature",
}  # fmt: skip
LOSSES = {
    "critic loss": "critic/loss", "actor loss": "actor/loss", "entropy": "actor/entropy"
}  # fmt: skip


def modules_of(checkout: Path) -> tuple[Any, Any]:
    """Return the modules of agent and wrappers, without the packages around them."""
    for name in ("scale_rl", "scale_rl.agents", "scale_rl.agents.wrappers"):
        package = types.ModuleType(name)
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    outside = {
        "gymnasium": {"spaces": SimpleNamespace(Space=object)},
        "scale_rl.buffers": {"Batch": dict},
        "scale_rl.buffers.base_buffer": {"Batch": dict},
    }
    for name, members in outside.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    # A name that later versions of JAX do not have any more.
    vars(jax).setdefault("tree_map", jax.tree_util.tree_map)
    return (
        importlib.import_module("scale_rl.agents.simbaV2.simbaV2_agent"),
        importlib.import_module("scale_rl.agents.wrappers.normalization"),
    )


def config_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's settings, by the formulas of its configuration."""
    found = {
        "learning_rate_init": settings["learning_rate"],
        "learning_rate_end": settings["final_learning_rate"],
        "learning_rate_decay_step": settings["decay"],
        "critic_use_cdq": settings["critics"] == 2, "critic_num_bins": settings["atoms"],
        "critic_min_v": -settings["value_bound"], "critic_max_v": settings["value_bound"],
        "target_tau": settings["tau"], "temp_initial_value": settings["initial_temperature"],
        "temp_target_entropy_coef": settings["entropy_per_dimension"],
        "gamma": settings["discount"], "n_step": 1,
    }  # fmt: skip
    for name in ("actor", "critic"):
        width, blocks = settings[f"{name}_width"], settings[f"{name}_blocks"]
        scale = math.sqrt(2 / width)
        numbers = {
            "num_blocks": blocks, "hidden_dim": width, "c_shift": 3.0, "scaler_init": scale,
            "scaler_scale": scale, "alpha_init": 1 / (blocks + 1),
            "alpha_scale": 1 / math.sqrt(width),
        }  # fmt: skip
        found |= {f"{name}_{word}": number for word, number in numbers.items()}
    return found


def weights_of(agent: Any) -> dict[str, Any]:
    """Return all weights by name, such as ``actor predictor/mean_bias``."""
    found = {}
    for group, attribute in GROUPS.items():
        tree = flax.traverse_util.flatten_dict(getattr(agent, attribute).params, sep="/")
        for name, leaf in tree.items():
            found[f"{group} {name.removeprefix('VmapSimbaV2Critic_0/')}"] = leaf
    return found


def given_weights(agent: Any, inputs: Mapping[str, Any]) -> None:
    """Let the agent have the weights of the question, and fresh optimisers of them."""
    for group, attribute in GROUPS.items():
        network = getattr(agent, attribute)
        flat = flax.traverse_util.flatten_dict(network.params, sep="/")
        for name, leaf in flat.items():
            word = f"start {group} {name.removeprefix('VmapSimbaV2Critic_0/')}"
            flat[name] = jnp.asarray(inputs[word].reshape(leaf.shape), jnp.float64)
        params = flax.traverse_util.unflatten_dict(flat, sep="/")
        # With a count of 32 bits, their schedule would make a learning rate of 32 bits.
        state = jax.tree_util.tree_map(
            lambda leaf: leaf.astype(jnp.int64) if leaf.dtype == jnp.int32 else leaf,
            network.tx and network.tx.init(params),
        )
        setattr(agent, attribute, network.replace(params=params, opt_state=state))


def acted(
    agent: Any, wrappers: tuple[Any, Any], settings: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Let the agent act; return its actions, and what its normalisers make of rows at each step.

    Args:
        agent: with both wrappers.
        wrappers: the normalisers of observations and of rewards.
        settings: of the part: whether ends come one step late, and how many steps are skipped, by
            which rewards and ends come later than the observations of their decisions.
        inputs: observations, rewards and ends.
    """
    of_obs, of_rewards = wrappers
    rewards, ended = inputs["seen rewards"], inputs["ended"]
    if settings["late ends"]:
        ended = np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])
    found: dict[str, list[Any]] = {"actions": [], "observations": [], "scaled rewards": []}
    for step, obs in enumerate(inputs["acted on"][settings["skipped"] :]):
        timestep = {
            "next_observation": obs, "reward": rewards[step], "terminated": ended[step],
            "truncated": np.zeros_like(ended[step]),
        }  # fmt: skip
        found["actions"].append(agent.sample_actions(step, timestep, training=True))
        found["observations"].append(of_obs._normalize(inputs["observation"][0]))
        found["scaled rewards"].append(of_rewards._scale_reward(rewards[0]))
    return found


def answer(part: Path) -> exchange.Answers:
    """Return what is seen in acting, the losses of every update, and the weights at the end."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    jax.config.update("jax_enable_x64", True)
    module, normalization = modules_of(Path(settings["checkout"]))
    names = module.SimbaV2Config.__dataclass_fields__
    spaces = [SimpleNamespace(shape=(1, settings[f"{name}_dim"])) for name in ("obs", "action")]
    own = module.SimbaV2Agent(*spaces, dict.fromkeys(names, 0) | config_of(settings))
    given_weights(own, inputs)
    of_obs = normalization.ObservationNormalizer(own)
    of_rewards = normalization.RewardNormalizer(
        of_obs, gamma=settings["discount"], g_max=settings["value_bound"]
    )
    of_obs.obs_rms.count = of_rewards.G_rms.count = settings["rows before"]
    of_rewards.G_rms.mean, of_rewards.G_rms.var = np.zeros(1), np.ones(1)  # there single
    drawn = itertools.chain(inputs["acting noise"], *inputs["noise"])

    def normal(**words: Any) -> Any:
        # TensorFlow Probability draws a row for each dimension of an action.
        return jnp.asarray(next(drawn).T)

    told: dict[str, list[Any]] = {name: [] for name in LOSSES}
    with jax.disable_jit(), exchange.replaced(jax.random, "normal", normal):
        seen = acted(of_rewards, (of_obs, of_rewards), settings, inputs)
        for step in range(len(inputs["noise"])):
            batch = {name: inputs[name][step] for name in COLUMNS}
            info = of_rewards.update(step, batch)
            for name, theirs in LOSSES.items():
                told[name].append(info[theirs])
    return {name: np.asarray(values) for name, values in (told | seen).items()} | {
        name: np.asarray(leaf) for name, leaf in weights_of(own).items()
    }


if __name__ == "__main__":
    exchange.main(answer, "jax")
