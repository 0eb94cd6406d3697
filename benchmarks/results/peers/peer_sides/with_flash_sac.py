"""FlashSAC's own agent, out of a checkout that the user names.

The agent, its networks, updates and normaliser of rewards run as they are. In the place of its
buffer are the batches of the question; Gymnasium, which it needs for types alone, is left out.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import numpy as np
import torch
from torch import Tensor

COLUMNS = ("observation", "action", "reward", "next_observation", "terminated")


class Buffer:
    """A buffer from which the given batches come, one after another."""

    left: Iterator[dict[str, Tensor]]

    def __init__(self, **words: Any) -> None:
        pass

    def sample(self) -> dict[str, Tensor]:
        """Return the next batch."""
        return next(self.left)


def module_of(checkout: Path) -> Any:
    """Return the agent's module, without the packages around it."""
    for name in ("flash_rl", "flash_rl.agents", "flash_rl.agents.flashSAC"):
        package = types.ModuleType(name)
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    outside = {
        "gymnasium": {"spaces": SimpleNamespace(Space=list)},
        "flash_rl.types": {"NDArray": Any, "Tensor": Any, "F32NDArray": Any},
        "flash_rl.buffers": {"Batch": dict},
        "flash_rl.buffers.torch_buffer": {"TorchUniformBuffer": Buffer},
    }
    for name, members in outside.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    return importlib.import_module("flash_rl.agents.flashSAC.agent")


def config_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's settings; those that this comparison does not touch are off."""
    rate = settings["learning_rate"]
    return {
        "normalize_reward": True, "normalized_G_max": settings["bound"], "device_type": "cpu",
        "learning_rate_init": rate, "learning_rate_peak": rate,
        "learning_rate_end": settings["final_learning_rate"],
        "learning_rate_warmup_step": settings["warm-up"],
        "learning_rate_decay_step": settings["decay"],
        "actor_num_blocks": settings["blocks"], "actor_hidden_dim": settings["actor_width"],
        "actor_bc_alpha": settings["imitation"], "actor_noise_zeta_mu": settings["hold_exponent"],
        "actor_noise_zeta_max": settings["longest_hold"],
        "actor_update_period": settings["actor_every"],
        "critic_num_blocks": settings["blocks"], "critic_hidden_dim": settings["critic_width"],
        "critic_num_bins": settings["atoms"], "critic_min_v": -settings["bound"],
        "critic_max_v": settings["bound"], "critic_target_update_tau": settings["tau"],
        "temp_initial_value": settings["initial_temperature"],
        "temp_target_sigma": settings["target_std"], "gamma": settings["discount"], "n_step": 1,
        "compile_mode": "default",
    }  # fmt: skip


def weights_of(agent: Any) -> dict[str, Tensor]:
    """Return all weights and running statistics by name."""
    networks = {
        "actor": agent._actor, "critics": agent._critic, "targets": agent._target_critic
    }  # fmt: skip
    found = {
        f"{group} {name}": tensor
        for group, network in networks.items()
        for name, tensor in network.network.state_dict().items()
        if "bin_values" not in name
    }
    return found | {"temperature": agent._temperature.network.log_temp.data}


def noises(inputs: Mapping[str, Any], every: int) -> Iterator[Tensor]:
    """Yield what is drawn in the updates: for the actor, where it learns, and for next actions."""
    for step, following in enumerate(inputs["next noise"]):
        if step % every == 0:
            yield torch.from_numpy(inputs["actor noise"][step])
        yield torch.from_numpy(following)


def scaled_rewards(normalizer: Any, inputs: Mapping[str, Any], *, late: bool) -> Any:
    """Let the normaliser count returns; return what it makes of a row of rewards at each step.

    Args:
        normalizer: the agent's.
        inputs: rewards and ends of the steps.
        late: whether it is told of an end one step late.
    """
    rewards, ended = torch.from_numpy(inputs["seen rewards"]), inputs["ended"]
    if late:
        ended = np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])
    found = []
    for reward, end in zip(rewards, torch.from_numpy(ended), strict=True):
        normalizer.update_reward_stats(reward, end, torch.zeros_like(end))
        found.append(normalizer.normalize_rewards(rewards[0]).numpy())
    return np.stack(found)


def answer(part: Path) -> exchange.Answers:
    """Return scaled rewards, the losses of every update, actions, and the weights at the end."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    torch.set_default_dtype(torch.float64)
    with (
        exchange.replaced(torch, "compile", lambda function: function),
        exchange.replaced(torch, "float32", torch.float64),
        exchange.replaced(torch.Tensor, "float", torch.Tensor.double),
    ):
        return run(settings, inputs)


def run(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> exchange.Answers:
    """Return the answers; every number that the agent makes is in double precision."""
    module = module_of(Path(settings["checkout"]))
    names = module.FlashSACConfig.__dataclass_fields__
    config = module.FlashSACConfig(**dict.fromkeys(names, False) | config_of(settings))
    shape = SimpleNamespace(shape=(settings["obs_dim"],))
    agent = module.FlashSACAgent(
        shape, SimpleNamespace(shape=(settings["action_dim"],)), {}, config
    )
    for name, weight in weights_of(agent).items():
        weight.copy_(torch.from_numpy(inputs[f"start {name}"]))
    agent.reward_normalizer.G_rms.epsilon = settings["extra rows"]
    scaled = scaled_rewards(agent.reward_normalizer, inputs, late=settings["late"])
    columns = [torch.from_numpy(inputs[name]) for name in COLUMNS]
    agent._replay_buffer.left = (
        dict(zip(COLUMNS, rows, strict=True)) for rows in zip(*columns, strict=True)
    )
    drawn = noises(inputs, settings["actor_every"])

    class Given(torch.distributions.Normal):
        """A normal distribution whose draws are given, one after another."""

        def rsample(self, sample_shape: Any = ()) -> Tensor:
            """Return the next sample."""
            return self.loc + self.scale * next(drawn)

    losses: dict[str, list[float]] = {"critic loss": [], "actor loss": [], "entropy": []}
    with exchange.replaced(torch.distributions, "Normal", Given):
        for _ in inputs["next noise"]:
            told = agent.update()
            losses["critic loss"].append(told["critic/loss"])
            if "actor/loss" in told:
                losses["actor loss"].append(told["actor/loss"])
                losses["entropy"].append(told["actor/entropy"])
    weights = {name: weight.numpy().copy() for name, weight in weights_of(agent).items()}
    fresh, uniform = iter(inputs["held noise"]), iter(inputs["held for"])
    with (
        exchange.replaced(torch, "randn_like", lambda like: torch.from_numpy(next(fresh))),
        exchange.replaced(torch, "rand", lambda *size, **words: torch.tensor(next(uniform))),
    ):
        acted = [
            agent.sample_actions(0, {"next_observation": obs}, training=True)
            for obs in inputs["acted on"]
        ]
    return losses | {"scaled rewards": scaled, "actions": np.stack(acted)} | weights


if __name__ == "__main__":
    exchange.main(answer, "torch")
