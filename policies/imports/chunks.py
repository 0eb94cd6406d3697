"""Policies of action chunks that read states: a file of Diffusion Policy, a folder of LeRobot.

Both keep what their actor needs: weights, statistics, and the settings that are in no weight. What
they say in other ways than is read here is refused, and so is every policy that sees pictures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.files import read_bytes, read_json
from trimtab.policies.base import Policy
from trimtab.policies.defaults import OwnDraws, torch_defaults
from trimtab.policies.imports.actors import Limits, Unsaid, check_finite
from trimtab.policies.imports.torch_archive import Opaque, TensorArchive, readable
from trimtab.policies.kinds.action_transformer import ActionTransformerPolicy
from trimtab.policies.kinds.unet_diffusion import UNetDiffusionPolicy
from trimtab.types import PolicySpec

__all__ = ["LEROBOT_MODEL", "ChunkActor", "diffusion_policy", "lerobot"]

Units = tuple[Tensor, Tensor]
"""Shift and scale of normalised numbers to raw ones, each as long as they are."""

LEROBOT_MODEL = "model.safetensors"
_OTHER_WAY = "export it as ONNX where it was trained, and import that, or serve it from there"
_STATE, _ENVIRONMENT = "observation.state", "observation.environment_state"
_MIGRATION = "python -m lerobot.processor.migrate_policy_normalization"
_RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
_HARMLESS = ("rename_observations_processor", "to_batch_processor", "device_processor")
_SAMPLERS = {"DDPM": "ddpm", "DDIM": "ddim"}
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "variance_type": ("fixed_small", "fixed_small_log"),
    "set_alpha_to_one": (True,),
    "steps_offset": (0,),
    "thresholding": (False,),
    "timestep_spacing": ("leading",),
    "rescale_betas_zero_snr": (False,),
    "trained_betas": (None,),
}
"""Settings of a scheduler that have to be as they mostly are."""


_LONGEST = 10_000  # actions of a chunk; those of a damaged file would fill the memory


@dataclass(frozen=True)
class ChunkActor:
    """A policy of chunks, and what surrounds its network.

    Attributes:
        where: the file or folder, for messages.
        tensors: of the network, by the names that it has here.
        make: builds the policy.
        horizon: actions from the present one on that a call gives.
        act_steps: how many of them were played.
        history: observations that it reads.
        obs: units of one observation.
        action: units of an action.
        bound: normalised actions are within ``[-bound, bound]``; None: they have no bound.
        obs_names: of the entries of an observation, where the file says them.
    """

    where: str
    tensors: Mapping[str, Tensor]
    make: Callable[[PolicySpec], Policy]
    horizon: int
    act_steps: int
    history: int
    obs: Units
    action: Units
    bound: float | None = None
    obs_names: Sequence[str] = ()

    @property
    def obs_dim(self) -> int:
        """Length O of one observation."""
        return len(self.obs[0])

    @property
    def action_dim(self) -> int:
        """Length A of an action."""
        return len(self.action[0])

    @property
    def limits(self) -> Limits | None:
        """What an action cannot leave."""
        if self.bound is None:
            return None
        shift, reach = self.action[0], self.bound * self.action[1].abs()
        return tuple((shift - reach).tolist()), tuple((shift + reach).tolist())

    @torch_defaults()
    def policy(self, spec: PolicySpec) -> Policy:
        """Return the policy that acts as this one did.

        Args:
            spec: shapes and limits, with :attr:`horizon` and :attr:`history`.

        Raises:
            TrimtabError: if ``spec`` or a tensor does not fit, or has values that are not finite.
        """
        have = self.obs_dim * self.history, self.action_dim
        if have != (spec.obs_dim, spec.action_dim):
            raise TrimtabError(
                f"{self.where}: observation and action lengths {have} against "
                f"{(spec.obs_dim, spec.action_dim)} of env; name the task that it was trained on"
            )
        if not 1 <= self.act_steps <= self.horizon <= _LONGEST:
            raise TrimtabError(
                f"{self.where}: plays {self.act_steps} actions of the {self.horizon} that it plans"
            )
        try:
            with OwnDraws():  # of weights that are replaced
                policy = self.make(spec)
            policy.get_submodule("network").load_state_dict(dict(self.tensors))
        except TrimtabError as error:
            raise TrimtabError(f"{self.where}: {error}") from error
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise TrimtabError(
                f"{self.where}: its tensors are not those of its kind ({reason}); {_OTHER_WAY}"
            ) from error
        with torch.no_grad():
            for buffer, value in (
                ("obs_shift", self.obs[0].repeat(self.history)),
                ("obs_scale", self.obs[1].repeat(self.history)),
                ("action_shift", self.action[0]),
                ("action_scale", self.action[1]),
            ):
                policy.normalizer.get_buffer(buffer).copy_(value)
        return check_finite(policy, self.where).eval()


def _unet(
    where: str, tensors: Mapping[str, Tensor], said: Mapping[str, Any], sizes: tuple[int, int, int],
    start: int, act_steps: int, **more: Any,
) -> ChunkActor:  # fmt: skip
    """Return the actor of a U-Net, whose widths are those of its tensors.

    Args:
        where: the file or folder.
        tensors: by the names of Diffusion Policy or LeRobot.
        said: keywords of the policy that no tensor has.
        sizes: actions that are denoised, observations that are read, length of an action.
        start: which of the actions is the present one.
        act_steps: how many are played.
        more: what else there is of :class:`ChunkActor`.
    """
    length, history, actions = sizes
    network = {}
    for name, value in tensors.items():
        ours = re.sub(r"\.conv([12])\.", lambda m: f".blocks.{int(m[1]) - 1}.", name)
        network[ours.replace(".block.", ".").replace(".2.conv.", ".2.")] = value
    levels = 0
    while f"down_modules.{levels}.0.blocks.0.0.weight" in network:
        levels += 1
    needed = ("down_modules.0.0.cond_encoder.1.weight", "diffusion_step_encoder.1.weight")
    if not levels or any(name not in network for name in needed):
        raise TrimtabError(
            f"{where}: has no U-Net that is known ({len(tensors)} tensors, "
            f"{', '.join(list(tensors)[:4])[:200]}); {_OTHER_WAY}"
        )
    first = [network[f"down_modules.{level}.0.blocks.0.0.weight"] for level in range(levels)]
    film, step = (network[name] for name in needed)
    keywords = {
        "hidden": [len(weight) for weight in first], "kernel": first[0].shape[-1],
        "step_dim": step.shape[-1], "scaled": len(film) == 2 * len(first[0]), "past": start, **said,
    }  # fmt: skip
    read = first[0].shape[1], film.shape[-1] - step.shape[-1]
    given = actions, history * len(more["obs"][0])
    if read != given:
        raise TrimtabError(
            f"{where}: its network reads {read[0]} numbers of an action and {read[1]} of "
            f"observations, and its statistics and settings have {given[0]} and {given[1]}; only "
            "observations as a global condition are read"
        )
    return ChunkActor(
        where, network, lambda spec: UNetDiffusionPolicy(spec, **keywords), length - start,
        act_steps, history, bound=said["clip"], **more,
    )  # fmt: skip


def _schedule(
    where: str, scheduler: str, said: Mapping[str, Any], steps: int | None
) -> dict[str, Any]:
    """Return keywords of the policy for a scheduler of diffusers.

    Raises:
        TrimtabError: if it is another one than DDPM or DDIM, or has a setting that is not read.
    """
    read = {"num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "clip_sample",
            "clip_sample_range", "prediction_type"}  # fmt: skip
    other = [f"{k}: {v}" for k, v in said.items() if k not in read and v not in _ONLY.get(k, ())]
    found = said.get("prediction_type", "epsilon")
    if found not in ("epsilon", "sample"):
        other.append(f"prediction_type: {found}")
    if other or scheduler not in _SAMPLERS:
        listed = ", ".join([scheduler, *other])[:200]
        raise TrimtabError(f"{where}: its noise scheduler ({listed}) is not read; {_OTHER_WAY}")
    levels = said["num_train_timesteps"]
    kept = {key: said[key] for key in ("beta_schedule", "beta_start", "beta_end") if key in said}
    return {
        "train_steps": levels, "sampling_steps": steps or levels, "sampler": _SAMPLERS[scheduler],
        **kept,
        "clip": said.get("clip_sample_range", 1.0) if said.get("clip_sample", True) else None,
        "says_clean": found == "sample",
    }  # fmt: skip


def _check_unsaid(where: str, unsaid: Unsaid) -> None:
    if unsaid != Unsaid():
        raise TrimtabError(
            f"{where}: says activation, output and statistics itself; take them out of the contract"
        )


def diffusion_policy(archive: TensorArchive, unsaid: Unsaid) -> ChunkActor:
    """Chi et al., "Diffusion Policy" (arXiv 2303.04137): ``DiffusionUnetLowdimPolicy``.

    The averaged weights are taken where there are any, as its own evaluation does. Settings are in
    ``cfg``, an object of OmegaConf, which is read and not made.
    """
    where, content = archive.where, archive.content
    _check_unsaid(where, unsaid)

    def setting(*place: str, kind: Any) -> Any:
        value = content.get("cfg")
        for key in place:
            value = _node(value)
            value = value.get(key) if isinstance(value, dict) else None
        value = _node(value)
        if not isinstance(value, kind):
            raise TrimtabError(
                f"{where}: is of Diffusion Policy, and its cfg does not say {'.'.join(place)} "
                f"(it has {str(value)[:80]}); {_OTHER_WAY}"
            )
        return value

    kept = content["state_dicts"]
    part = archive.within(kept.get("ema_model") or kept.get("model") or {})
    target = setting("policy", "_target_", kind=str).rpartition(".")[2]
    if target != "DiffusionUnetLowdimPolicy":
        raise TrimtabError(
            f"{where}: is a {target[:80]} of Diffusion Policy with "
            f"{', '.join(map(str, kept))[:100]} ({len(list(part))} tensors, "
            f"{', '.join(list(part)[:4])[:200]}), and only its "
            f"DiffusionUnetLowdimPolicy is read; {_OTHER_WAY}"
        )
    if not setting("policy", "obs_as_global_cond", kind=bool):
        raise TrimtabError(
            f"{where}: was trained with obs_as_global_cond: False, and only observations as a "
            f"global condition are read; {_OTHER_WAY}"
        )
    counts = ("horizon", "n_obs_steps", "n_action_steps")
    horizon, history, played = (setting("policy", name, kind=int) for name in counts)
    start = history - 1 if setting("policy", "oa_step_convention", kind=bool) else history
    if setting("policy", "pred_action_steps_only", kind=bool):
        horizon, start = played, 0
    nodes = setting("policy", "noise_scheduler", kind=dict)
    said = {str(key): _node(value) for key, value in nodes.items()}
    sampler = str(said.pop("_target_", "")).rpartition(".")[2].removesuffix("Scheduler")
    steps = setting("policy", "num_inference_steps", kind=int | None)
    keywords = _schedule(where, sampler, said, steps)
    fewer = keywords["sampling_steps"] != keywords["train_steps"]
    if fewer and not keywords.items() >= {"sampler": "ddim", "says_clean": False}.items():
        raise TrimtabError(
            f"{where}: takes {steps} of {keywords['train_steps']} steps with {sampler}, which its "
            f"version of diffusers does in a way of its own; {_OTHER_WAY}"
        )
    units = {}
    for side in ("obs", "action"):
        names = [f"normalizer.params_dict.{side}.{one}" for one in ("scale", "offset")]
        if any(name not in part for name in names):
            raise TrimtabError(f"{where}: has no statistics {names[0]}; {_OTHER_WAY}")
        scale, offset = (part[name].astype(np.float64).reshape(-1) for name in names)
        units[side] = torch.from_numpy(-offset / scale), torch.from_numpy(1 / scale)
    groups = setting("policy", "model", "n_groups", kind=int)
    tensors = {
        name.removeprefix("model."): torch.from_numpy(part[name]).float()
        for name in part
        if name.startswith("model.")
    }
    return _unet(
        where, tensors, {"groups": groups, **keywords}, (horizon, history, len(units["action"][0])),
        start, played, **units,
    )  # fmt: skip


def _node(value: Any) -> Any:
    """Return what an object of OmegaConf holds: a value, a list, or a dictionary of objects."""
    if isinstance(value, Opaque):
        state = value.state if isinstance(value.state, dict) else {}
        return state.get("_val", state.get("_content"))
    return value


def lerobot(folder: Path, unsaid: Unsaid) -> ChunkActor:
    """Return the actor of a folder of LeRobot (Cadene et al., arXiv 2602.22818).

    Its observation is ``observation.state``, then ``observation.environment_state``.

    Raises:
        TrimtabError: if it is of another kind, sees pictures, lacks statistics or is damaged.
    """
    where = str(folder)
    config = read_json(folder / "config.json", "policy of LeRobot")
    features, kind = config["input_features"], str(config["type"])[:40]
    inputs = list(features) if isinstance(features, dict) else []
    reads = [key for key in (_STATE, _ENVIRONMENT) if key in inputs]
    if kind not in _READERS or not reads or len(reads) != len(inputs):
        raise TrimtabError(
            f"{where}: is a policy {kind!r} of LeRobot that reads "
            f"{', '.join(inputs)[:200] or 'nothing'}; only {' and '.join(_READERS)} of {_STATE} "
            f"and {_ENVIRONMENT} are read; {_OTHER_WAY} (docs/serving.md)"
        )
    _check_unsaid(where, unsaid)
    with readable(where):
        tensors = _tensors(folder / LEROBOT_MODEL)
        pre, post = (_normalizer(folder, side) for side in ("pre", "post"))
        obs = [_units(where, pre, key, features[key], False) for key in reads]
        action = _units(where, post, "action", config["output_features"]["action"], True)
        widths = {key: len(shift) for key, (shift, _) in zip(reads, obs, strict=True)}
        more = {
            "obs": tuple(torch.cat(one) for one in zip(*obs, strict=True)),
            "action": action,
            "obs_names": [f"{key}_{i}" for key, width in widths.items() for i in range(width)],
        }
        return _READERS[kind](where, config, tensors, widths, more)


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file in single precision."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise TrimtabError(f"{path}: cannot be read ({error.strerror or error})") from error
    with readable(str(path)):
        return {name: value.float() for name, value in safetensors.torch.load(data).items()}


def _normalizer(folder: Path, side: str) -> Mapping[str, Any]:
    """Return what the normaliser of LeRobot's ``pre``- or ``post``-processor is made of."""
    path = folder / f"policy_{side}processor.json"
    if not path.is_file():
        raise TrimtabError(
            f"{folder}: has no {path.name}, in which LeRobot keeps statistics since 0.4; make it "
            f"by {_MIGRATION} where it was trained"
        )
    name = "normalizer_processor" if side == "pre" else "unnormalizer_processor"
    steps = {str(step.get("registry_name", step.get("class"))): step
             for step in read_json(path, "policy of LeRobot")["steps"]}  # fmt: skip
    others = [step for step in steps if step not in (name, *_HARMLESS)]
    if others or name not in steps:
        raise TrimtabError(
            f"{path}: has the steps {', '.join(steps)[:200]}, and only {name} beside "
            f"{', '.join(_HARMLESS)} is read; {_OTHER_WAY}"
        )
    state = steps[name].get("state_file") or ""
    if Path(state).name != state or not state:
        raise TrimtabError(f"{path}: {name} has no file of statistics beside it; {_OTHER_WAY}")
    return {**steps[name]["config"], "statistics": _tensors(folder / state)}


