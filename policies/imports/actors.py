"""Actors out of other libraries' files: linear layers, a normaliser, and the policy of them.

Every library keeps the layers of a perceptron under names of its own, normalises observations by a
formula of its own, and says neither the activation nor, mostly, the limits of the actions in its
file. :mod:`trimtab.policies.imports.libraries` finds layers and statistics; what the file does not
say is in :class:`Unsaid`. Here they become a policy.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trimtab.errors import TrimtabError, nearest
from trimtab.files import read_whole
from trimtab.policies.base import Policy
from trimtab.policies.defaults import OwnDraws, torch_defaults
from trimtab.policies.imports.torch_archive import TensorArchive, member, readable
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.networks.mlp import ACTIVATIONS, Activation
from trimtab.types import PolicySpec

Layer = tuple[Tensor, Tensor]
"""Weight ``[outputs, inputs]`` and bias ``[outputs]`` of a linear layer."""
Limits = tuple[tuple[float, ...], tuple[float, ...]]
"""Lower and upper limits of actions, each ``[A]``, raw units."""

_STATISTICS = ("mean", "variance")
NONE, FILE, TANH = "none", "file", "tanh"
"""Words of a contract: no statistics, or those of the weight file; no output function, or tanh."""


@dataclass(frozen=True)
class Unsaid:
    """What a contract says of a weight file that the file does not.

    Attributes:
        activation: of the hidden layers, a name of ``ACTIVATIONS``.
        output: what follows the last layer, ``none`` or ``tanh``; of rl_games ``none`` means that
            the mean is the action (``clip_actions: False``).
        statistics: of observations: ``none`` where they were not normalised, ``file`` for those of
            the weight file, or the path of an ``.npz`` with ``mean`` and ``variance`` ``[O]``.
    """

    activation: str | None = None
    output: str | None = None
    statistics: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("activation", ACTIVATIONS), ("output", (NONE, TANH))):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise TrimtabError(f"contract: {name}: {value}: {nearest(str(value), known)}")

    def hidden_activation(self, where: str, default: Activation | None = None) -> Activation:
        """Return the activation that the contract says, or else what the file says.

        Raises:
            TrimtabError: if neither does.
        """
        for name in ACTIVATIONS:
            if name == (self.activation or default):
                return name
        raise TrimtabError(
            f"{where}: does not say its activation; write it into the contract, such as "
            "activation: elu"
        )


@dataclass(frozen=True)
class Scaler:
    """Observations as a network reads them: ``(x - shift) / scale``, clipped.

    Attributes:
        shift: ``[O]``.
        scale: ``[O]``, above 0.
        limit: they are clipped to ``[-limit, limit]``; None: they are not.
    """

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]
    limit: float | None = None


@dataclass(frozen=True)
class Formula:
    """How a library normalises: ``(x - mean) / divisor(std)``, clipped to ``[-limit, limit]``."""

    divisor: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    limit: float | None = None

    def scaler(self, mean: NDArray[Any], std: NDArray[Any]) -> Scaler:
        """Return the normaliser of statistics, of any shape with as many entries."""
        flat = std.astype(np.float64).reshape(-1)
        return Scaler(mean.astype(np.float64).reshape(-1), self.divisor(flat), self.limit)

    def of_file(self, statistics: str) -> Scaler:
        """Return the normaliser of the statistics in an ``.npz``.

        Raises:
            TrimtabError: if it has not the arrays ``mean`` and ``variance``.
        """
        path = Path(statistics).expanduser()
        data = read_whole(path)
        with readable(f"statistics {path}"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                mean, variance = (
                    _array(io.BytesIO(member(archive, f"{name}.npy"))) for name in _STATISTICS
                )
            with np.errstate(invalid="ignore"):  # a negative one is refused as not above 0
                return self.scaler(mean, np.sqrt(variance))


def _array(file: io.BytesIO) -> NDArray[np.float64]:
    """Return the numbers of an ``.npy``; one of objects is refused."""
    read: Any = np.lib.format.read_array  # numpy 1.26 does not say its types
    return np.asarray(read(file, allow_pickle=False), np.float64)


GYMNASIUM = Formula(lambda std: np.sqrt(std**2 + 1e-8), 10.0)
"""Gymnasium's ``NormalizeObservation`` with a clip at 10, and ``VecNormalize``."""


