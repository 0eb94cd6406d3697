"""ReinFlow's own model and the update of its agent, out of a checkout that the user names.

The agent's file needs environments, Hydra and wandb. Its two functions that learn need none of
them: they alone are taken out of the file, and run with the agent's attributes.
"""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import numpy as np
import torch
from small_networks import Value, named, perceptron, take
from torch import Tensor, nn

AGENT = "agent/finetune/reinflow/train_ppo_flow_agent.py"
WANTED = ("minibatch_generator", "agent_update")


class Flow(nn.Module):
    """A perceptron as the velocity; its embedding of the time is given, and not learned.

    The model takes any policy; it reads the attributes that are set here.
    """

    def __init__(self, settings: Mapping[str, Any], frequencies: Any) -> None:
        super().__init__()
        self.horizon_steps, self.action_dim = settings["horizon"], settings["action_dim"]
        self.act_dim_total = self.horizon_steps * self.action_dim
        self.cond_enc_dim, self.time_dim = settings["obs_dim"], 2 * len(frequencies)
        self.frequencies = torch.from_numpy(frequencies)
        inputs = settings["obs_dim"] + self.act_dim_total + 1
        self.network = perceptron([inputs, *settings["hidden"], self.act_dim_total])

    def forward(
        self, action: Tensor, time: Tensor, cond: Mapping[str, Tensor], output_embedding: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return velocities ``[B, H, A]``, the time's sines and cosines, and the observations."""
        state = cond["state"].flatten(1)
        angle = time[:, None] * self.frequencies
        read = torch.cat([state, action.flatten(1), time[:, None]], dim=1)
        velocity = self.network(read).reshape(action.shape)
        return velocity, torch.cat([angle.sin(), angle.cos()], dim=1), state


def functions_of(checkout: Path) -> dict[str, Any]:
    """Return the agent's functions that learn."""
    tree = ast.parse((checkout / AGENT).read_text(encoding="utf-8"))
    kept = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in WANTED
    ]
    future = ast.parse("from __future__ import annotations").body  # so that no type is looked up
    names: dict[str, Any] = {"torch": torch, "np": np, "log": logging.getLogger("reinflow")}
    exec(compile(ast.Module([*future, *kept], []), AGENT, "exec"), names)
    return {name: names[name] for name in WANTED}