def _units(
    where: str, normalizer: Mapping[str, Any], key: str, feature: Mapping[str, Any], given: bool
) -> Units:
    """Return the units of one of LeRobot's features.

    Args:
        where: the folder.
        normalizer: of the side that it is on.
        key: its name.
        feature: its type and shape.
        given: whether the policy gives it, and does not read it.
    """
    (size,) = feature["shape"]
    mode = normalizer["norm_map"].get(feature["type"], "IDENTITY")
    only = normalizer.get("normalize_observation_keys")
    if mode == "IDENTITY" or (only is not None and not given and key not in only):
        return torch.zeros(size), torch.ones(size)
    names = _RANGES.get(mode, ("mean", "std"))
    found = [normalizer["statistics"].get(f"{key}.{name}") for name in names]
    if (mode not in _RANGES and mode != "MEAN_STD") or any(one is None for one in found):
        raise TrimtabError(
            f"{where}: normalises {key} by {str(mode)[:40]}, and has no statistics "
            f"{' and '.join(names)} of it; {_OTHER_WAY}"
        )
    first, second = (one.double().reshape(size) for one in found)
    least = normalizer.get("eps", 1e-8)
    if mode == "MEAN_STD":
        return first, second if given else second + least
    half = (second - first) / 2
    # Of a constant entry LeRobot's network reads -1, and a deviation from it 2e8 times as large.
    flat = torch.full_like(half, least / 2) if given else torch.ones_like(half)
    half = torch.where(half == 0, flat, half)
    return first + half, half


