"""REPPO's first code, out of a checkout that the user names.

Its file needs environments, Hydra and wandb. The two functions that collect a rollout and learn
from it need none of them: they alone are taken out of the file, unchanged, beside its networks.
What they draw is given to them, an environment repeats the given rollout, and everything is in
double precision.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, struct

FILE = "src/jaxrl/reppo.py"
CLASSES, FUNCTIONS = (
    ("Transition", "ReppoConfig", "SACTrainState"),
    ("collect_rollout", "learn_step"),
)
SETTINGS = {
    "total_time_steps": 1, "lmbda_min": 0.5, "normalize_env": False, "polyak": 1.0,
    "exploration_noise_min": 1.0, "exploration_noise_max": 1.0, "exploration_base_envs": 0,
    "ent_target_mult": 0.5, "hl_gauss": True, "aux_loss_mult": 1.0,
    "num_critic_encoder_layers": 2, "num_critic_head_layers": 2, "num_critic_pred_layers": 2,
    "num_actor_layers": 3,
}  # fmt: skip
"""Their settings for MuJoCo Playground, where the question names no other."""


class Moment(struct.PyTreeNode):  # type: ignore[misc]
    """A row of the given rollout."""

    row: int
    truncated: Any


class Repeated:
    """An environment that repeats the given rollout, whatever the actions."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.inputs = inputs

    def step(self, key: Any, state: Moment, action: Any) -> tuple[Any, ...]:
        """Return the next row: observation twice, state, reward, end, and nothing else."""
        row, given = state.row, self.inputs
        obs = jnp.asarray(given["obs"][row + 1])
        after = Moment(row=row + 1, truncated=jnp.asarray(given["truncated"][row]))
        reward, done = jnp.asarray(given["reward"][row]), jnp.asarray(given["done"][row])
        return obs, obs, after, reward, done, {}


def networks_of(checkout: Path) -> tuple[Any, Any]:
    """Return the modules of the networks and of their helpers, which compute in double."""
    for name in ("src", "src.jaxrl", "src.networks"):
        package = types.ModuleType(name)
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    utils = importlib.import_module("src.jaxrl.utils")
    utils.jnp = SimpleNamespace(**{**vars(jnp), "float32": jnp.float64})
    return importlib.import_module("src.networks.jax_models"), utils


def functions_of(checkout: Path, names: Mapping[str, Any]) -> SimpleNamespace:
    """Return the two functions, which are defined within another one."""
    tree = ast.parse((checkout / FILE).read_text(encoding="utf-8"))
    kept = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS
    ]
    future = ast.parse("from __future__ import annotations").body  # so that no type is looked up
    found = dict(names)
    exec(compile(ast.Module([*future, *kept], []), FILE, "exec"), found)
    return SimpleNamespace(**{name: found[name] for name in FUNCTIONS})