def model_of(settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """Return the model with the given weights, in double precision."""
    networks = importlib.import_module("model.flow.mlp_flow")
    kind = importlib.import_module("model.flow.ft_ppo.ppoflow").PPOFlow
    double = SimpleNamespace(**{**vars(torch), "float32": torch.float64})
    flow, critic = Flow(settings, inputs["frequencies"]), Value(settings)
    take(flow, "flow", inputs)
    take(critic, "critic", inputs)
    with exchange.replaced(networks, "torch", double):
        model = kind(
            device="cpu", policy=flow, critic=critic, actor_policy_path=None,
            act_dim=settings["action_dim"], horizon_steps=settings["horizon"], act_min=-1,
            act_max=1, obs_dim=settings["obs_dim"], cond_steps=1,
            noise_scheduler_type="learn_decay", inference_steps=settings["steps"],
            ft_denoising_steps=settings["steps"], randn_clip_value=3,
            min_sampling_denoising_std=settings["least_noise"],
            min_logprob_denoising_std=settings["least_noise"],
            max_logprob_denoising_std=settings["most_noise"], logprob_min=-1.0, logprob_max=1.0,
            clip_ploss_coef=settings["clip"], clip_ploss_coef_base=settings["clip"],
            clip_ploss_coef_rate=3, clip_vloss_coef=None, denoised_clip_value=1.0,
            time_dim_explore=0, learn_explore_time_embedding=False,
            use_time_independent_noise=False, noise_hidden_dims=settings["noise_hidden"],
            logprob_debug_sample=False, logprob_debug_recalculate=False,
            explore_net_activation_type="Tanh",
        )  # fmt: skip
    take(model.actor_ft.explore_noise_net, "noise", inputs)
    return model


def acted(model: Any, state: Tensor, noise: Any, *, whole: bool) -> tuple[Tensor, Tensor]:
    """Return chains and their log-densities, for given noise.

    Args:
        model: the authors'.
        state: ``[B, 1, O]``.
        noise: ``[B, K + 1, H, A]``, cut already.
        whole: whether times are k / K, as they are where the authors' model learns.
    """
    drawn = iter(torch.from_numpy(noise).unbind(1))

    class Noise(torch.distributions.Normal):
        """A normal distribution whose draws are given, one after another."""

        def sample(self, sample_shape: Any = ()) -> Tensor:
            """Return the next sample."""
            return self.loc + self.scale * next(drawn).reshape(self.loc.shape)

    module = importlib.import_module("model.flow.ft_ppo.ppoflow")
    linspace = torch.linspace

    def grid(first: float, last: float, count: int) -> Tensor:
        return linspace(first, last - 1 / count if whole else last, count)

    with exchange.replaced(module, "Normal", Noise), exchange.replaced(torch, "linspace", grid):
        _, chain, log_density = model.get_actions(
            {"state": state}, False, save_chains=True, normalize_denoising_horizon=True,
            normalize_act_space_dimension=True,
        )  # fmt: skip
    return chain, log_density


def answer(part: Path) -> exchange.Answers:
    """Return chains, log-densities, losses, and the weights after a rollout's updates."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    checkout = Path(settings["checkout"])
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    torch.set_default_dtype(torch.float64)
    model, functions = model_of(settings, inputs), functions_of(checkout)
    state, chains = torch.from_numpy(inputs["obs"])[:, None], torch.from_numpy(inputs["chain"])
    limited = chains.clone()
    limited[:, -1] = limited[:, -1].clamp(-1, 1)
    own_chain, own_density = acted(model, state, inputs["noise"], whole=False)
    same_chain, _ = acted(model, state, inputs["noise"], whole=True)

    def density_of(chain: Tensor) -> Tensor:
        with torch.no_grad():
            found, _ = model.get_logprobs(
                {"state": state}, chain, normalize_denoising_horizon=True,
                normalize_act_space_dimension=True, account_for_initial_stochasticity=True,
            )  # fmt: skip
        return found.clamp(-1, 1)

    density = density_of(chains)
    told: list[Any] = []
    own_loss = model.loss

    def loss(*words: Any, **keywords: Any) -> Any:
        told.append(own_loss(*words, **keywords))
        return told[-1]

    model.loss = loss
    columns = [torch.from_numpy(inputs[name]) for name in ("target", "value", "advantage")]
    agent = SimpleNamespace(
        model=model, n_steps=len(state), n_envs=1, device="cpu", repeat_samples=False,
        update_epochs=settings["epochs"], batch_size=settings["batch_size"],
        lr_schedule="fixed", target_kl=None, use_bc_loss=False, bc_loss_type=None, bc_coeff=0,
        normalize_denoising_horizon=True, normalize_act_space_dim=True,
        clip_intermediate_actions=True, account_for_initial_stochasticity=True,
        initial_ratio_error_threshold=1e-6, ent_coef=settings["entropy_weight"], vf_coef=1.0,
        max_grad_norm=None, itr=0, n_critic_warmup_itr=0, actor_update_freq=1,
        actor_update_epoch=1,
        buffer=SimpleNamespace(
            make_dataset=lambda: (state, chains, *columns, density),
            get_explained_var=lambda *a: 0.0,
        ),
        actor_optimizer=torch.optim.AdamW(
            model.actor_ft.parameters(), lr=settings["learning_rate"], weight_decay=0
        ),
        critic_optimizer=torch.optim.AdamW(
            model.critic.parameters(), lr=settings["critic_learning_rate"], weight_decay=0
        ),
    )  # fmt: skip
    agent.minibatch_generator = partial(functions["minibatch_generator"], agent)
    orders = iter(inputs["orders"])
    with exchange.replaced(torch, "randperm", lambda *a, **k: torch.from_numpy(next(orders))):
        functions["agent_update"](agent, verbose=False)
    weights = {
        **named(model.actor_ft.policy, "flow"),
        **named(model.actor_ft.explore_noise_net, "noise"),
        **named(model.critic, "critic"),
    }
    policy_loss = [one[0].item() + settings["entropy_weight"] * one[1].item() for one in told]
    return {
        "chain": same_chain,
        "log-density": density,
        "log-density of what was executed": density_of(limited),
        "chain on its own grid": own_chain,
        "log-ratio before the first step": density_of(own_chain) - own_density.clamp(-1, 1),
        "policy loss": np.mean(policy_loss),
        "value loss": np.mean([one[2].item() for one in told]),
        **{name: weight.detach().numpy() for name, weight in weights.items()},
    }


if __name__ == "__main__":
    exchange.main(answer, "torch")
