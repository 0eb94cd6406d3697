"""Take over a policy that Stable-Baselines3 saved, by its numbers and its JSON alone.

Raffin et al., "Stable-Baselines3: Reliable Reinforcement Learning Implementations" (Journal of
Machine Learning Research 22(268), 2021). ``model.save("model.zip")`` writes JSON, some entries of
which are pickles in base64 that are never decoded here, and ``policy.pth``, whose tensors
:mod:`trimtab.policies.imports.torch_archive` reads without unpickling. What kind of actor it is
follows from the tensors' names and shapes.

Not in such a file: the statistics of ``VecNormalize``, which Stable-Baselines3 keeps in a pickle of
their own. A contract can name an ``.npz`` of them.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trimtab.errors import TrimtabError
from trimtab.files import read_whole
from trimtab.policies.base import Policy
from trimtab.policies.imports.actors import (
    FILE,
    GYMNASIUM,
    NONE,
    Actor,
    Limits,
    Named,
    Unsaid,
    deterministic,
    diagonal_gaussian,
    raw_units,
    tanh_gaussian,
)
from trimtab.policies.imports.torch_archive import TensorArchive, member, readable
from trimtab.policies.networks.mlp import ACTIVATIONS, Activation
from trimtab.types import PolicySpec

logger = logging.getLogger(__name__)


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
    return actor_from_sb3(Path(path), Unsaid()).policy(spec)


def actor_from_sb3(path: Path, unsaid: Unsaid) -> Actor:
    """Return the actor of a file that ``model.save`` of Stable-Baselines3 wrote.

    Args:
        path: the ``.zip``.
        unsaid: its ``statistics`` are those of ``VecNormalize``; an activation is used where the
            file's JSON says none.

    Raises:
        TrimtabError: as :func:`policy_from_sb3`.
    """
    model = _Model(path, unsaid)
    model.check_spaces()
    return model.reader()(model)


class _Model(Named):
    """What can be read of a saved model.

    Args:
        path: the ``.zip``.
        unsaid: what is known besides.
    """

    def __init__(self, path: Path, unsaid: Unsaid) -> None:
        content = read_whole(path)
        with readable(str(path)), zipfile.ZipFile(io.BytesIO(content)) as archive:
            try:
                data, tensors = (member(archive, name) for name in ("data", "policy.pth"))
            except KeyError as error:
                raise TrimtabError(
                    f"{path}: is no model of Stable-Baselines3 ({error.args[0]})"
                ) from error
            data = json.loads(data)
        if not isinstance(data, dict):
            raise TrimtabError(f"{path}: its entry 'data' is no dictionary")
        super().__init__(TensorArchive(tensors, f"{path}/policy.pth"))
        self.path = path
        self.data: Mapping[str, Any] = data
        self.unsaid = unsaid
        if not isinstance(self.archive.content, dict):
            raise self.refusal("its weights are no dictionary")

    @property
    def where(self) -> str:
        """The file."""
        return str(self.path)

    def reader(self) -> Callable[[_Model], Actor]:
        """Return what reads the actor of which there are tensors."""
        extractors = [name for name in self.archive if "features_extractor." in name]
        if extractors:
            raise self.refusal(
                f"reads images or several inputs ({extractors[0]}); only perceptrons can be "
                "imported"
            )
        if self.data.get("use_sde") or "actor.log_std" in self.archive:
            raise self.refusal("explores by gSDE (use_sde), which has no equal here")
        for name, read in _READERS.items():
            if name in self.archive:
                return read
        raise self.refusal(
            "has no actor of PPO, A2C, SAC, TD3 or DDPG that gives continuous actions"
        )

    def check_spaces(self) -> None:
        """Look at what is readable of the spaces, and at traces of ``VecNormalize``.

        Raises:
            TrimtabError: if a space is no box.
        """
        for space in ("observation_space", "action_space"):
            kind = self.section(space).get(":type:", "a Box'>")
            if not str(kind).endswith("Box'>"):
                raise self.refusal(f"its {space} is {kind}; only Box can be imported")
        if self.unsaid.statistics is not None:
            return
        # Only on-policy methods leave this empty where nothing is normalised.
        if "log_std" in self.archive and self.data.get("_last_original_obs") is not None:
            logger.warning(
                "%s was trained under VecNormalize, whose statistics are in a separate pickle that "
                "is not read: unless only rewards were normalised, it will act wrongly without "
                "statistics: in a contract", self.path,
            )  # fmt: skip

    def limits(self, actions: int) -> Limits | None:
        """Return the readable limits of the actions, if there are as many as actions."""
        low, high = (
            _numbers(str(self.section("action_space").get(name, ""))) for name in ("low", "high")
        )
        return (low, high) if len(low) == len(high) == actions else None

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
            return self.unsaid.hidden_activation(self.where, default)
        known = {str(make): name for name, make in ACTIVATIONS.items()}
        if stated not in known:
            raise self.refusal(
                f"has activation {str(stated)[:80]}; known are {', '.join(ACTIVATIONS)}"
            )
        if self.unsaid.activation not in (None, known[stated]):
            raise self.refusal(
                f"says activation {known[stated]}, and the contract {self.unsaid.activation}"
            )
        return known[stated]

    def found(self, default: Activation, actions: int, **more: Any) -> Actor:
        """Return the actor; ``default`` is its activation where the file says none."""
        named = self.unsaid.statistics
        return self.actor(
            replace(self.unsaid, activation=self.activation(default)),
            scaler=None if named in (None, NONE, FILE) else GYMNASIUM.of_file(named),
            limits=self.limits(actions),
            action_dim=actions,
            **more,
        )


def _diagonal_gaussian(model: _Model) -> Actor:
    """PPO and A2C: a mean in raw units, a width that does not depend on the state."""
    layers = [*model.perceptron("mlp_extractor.policy_net"), model.layer("action_net")]
    log_std = model.tensor("log_std", 1)
    model.check_used("value_net.", "mlp_extractor.value_net.")
    return model.found(
        "tanh", len(log_std), layers=layers, log_std=log_std, make=diagonal_gaussian,
        units=raw_units(len(log_std)),
    )  # fmt: skip


def _tanh_gaussian(model: _Model) -> Actor:
    """SAC: mean and width from a common body; our last layer is both of its heads."""
    body = model.perceptron("actor.latent_pi")
    mean, log_std = model.layer("actor.mu"), model.layer("actor.log_std")
    model.check_used("critic.", "critic_target.")
    if mean[0].shape != log_std[0].shape:
        raise model.refusal("its layers do not fit one another")
    heads = torch.cat([mean[0], log_std[0]]), torch.cat([mean[1], log_std[1]])
    return model.found("relu", len(mean[1]), layers=[*body, heads], make=tanh_gaussian)


def _deterministic(model: _Model) -> Actor:
    """TD3 and DDPG: a perceptron with tanh at its end."""
    layers = model.perceptron("actor.mu")
    model.check_used("actor_target.", "critic.", "critic_target.")
    return model.found("relu", len(layers[-1][1]), layers=layers, make=deterministic)


_READERS: Mapping[str, Callable[[_Model], Actor]] = {
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
