"""DPPO's own model and the loops of its agent, out of a checkout that the user names.

The agent's file needs environments, Hydra and wandb. The two loops that learn need none of them:
they alone are taken out of the file, and run with the agent's attributes.
"""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import numpy as np
import torch
from small_networks import Value, named, perceptron, take
from torch import Tensor, nn

AGENT = "agent/finetune/train_ppo_diffusion_agent.py"
LOOPS = {"advantages": "t", "updates": "update_epoch"}


class Actor(nn.Module):
    """A perceptron over observation, noisy chunk and the time's share; the model takes any."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.steps = settings["train_steps"]
        flat = settings["horizon"] * settings["action_dim"]
        widths = [settings["obs_dim"] + flat + 1, *settings["hidden"], flat]
        self.network = perceptron(widths)

    def forward(self, x: Tensor, time: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
        """Return predicted noise ``[B, H, A]``."""
        column = (time / self.steps)[:, None].to(x.dtype)
        read = torch.cat([cond["state"].flatten(1), x.flatten(1), column], dim=1)
        found: Tensor = self.network(read)
        return found.reshape(x.shape)


def loops_of(checkout: Path) -> dict[str, Any]:
    """Return the loops of the agent, compiled, by what they compute."""
    tree = ast.parse((checkout / AGENT).read_text(encoding="utf-8"))
    found = {}
    for name, target in LOOPS.items():
        (loop,) = (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and node.target.id == target
        )
        found[name] = compile(ast.Module([loop], []), AGENT, "exec")
    return found


def model_of(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Return the model with the given weights, in double precision."""
    diffusion = importlib.import_module("model.diffusion.diffusion")
    kind = importlib.import_module("model.diffusion.diffusion_ppo").PPODiffusion
    eta = importlib.import_module("model.diffusion.eta").EtaFixed(base_eta=1.0)
    double = SimpleNamespace(**{**vars(torch), "float32": torch.float64})
    actor, critic = Actor(settings), Value(settings)
    take(actor, "actor", inputs)
    take(critic, "critic", inputs)
    betas = torch.from_numpy(inputs["betas"])
    with (
        exchange.replaced(diffusion, "cosine_beta_schedule", lambda steps: betas),
        exchange.replaced(diffusion, "torch", double),
    ):
        return kind(
            actor=actor, critic=critic, eta=eta, device="cpu",
            horizon_steps=settings["horizon"], obs_dim=settings["obs_dim"],
            action_dim=settings["action_dim"], denoising_steps=settings["train_steps"],
            use_ddim=settings["sampler"] == "ddim", ddim_steps=settings["steps"],
            ft_denoising_steps=settings["tuned_steps"], randn_clip_value=3,
            gamma_denoising=settings["denoising_discount"], clip_ploss_coef=settings["clip"],
            clip_ploss_coef_base=settings["first_clip"], clip_ploss_coef_rate=3,
            min_logprob_denoising_std=settings["floor"],
        )  # fmt: skip


def answer(part: Path) -> exchange.Answers:
    """Return advantages, losses, and the weights after a rollout's updates."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    checkout = Path(settings["checkout"])
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    torch.set_default_dtype(torch.float64)
    schedule = importlib.import_module("model.diffusion.sampling").cosine_beta_schedule
    kept = torch.cumprod(1 - schedule(settings["train_steps"], dtype=torch.float32), 0).numpy()
    loops, model = loops_of(checkout), model_of(settings, inputs)
    steps, envs = inputs["rewards"].shape
    state = torch.from_numpy(inputs["obs"]).flatten(0, 1)[:, None]
    chains = torch.from_numpy(inputs["chain"]).flatten(0, 1)
    told: list[Any] = []
    own_loss = model.loss

    def loss(*words: Any, **keywords: Any) -> Any:
        told.append(own_loss(*words, **keywords))
        return told[-1]

    model.loss = loss
    agent = SimpleNamespace(
        model=model, device="cpu", n_steps=steps, n_envs=envs, gamma=settings["discount"],
        gae_lambda=settings["gae_decay"], reward_scale_const=1.0,
        update_epochs=settings["epochs"], batch_size=settings["batch_size"],
        use_bc_loss=False, bc_loss_coeff=0, ent_coef=0, vf_coef=1.0, learn_eta=False,
        reward_horizon=settings["executed"], itr=0, n_critic_warmup_itr=0, max_grad_norm=None,
        target_kl=None,
        actor_optimizer=torch.optim.AdamW(
            model.actor_ft.parameters(), lr=settings["learning_rate"], weight_decay=0
        ),
        critic_optimizer=torch.optim.AdamW(
            model.critic.parameters(), lr=settings["critic_learning_rate"], weight_decay=0
        ),
    )  # fmt: skip
    scaler = importlib.import_module("util.reward_scaling").RunningRewardScaler(envs)
    scaled = scaler(reward=inputs["rewards"].T, first=inputs["firsts"].T).T
    with torch.no_grad():
        values = model.critic({"state": state}).numpy().reshape(steps, envs)
        logprobs = model.get_logprobs({"state": state}, chains)
    names: dict[str, Any] = {
        "self": agent, "np": np, "torch": torch, "log": logging.getLogger("dppo"),
        "reward_trajs": scaled, "values_trajs": values, "terminated_trajs": inputs["terminated"],
        "obs_venv_ts": {"state": torch.from_numpy(inputs["last"])[:, None]},
        "advantages_trajs": np.zeros_like(scaled), "lastgaelam": 0, "clipfracs": [],
    }  # fmt: skip
    with torch.no_grad():
        exec(loops["advantages"], names)
    advantages = names["advantages_trajs"]
    names |= {
        "obs_k": {"state": state},
        "chains_k": chains,
        "returns_k": torch.from_numpy((advantages + values).reshape(-1)),
        "values_k": torch.from_numpy(values.reshape(-1)),
        "advantages_k": torch.from_numpy(advantages.reshape(-1).copy()),
        "logprobs_k": logprobs.reshape(len(chains), -1, *logprobs.shape[1:]),
        "total_steps": steps * envs * settings["tuned_steps"],
    }
    orders = iter(inputs["orders"])
    with (
        exchange.replaced(torch, "randperm", lambda *a, **k: torch.from_numpy(next(orders))),
        # The bounds of the ratio go by way of single precision.
        exchange.replaced(torch.Tensor, "float", torch.Tensor.double),
    ):
        exec(loops["updates"], names)
    weights = named(model.actor_ft, "actor") | named(model.critic, "critic")
    return {
        "signal": kept,
        "scaled rewards": scaled,
        "advantages": advantages,
        "policy loss": np.mean([one[0].item() for one in told]),
        "value loss": np.mean([one[2].item() for one in told]),
        **{name: weight.detach().numpy() for name, weight in weights.items()},
    }


if __name__ == "__main__":
    exchange.main(answer, "torch")
