"""Take over a policy that Stable-Baselines3 saved, by its numbers and its JSON alone.

Raffin et al., "Stable-Baselines3: Reliable Reinforcement Learning Implementations" (Journal of
Machine Learning Research 22(268), 2021). ``model.save("model.zip")`` writes JSON, some entries of
which are pickles in base64 that are never decoded here, and ``policy.pth``, whose tensors
:mod:`trimtab.policies.imports.torch_archive` reads without unpickling. What kind of actor it is
follows from the tensors' names and shapes.

Not in such a file, and so not taken over: the statistics of ``VecNormalize``, which
Stable-Baselines3 keeps in a pickle of their own.
"""

from __future__ import annotations

import io
import json
import logging
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.files import read_bytes
from trimtab.policies.base import Policy
from trimtab.policies.defaults import OwnDraws, torch_defaults
from trimtab.policies.imports.torch_archive import TensorArchive, member, readable
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.networks.mlp import ACTIVATIONS, Activation
from trimtab.types import PolicySpec

logger = logging.getLogger(__name__)

Layer = tuple[Tensor, Tensor]
"""Weight ``[outputs, inputs]`` and bias ``[outputs]`` of a linear layer."""


@torch_defaults()
def policy_from_sb3(path: str | Path, spec: PolicySpec) -> Policy:
    """Return the policy of a file that ``model.save`` of Stable-Baselines3 wrote.

    PPO and A2C become a ``diagonal_gaussian`` that acts in raw units, SAC a ``tanh_gaussian``, TD3
    and DDPG a ``deterministic`` policy; perceptrons with Box spaces only.

    Args:
        path: the ``.zip``.
        spec: shapes and limits of the task that it was trained on; its horizon is 1.

    Raises:
        TrimtabError: if it is damaged, holds anything that would have to be executed, is of another
            kind, or has other lengths than ``spec``.
    """
    model = _Model(Path(path))
    model.check_spaces(spec)
    with OwnDraws():  # of weights that are replaced
        policy = model.reader()(model, spec)
    for name, value in policy.state_dict().items():
        if not bool(torch.isfinite(value).all()):
            raise TrimtabError(f"{path}: {name} has values that are not finite")
    return policy.eval()


class _Model:
    """What can be read of a saved model.

    Args:
        path: the ``.zip``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with readable(str(path)):
            try:
                with zipfile.ZipFile(io.BytesIO(read_bytes(path))) as archive:
                    self.data = json.loads(member(archive, "data"))
                    tensors = member(archive, "policy.pth")
            except KeyError as error:
                raise self.refusal(f"is no model of Stable-Baselines3 ({error.args[0]})") from error
            except OSError as error:
                raise self.refusal(error.strerror or str(error)) from error
            if not isinstance(self.data, dict):
                raise self.refusal("its entry 'data' is no dictionary")
        self.tensors = TensorArchive(tensors, f"{path}/policy.pth")
        self.used: set[str] = set()

    def refusal(self, why: str) -> TrimtabError:
        """Return the error that this file cannot be taken over."""
        return TrimtabError(f"{self.path}: {why}")

    def reader(self) -> Callable[[_Model, PolicySpec], Policy]:
        """Return what builds the policy of which there are tensors."""
        extractors = [name for name in self.tensors if "features_extractor." in name]
        if extractors:
            raise self.refusal(
                f"reads images or several inputs ({extractors[0]}); only perceptrons can be "
                "imported"
            )
        if self.data.get("use_sde") or "actor.log_std" in self.tensors:
            raise self.refusal("explores by gSDE (use_sde), which has no equal here")
        for name, read in _READERS.items():
            if name in self.tensors:
                return read
        raise self.refusal(
            "has no actor of PPO, A2C, SAC, TD3 or DDPG that gives continuous actions"
        )

    def check_spaces(self, spec: PolicySpec) -> None:
        """Look at what is readable of the spaces, and at traces of ``VecNormalize``.

        Raises:
            TrimtabError: if a space is no box, or its limits are others than the task's.
        """
        for space in ("observation_space", "action_space"):
            kind = self.section(space).get(":type:", "a Box'>")
            if not str(kind).endswith("Box'>"):
                raise self.refusal(f"its {space} is {kind}; only Box can be imported")
        for name, limits in (("low", spec.action_low), ("high", spec.action_high)):
            stated = _numbers(str(self.section("action_space").get(name, "")))
            if len(stated) == len(limits) and not _close(stated, limits):
                raise self.refusal(f"its actions have {name} {stated}, those of env {limits}")
        # Only on-policy methods leave this empty where nothing is normalised.
        if "log_std" in self.tensors and self.data.get("_last_original_obs") is not None:
            logger.warning(
                "%s was trained under VecNormalize, whose statistics are in a separate pickle that "
                "is not read: unless only rewards were normalised, it will act wrongly", self.path,
            )  # fmt: skip

    def section(self, name: str) -> Mapping[str, Any]:
        """Return the readable part of an entry of the JSON."""
        section = self.data.get(name)
        return section if isinstance(section, dict) else {}

    def activation(self, default: Activation) -> Activation:
        """Return the name of the hidden layers' activation: the stated one, else ``default``."""
        keywords = self.section("policy_kwargs")
        extractor = str(keywords.get("features_extractor_class", "FlattenExtractor"))
        if "FlattenExtractor" not in extractor:
            raise self.refusal(f"has its own features extractor {extractor[:80]}")
        stated = keywords.get("activation_fn")
        if stated is None:
            return default
        known = {str(make): name for name, make in ACTIVATIONS.items()}
        if stated not in known:
            raise self.refusal(
                f"has activation {str(stated)[:80]}; known are {', '.join(ACTIVATIONS)}"
            )
        return known[stated]

    def tensor(self, name: str, dimensions: int) -> Tensor:
        """Return a tensor in single precision.

        Raises:
            TrimtabError: if it is missing or has another number of dimensions.
        """
        if name not in self.tensors:
            raise self.refusal(f"lacks {name}")
        value = torch.from_numpy(self.tensors[name]).float()
        if value.ndim != dimensions:
            raise self.refusal(f"{name} has shape {tuple(value.shape)}")
        self.used.add(name)
        return value

    def layer(self, prefix: str) -> Layer:
        """Return a linear layer."""
        weight, bias = self.tensor(f"{prefix}.weight", 2), self.tensor(f"{prefix}.bias", 1)
        if len(weight) != len(bias) or 0 in weight.shape:
            raise self.refusal(f"{prefix} has shapes {tuple(weight.shape)} and {tuple(bias.shape)}")
        return weight, bias

    def perceptron(self, prefix: str) -> list[Layer]:
        """Return the linear layers of a sequence: every other module is an activation."""
        layers: list[Layer] = []
        while f"{prefix}.{2 * len(layers)}.weight" in self.tensors:
            layers.append(self.layer(f"{prefix}.{2 * len(layers)}"))
        return layers

    def check_used(self, *others: str) -> None:
        """Check that no tensor of the actor was left out.

        Args:
            others: what the names of critics and targets begin with.
        """
        for name in self.tensors:
            if name not in self.used and not name.startswith(others):
                raise self.refusal(f"has {name[:80]}, which a perceptron of its kind has not")

    def check_lengths(self, layers: Sequence[Layer], actions: int, spec: PolicySpec) -> None:
        """Check that layers fit one another, and the task.

        Args:
            layers: of the actor, in their order.
            actions: length of its actions.
            spec: shapes of the task.
        """
        for (before, _), (after, _) in zip(layers, layers[1:], strict=False):
            if len(before) != after.shape[1]:
                raise self.refusal("its layers do not fit one another")
        have, need = (layers[0][0].shape[1], actions), (spec.obs_dim, spec.action_dim)
        if have != need:
            raise self.refusal(
                f"observation and action lengths {have} against {need} of env; name the task that "
                "it was trained on"
            )


