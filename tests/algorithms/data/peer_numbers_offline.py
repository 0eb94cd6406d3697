"""Write what CORL's offline learners make of two updates, for the tests of ours to compare with.

``python peer_numbers_offline.py CHECKOUT OUT.json``, where CHECKOUT is CORL's repository.
Its files need d4rl, gym, pyrallis and wandb for their loops, which do not install on today's
Python; the learners need none of them, so their definitions alone are taken out of the files.
ReBRAC also needs jax, flax and optax.

Weights, batches and noise follow from a formula (``written_numbers.py``), so that no generator of
random numbers is involved. All is computed in double precision. Of every weight after the updates
the sum and a few entries are written.
"""

from __future__ import annotations

import ast
import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from written_numbers import (
    ACTION,
    CQL_ALPHA,
    DISCOUNT,
    HIDDEN,
    OBS,
    REBRAC,
    UPDATES,
    Array,
    batch,
    noise_of,
    perceptron,
    summary,
)


def definitions(path: Path, wanted: Sequence[str], given: Mapping[str, Any]) -> SimpleNamespace:
    """Return some definitions of a file of CORL's; ``given`` is what the file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [node for node in tree.body if getattr(node, "name", "") in wanted]
    if lacking := set(wanted) - {getattr(node, "name", "") for node in kept}:
        raise ValueError(f"{path.name} does not define {', '.join(sorted(lacking))}")
    future = ast.parse("from __future__ import annotations").body  # so that no type is looked up
    names = dict(given)
    exec(compile(ast.Module([*future, *kept], []), str(path), "exec"), names)
    return SimpleNamespace(**{name: names[name] for name in wanted})


class Noise:
    """Hands out noise by formula: each draw has the update's number and its own."""

    def __init__(self) -> None:
        self.update = self.draw = 0

    def begin(self, update: int) -> None:
        """Go to an update."""
        self.update, self.draw = update, 0

    def __call__(self, shape: Sequence[int]) -> Array:
        """Return the next draw."""
        self.draw += 1
        return noise_of(self.update, self.draw - 1, shape)


