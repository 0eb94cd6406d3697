"""Small weight files in the layouts of other libraries, and what their actors do, by numpy."""

from __future__ import annotations

import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

OBS, ACTIONS = 4, 2
ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
DRAW = np.random.default_rng(3)
MEAN, VARIANCE = DRAW.normal(size=OBS), DRAW.uniform(0.2, 2.0, size=OBS)
VARIANCE[0] = 1e-4  # so that clips and small terms matter


def perceptron(*widths: int) -> list[tuple[Any, Any]]:
    """Weights ``[out, in]`` and biases; square ones are among them, which hide a transposition."""
    return [
        (DRAW.normal(size=(after, before)) / 2, DRAW.normal(size=after))
        for before, after in zip(widths, widths[1:], strict=False)
    ]


def forward(layers: list[tuple[Any, Any]], activation: str, obs: Any) -> Any:
    for weight, bias in layers[:-1]:
        obs = ACTIVATIONS[activation](obs @ weight.T + bias)
    return obs @ layers[-1][0].T + layers[-1][1]


def named(prefixes: list[str], layers: list[tuple[Any, Any]]) -> dict[str, Any]:
    """A state dict of linear layers."""
    return OrderedDict(
        (f"{prefix}.{part}", torch.tensor(value, dtype=torch.float32))
        for prefix, layer in zip(prefixes, layers, strict=True)
        for part, value in zip(("weight", "bias"), layer, strict=True)
    )


def f32(value: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(value), dtype=torch.float32)


