"""Policies of action chunks that read states: a file of Diffusion Policy, a folder of LeRobot.

Both keep what their actor needs: weights, statistics, and the settings that are in no weight. What
they say in other ways than is read here is refused, and so is every policy that sees pictures.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.files import read_json, read_whole
from trimtab.policies.base import Policy
from trimtab.policies.defaults import OwnDraws, torch_defaults
from trimtab.policies.imports.actors import Limits, Unsaid, check_lengths, finished
from trimtab.policies.imports.torch_archive import Opaque, TensorArchive, readable
from trimtab.policies.kinds.action_transformer import ActionTransformerPolicy
from trimtab.policies.kinds.unet_diffusion import UNetDiffusionPolicy
from trimtab.types import PolicySpec

__all__ = ["LEROBOT_MODEL", "ChunkActor", "diffusion_policy", "lerobot"]

logger = logging.getLogger(__name__)

Units = tuple[Tensor, Tensor]
"""Shift and scale of normalised numbers to raw ones, each as long as they are."""

LEROBOT_MODEL = "model.safetensors"
_OTHER_WAY = "export it as ONNX where it was trained, and import that, or serve it from there"
_STATE, _ENVIRONMENT = "observation.state", "observation.environment_state"
_RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
_HARMLESS = ("rename_observations_processor", "to_batch_processor", "device_processor")
_DEFAULTS: Mapping[str, Any] = {
    "num_train_timesteps": 1000, "beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear",
    "clip_sample": True, "clip_sample_range": 1.0, "prediction_type": "epsilon",
}  # fmt: skip
"""Settings of diffusers' DDPM and DDIM that are read, and what they are where nobody says them."""
_ONLY: Mapping[str, Any] = {
    "variance_type": "fixed_small", "set_alpha_to_one": True, "steps_offset": 0,
    "thresholding": False, "timestep_spacing": "leading", "rescale_betas_zero_snr": False,
    "trained_betas": None,
}  # fmt: skip
"""Settings of theirs that have to be as they mostly are."""
_POLICY = frozenset({
    "_target_", "model", "noise_scheduler", "horizon", "obs_dim", "action_dim", "n_action_steps",
    "n_obs_steps", "num_inference_steps", "obs_as_local_cond", "obs_as_global_cond",
    "pred_action_steps_only", "oa_step_convention",
})  # fmt: skip
"""Settings of Diffusion Policy's policy; it hands others on to each step of its scheduler."""
_LONGEST = 10_000
"""Actions of a chunk, and numbers of a feature: those of a damaged file would fill the memory."""


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

    Raises:
        TrimtabError: if a count is none, or more is played than planned.
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

    def __post_init__(self) -> None:
        counts = self.act_steps, self.horizon, self.history
        whole = all(type(count) is int for count in counts) and 1 <= self.history <= _LONGEST
        if not whole or not 1 <= self.act_steps <= self.horizon <= _LONGEST:
            played, planned, read = (str(count)[:40] for count in counts)
            raise TrimtabError(
                f"{self.where}: plays {played} actions of the {planned} that it plans, by {read} "
                "observations"
            )

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
        check_lengths(self.where, (self.obs_dim * self.history, self.action_dim), spec)
        try:
            with OwnDraws():  # of weights that are replaced
                policy = self.make(spec)
            policy.get_submodule("network").load_state_dict(dict(self.tensors))
        except (TrimtabError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise TrimtabError(
                f"{self.where}: its settings or tensors are not those of its kind ({reason}); "
                f"{_OTHER_WAY}"
            ) from error
        obs = (unit.repeat(self.history) for unit in self.obs)
        return finished(policy, self.where, obs, self.action)


def _unet(
    where: str, tensors: Mapping[str, Tensor], said: Mapping[str, Any], *, length: int, start: int,
    **more: Any,
) -> ChunkActor:  # fmt: skip
    """Return the actor of a U-Net, whose widths are those of its tensors.

    Args:
        where: the file or folder.
        tensors: by the names of Diffusion Policy or LeRobot.
        said: keywords of the policy that no tensor has.
        length: actions that are denoised.
        start: which of them is the present one.
        more: what else there is of :class:`ChunkActor`.
    """
    network = {}
    for name, value in tensors.items():
        ours = re.sub(r"\.conv([12])\.", lambda m: f".blocks.{int(m[1]) - 1}.", name)
        network[ours.replace(".block.", ".").replace(".2.conv.", ".2.")] = value
    place = "down_modules.{}.0.blocks.0.0.weight"
    first = [network[place.format(0)]]
    while place.format(len(first)) in network:
        first.append(network[place.format(len(first))])
    film = network["down_modules.0.0.cond_encoder.1.weight"]
    step_dim = network["diffusion_step_encoder.1.weight"].shape[-1]
    keywords = {
        "hidden": [len(weight) for weight in first], "kernel": first[0].shape[-1],
        "step_dim": step_dim, "scaled": len(film) == 2 * len(first[0]), "past": start, **said,
    }  # fmt: skip
    read = first[0].shape[1], film.shape[-1] - step_dim
    given = len(more["action"][0]), more["history"] * len(more["obs"][0])
    if read != given:
        raise TrimtabError(
            f"{where}: its network reads {read[0]} numbers of an action and {read[1]} of "
            f"observations, and its statistics and settings have {given[0]} and {given[1]}; only "
            "observations as a global condition are read"
        )
    return ChunkActor(
        where, network, lambda spec: UNetDiffusionPolicy(spec, **keywords), length - start,
        bound=said["clip"], **more,
    )  # fmt: skip


def _schedule(
    where: str, scheduler: str, said: Mapping[str, Any], steps: int | None
) -> dict[str, Any]:
    """Return keywords of the policy for a scheduler of diffusers.

    Raises:
        TrimtabError: if it is another one than DDPM or DDIM, or has a setting that is not read.
    """
    full = {**_ONLY, **_DEFAULTS, **said}
    other = [f"{key}: {value}" for key, value in full.items()
             if key not in _DEFAULTS and (key not in _ONLY or value != _ONLY[key])]  # fmt: skip
    if full["prediction_type"] not in ("epsilon", "sample"):
        other.append(f"prediction_type: {full['prediction_type']}")
    if other or scheduler not in ("DDPM", "DDIM"):
        listed = ", ".join([scheduler, *other])[:200]
        raise TrimtabError(f"{where}: its noise scheduler ({listed}) is not read; {_OTHER_WAY}")
    levels = full["num_train_timesteps"]
    return {
        "train_steps": levels, "sampling_steps": levels if steps is None else steps,
        "sampler": scheduler.lower(), "says_clean": full["prediction_type"] == "sample",
        "clip": float(full["clip_sample_range"]) if full["clip_sample"] else None,
        **{key: full[key] for key in ("beta_schedule", "beta_start", "beta_end")},
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

    def refusal(why: str) -> TrimtabError:
        return TrimtabError(f"{where}: is of Diffusion Policy, and {why}; {_OTHER_WAY}")

    def setting(*place: str, kind: Any) -> Any:
        value = _node(content.get("cfg"))
        for key in ("policy", *place):
            value = _node(value.get(key)) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            said = ".".join(("policy", *place))
            raise refusal(f"its cfg does not say {said} (it has {str(value)[:80]})")
        return value

    kept = content["state_dicts"]
    part = archive.within(kept.get("ema_model") or kept.get("model") or {})
    target = setting("_target_", kind=str).rpartition(".")[2]
    if target != "DiffusionUnetLowdimPolicy":
        raise refusal(f"only its DiffusionUnetLowdimPolicy is read, and no {target[:80]}")
    if not setting("obs_as_global_cond", kind=bool):
        raise refusal("has obs_as_global_cond: False; only a global condition is read")
    if other := setting(kind=dict).keys() - _POLICY:
        raise refusal(f"hands {', '.join(map(str, other))[:80]} on to its scheduler")
    counts = ("horizon", "n_obs_steps", "n_action_steps")
    length, history, played = (setting(name, kind=int) for name in counts)
    start = history - 1 if setting("oa_step_convention", kind=bool) else history
    if setting("pred_action_steps_only", kind=bool):
        length, start = played, 0
    said = {str(key): _node(value) for key, value in setting("noise_scheduler", kind=dict).items()}
    sampler = str(said.pop("_target_", "")).rpartition(".")[2].removesuffix("Scheduler")
    steps = setting("num_inference_steps", kind=int | None)
    keywords = _schedule(where, sampler, said, steps)
    taken, levels, clean = (keywords[k] for k in ("sampling_steps", "train_steps", "says_clean"))
    if clean if sampler == "DDIM" else taken != levels:  # by diffusers 0.11
        says = " for a network that says the clean chunk" if clean else ""
        raise refusal(
            f"takes {taken} of {levels} steps with {sampler}{says}, which its version of diffusers "
            "does in a way of its own"
        )
    units = {}
    for side in ("obs", "action"):
        names = [f"normalizer.params_dict.{side}.{one}" for one in ("scale", "offset")]
        if any(name not in part for name in names):
            raise refusal(f"has no statistics {names[0]}")
        scale, offset = (torch.from_numpy(part[name]).double().flatten() for name in names)
        units[side] = -offset / scale, 1 / scale
    tensors = {
        name.removeprefix("model."): torch.from_numpy(part[name]).float()
        for name in part if name.startswith("model.")
    }  # fmt: skip
    keywords["groups"] = setting("model", "n_groups", kind=int)
    return _unet(
        where, tensors, keywords, length=length, start=start, act_steps=played, history=history,
        **units,
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
        obs = [_units(where, pre, key) for key in reads]
        widths = {key: len(shift) for key, (shift, _) in zip(reads, obs, strict=True)}
        more = {
            "obs": tuple(torch.cat(one) for one in zip(*obs, strict=True)),
            "action": _units(where, post, "action"),
            "obs_names": [f"{key}_{i}" for key, width in widths.items() for i in range(width)],
        }
        return _READERS[kind](where, config, tensors, widths, more)


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file in single precision."""
    data = read_whole(path)
    with readable(str(path)):
        return {name: value.float() for name, value in safetensors.torch.load(data).items()}


def _normalizer(folder: Path, side: str) -> Mapping[str, Any]:
    """Return what the normaliser of LeRobot's ``pre``- or ``post``-processor is made of."""
    path = folder / f"policy_{side}processor.json"
    if not path.is_file():
        raise TrimtabError(
            f"{folder}: has no {path.name}, in which LeRobot keeps statistics since 0.4; make it "
            "by python -m lerobot.processor.migrate_policy_normalization where it was trained"
        )
    name = "normalizer_processor" if side == "pre" else "unnormalizer_processor"
    steps = {str(step.get("registry_name", step.get("class"))): step
             for step in read_json(path, "policy of LeRobot")["steps"]}  # fmt: skip
    if name not in steps or steps.keys() - {name, *_HARMLESS}:
        raise TrimtabError(
            f"{path}: has the steps {', '.join(steps)[:200]}, and only {name} beside "
            f"{', '.join(_HARMLESS)} is read; {_OTHER_WAY}"
        )
    state = steps[name].get("state_file") or ""
    if Path(state).name != state or not state:
        raise TrimtabError(f"{path}: {name} has no file of statistics beside it; {_OTHER_WAY}")
    return {**steps[name]["config"], "statistics": _tensors(folder / state)}


def _units(where: str, normalizer: Mapping[str, Any], key: str) -> Units:
    """Return the units of a feature of LeRobot's by the normaliser of the side that it is on."""
    feature, given = normalizer["features"][key], key == "action"
    (size,) = feature["shape"]
    if size > _LONGEST:
        raise ValueError(f"{key} has {size} numbers")
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
    half[half == 0] = least / 2 if given else 1.0
    return first + half, half


def _diffusion(
    where: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], widths: Mapping[str, int],
    more: Mapping[str, Any],
) -> ChunkActor:  # fmt: skip
    """LeRobot's ``diffusion``: the U-Net of Diffusion Policy."""
    said = {key: config[key] for key in _DEFAULTS}
    keywords = _schedule(where, config["noise_scheduler_type"], said, config["num_inference_steps"])
    network = {name.removeprefix("diffusion.unet."): value for name, value in tensors.items()}
    history = config["n_obs_steps"]
    return _unet(
        where, network, {"groups": config["n_groups"], **keywords}, length=config["horizon"],
        start=history - 1, act_steps=config["n_action_steps"], history=history, **more,
    )  # fmt: skip


def _act(
    where: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor], widths: Mapping[str, int],
    more: Mapping[str, Any],
) -> ChunkActor:  # fmt: skip
    """LeRobot's ``act``. Of the latent, which is zero, only the bias of its layer is left."""
    tokens = {_STATE: "robot_state", _ENVIRONMENT: "env_state"}
    names = {f"encoder_{tokens[key]}_input_proj.": f"inputs.{i}." for i, key in enumerate(widths)}
    names["encoder_latent_input_proj.bias"] = "style"
    network: dict[str, Tensor] = {}
    for name, value in tensors.items():
        ours = name.removeprefix("model.")
        for theirs, own in names.items():
            ours = ours.replace(theirs, own) if ours.startswith(theirs) else ours
        if not ours.startswith(("vae_encoder", "encoder_latent_input_proj.")):
            network[ours] = value
    if (coefficient := config.get("temporal_ensemble_coeff")) is not None:
        logger.warning("%s was played with temporal_ensemble_coeff=%s, which no bundle has: play "
                       "it in a robot's mode TemporalEnsemble", where, coefficient)  # fmt: skip
    encoders, decoders = (
        len({name.split(".")[2] for name in network if name.startswith(f"{part}.layers.")})
        for part in ("encoder", "decoder")
    )
    keywords = {
        "sizes": list(widths.values()), "width": network["action_head.weight"].shape[1],
        "heads": config["n_heads"], "encoders": encoders, "decoders": decoders,
        "feedforward": len(network["decoder.layers.0.linear1.weight"]),
        "activation": config["feedforward_activation"], "norm_first": config["pre_norm"],
    }  # fmt: skip
    return ChunkActor(
        where, network, lambda spec: ActionTransformerPolicy(spec, **keywords),
        len(network["decoder_pos_embed.weight"]), config["n_action_steps"], config["n_obs_steps"],
        **more,
    )  # fmt: skip


_READERS = {"diffusion": _diffusion, "act": _act}