class TorchPeer:
    """CORL's torch learners, from given weights."""

    def __init__(self, checkout: Path) -> None:
        import torch
        from torch import nn

        torch.set_default_dtype(torch.float64)
        self.folder, self.torch, self.noise = checkout / "algorithms" / "offline", torch, Noise()
        draw = self.noise

        class Written(torch.distributions.Normal):
            def rsample(self, shape: Any = ()) -> Any:
                noise = draw(self._extended_shape(torch.Size(shape)))
                return self.loc + self.scale * torch.from_numpy(noise)

        distributions = SimpleNamespace(**{**vars(torch.distributions), "Normal": Written})
        changed = {
            "randn_like": lambda x: torch.from_numpy(draw(x.shape)),
            "float32": torch.float64,
            "distributions": distributions,
        }
        self.given = {
            "np": np,
            "nn": nn,
            "F": nn.functional,
            "copy": copy,
            "deepcopy": copy.deepcopy,
            "torch": SimpleNamespace(**{**vars(torch), **changed}),
            "Normal": Written,
            "TransformedDistribution": torch.distributions.TransformedDistribution,
            "TanhTransform": torch.distributions.TanhTransform,
            "CosineAnnealingLR": torch.optim.lr_scheduler.CosineAnnealingLR,
            "EXP_ADV_MAX": 100.0,
            "LOG_STD_MIN": -20.0,
            "LOG_STD_MAX": 2.0,
        }

    def adam(self, module: Any, rate: float = 3e-4) -> Any:
        """Return Adam over a module's weights."""
        return self.torch.optim.Adam(module.parameters(), lr=rate)

    def fill(self, name: str, module: Any, hidden: int) -> None:
        """Give a perceptron the formula's weights."""
        linear = [m for m in module.modules() if isinstance(m, self.torch.nn.Linear)]
        inputs, outputs = linear[0].in_features, linear[-1].out_features
        for mine, (weight, bias) in zip(
            linear, perceptron(name, inputs, hidden, outputs), strict=True
        ):
            mine.weight.data.copy_(self.torch.from_numpy(weight))
            mine.bias.data.copy_(self.torch.from_numpy(bias))

    def batch(self, update: int) -> list[Any]:
        """Return states, actions, rewards, next states and ends, as their buffers do."""
        data = batch(update)
        found = [data["obs"], data["action"], data["reward"], data["next_obs"], data["ended"]]
        return [self.torch.from_numpy(x[:, None] if x.ndim == 1 else x) for x in found]

    def run(
        self, step: Callable[[list[Any]], Mapping[str, float]], networks: Mapping[str, Any]
    ) -> Any:
        """Take the updates; return their numbers and what became of the networks."""
        logs = []
        for update in range(UPDATES):
            self.noise.begin(update)
            logs.append({k: float(v) for k, v in step(self.batch(update)).items()})
        weights = {}
        for name, module in networks.items():
            linear = [m for m in module.modules() if isinstance(m, self.torch.nn.Linear)]
            for place, one in enumerate(linear):
                weights[f"{name} {place} weight"] = summary(one.weight.detach())
                weights[f"{name} {place} bias"] = summary(one.bias.detach())
        return {"updates": logs, "weights": weights}

    def td3_bc(self) -> Any:
        """Return what TD3+BC does."""
        names = ("soft_update", "Actor", "Critic", "TD3_BC")
        theirs = definitions(self.folder / "td3_bc.py", names, self.given)
        actor, first, second = (
            theirs.Actor(OBS, ACTION, 1.0), theirs.Critic(OBS, ACTION), theirs.Critic(OBS, ACTION),
        )  # fmt: skip
        for name, module in (("actor", actor), ("critic 0", first), ("critic 1", second)):
            self.fill(name, module, 2)
        trainer = theirs.TD3_BC(
            1.0, actor, self.adam(actor), first, self.adam(first), second, self.adam(second)
        )
        return self.run(trainer.train, {
            "actor": actor, "critic 0": first, "critic 1": second,
            "target 0": trainer.critic_1_target, "target 1": trainer.critic_2_target,
            "actor target": trainer.actor_target,
        })  # fmt: skip

    def iql(self) -> Any:
        """Return what IQL does, with a cosine of ten updates."""
        names = (
            "soft_update", "asymmetric_l2_loss", "Squeeze", "MLP", "GaussianPolicy", "TwinQ",
            "ValueFunction", "ImplicitQLearning",
        )  # fmt: skip
        theirs = definitions(self.folder / "iql.py", names, self.given)
        actor, twin = theirs.GaussianPolicy(OBS, ACTION, 1.0), theirs.TwinQ(OBS, ACTION)
        value = theirs.ValueFunction(OBS)
        for name, module in (
            ("actor", actor), ("critic 0", twin.q1), ("critic 1", twin.q2), ("value", value),
        ):  # fmt: skip
            self.fill(name, module, 2)
        trainer = theirs.ImplicitQLearning(
            1.0, actor, self.adam(actor), twin, self.adam(twin), value, self.adam(value),
            max_steps=10,
        )  # fmt: skip
        found = self.run(trainer.train, {
            "actor": actor, "critic 0": twin.q1, "critic 1": twin.q2, "value": value,
            "target 0": trainer.q_target.q1, "target 1": trainer.q_target.q2,
        })  # fmt: skip
        found["weights"]["actor log std"] = summary(actor.log_std.detach())
        return found

    def awac(self) -> Any:
        """Return what AWAC does."""
        names = ("Actor", "Critic", "soft_update", "AdvantageWeightedActorCritic")
        theirs = definitions(self.folder / "awac.py", names, self.given)
        actor = theirs.Actor(OBS, ACTION, HIDDEN)
        first, second = (theirs.Critic(OBS, ACTION, HIDDEN) for _ in range(2))
        for name, module in (("actor", actor), ("critic 0", first), ("critic 1", second)):
            self.fill(name, module, 3)
        trainer = theirs.AdvantageWeightedActorCritic(
            actor, self.adam(actor), first, self.adam(first), second, self.adam(second),
            awac_lambda=1 / 3,
        )  # fmt: skip
        found = self.run(trainer.update, {
            "actor": actor, "critic 0": first, "critic 1": second,
            "target 0": trainer._target_critic_1, "target 1": trainer._target_critic_2,
        })  # fmt: skip
        found["weights"]["actor log std"] = summary(actor._log_std.detach())
        return found

    def cql(self, lagrange: bool) -> Any:
        """Return what CQL does; the scale and shift of its log standard deviation are 1 and 0."""
        names = (
            "soft_update", "extend_and_repeat", "init_module_weights", "TanhGaussianPolicy",
            "ReparameterizedTanhGaussian", "FullyConnectedQFunction", "Scalar", "ContinuousCQL",
        )  # fmt: skip
        theirs = definitions(self.folder / "cql.py", names, self.given)
        actor = theirs.TanhGaussianPolicy(OBS, ACTION, 1.0, log_std_offset=0.0)
        first, second = (theirs.FullyConnectedQFunction(OBS, ACTION) for _ in range(2))
        for name, module in (("actor", actor), ("critic 0", first), ("critic 1", second)):
            self.fill(name, module, 3)
        # Its scale and shift are weights, too: without steps of theirs the network is all there is.
        trainer = theirs.ContinuousCQL(
            first, self.adam(first), second, self.adam(second), actor,
            self.adam(actor.base_network, 3e-5), -float(ACTION), policy_lr=3e-5, bc_steps=-1,
            cql_alpha=CQL_ALPHA, cql_lagrange=lagrange, cql_target_action_gap=0.8,
        )  # fmt: skip
        uniform, noise, torch = self.torch.Tensor.uniform_, self.noise, self.torch

        def written(x: Any, low: float, high: float) -> Any:
            return x.copy_(torch.from_numpy(noise(x.shape)))

        self.torch.Tensor.uniform_ = written
        try:
            found = self.run(trainer.train, {
                "actor": actor, "critic 0": first, "critic 1": second,
                "target 0": trainer.target_critic_1, "target 1": trainer.target_critic_2,
            })  # fmt: skip
        finally:
            self.torch.Tensor.uniform_ = uniform
        found["weights"]["temperature"] = summary(trainer.log_alpha().detach())
        found["weights"]["multiplier"] = summary(trainer.log_alpha_prime().detach())
        return found