def _diagonal_gaussian(model: _Model, spec: PolicySpec) -> Policy:
    """PPO and A2C: a mean in raw units, a width that does not depend on the state."""
    body = model.perceptron("mlp_extractor.policy_net")
    mean = model.layer("action_net")
    log_std = model.tensor("log_std", 1)
    model.check_used("value_net.", "mlp_extractor.value_net.")
    model.check_lengths([*body, mean], len(log_std), spec)
    if len(mean[1]) != len(log_std):
        raise model.refusal("its layers do not fit one another")
    policy = DiagonalGaussianPolicy(
        spec, hidden=[len(bias) for _, bias in body], activation=model.activation("tanh")
    )
    policy.normalizer.action_shift.zero_()
    policy.normalizer.action_scale.fill_(1.0)
    _fill(policy.network, [*body, mean])
    with torch.no_grad():
        policy.log_std.copy_(log_std[None])
    return policy


def _tanh_gaussian(model: _Model, spec: PolicySpec) -> Policy:
    """SAC: mean and width from a common body; our last layer is both of its heads."""
    body = model.perceptron("actor.latent_pi")
    mean, log_std = model.layer("actor.mu"), model.layer("actor.log_std")
    model.check_used("critic.", "critic_target.")
    if mean[0].shape != log_std[0].shape:
        raise model.refusal("its layers do not fit one another")
    heads = torch.cat([mean[0], log_std[0]]), torch.cat([mean[1], log_std[1]])
    model.check_lengths([*body, heads], len(mean[1]), spec)
    policy = TanhGaussianPolicy(
        spec,
        hidden=[len(bias) for _, bias in body],
        activation=model.activation("relu"),
        log_std_min=-20.0,  # Stable-Baselines3's bounds
        log_std_max=2.0,
    )
    _fill(policy.network, [*body, heads])
    return policy


def _deterministic(model: _Model, spec: PolicySpec) -> Policy:
    """TD3 and DDPG: a perceptron with tanh at its end."""
    layers = model.perceptron("actor.mu")
    model.check_used("actor_target.", "critic.", "critic_target.")
    model.check_lengths(layers, len(layers[-1][1]), spec)
    policy = DeterministicPolicy(
        spec, hidden=[len(bias) for _, bias in layers[:-1]], activation=model.activation("relu")
    )
    _fill(policy.network, layers)
    return policy


_READERS: Mapping[str, Callable[[_Model, PolicySpec], Policy]] = {
    "log_std": _diagonal_gaussian,
    "actor.log_std.weight": _tanh_gaussian,
    "actor.mu.0.weight": _deterministic,
}
"""A tensor that only one kind of actor has, and what reads that kind."""


def _numbers(text: str) -> tuple[float, ...]:
    """Return the numbers that numpy printed, or none where it left some out."""
    try:
        return tuple(float(word) for word in text.strip("[]").split())
    except ValueError:
        return ()


def _close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in pairs)


@torch.no_grad()
def _fill(network: nn.Sequential, layers: Sequence[Layer]) -> None:
    """Copy linear layers into those of a network, which was made with their widths."""
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    for layer, (weight, bias) in zip(linear, layers, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