def leaves(actor: Any, critic: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield the weights by their names in the question, with their place."""
    for name, network in (
        ("actor", actor.actor_module),
        ("critic encoder", critic.feature_module),
        ("critic value", critic.critic_module),
        ("critic prediction", critic.pred_module),
    ):
        for index, layer in enumerate(
            [network.input_layer, *network.main_layers, network.output_layer]
        ):
            yield f"{name} {index} weight", layer.layers[0], "kernel"
            yield f"{name} {index} bias", layer.layers[0], "bias"
            if len(layer.layers) > 1:
                yield f"{name} {index} norm", layer.layers[1], "scale"
    yield "critic start", critic, "zero_dist"
    yield "temperature", actor, "temperature_log_param"
    yield "KL weight", actor, "lagrangian_log_param"


def state_of(kind: Any, actor: Any, critic: Any, config: Any, obs: Any) -> Any:
    """Return the state of training, with the optimisers of their file."""

    def trained(model: Any, optimizer: Any) -> Any:
        graph, params = nnx.graphdef(model), nnx.state(model)
        return nnx.TrainState.create(graphdef=graph, params=params, tx=optimizer)

    bound = optax.clip_by_global_norm(config.max_grad_norm)
    return kind(
        critic=trained(critic, optax.chain(bound, optax.adam(config.lr))),
        actor=trained(actor, optax.chain(bound, optax.adam(config.lr))),
        actor_target=trained(actor, optax.set_to_zero()),
        iteration=0, time_steps=0, last_env_state=Moment(row=0, truncated=jnp.zeros(len(obs))),
        last_obs=obs, last_critic_obs=obs,
    )  # fmt: skip


@contextlib.contextmanager
def drawing(noises: list[Any], orders: Any, scans: list[Any]) -> Iterator[None]:
    """Let the code draw the given numbers one after another, and note the ends of its loops."""
    left, given, scan = iter(noises), iter(orders), jax.lax.scan

    def normal(key: Any, shape: tuple[int, ...], *rest: Any, **words: Any) -> Any:
        return jnp.asarray(next(left)).reshape(shape)

    def watched(*words: Any, **more: Any) -> Any:
        scans.append(scan(*words, **more))
        return scans[-1]

    with (
        exchange.replaced(jax.random, "normal", normal),
        exchange.replaced(jax.random, "permutation", lambda key, size: jnp.asarray(next(given))),
        exchange.replaced(jax.lax, "scan", watched),
    ):
        yield


def answer(part: Path) -> exchange.Answers:
    """Return targets, the losses of every minibatch, and the weights after the last."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    jax.config.update("jax_enable_x64", True)
    checkout = Path(settings["checkout"])
    models, utils = networks_of(checkout)
    kinds = exchange.definitions_of(checkout / FILE, CLASSES, {"struct": struct})
    config = kinds.ReppoConfig(**SETTINGS, **settings["config"])
    sizes = {"obs_dim": settings["obs_dim"], "action_dim": settings["action_dim"]}
    actor = models.SACActorNetworks(
        **sizes, hidden_dim=config.actor_hidden_dim, ent_start=config.ent_start,
        kl_start=config.kl_start, layers=config.num_actor_layers, min_std=settings["least"],
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    critic = models.CategoricalCriticNetwork(
        **sizes, hidden_dim=config.critic_hidden_dim, num_bins=config.num_bins, vmin=config.vmin,
        vmax=config.vmax, encoder_layers=config.num_critic_encoder_layers,
        head_layers=config.num_critic_head_layers, pred_layers=config.num_critic_pred_layers,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    for name, place, word in leaves(actor, critic):
        array = jnp.asarray(inputs[f"start {name}"])
        held = getattr(place, word)
        held.value = (array.T if word == "kernel" else array).reshape(held.value.shape)
    state = state_of(kinds.SACTrainState, actor, critic, config, jnp.asarray(inputs["obs"][0]))
    functions = functions_of(
        checkout,
        {
            "jax": jax, "jnp": jnp, "nnx": nnx, "optax": optax, "cfg": config, "utils": utils,
            "env": Repeated(inputs), "Transition": kinds.Transition,
            "action_size_target": settings["action_dim"] * config.ent_target_mult,
        },
    )  # fmt: skip
    acting = [
        one for row in zip(inputs["noise"], inputs["next noise"], strict=False) for one in row
    ]
    learning = [one for row in zip(inputs["drawn"], inputs["compared"], strict=True) for one in row]
    scans: list[Any] = []
    with jax.disable_jit(), drawing(acting + learning, inputs["orders"], scans):
        batch, state = functions.collect_rollout(jax.random.key(0), state)
        state, _ = functions.learn_step(jax.random.key(0), state, batch)
    # A rollout, its targets, the minibatches of each epoch, and the epochs.
    (_, targets), *epochs = scans[1:-1]
    names = {
        "critic losses": "critic_update_loss", "auxiliary losses": "aux_loss",
        "actor losses": "actor_loss", "entropies": "entropy", "divergences": "kl",
        "temperatures": "temp", "KL weights": "lagrangian",
    }  # fmt: skip
    found = {"targets": targets.flatten()}
    found["next embeddings"] = batch.next_emb.reshape(-1, batch.next_emb.shape[-1])
    for name, word in names.items():
        each = np.concatenate([np.asarray(told[word]) for _, told in epochs])
        found[name] = each.reshape(len(each), -1).mean(1)
    for model in (actor, critic):
        nnx.update(model, (state.actor if model is actor else state.critic).params)
    for name, place, word in leaves(actor, critic):
        array = np.asarray(getattr(place, word).value)
        found[name] = array.T if word == "kernel" else array
    return found


if __name__ == "__main__":
    exchange.main(answer, "jax")
