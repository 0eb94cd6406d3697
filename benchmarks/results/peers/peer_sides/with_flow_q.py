"""Updates of FQL and Q-chunking by their authors' agents, out of a checkout that the user names.

Both agents are in JAX and of the same make. Their networks, losses and optimiser stay as they are;
only what they draw is given to them, and everything is in double precision.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import exchange
import jax
import jax.numpy as jnp
import numpy as np

NETWORKS = {"flow": "actor_bc_flow", "policy": "actor_onestep_flow", "critics": "critic"}
INSIDE = {"flow": "mlp", "policy": "mlp", "critics": "value_net", "targets": "value_net"}
LAYERS = {"Dense": ("kernel", "bias"), "LayerNorm": ("scale", "bias")}


def agent_of(checkout: Path, file: str) -> types.ModuleType:
    """Return an agent's module, without the other agents of its package."""
    sys.path.insert(0, str(checkout))
    package = types.ModuleType("agents")
    package.__path__ = [str(checkout / "agents")]
    sys.modules["agents"] = package
    return importlib.import_module(f"agents.{file}")


def leaves(tree: Mapping[str, Any], group: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the weights of a group by name, such as ``flow 0 weight``, with their places."""
    kind = NETWORKS.get(group, "target_critic")
    network = tree[f"modules_{kind}"][INSIDE[group]]
    for layer, place in network.items():
        name, _, index = layer.partition("_")
        prefix = f"{group} {index}" + (" norm" if name == "LayerNorm" else "")
        for key, word in zip(LAYERS[name], ("weight", "bias"), strict=True):
            yield f"{prefix} {word}", place, key


def given_weights(params: Any, groups: list[str], inputs: Mapping[str, Any]) -> Any:
    """Return the agent's weights with those of the question in their places."""
    params = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
    for group in groups:
        for name, place, key in leaves(params, group):
            array = inputs[f"start {name}"]
            if group in ("flow", "policy") and key == "kernel":
                array = array.T
            place[key] = jnp.asarray(array.reshape(place[key].shape))
    return params


def taken_weights(params: Any, groups: list[str]) -> dict[str, Any]:
    """Return the agent's weights under the names of the question."""
    found = {}
    for group in groups:
        for name, place, key in leaves(params, group):
            array = np.asarray(place[key])
            turned = group in ("flow", "policy") and key == "kernel"
            found[name] = array.T if turned else array
    return found


def batch_of(settings: Mapping[str, Any], inputs: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return a batch as the agent's own sampler would make it."""
    columns = {name: jnp.asarray(inputs[name][step]) for name in inputs if name.startswith("batch")}
    batch = {name.removeprefix("batch "): column for name, column in columns.items()}
    if settings["file"] == "fql":
        batch["actions"] = batch["actions"][:, 0]
        return batch
    # Of a window, what its last step holds counts: the sum of rewards, and where it ended.
    length = batch["actions"].shape[1]
    for name in ("rewards", "masks", "next_observations"):
        batch[name] = jnp.repeat(batch[name][:, None], length, axis=1)
    return batch | {"valid": jnp.ones(batch["rewards"].shape)}


@contextlib.contextmanager
def drawing(noises: list[Any], time: Any) -> Iterator[None]:
    """Let the agent draw the given normal numbers one after another, and the given times."""
    left = iter(noises)
    uniform = jax.random.uniform

    def normal(key: Any, shape: tuple[int, ...]) -> Any:
        # The last draw of FQL's is for a number that is only logged.
        return jnp.asarray(next(left, np.zeros(shape))).reshape(shape)

    def times(key: Any, shape: tuple[int, ...], *rest: Any) -> Any:
        # With further words it is Flax that asks for the shape of an initial weight.
        return uniform(key, shape, *rest) if rest else jnp.asarray(time).reshape(shape)

    with (
        exchange.replaced(jax.random, "normal", normal),
        exchange.replaced(jax.random, "uniform", times),
    ):
        yield


def answer(part: Path) -> exchange.Answers:
    """Return the losses of every update, and the weights after the last."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    jax.config.update("jax_enable_x64", True)
    module = agent_of(Path(settings["checkout"]), settings["file"])
    config = module.get_config().to_dict() | settings["config"]
    kind = next(value for name, value in vars(module).items() if name == settings["agent"])
    first = batch_of(settings, inputs, 0)
    examples = first["observations"], first["actions"]
    if settings["file"] != "fql":
        examples = examples[0][0], examples[1][0, 0]
    agent = kind.create(0, *examples, config)
    groups = settings["groups"]
    params = given_weights(agent.network.params, groups, inputs)
    network = agent.network.replace(params=params, opt_state=agent.network.tx.init(params))
    agent = agent.replace(network=network)
    names = {"critic loss": "critic/critic_loss", "flow loss": "actor/bc_flow_loss"}
    if "policy" in groups:
        names["distillation loss"] = "actor/distill_loss"
    losses: dict[str, list[Any]] = {name: [] for name in names}
    for step in range(len(inputs["time"])):
        noises = [inputs[name][step] for name in settings["noise"]]
        with jax.disable_jit(), drawing(noises, inputs["time"][step]):
            agent, told = agent.update(batch_of(settings, inputs, step))
        for name, theirs in names.items():
            losses[name].append(np.asarray(told[theirs]))
    return {name: np.stack(loss) for name, loss in losses.items()} | taken_weights(
        agent.network.params, groups
    )


if __name__ == "__main__":
    exchange.main(answer, "jax")