def jax_definitions(checkout: Path, noise: Noise) -> SimpleNamespace:
    """Return ReBRAC's definitions; its normalisation adds 1e-5 to the variance, as torch's does."""
    import math

    import flax.linen as nn
    import jax
    import optax
    from flax.training.train_state import TrainState

    jax.config.update("jax_enable_x64", True)
    random = SimpleNamespace(
        split=lambda key, count=2: (key,) * count,
        normal=lambda key, shape: jax.numpy.asarray(noise(shape)),
        uniform=lambda key, shape, **_: jax.numpy.zeros(shape),
    )
    changed = {
        "LayerNorm": lambda: nn.LayerNorm(epsilon=1e-5, param_dtype="float64"),
        "Dense": lambda *a, **k: nn.Dense(*a, param_dtype="float64", **k),
    }
    given = {
        "nn": SimpleNamespace(**{**vars(nn), **changed}),
        "jnp": jax.numpy,
        "math": math,
        "optax": optax,
        "TrainState": TrainState,
        "jax": SimpleNamespace(**{**vars(jax), "random": random}),
    }
    names = (
        "pytorch_init", "uniform_init", "identity", "DetActor", "Critic", "EnsembleCritic",
        "CriticTrainState", "ActorTrainState", "update_actor", "update_critic", "update_td3",
        "update_td3_no_targets",
    )  # fmt: skip
    return definitions(checkout / "algorithms" / "offline" / "rebrac.py", names, given)


def rebrac_start() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the formula's weights of actor and critics, as flax has them."""
    layers = perceptron("actor", OBS, 3, ACTION)
    actor = {f"Dense_{k}": {"kernel": w.T, "bias": b} for k, (w, b) in enumerate(layers)}
    members = [perceptron(f"critic {e}", OBS + ACTION, 3, 1) for e in range(2)]
    critic: dict[str, Any] = {}
    for k in range(4):
        kernel, bias = ([m[k][part] for m in members] for part in (0, 1))
        critic[f"Dense_{k}"] = {
            "kernel": np.stack([one.T for one in kernel]),
            "bias": np.stack(bias),
        }
    for k in range(3):
        critic[f"LayerNorm_{k}"] = {"scale": np.ones((2, HIDDEN)), "bias": np.zeros((2, HIDDEN))}
    return actor, critic