def f64(value: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(value), dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """A file: its content, what a contract says of it, and its actions for observations."""

    content: Any
    act: Callable[[Any], Any]
    said: Mapping[str, str] = field(default_factory=dict)
    kind: str = "diagonal_gaussian"
    low: float = -3.0
    high: float = 3.0
    plain: bool = False  # a pickle, and no zip of torch

    def write(self, path: Path) -> Path:
        if self.plain:
            path.write_bytes(self.content)
        else:
            torch.save(self.content, path)
        return path


LAYERS = perceptron(OBS, 5, 5, ACTIONS)
STD = np.array([0.3, 1.5])


def clipped(action: Any) -> Any:
    return np.clip(action, -3, 3)


def rsl_rl(obs: Any) -> Any:
    return clipped(forward(LAYERS, "elu", (obs - MEAN) / (np.sqrt(VARIANCE) + 0.01)))


def rl_games(obs: Any) -> Any:
    scaled = np.clip((obs - MEAN) / np.sqrt(VARIANCE + 1e-5), -5, 5)
    return 3 * np.clip(forward(LAYERS, "elu", scaled), -1, 1)


def skrl(obs: Any) -> Any:
    scaled = np.clip((obs - MEAN) / (np.sqrt(VARIANCE) + 1e-8), -5, 5)
    return clipped(forward(LAYERS, "elu", scaled))


def gymnasium(obs: Any) -> Any:
    return np.clip((obs - MEAN) / np.sqrt(VARIANCE + 1e-8), -10, 10)


EMPIRICAL = {"_mean": f32(MEAN[None]), "_var": f32(VARIANCE[None]), "count": torch.tensor(9)}
EMPIRICAL["_std"] = f32(np.sqrt(VARIANCE)[None])
CRITIC = perceptron(OBS, 3, 1)
ADAM = {
    "state": {0: {"step": torch.tensor(3.0)}},
    "param_groups": [{"lr": 1e-3, "betas": (0.9, 1)}],
}
RL_GAMES = {
    **named([f"a2c_network.{name}" for name in ("actor_mlp.0", "actor_mlp.2", "mu")], LAYERS),
    "a2c_network.sigma": f32(np.log(STD)),
    **named(["a2c_network.critic_mlp.0", "a2c_network.value"], CRITIC),
    "running_mean_std.running_mean": f64(MEAN),
    "running_mean_std.running_var": f64(VARIANCE),
    "running_mean_std.count": f64(7),
    "value_mean_std.running_mean": f64([0.0]),
}
SKRL = {"log_std_parameter": f32(np.log(STD))} | named(
    ["net_container.0", "net_container.2", "policy_layer"], LAYERS
)
SCALER = {
    "running_mean": f64(MEAN), "running_variance": f64(VARIANCE), "current_count": f64(5),
}  # fmt: skip
ROBOMIMIC = {
    "model": named(
        [f"policy.nets.{name}" for name in ("mlp._model.0", "mlp._model.2", "decoder.nets.action")],
        LAYERS,
    ),
    "config": '{"algo_name": "bc"}',
    "algo_name": "bc",
    "env_metadata": {"env_name": "Lift", "type": 1, "env_kwargs": {}},
    "shape_metadata": {
        "ac_dim": 2,
        "all_shapes": OrderedDict(eef_pos=[3], gripper=[1]),
        "all_obs_keys": ["eef_pos", "gripper"],
        "use_images": False,
    },
    "obs_normalization_stats": {
        "gripper": {"mean": MEAN[None, 3:], "std": np.sqrt(VARIANCE[None, 3:])},
        "eef_pos": {"mean": MEAN[None, :3], "std": np.sqrt(VARIANCE[None, :3])},
    },
    "epoch": np.int64(7),
}


@contextmanager
def modules(**classes: type) -> Iterator[None]:
    """Classes under the names of a library that need not be installed, so that they are pickled."""
    name = "brax.training.acme.running_statistics"
    before = sys.modules.get(name)
    sys.modules[name] = types.ModuleType(name)
    for key, value in classes.items():
        value.__module__, value.__qualname__ = name, key
        setattr(sys.modules[name], key, value)
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


class RunningStatisticsState:
    """As Brax's."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def brax_pickle(protocol: int, *, parts: bool = False) -> bytes:
    wide = LAYERS[:-1] + [
        tuple(
            np.concatenate(pair) for pair in zip(LAYERS[-1], perceptron(5, ACTIONS)[0], strict=True)
        )
    ]
    policy = {
        f"hidden_{index}": {"kernel": np.float32(weight.T), "bias": np.float32(bias)}
        for index, (weight, bias) in enumerate(wide)
    }
    mean, std = np.float32(MEAN), np.float32(np.sqrt(VARIANCE))
    with modules(RunningStatisticsState=RunningStatisticsState):
        state = RunningStatisticsState(
            mean={"state": mean, "privileged_state": mean[:1]} if parts else mean,
            std={"state": std, "privileged_state": std[:1]} if parts else std,
            count=np.float32(3),
        )
        return pickle.dumps((state, {"params": policy}, {"params": {}}), protocol)


def brax(obs: Any) -> Any:
    return np.tanh(forward(LAYERS, "silu", (obs - MEAN) / np.sqrt(VARIANCE)))


BRAX = {"said": {"activation": "silu", "statistics": "file"}, "kind": "deterministic",
        "low": -1.0, "high": 1.0, "plain": True}  # fmt: skip
ELU = {"activation": "elu"}
TD3 = named(["fc1", "fc2", "fc_mu"], LAYERS) | {
    "action_scale": f32([3.0, 3.0]), "action_bias": f32([0.0, 0.0]),
}  # fmt: skip
CLEANRL = named(["actor_mean.0", "actor_mean.2", "actor_mean.4"], LAYERS) | {
    "actor_logstd": f32(np.log(STD)[None])
} | named(["critic.0", "critic.2"], CRITIC)  # fmt: skip

CASES: dict[str, Case] = {
    "rsl_rl 2": Case(
        {
            "model_state_dict": {"std": f32(STD)}
            | named(["actor.0", "actor.2", "actor.4"], LAYERS)
            | named(["critic.0", "critic.2"], CRITIC),
            "obs_norm_state_dict": EMPIRICAL,
            "optimizer_state_dict": ADAM, "iter": 5, "infos": None,
        },
        rsl_rl, ELU,
    ),
    "rsl_rl 3": Case(
        {
            "model_state_dict": {"log_std": f32(np.log(STD))}
            | named(["actor.0", "actor.2", "actor.4"], LAYERS)
            | {f"actor_obs_normalizer.{name}": value for name, value in EMPIRICAL.items()}
            | {f"critic_obs_normalizer.{name}": value for name, value in EMPIRICAL.items()},
        },
        rsl_rl, ELU,
    ),
    "rsl_rl 5": Case(
        {
            "actor_state_dict": {"distribution.std_param": torch.nn.Parameter(f32(STD))}
            | named(["mlp.0", "mlp.2", "mlp.4"], LAYERS)
            | {f"obs_normalizer.{name}": value for name, value in EMPIRICAL.items()},
            "critic_state_dict": named(["mlp.0", "mlp.2"], CRITIC),
        },
        rsl_rl, ELU,
    ),
    "rsl_rl without a normaliser": Case(
        {
            "actor_state_dict": {"distribution.log_std_param": f32(np.log(STD))}
            | named(["mlp.0", "mlp.2", "mlp.4"], LAYERS)
        },
        lambda obs: clipped(forward(LAYERS, "elu", obs)), ELU,
    ),
    "rl_games": Case({"model": RL_GAMES, "epoch": 3, "last_mean_rewards": np.float32(2)},
                     rl_games, ELU),
    "rl_games without clip_actions": Case(
        {"model": RL_GAMES},
        lambda obs: clipped(forward(
            LAYERS, "elu", np.clip((obs - MEAN) / np.sqrt(VARIANCE + 1e-5), -5, 5)
        )),
        ELU | {"output": "none"},
    ),
    "skrl": Case({"policy": SKRL, "value": {}, "state_preprocessor": SCALER}, skrl,
                 ELU | {"output": "none", "statistics": "file"}),
    "skrl with a scaler of its critic": Case(
        {"policy": SKRL, "value": {}, "state_preprocessor": SCALER},
        lambda obs: clipped(forward(LAYERS, "elu", obs)),
        ELU | {"output": "none", "statistics": "none"},
    ),
    "skrl with tanh": Case(
        {"policy": SKRL, "optimizer": ADAM, "observation_preprocessor": SCALER},
        lambda obs: np.tanh(
            forward(LAYERS, "relu", np.clip((obs - MEAN) / (np.sqrt(VARIANCE) + 1e-8), -5, 5))
        ),
        {"activation": "relu", "output": "tanh"}, "deterministic",
    ),
    "CleanRL PPO": Case(
        CLEANRL, lambda obs: clipped(forward(LAYERS, "tanh", gymnasium(obs))),
        {"statistics": "statistics.npz"},
    ),
    "CleanRL TD3": Case(
        (TD3, named(["fc1"], CRITIC[:1]), {}),
        lambda obs: 3 * np.tanh(forward(LAYERS, "relu", obs)), {}, "deterministic",
    ),
    "robomimic": Case(
        ROBOMIMIC,
        lambda obs: np.tanh(forward(LAYERS, "relu", (obs - MEAN) / np.sqrt(VARIANCE))),
        {}, "deterministic",
    ),
    "robomimic, newer": Case(
        ROBOMIMIC | {
            "model": {"nets": ROBOMIMIC["model"]}, "obs_normalization_stats": None,
            "action_normalization_stats": {
                "actions": {"offset": np.float32([[0.5, -0.5]]), "scale": np.float32([[2.0, 1.0]])}
            },
        },
        lambda obs: np.tanh(forward(LAYERS, "relu", obs)) * [2, 1] + [0.5, -0.5],
        {}, "deterministic",
    ),
    "robomimic, two kinds of actions": Case(
        ROBOMIMIC | {
            "obs_normalization_stats": None,
            "config": '{"train": {"action_keys": ["b", "a"], "action_config": {"a": {}}}}',
            "action_normalization_stats": {
                "a": {"offset": np.float32([[0.5]]), "scale": np.float32([[2.0]])},
                "b": {"offset": np.float32([[-0.5]]), "scale": np.float32([[1.0]])},
            },
        },
        lambda obs: np.tanh(forward(LAYERS, "relu", obs)) * [1, 2] + [-0.5, 0.5],
        {}, "deterministic",
    ),
    **{f"Brax, protocol {protocol}": Case(brax_pickle(protocol), brax, **BRAX)
       for protocol in (2, 4, 5)},
    "Brax of parts": Case(brax_pickle(4, parts=True), brax, **BRAX),
}  # fmt: skip


def statistics(path: Path) -> Path:
    np.savez(path, mean=MEAN, variance=VARIANCE)
    return path