def _diffusion(
    where: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], widths: Mapping[str, int],
    more: Mapping[str, Any],
) -> ChunkActor:  # fmt: skip
    """LeRobot's ``diffusion``: the U-Net of Diffusion Policy."""
    said = {key: config[key] for key in ("num_train_timesteps", "beta_schedule", "beta_start",
            "beta_end", "prediction_type", "clip_sample", "clip_sample_range")}  # fmt: skip
    keywords = _schedule(where, config["noise_scheduler_type"], said, config["num_inference_steps"])
    prefix = "diffusion.unet."
    network = {name.removeprefix(prefix): value for name, value in tensors.items()}
    history = config["n_obs_steps"]
    return _unet(
        where, network, {"groups": config["n_groups"], **keywords},
        (config["horizon"], history, len(more["action"][0])), history - 1, config["n_action_steps"],
        **more,
    )  # fmt: skip


def _act(
    where: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], widths: Mapping[str, int],
    more: Mapping[str, Any],
) -> ChunkActor:  # fmt: skip
    """LeRobot's ``act``. Of the latent, which is zero, only the bias of its layer is left."""
    tokens = {_STATE: "robot_state", _ENVIRONMENT: "env_state"}
    names = {f"encoder_{tokens[key]}_input_proj.": f"inputs.{i}." for i, key in enumerate(widths)}
    network = {}
    for name, value in tensors.items():
        ours = name.removeprefix("model.")
        for theirs, own in names.items():
            ours = ours.replace(theirs, own) if ours.startswith(theirs) else ours
        if ours == "encoder_latent_input_proj.bias":
            network["style"] = value
        elif not ours.startswith(("vae_encoder", "encoder_latent_input_proj.")):
            network[ours] = value
    keywords = {
        "sizes": list(widths.values()), "width": config["dim_model"], "heads": config["n_heads"],
        "feedforward": config["dim_feedforward"], "encoders": config["n_encoder_layers"],
        "decoders": config["n_decoder_layers"], "activation": config["feedforward_activation"],
        "norm_first": config["pre_norm"],
    }  # fmt: skip
    return ChunkActor(
        where, network, lambda spec: ActionTransformerPolicy(spec, **keywords),
        config["chunk_size"], config["n_action_steps"], config["n_obs_steps"], **more,
    )  # fmt: skip


_READERS = {"diffusion": _diffusion, "act": _act}
