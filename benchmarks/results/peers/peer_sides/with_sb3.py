"""Updates of Stable-Baselines3's SAC, TD3 and PPO from given weights, batches and noise.

Everything is in double precision: Adam divides a gradient by its own size, so that rounding would
decide the sign of a step wherever a gradient is nearly zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import exchange
import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common import policies
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn


class Shapes(gymnasium.Env[Any, Any]):
    """Spaces of the right sizes; nobody acts in it."""

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)

    def reset(self, **keywords: Any) -> Any:
        """Return zeros."""
        return np.zeros(self.observation_space.shape, np.float32), {}


def made(kind: Any, settings: Mapping[str, Any], **keywords: Any) -> Any:
    """Return a model in double precision, with a silent logger."""
    obs_dim, action_dim = settings["obs_dim"], settings["action_dim"]
    envs = DummyVecEnv([lambda: Shapes(obs_dim, action_dim)] * settings.get("envs", 1))
    model = kind(
        "MlpPolicy",
        envs,
        seed=0,
        device="cpu",
        gamma=settings["discount"],
        learning_rate=settings["learning_rate"],
        policy_kwargs={"net_arch": settings["hidden"]},
        **keywords,
    )
    model.policy.double()
    model.set_logger(Logger(None, []))
    return model


def named(name: str, layers: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Return the weights of linear layers by name, such as ``actor 0 weight``."""
    found = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return {
        f"{name} {index} {kind}": getattr(layer, kind)
        for index, layer in enumerate(found)
        for kind in ("weight", "bias")
    }


def critics(name: str, critic: Any) -> dict[str, Tensor]:
    """Return the weights of every Q function by name."""
    members = [named(f"{name} {i}", net.modules()) for i, net in enumerate(critic.q_networks)]
    return {key: weight for member in members for key, weight in member.items()}


def sac_weights(model: Any) -> dict[str, Tensor]:
    """Return every weight that an update moves."""
    return {
        **named("actor", [*model.actor.latent_pi.modules()]),
        **named("mean", [model.actor.mu]),
        **named("log std", [model.actor.log_std]),
        **critics("critic", model.critic),
        **critics("target", model.critic_target),
        "temperature": model.log_ent_coef,
    }


def td3_weights(model: Any) -> dict[str, Tensor]:
    """Return every weight that an update moves."""
    return {
        **named("actor", model.actor.mu.modules()),
        **named("actor target", model.actor_target.mu.modules()),
        **critics("critic", model.critic),
        **critics("target", model.critic_target),
    }


def ppo_weights(model: Any) -> dict[str, Tensor]:
    """Return every weight that an update moves."""
    policy = model.policy
    body = policy.mlp_extractor
    return {
        **named("actor", [*body.policy_net.modules(), policy.action_net]),
        **named("critic", [*body.value_net.modules(), policy.value_net]),
        "log std": policy.log_std,
    }


@torch.no_grad()
def take(weights: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> None:
    """Take the weights that the question gives."""
    for name, weight in weights.items():
        weight.copy_(torch.from_numpy(inputs[f"start {name}"]).reshape(weight.shape))


def given(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return weights as arrays."""
    return {name: weight.detach().numpy().copy() for name, weight in weights.items()}


def batches(inputs: Mapping[str, Any]) -> Iterable[tuple[ReplayBufferSamples, list[Tensor]]]:
    """Yield the batch of each update with its noise."""
    names = ("obs", "action", "next_obs", "done", "reward")
    columns = {name: torch.from_numpy(inputs[name]) for name in names}
    noises = torch.from_numpy(inputs["noise"])  # [updates, kinds, B, A]
    for step in range(len(noises)):
        yield ReplayBufferSamples(*(columns[name][step] for name in names)), list(noises[step])


def sac(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> exchange.Answers:
    """Update SAC; the noise is that of the actor's action, then that of the next action."""
    model = made(stable_baselines3.SAC, settings, tau=settings["tau"], buffer_size=10)
    model.log_ent_coef.data = model.log_ent_coef.data.double()
    model.actor.action_dist.epsilon = 0.0  # 1e-6 is added inside a logarithm, against infinity
    weights = sac_weights(model)
    take(weights, inputs)
    for batch, noise in batches(inputs):
        drawn = iter(noise)
        normal = torch.distributions.Normal
        with (
            exchange.replaced(policies, "preprocess_obs", lambda obs, *a, **k: obs),
            exchange.replaced(
                normal,
                "rsample",
                lambda self, *a, drawn=drawn: self.loc + self.scale * next(drawn),
            ),
            exchange.replaced(model.replay_buffer, "sample", lambda *a, batch=batch, **k: batch),
        ):
            model.train(gradient_steps=1, batch_size=len(batch.rewards))
    return given(weights)


def td3(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> exchange.Answers:
    """Update TD3; the noise is that of the target's action, before it is scaled."""
    model = made(stable_baselines3.TD3, settings, tau=settings["tau"], buffer_size=10)
    weights = td3_weights(model)
    take(weights, inputs)
    for batch, (noise,) in batches(inputs):
        with (
            exchange.replaced(policies, "preprocess_obs", lambda obs, *a, **k: obs),
            exchange.replaced(
                torch.Tensor,
                "normal_",
                lambda self, mean, std, noise=noise: self.copy_(mean + std * noise),
            ),
            exchange.replaced(model.replay_buffer, "sample", lambda *a, batch=batch, **k: batch),
        ):
            model.train(gradient_steps=1, batch_size=len(batch.rewards))
    return given(weights)


def ppo(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> exchange.Answers:
    """Estimate the advantages of a rollout, and update PPO on it in minibatches."""
    steps, envs = settings["steps"], settings["envs"]
    model = made(
        stable_baselines3.PPO,
        settings,
        n_steps=steps,
        batch_size=settings["batch_size"],
        n_epochs=settings["epochs"],
        ent_coef=settings["entropy_weight"],
    )
    weights = ppo_weights(model)
    take(weights, inputs)
    buffer = model.rollout_buffer
    for name in ("observations", "actions", "rewards", "values", "log_probs", "episode_starts"):
        column = inputs[name]
        setattr(buffer, name, column.reshape(steps, envs, *column.shape[2:]))
    for name in ("advantages", "returns"):
        setattr(buffer, name, np.zeros((steps, envs)))
    last = torch.from_numpy(inputs["last_values"])
    buffer.compute_returns_and_advantage(last_values=last, dones=inputs["last_dones"])
    advantages, returns = buffer.advantages.copy(), buffer.returns.copy()
    buffer.full = True
    orders = iter(inputs["orders"])
    with (
        exchange.replaced(policies, "preprocess_obs", lambda obs, *a, **k: obs),
        exchange.replaced(np.random, "permutation", lambda count: next(orders)),
    ):
        model.train()
    return {"advantages": advantages, "returns": returns, **given(weights)}


def answer(part: Path) -> exchange.Answers:
    """Return the weights after the updates of a part, which is named after the method."""
    method = {"sac": sac, "td3": td3, "ppo": ppo}[part.name]
    return method(exchange.settings_of(part), exchange.arrays_of(part / "in.npz"))


if __name__ == "__main__":
    exchange.main(answer, "stable-baselines3")