class Metrics(dict[str, Any]):
    """Takes down what an update of ReBRAC reports."""

    def update(self, found: Mapping[str, Any]) -> Metrics:  # type: ignore[override]
        """Return these numbers and those from before, but for the random actions'."""
        return Metrics({**self, **{k: v for k, v in found.items() if "random" not in k}})


def rebrac(checkout: Path) -> Any:
    """Return what ReBRAC does."""
    import jax
    import optax

    def of_leaves(names: tuple[str, ...], leaves: Sequence[Any]) -> Metrics:
        return Metrics(zip(names, leaves, strict=True))

    jax.tree_util.register_pytree_node(Metrics, lambda m: (tuple(m.values()), tuple(m)), of_leaves)
    noise = Noise()
    theirs = jax_definitions(checkout, noise)
    actor = theirs.DetActor(action_dim=ACTION, hidden_dim=HIDDEN, layernorm=False)
    critic = theirs.EnsembleCritic(hidden_dim=HIDDEN, num_critics=2, layernorm=True)
    actor_start, critic_start = rebrac_start()
    shapes = jax.eval_shape(
        critic.init, jax.random.PRNGKey(0), np.zeros((1, OBS)), np.zeros((1, ACTION))
    )
    (name,) = shapes["params"]
    states = []
    for kind, network, start in (
        (theirs.ActorTrainState, actor, actor_start),
        (theirs.CriticTrainState, critic, {name: critic_start}),
    ):
        weights = jax.tree.map(jax.numpy.asarray, {"params": start})
        optimizer = optax.adam(REBRAC["learning_rate"])
        states.append(
            kind.create(apply_fn=network.apply, params=weights, target_params=weights, tx=optimizer)
        )
    policy, value = states
    usual = {
        "gamma": DISCOUNT, "tau": 0.005, "policy_noise": 0.2, "noise_clip": 0.5,
        "actor_bc_coef": REBRAC["actor_penalty"], "critic_bc_coef": REBRAC["critic_penalty"],
    }  # fmt: skip
    words = {"obs": "states", "action": "actions", "reward": "rewards", "ended": "dones",
             "next_obs": "next_states", "next_action": "next_actions"}  # fmt: skip
    logs = []
    for update in range(UPDATES):
        noise.begin(update)
        data = {words[k]: jax.numpy.asarray(v) for k, v in batch(update).items()}
        due = (update + 1) % 2 == 0
        step = theirs.update_td3 if due else theirs.update_td3_no_targets
        more = {"normalize_q": True} if due else {}
        _, policy, value, log = step(None, policy, value, data, metrics=Metrics(), **usual, **more)
        logs.append({k: float(v) for k, v in log.items()})
    return {"updates": logs, "weights": rebrac_weights(policy, value, name)}


def rebrac_weights(policy: Any, value: Any, name: str) -> dict[str, list[float]]:
    """Return what became of ReBRAC's weights; ``name`` is what flax calls its ensemble."""
    found = {}
    for k in range(4):
        one = policy.params["params"][f"Dense_{k}"]
        found[f"actor {k} weight"] = summary(np.asarray(one["kernel"]).T)
        found[f"actor {k} bias"] = summary(one["bias"])
        for kind, tree in (("critic", value.params), ("target", value.target_params)):
            for e in range(2):
                one = tree["params"][name][f"Dense_{k}"]
                found[f"{kind} {e} {k} weight"] = summary(np.asarray(one["kernel"][e]).T)
                found[f"{kind} {e} {k} bias"] = summary(one["bias"][e])
    return found


def main(checkout: Path, out: Path) -> None:
    """Write all of it."""
    peer = TorchPeer(checkout)
    found = {
        "td3_bc": peer.td3_bc(),
        "iql": peer.iql(),
        "awac": peer.awac(),
        "cql": peer.cql(False),
        "cql_lagrange": peer.cql(True),
        "rebrac": rebrac(checkout),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