@dataclass(frozen=True)
class Actor:
    """The perceptron of an actor, and what surrounds it.

    Attributes:
        where: the file, for messages.
        layers: the linear ones in their order.
        activation: of the hidden layers.
        action_dim: length A of an action.
        make: builds the policy of it.
        log_std: logarithm of a width that does not depend on the state, ``[A]``.
        scaler: of observations; None: they are read as they are.
        units: shift and scale ``[A]`` of the last layer's outputs to raw units; None: from
            ``[-1, 1]`` to the limits of the actions.
        limits: of the actions, where the file says them.
        obs_names: of the entries of an observation, where the file says them.
    """

    where: str
    layers: Sequence[Layer]
    activation: Activation
    action_dim: int
    make: Callable[[Actor, PolicySpec], Policy]
    log_std: Tensor | None = None
    scaler: Scaler | None = None
    units: tuple[Tensor, Tensor] | None = None
    limits: Limits | None = None
    obs_names: Sequence[str] = ()
    horizon: ClassVar[int] = 1
    history: ClassVar[int] = 1
    act_steps: ClassVar[int] = 1

    @property
    def obs_dim(self) -> int:
        """Length O of an observation."""
        return int(self.layers[0][0].shape[1])

    @property
    def hidden(self) -> list[int]:
        """Widths of the hidden layers."""
        return [len(bias) for _, bias in self.layers[:-1]]

    @torch_defaults()
    def policy(self, spec: PolicySpec) -> Policy:
        """Return the policy that acts as the actor did.

        Args:
            spec: shapes and limits; its horizon is 1.

        Raises:
            TrimtabError: if the layers do not fit one another, the statistics or ``spec``, or have
                values that are not finite.
        """
        self._check(spec)
        with OwnDraws():  # of weights that are replaced
            policy = self.make(self, spec)
        linear = [layer for layer in policy.get_submodule("network").modules()
                  if isinstance(layer, nn.Linear)]  # fmt: skip
        with torch.no_grad():
            for layer, (weight, bias) in zip(linear, self.layers, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        scaler = self.scaler
        obs = None if scaler is None else map(torch.from_numpy, (scaler.shift, scaler.scale))
        return finished(policy, self.where, obs, self.units)

    def _check(self, spec: PolicySpec) -> None:
        for weight, bias in self.layers:
            if len(weight) != len(bias) or 0 in weight.shape:
                shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
                raise TrimtabError(f"{self.where}: a layer has shapes {shapes}")
        chained = all(len(bias) == after.shape[1]
                      for (_, bias), (after, _) in pairwise(self.layers))  # fmt: skip
        outputs, actions = len(self.layers[-1][1]), self.action_dim
        if not chained or not actions or outputs % actions or (
            self.log_std is not None and outputs != actions
        ):  # fmt: skip
            raise TrimtabError(f"{self.where}: its layers do not fit one another")
        check_lengths(self.where, (self.obs_dim, self.action_dim), spec)
        if any(len(unit) != actions for unit in self.units or ()):
            raise TrimtabError(f"{self.where}: its units are not those of {actions} actions")
        if self.scaler is not None and not (
            len(self.scaler.shift) == len(self.scaler.scale) == self.obs_dim
            and (self.scaler.scale > 0).all()
        ):
            raise TrimtabError(
                f"{self.where}: its statistics have {len(self.scaler.shift)} entries for an "
                f"observation of {self.obs_dim}, or a deviation that is not above 0"
            )
        for name, ours, theirs in zip(
            ("low", "high"), (spec.action_low, spec.action_high), self.limits or (), strict=False
        ):
            if len(theirs) != len(ours) or not np.allclose(theirs, ours, rtol=1e-5, atol=1e-6):
                raise TrimtabError(
                    f"{self.where}: its actions have {name} {theirs}, those of env {ours}"
                )


def check_lengths(where: str, have: tuple[int, int], spec: PolicySpec) -> None:
    """Check that a policy's observations and actions are as long as those of ``spec``.

    Raises:
        TrimtabError: if they are not.
    """
    need = spec.obs_dim, spec.action_dim
    if have != need:
        raise TrimtabError(
            f"{where}: observation and action lengths {have} against {need} of env; name the task "
            "that it was trained on"
        )


def finished(
    policy: Policy, where: str, obs: Iterable[Tensor] | None, action: Iterable[Tensor] | None
) -> Policy:
    """Return a policy, in evaluation mode, with units in which its network works.

    Args:
        policy: with its weights.
        where: the file, for messages.
        obs: shift and scale of observations ``[O]``; None: as the policy has them.
        action: shift and scale of actions ``[A]``, likewise.

    Raises:
        TrimtabError: if weights or units are not finite.
    """
    with torch.no_grad():
        for side, units in (("obs", obs), ("action", action)):
            for part, value in zip(("shift", "scale"), units or (), strict=False):
                policy.normalizer.get_buffer(f"{side}_{part}").copy_(value)
    for name, value in policy.state_dict().items():
        if not bool(torch.isfinite(value).all()):
            raise TrimtabError(f"{where}: {name} has values that are not finite")
    return policy.eval()


def diagonal_gaussian(actor: Actor, spec: PolicySpec) -> Policy:
    """Return a policy with the actor's mean, and a width that does not depend on the state."""
    policy = DiagonalGaussianPolicy(spec, **_perceptron(actor))
    if actor.log_std is not None:
        with torch.no_grad():
            policy.log_std.copy_(actor.log_std[None])
    return policy


def tanh_gaussian(actor: Actor, spec: PolicySpec) -> Policy:
    """Return a policy whose last layer gives mean and logarithm of the width before a tanh."""
    # Stable-Baselines3's bounds
    return TanhGaussianPolicy(spec, **_perceptron(actor), log_std_min=-20.0, log_std_max=2.0)


def deterministic(actor: Actor, spec: PolicySpec) -> Policy:
    """Return a policy that ends with a tanh and takes no noise."""
    return DeterministicPolicy(spec, **_perceptron(actor))


def _perceptron(actor: Actor) -> dict[str, Any]:
    """Return the keywords that all kinds of such policies have."""
    limit = None if actor.scaler is None else actor.scaler.limit
    return {"hidden": actor.hidden, "activation": actor.activation, "obs_limit": limit}


def raw_units(actions: int) -> tuple[Tensor, Tensor]:
    """Return the units of outputs that are in raw units already."""
    return torch.zeros(actions), torch.ones(actions)


@dataclass
class Named:
    """The tensors of one dictionary, which have to be used up: one that is left has a meaning.

    Attributes:
        archive: them by name.
        used: names of those that were read.
    """

    archive: TensorArchive
    used: set[str] = field(default_factory=set)

    @property
    def where(self) -> str:
        """The file."""
        return self.archive.where

    def refusal(self, why: str) -> TrimtabError:
        """Return the error that this file cannot be taken over."""
        return TrimtabError(f"{self.where}: {why}")

    def __contains__(self, name: str) -> bool:
        return name in self.archive

    def tensor(self, name: str, dimensions: int | None = None) -> Tensor:
        """Return a tensor in single precision, of any number of dimensions if that is None.

        Raises:
            TrimtabError: if it is missing or has another number of dimensions.
        """
        if name not in self.archive:
            raise self.refusal(f"lacks {name}; if its actor is of another form, export it as ONNX")
        value = torch.from_numpy(self.archive[name]).float()
        if dimensions not in (None, value.ndim):
            raise self.refusal(f"{name} has shape {tuple(value.shape)}")
        self.used.add(name)
        return value

    def layer(self, prefix: str) -> Layer:
        """Return a linear layer."""
        return self.tensor(f"{prefix}.weight", 2), self.tensor(f"{prefix}.bias", 1)

    def perceptron(self, prefix: str) -> list[Layer]:
        """Return the linear layers of a sequence: every other module is an activation."""
        layers: list[Layer] = []
        while f"{prefix}.{2 * len(layers)}.weight" in self.archive:
            layers.append(self.layer(f"{prefix}.{2 * len(layers)}"))
        return layers

    def statistics(
        self, formula: Formula, mean: str, spread: str, *, variance: bool = False
    ) -> Scaler:
        """Return the normaliser of statistics in the file.

        Args:
            formula: of the library.
            mean: name of the means.
            spread: name of the deviations, or of the variances.
            variance: whether they are variances.
        """
        self.used |= {mean, spread}
        found = self.archive[spread].astype(np.float64)
        with np.errstate(invalid="ignore"):
            return formula.scaler(self.archive[mean], np.sqrt(found) if variance else found)

    def actor(
        self,
        unsaid: Unsaid,
        layers: Sequence[Layer],
        make: Callable[[Actor, PolicySpec], Policy],
        activation: Activation | None = None,
        *,
        scaler: Scaler | None = None,
        **more: Any,
    ) -> Actor:
        """Return an actor of this file.

        Args:
            unsaid: what the file does not say; without statistics there is no normaliser.
            layers: the linear ones in their order; the last one gives an action.
            make: builds the policy.
            activation: of the library, where it is always the same.
            scaler: of observations.
            more: what else there is of :class:`Actor`.

        Raises:
            TrimtabError: if there is no layer, nothing says the activation, or the contract says
                otherwise of the statistics or the output than the file.
        """
        if not layers:
            raise self.refusal("has no layers of an actor")
        if scaler is None and unsaid.statistics == FILE:
            raise self.refusal(
                "has no statistics of observations; take statistics: file out of the contract"
            )
        if make is not diagonal_gaussian and unsaid.output == NONE:
            raise self.refusal("gives a tanh; take output: none out of the contract")
        return Actor(
            where=self.where,
            layers=layers,
            activation=unsaid.hidden_activation(self.where, activation),
            make=make,
            scaler=None if unsaid.statistics == NONE else scaler,
            **{"action_dim": len(layers[-1][1]), **more},
        )

    def check_used(self, *others: str) -> None:
        """Check that no tensor of the actor was left out.

        Args:
            others: what the names of critics, targets and counters begin with.
        """
        for name in self.archive:
            if name not in self.used and not name.startswith(others):
                raise self.refusal(
                    f"has {name[:80]}, which a perceptron of its kind has not; export it as ONNX"
                )
