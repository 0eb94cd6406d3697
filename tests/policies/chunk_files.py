"""A file of Diffusion Policy and folders of LeRobot, and what their policies do, by numpy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from omegaconf import OmegaConf

OBS, ACTIONS, HISTORY, HORIZON, LEVELS = 3, 2, 2, 4, 8
HIDDEN, STEP, KERNEL, GROUPS = (8, 16), 8, 3, 4
DRAW = np.random.default_rng(7)
Weights = dict[str, Any]
BETAS = {"num_train_timesteps": LEVELS, "beta_start": 0.01, "beta_end": 0.3}


def drawn(*shape: int) -> Any:
    """Numbers of an untrained layer, in float32 as a file has them."""
    spread = 1.5 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.3
    return DRAW.normal(size=shape, scale=spread).astype(np.float32)


def unet_weights(scaled: bool, lerobot: bool, condition: int) -> Weights:
    """Weights of the U-Net by the names of its two codes."""
    weights: Weights = {}

    def layer(name: str, *shape: int, bias: int | None = None) -> None:
        weights[f"{name}.weight"] = drawn(*shape) + (len(shape) == 1)
        weights[f"{name}.bias"] = drawn(shape[0] if bias is None else bias)

    def convolution(name: str, inputs: int, outputs: int) -> None:
        layer(f"{name}.block.0", outputs, inputs, KERNEL)
        layer(f"{name}.block.1", outputs)

    def block(name: str, inputs: int, outputs: int) -> None:
        for number, read in enumerate((inputs, outputs)):
            part = f"conv{number + 1}" if lerobot else f"blocks.{number}"
            convolution(f"{name}.{part}", read, outputs)
        layer(f"{name}.cond_encoder.1", outputs * (1 + scaled), STEP + condition)
        if inputs != outputs:
            layer(f"{name}.residual_conv", outputs, inputs, 1)

    conv, (narrow, wide) = "" if lerobot else ".conv", HIDDEN
    layer("diffusion_step_encoder.1", 4 * STEP, STEP)
    layer("diffusion_step_encoder.3", STEP, 4 * STEP)
    block("down_modules.0.0", ACTIONS, narrow)
    block("down_modules.0.1", narrow, narrow)
    layer(f"down_modules.0.2{conv}", narrow, narrow, 3)
    block("down_modules.1.0", narrow, wide)
    for name in ("down_modules.1.1", "mid_modules.0", "mid_modules.1"):
        block(name, wide, wide)
    block("up_modules.0.0", 2 * wide, narrow)
    block("up_modules.0.1", narrow, narrow)
    layer(f"up_modules.0.2{conv}", narrow, narrow, 4)
    convolution("final_conv.0", narrow, narrow)
    layer("final_conv.1", ACTIONS, narrow, 1)
    return weights


def mish(x: Any) -> Any:
    return x * np.tanh(np.logaddexp(0, x))


def slide(x: Any, weight: Any, bias: Any, stride: int = 1, pad: int | None = None) -> Any:
    """Convolve ``x [B, C, L]``."""
    outputs, _, width = weight.shape
    pad = width // 2 if pad is None else pad
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad)))
    starts = range(0, x.shape[2] - width + 1, stride)
    rows = [np.einsum("bck,ock->bo", x[:, :, i : i + width], weight) for i in starts]
    return np.stack(rows, axis=2).reshape(len(x), outputs, -1) + bias[:, None]


def spread(x: Any, weight: Any, bias: Any) -> Any:
    """Double the length of ``x [B, C, L]``: rows of four, two apart, are added up."""
    length = x.shape[2]
    found = np.zeros((len(x), weight.shape[1], 2 * length + 2))
    for i in range(length):
        found[:, :, 2 * i : 2 * i + 4] += np.einsum("bc,cok->bok", x[:, :, i], weight)
    return found[:, :, 1:-1] + bias[:, None]


def normed(x: Any, weight: Any, bias: Any, groups: int) -> Any:
    parts = x.reshape(len(x), groups, -1)
    mean, var = parts.mean(2, keepdims=True), parts.var(2, keepdims=True)
    scaled = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
    return scaled * weight[:, None] + bias[:, None]


def unet(w: Weights, noisy: Any, level: int, condition: Any, lerobot: bool) -> Any:
    """What the U-Net says of chunks ``[B, L, A]``, straight from its description."""

    def pair(name: str) -> Any:
        return w[f"{name}.weight"].astype("f8"), w[f"{name}.bias"].astype("f8")

    def linear(name: str, x: Any) -> Any:
        weight, bias = pair(name)
        return x @ weight.T + bias

    def convolution(name: str, x: Any, groups: int = GROUPS) -> Any:
        x = slide(x, *pair(f"{name}.block.0"))
        return mish(normed(x, *pair(f"{name}.block.1"), groups))

    def block(name: str, x: Any) -> Any:
        parts = [f"conv{n + 1}" if lerobot else f"blocks.{n}" for n in range(2)]
        out = convolution(f"{name}.{parts[0]}", x)
        film = linear(f"{name}.cond_encoder.1", mish(told))[:, :, None]
        width = out.shape[1]
        out = film[:, :width] * out + film[:, width:] if film.shape[1] > width else out + film
        out = convolution(f"{name}.{parts[1]}", out)
        skip = f"{name}.residual_conv"
        return out + (slide(x, *pair(skip)) if f"{skip}.weight" in w else x)

    half, conv = STEP // 2, "" if lerobot else ".conv"
    angle = level * np.exp(-math.log(10000) / (half - 1) * np.arange(half))
    told = np.concatenate([np.sin(angle), np.cos(angle)])[None]
    told = linear("diffusion_step_encoder.3", mish(linear("diffusion_step_encoder.1", told)))
    told = np.concatenate([np.repeat(told, len(condition), 0), condition], 1)
    x = noisy.transpose(0, 2, 1)
    top = block("down_modules.0.1", block("down_modules.0.0", x))
    x = slide(top, *pair(f"down_modules.0.2{conv}"), stride=2, pad=1)
    low = block("down_modules.1.1", block("down_modules.1.0", x))
    x = block("mid_modules.1", block("mid_modules.0", low))
    x = block("up_modules.0.1", block("up_modules.0.0", np.concatenate([x, low], 1)))
    x = spread(x, *pair(f"up_modules.0.2{conv}"))
    return slide(convolution("final_conv.0", x, 8), *pair("final_conv.1")).transpose(0, 2, 1)


def shares(schedule: str) -> Any:
    """Share of the signal at each noise level."""
    if schedule == "linear":
        return np.cumprod(1 - np.linspace(BETAS["beta_start"], BETAS["beta_end"], LEVELS))
    bar = np.cos((np.arange(LEVELS + 1) / LEVELS + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.cumprod(1 - np.minimum(1 - bar[1:] / bar[:-1], 0.999))


def denoise(
    field: Callable[[Any, int], Any], noise: Any, schedule: str, *, steps: int, clip: float | None,
    says_clean: bool,
) -> Any:  # fmt: skip
    """Denoise: noise ``[B, steps, L, A]`` by DDPM (Ho et al.), ``[B, L, A]`` by DDIM, eta 0."""
    alpha, path = shares(schedule), noise.ndim == 4
    x = noise[:, 0] if path else noise
    stride = LEVELS // steps
    for index in range(steps):
        t = (steps - 1 - index) * stride
        now, then = alpha[t], alpha[t - stride] if t else 1.0
        said = field(x, t)
        clean = said if says_clean else (x - np.sqrt(1 - now) * said) / np.sqrt(now)
        epsilon = (x - np.sqrt(now) * clean) / np.sqrt(1 - now)
        clean = clean if clip is None else np.clip(clean, -clip, clip)
        if not path:
            x = np.sqrt(then) * clean + np.sqrt(1 - then) * epsilon
            continue
        beta = 1 - now / then
        x = (np.sqrt(then) * beta * clean + np.sqrt(1 - beta) * (1 - then) * x) / (1 - now)
        if t:
            x = x + np.sqrt((1 - then) / (1 - now) * beta) * noise[:, index + 1]
    return x


SCALE, OFFSET = np.array([0.5, 2.0, 1.0]), np.array([0.1, -0.4, 0.0])
ACTION_SCALE, ACTION_OFFSET = np.array([0.25, 0.5]), np.array([0.3, -0.1])
DP_WEIGHTS = unet_weights(scaled=True, lerobot=False, condition=OBS * HISTORY)
DP_STEPS = {
    "_target_": "diffusers.schedulers.scheduling_ddpm.DDPMScheduler", **BETAS,
    "beta_schedule": "squaredcos_cap_v2", "variance_type": "fixed_small", "clip_sample": True,
    "prediction_type": "epsilon",
}  # fmt: skip
DP_POLICY = {
    "_target_": "diffusion_policy.policy.diffusion_unet_lowdim_policy.DiffusionUnetLowdimPolicy",
    "model": {"_target_": "ConditionalUnet1D", "n_groups": GROUPS, "down_dims": list(HIDDEN)},
    "noise_scheduler": DP_STEPS, "horizon": HORIZON, "n_obs_steps": HISTORY, "n_action_steps": 2,
    "num_inference_steps": LEVELS, "obs_as_local_cond": False, "obs_as_global_cond": True,
    "pred_action_steps_only": False, "oa_step_convention": True,
}  # fmt: skip


def diffusion_policy(
    path: Path, without: str = "", pickled: bytes = b"\x80\x02K\x03.", **policy: Any
) -> Path:
    """Write a checkpoint of Diffusion Policy, its averaged weights beside others."""
    dummy = {"_dummy_variable": np.zeros(0, "f4"), "mask_generator._dummy_variable": np.zeros(0)}
    averaged = {f"model.{name}": value for name, value in DP_WEIGHTS.items()} | dummy
    for key, scale, offset in (
        ("obs", SCALE, OFFSET), ("action", ACTION_SCALE, ACTION_OFFSET),
    ):  # fmt: skip
        for part, value in (("scale", scale), ("offset", offset), ("input_stats.max", offset + 1)):
            averaged[f"normalizer.params_dict.{key}.{part}"] = value.astype("f4")
    state = {k: torch.from_numpy(v) for k, v in averaged.items() if not without or without not in k}
    other = {name: value + 1 for name, value in state.items()}
    content = {
        "cfg": OmegaConf.create({"policy": DP_POLICY | policy, "n_obs_steps": 99}),
        "state_dicts": {"model": other, "ema_model": state},
        "pickles": {"global_step": pickled},
    }
    torch.save(content, path)
    return path


def diffusion_policy_acts(obs: Any, noise: Any, steps: int = LEVELS) -> Any:
    """Actions of the checkpoint for ``obs [B, 2, O]``: the second one is the present one."""
    condition = (obs * SCALE + OFFSET).reshape(len(obs), -1)
    chunk = denoise(
        lambda x, t: unet(DP_WEIGHTS, x, t, condition, False), noise, "cosine", steps=steps,
        clip=1.0, says_clean=False,
    )  # fmt: skip
    return ((chunk - ACTION_OFFSET) / ACTION_SCALE)[:, HISTORY - 1 :]


ENVIRONMENT = 2
LOW, HIGH = np.array([-1.0, 2.0, 0.5]), np.array([3.0, 2.0, 1.5])  # the second never changes
MEAN, STD = np.array([0.2, -0.7]), np.array([1.5, 0.4])
LEROBOT_WEIGHTS = unet_weights(
    scaled=False, lerobot=True, condition=(OBS + ENVIRONMENT) * HISTORY
)  # fmt: skip
FEATURES = {
    "observation.environment_state": {"type": "ENV", "shape": [ENVIRONMENT]},
    "observation.state": {"type": "STATE", "shape": [OBS]},
}
STATISTICS = {
    "observation.state.min": LOW, "observation.state.max": HIGH,
    "observation.environment_state.mean": MEAN, "action.mean": MEAN, "action.std": STD,
}  # fmt: skip
LEROBOT_DIFFUSION: dict[str, Any] = {
    "type": "diffusion", "n_obs_steps": HISTORY, "horizon": HORIZON, "n_action_steps": 3,
    "down_dims": list(HIDDEN), "kernel_size": KERNEL, "n_groups": GROUPS, **BETAS,
    "diffusion_step_embed_dim": STEP, "use_film_scale_modulation": False,
    "noise_scheduler_type": "DDIM", "beta_schedule": "linear", "prediction_type": "sample",
    "clip_sample": True, "clip_sample_range": 1.5, "num_inference_steps": 4,
}  # fmt: skip


def lerobot(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Any], without: str = "",
    **changes: Any,
) -> Path:  # fmt: skip
    """Write a folder of LeRobot: settings, weights, and two chains of steps with statistics."""
    folder.mkdir()
    outputs = {"action": {"type": "ACTION", "shape": [ACTIONS]}}
    described = {"input_features": FEATURES, "output_features": outputs, **config, **changes}
    (folder / "config.json").write_text(json.dumps(described))
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    kept = {k: torch.from_numpy(v).float() for k, v in STATISTICS.items() if k != without}
    norm_map = {"STATE": "MIN_MAX", "ACTION": "MEAN_STD", "VISUAL": "MEAN_STD"}
    made = {"eps": 1e-8, "features": {**FEATURES, **outputs}, "norm_map": norm_map}
    for side, step in (("pre", "normalizer"), ("post", "unnormalizer")):
        name = f"policy_{side}processor_step_3_{step}_processor.safetensors"
        if f"policy_{side}processor.json" != without:
            chain = [
                {"registry_name": "device_processor", "config": {"device": "cpu"}},
                {"registry_name": f"{step}_processor", "config": made, "state_file": name},
            ]
            text = json.dumps({"name": f"policy_{side}processor", "steps": chain})
            (folder / f"policy_{side}processor.json").write_text(text)
        safetensors.torch.save_file(kept, folder / name)
    return folder


def lerobot_diffusion(folder: Path, without: str = "", **changes: Any) -> Path:
    weights = {f"diffusion.unet.{name}": value for name, value in LEROBOT_WEIGHTS.items()}
    return lerobot(folder, LEROBOT_DIFFUSION, weights, without, **changes)


def scaled(state: Any) -> Any:
    """States as the network reads them; one that never changes is -1."""
    span = np.where(HIGH > LOW, HIGH - LOW, 1e-8)
    return 2 * (state - LOW) / span - 1


def lerobot_diffusion_acts(obs: Any, noise: Any) -> Any:
    """Actions of the folder for ``obs [B, 2, 5]``: the state, then what is left as it is."""
    condition = np.concatenate([scaled(obs[..., :OBS]), obs[..., OBS:]], -1).reshape(len(obs), -1)
    chunk = denoise(
        lambda x, t: unet(LEROBOT_WEIGHTS, x, t, condition, True), noise, "linear", steps=4,
        clip=1.5, says_clean=True,
    )  # fmt: skip
    return (chunk * STD + MEAN)[:, HISTORY - 1 :]


WIDTH, HEADS, FEEDFORWARD, CHUNK = 8, 2, 12, 5
LEROBOT_ACT: dict[str, Any] = {
    "type": "act", "n_obs_steps": 1, "chunk_size": CHUNK, "n_action_steps": 4, "pre_norm": False,
    "dim_model": WIDTH, "n_heads": HEADS, "dim_feedforward": FEEDFORWARD, "n_encoder_layers": 2,
    "feedforward_activation": "relu", "n_decoder_layers": 1, "use_vae": True, "latent_dim": 3,
}  # fmt: skip


def act_weights() -> Weights:
    shapes = {
        "encoder_latent_input_proj": (WIDTH, 3), "action_head": (ACTIONS, WIDTH),
        "encoder_robot_state_input_proj": (WIDTH, OBS), "decoder.norm": (WIDTH,),
        "encoder_env_state_input_proj": (WIDTH, ENVIRONMENT),
        "vae_encoder.layers.0.linear1": (FEEDFORWARD, WIDTH),
    }  # fmt: skip
    for layer in ("encoder.layers.0", "encoder.layers.1", "decoder.layers.0"):
        parts = ["self_attn"] + ["multihead_attn"] * layer.startswith("decoder")
        shapes |= {
            f"{layer}.linear1": (FEEDFORWARD, WIDTH),
            f"{layer}.linear2": (WIDTH, FEEDFORWARD),
        }
        shapes |= {f"{layer}.{part}.out_proj": (WIDTH, WIDTH) for part in parts}
        shapes |= {f"{layer}.{part}.in_proj_": (3 * WIDTH, WIDTH) for part in parts}
        shapes |= {f"{layer}.norm{number + 1}": (WIDTH,) for number in range(1 + len(parts))}
    weights: Weights = {}
    for name, shape in shapes.items():
        dot = "" if name.endswith("_") else "."
        weights[f"{name}{dot}weight"] = drawn(*shape) + (len(shape) == 1)
        weights[f"{name}{dot}bias"] = drawn(shape[0])
    weights["encoder_1d_feature_pos_embed.weight"] = drawn(3, WIDTH)
    weights["decoder_pos_embed.weight"] = drawn(CHUNK, WIDTH)
    return weights


ACT_WEIGHTS = act_weights()


def lerobot_act(folder: Path, without: str = "", **changes: Any) -> Path:
    weights = {f"model.{name}": value for name, value in ACT_WEIGHTS.items()}
    return lerobot(folder, LEROBOT_ACT, weights, without, **changes)


def attention(name: str, query: Any, key: Any, value: Any) -> Any:
    """Attention of each head, one after another."""
    w = ACT_WEIGHTS
    q, k, v = (
        x @ weight.T + bias
        for x, weight, bias in zip(
            (query, key, value),
            np.split(w[f"{name}.in_proj_weight"], 3),
            np.split(w[f"{name}.in_proj_bias"], 3),
            strict=True,
        )
    )
    size, mixed = WIDTH // HEADS, []
    for head in range(HEADS):
        one = slice(head * size, (head + 1) * size)
        score = np.exp(np.einsum("bqe,bke->bqk", q[..., one], k[..., one]) / np.sqrt(size))
        mixed.append(np.einsum("bqk,bke->bqe", score / score.sum(2, keepdims=True), v[..., one]))
    return linear_act(f"{name}.out_proj", np.concatenate(mixed, 2))


def linear_act(name: str, x: Any) -> Any:
    return x @ ACT_WEIGHTS[f"{name}.weight"].T + ACT_WEIGHTS[f"{name}.bias"]


def layer_normed(name: str, x: Any) -> Any:
    found = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return found * ACT_WEIGHTS[f"{name}.weight"] + ACT_WEIGHTS[f"{name}.bias"]


def lerobot_act_acts(obs: Any, noise: Any) -> Any:
    """Actions of the folder of ACT for ``obs [B, 5]``, its latent zero."""
    w = ACT_WEIGHTS
    style = np.repeat(w["encoder_latent_input_proj.bias"][None], len(obs), 0)
    state = linear_act("encoder_robot_state_input_proj", scaled(obs[:, :OBS]))
    x = np.stack([style, state, linear_act("encoder_env_state_input_proj", obs[:, OBS:])], 1)
    places, queries = (
        w[f"{name}.weight"] for name in ("encoder_1d_feature_pos_embed", "decoder_pos_embed")
    )

    def perceptron(layer: str, x: Any) -> Any:
        return linear_act(f"{layer}.linear2", np.maximum(linear_act(f"{layer}.linear1", x), 0))

    for layer in ("encoder.layers.0", "encoder.layers.1"):
        x = layer_normed(
            f"{layer}.norm1", x + attention(f"{layer}.self_attn", x + places, x + places, x)
        )
        x = layer_normed(f"{layer}.norm2", x + perceptron(layer, x))
    layer, y = "decoder.layers.0", np.zeros((len(obs), CHUNK, WIDTH))
    y = layer_normed(
        f"{layer}.norm1", y + attention(f"{layer}.self_attn", y + queries, y + queries, y)
    )
    y = layer_normed(
        f"{layer}.norm2", y + attention(f"{layer}.multihead_attn", y + queries, x + places, x)
    )
    y = layer_normed("decoder.norm", layer_normed(f"{layer}.norm3", y + perceptron(layer, y)))
    return linear_act("action_head", y) * STD + MEAN


def observations(rows: int, size: int) -> Any:
    """Observations in float32; the constant entry of LeRobot's state has its value."""
    obs = np.random.default_rng(0).normal(size=(rows, HISTORY, size))
    if size > OBS:
        obs[..., 1] = LOW[1]
    return obs.astype("f4")


CASES: Mapping[str, Any] = {
    "Diffusion Policy": (diffusion_policy, diffusion_policy_acts, OBS),
    "lerobot": (lerobot_diffusion, lerobot_diffusion_acts, OBS + ENVIRONMENT),
    "lerobot act": (lerobot_act, lerobot_act_acts, OBS + ENVIRONMENT),
}
