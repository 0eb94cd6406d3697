"""DiffusionNFT's own loop over noise levels, out of a checkout that the user names.

The file trains models of pictures on many GPUs. The loop in which it learns needs none of that: it
alone is taken out of the file, and gets small networks in place of a transformer with adapters.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exchange
import torch
from small_networks import named, perceptron, take
from torch import Tensor, nn

SCRIPT, STATISTICS = "scripts/train_nft_sd3.py", "flow_grpo/stat_tracking.py"
NETWORKS = ("default", "old", "reference")


class Transformer:
    """Three networks as one transformer with adapters: what learns, the old one, the first one.

    Time runs from noise to action in a network, and the other way in the loop, where the velocity
    has the other sign.
    """

    def __init__(self, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        flat = settings["horizon"] * settings["action_dim"]
        widths = [settings["obs_dim"] + flat + 1, *settings["hidden"], flat]
        self.networks = {name: perceptron(widths) for name in NETWORKS}
        for name, network in self.networks.items():
            take(network, name, inputs)
        self.adapter, self.module = "default", self

    def set_adapter(self, name: str) -> None:
        """Choose the network that answers."""
        self.adapter = name

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Let the first network answer for a while."""
        self.adapter = "reference"
        yield

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the weights that learn."""
        return self.networks["default"].parameters()

    def __call__(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, **rest: Any
    ) -> tuple[Tensor]:
        """Return velocities ``[B, H, A]``."""
        time = (1 - timestep / 1000)[:, None]
        read = torch.cat([encoder_hidden_states, hidden_states.flatten(1), time], dim=1)
        return (-self.networks[self.adapter](read).reshape(hidden_states.shape),)


def loop_of(checkout: Path) -> Any:
    """Return the loop over noise levels, compiled."""
    tree = ast.parse((checkout / SCRIPT).read_text(encoding="utf-8"))
    (loop,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and ast.unparse(node.target).startswith("(j_idx")
    )
    return compile(ast.Module([loop], []), SCRIPT, "exec")


def advantages_of(checkout: Path, inputs: Mapping[str, Any]) -> Any:
    """Return the advantages of rewards ``[B]``, by the deviation of all of them."""
    spec = importlib.util.spec_from_file_location("stat_tracking", checkout / STATISTICS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prompts = [str(number) for number in inputs["group"]]
    return module.PerPromptStatTracker(global_std=True).update(prompts, inputs["rewards"])


def answer(part: Path) -> exchange.Answers:
    """Return the losses at every noise level, and the weights after the last."""
    settings, inputs = exchange.settings_of(part), exchange.arrays_of(part / "in.npz")
    checkout = Path(settings["checkout"])
    torch.set_default_dtype(torch.float64)
    transformer, loop = Transformer(settings, inputs), loop_of(checkout)
    most = settings["advantage_limit"]
    train = SimpleNamespace(
        adv_clip_max=most,
        beta=settings["reference_weight"],
        max_grad_norm=settings["max_gradient_norm"],
    )
    names: dict[str, Any] = {
        "torch": torch, "tqdm": lambda rows, **words: rows, "rank": 0, "defaultdict": defaultdict,
        "is_main_process": lambda rank: False, "num_train_timesteps": 1, "device": "cpu",
        "torch_autocast": lambda **words: contextlib.nullcontext(), "enable_amp": False,
        "mixed_precision_dtype": None, "transformer_ddp": transformer, "scaler": None,
        "config": SimpleNamespace(beta=settings["strength"], use_lora=True, train=train),
        "embeds": torch.from_numpy(inputs["obs"]), "pooled_embeds": None,
        "effective_grad_accum_steps": 1, "current_accumulated_steps": 0, "global_step": 0,
        "gradient_update_times": 0, "info_accumulated": defaultdict(list),
        "dist": SimpleNamespace(
            all_reduce=lambda *words, **more: None, ReduceOp=SimpleNamespace(AVG=None)
        ),
        "optimizer": torch.optim.AdamW(
            transformer.parameters(),
            lr=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
        ),
    }  # fmt: skip
    losses = []
    for level, noise in zip(inputs["level"], inputs["noise"], strict=True):
        names["train_sample_batch"] = {
            "latents_clean": torch.from_numpy(inputs["clean"]),
            "timesteps": torch.from_numpy(1000 * (1 - level))[:, None],
            "advantages": torch.from_numpy(inputs["advantages"])[:, None],
        }
        given = torch.from_numpy(noise)
        with exchange.replaced(torch, "randn_like", lambda like, given=given: given):
            exec(loop, names)
        losses.append(names["loss_terms"]["total_loss"].item())
    share = advantages_of(checkout, inputs).clip(-most, most) / most / 2 + 0.5
    weights = named(transformer.networks["default"], "default")
    return {
        "loss": losses,
        "worth": share,
        **{name: weight.detach().numpy() for name, weight in weights.items()},
    }


if __name__ == "__main__":
    exchange.main(answer, "torch")
