"""The contract of every policy: a deterministic function of observation and noise."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.observations import count
from trimtab.policies.agent import PolicyInputs
from trimtab.policies.defaults import float32
from trimtab.policies.normalizer import ClippedNormalizer, Normalizer
from trimtab.settings import CheckedSettings, keywords_of
from trimtab.types import Batch, Obs, PolicySpec, Statistics


class InputCheck(Protocol):
    """Checks what a caller gives to a policy that is finished."""

    def obs(self, obs: Any, device: torch.device) -> Obs:
        """Return observations as tensors, or end in one line."""
        ...

    def noise(self, noise: Any, obs: Obs, device: torch.device) -> Tensor:
        """Return the noise of checked observations as a tensor, or end in one line."""
        ...

    def answer(self, action: Tensor, obs: Any) -> Any:
        """Return an action in the form that the caller's observation has."""
        ...


class Policy(nn.Module, metaclass=CheckedSettings):
    """``action = policy(obs, noise)``, from ``[B, O]`` and ``[B, *noise_shape]`` to ``[B, H, A]``.

    An observation is a flat tensor or a mapping of named parts, as ``spec`` says; what the policy's
    user gives besides, such as a weight of guidance, is one of the parts.

    Observations and actions are in raw units; normalisation happens inside. Given its noise a
    policy is deterministic, which is what makes it steerable, exportable and reproducible.

    Attributes:
        section: what errors call its settings.
        spec: shapes and limits.
        noise_shape: shape of the noise of one row, all of it standard normal.
        normalizer: the only place where units change.
        revision: raised by one whenever a policy with equal weights and noise acts differently, or
            is cloned with another loss.
        built_by_method: whether only methods make policies of this kind, which no run can choose.
        input_check: looks at what it is given; a policy out of a bundle has one.
        neutral: values of later keywords with which a policy is what it was without them.
        derived: keywords that follow from the others, such as a table that a library makes; they
            are saved, and no run is known by them.
        adjustable: keywords that decide how a trained policy acts, so that they may be changed
            afterwards; see :func:`trimtab.policies.bundle.adjusting.adjusted`.
        adjustable_inside: whether those of the policies within it may be.
        computed_by_torch: whether torch computes its actions, on its device; those of a black box
            and of a server come from outside.
        no_graph: why it cannot become an ONNX graph; empty if it can.
        evaluate_deterministic: whether this kind is judged with zero noise unless asked otherwise.

    Args:
        spec: shapes and limits.
        noise_shape: shape of the noise of one row.
        keywords: settings that its config has in another form than they were given.
    """

    section: ClassVar[str] = "policy"
    revision: ClassVar[int] = 1
    built_by_method: ClassVar[bool] = False
    neutral: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    derived: ClassVar[frozenset[str]] = frozenset()
    adjustable: ClassVar[frozenset[str]] = frozenset()
    adjustable_inside: ClassVar[bool] = True
    computed_by_torch: ClassVar[bool] = True
    no_graph: str = ""
    evaluate_deterministic: bool = False

    normalizer: Normalizer
    input_check: InputCheck | None = None
    _keywords: dict[str, Any]

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        """Return a policy that knows its settings: the keywords of its class's constructor."""
        policy = super().__new__(cls)
        policy._keywords = {}
        for name, setting in keywords_of(cls).items():
            value = settings.get(name, setting.default)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = list(value)
            if value is not inspect.Parameter.empty:
                policy._keywords[name] = value
        return policy

    def __init__(self, spec: PolicySpec, noise_shape: tuple[int, ...], **keywords: Any) -> None:
        super().__init__()
        self.spec = spec
        self.noise_shape = noise_shape
        self.normalizer = Normalizer(spec)
        self._keywords |= keywords

    @abstractmethod
    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]`` for raw ``obs`` ``[B, O]``, or parts, and ``noise``."""

    def __call__(self, obs: Any, noise: Any) -> Any:
        """Return :meth:`forward`; a policy out of a bundle checks first what it is given."""
        check, device = self.input_check, self.normalizer.obs_shift.device
        if check is None:
            return super().__call__(obs, noise)
        given = check.obs(obs, device)
        with float32():
            action = super().__call__(given, check.noise(noise, given, device))
        return check.answer(action, obs)

    def sample_noise(self, n: int) -> Tensor:
        """Return standard normal noise ``[n, *noise_shape]`` on the policy's device."""
        return torch.randn(n, *self.noise_shape, device=self.normalizer.obs_shift.device)

    @torch.no_grad()
    def act(self, obs: Obs, *, deterministic: bool = False) -> Tensor:
        """Return raw actions ``[B, H, A]`` without gradients.

        Args:
            obs: raw observations ``[B, O]``, or parts.
            deterministic: use zero noise instead of sampled noise.
        """
        check = self.input_check
        given = obs if check is None else check.obs(obs, self.normalizer.obs_shift.device)
        noise = self.sample_noise(count(given))
        action: Tensor = self(given, torch.zeros_like(noise) if deterministic else noise)
        return action if check is None else check.answer(action, obs)

    def fit_normalizer(self, statistics: Statistics) -> None:
        """Fit the normaliser to a dataset's raw-unit statistics."""
        self.normalizer.fit(statistics)

    def _clip_observations(self, limit: float) -> None:
        """Clip normalised observations to ``[-limit, limit]``: the keyword ``obs_limit``."""
        device = self.normalizer.obs_shift.device
        self.normalizer = ClippedNormalizer(self.spec, limit).to(device)
        self._keywords["obs_limit"] = limit

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return the behaviour-cloning loss (scalar).

        Raises:
            TrimtabError: if policies of this kind cannot be cloned.
        """
        raise TrimtabError(
            f"a {self.kind} policy has no behaviour-cloning loss; choose another policy=…"
        )

    def bc_errors(self, batch: Batch) -> Tensor:
        """Return the imitation error of every entry of a batch's chunks, ``[B, H, A]``.

        Their mean over what is valid is :meth:`bc_loss`; a method that weighs decisions by their
        worth takes the mean itself.

        Raises:
            TrimtabError: if policies of this kind have no such errors.
        """
        raise TrimtabError(
            f"a {self.kind} policy has no imitation error for each decision; choose another "
            "policy=…, such as flow or diffusion"
        )

    def log_density(self, obs: Obs, action: Tensor) -> Tensor:
        """Return the log-density of every action of a chunk, ``[B, H]``, before any clip.

        Args:
            obs: raw observations ``[B, O]``, or parts.
            action: raw actions ``[B, H, A]``; those of a chunk are independent of one another.

        Raises:
            TrimtabError: if actions of policies of this kind have no density that can be computed.
        """
        raise TrimtabError(
            f"a {self.kind} policy has no density of its actions; weights by importance need one, "
            "as tanh_gaussian, gaussian, diagonal_gaussian and regression_gaussian have"
        )

    @property
    def inputs(self) -> PolicyInputs:
        """What it reads at each decision."""
        return PolicyInputs(
            self.noise_shape, self.spec.parts, self.spec.history, every_tick=self.spec.every_tick
        )

    @property
    def kind(self) -> str:
        """The name of this kind of policy: that of its module."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def label(self) -> str:
        """What result tables call this policy."""
        return self.kind

    def config(self) -> dict[str, Any]:
        """Return JSON from which ``trimtab.policies.registry.build_policy`` builds an equal one.

        It has the settings, but for those with their ``neutral`` values, where these are defaults.
        """
        known = keywords_of(type(self))
        settings = {
            name: value
            for name, value in self._keywords.items()
            if not (name in known and name in self.neutral)
            or not value == self.neutral[name] == known[name].default
        }
        return {"kind": self.kind, "spec": self.spec.to_json(), **settings}

    @classmethod
    def settled(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return keywords with the content of the files that they name, which a run is known by.

        Raises:
            TrimtabError: if a file cannot be read.
        """
        return dict(settings)

    @classmethod
    def readjusted(cls, config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of a policy of this kind with some of ``adjustable`` changed."""
        kept = {name: value for name, value in config.items() if name not in cls.derived}
        return {**kept, **changes}

    def masked_mean(self, error: Tensor, valid: Tensor) -> Tensor:
        """Average ``error`` ``[B, H, A]`` over the actions that ``valid`` ``[B, H]`` marks."""
        weight = valid.to(error.dtype)
        return (error.mean(dim=-1) * weight).sum() / weight.sum().clamp_min(1.0)


class ComposedPolicy(Policy):
    """A policy that is made of others, mostly of a frozen base and of what is learned beside it.

    It is listed under the kind of its base. Its shapes follow from its parts: its config has those
    of the policies within it, and no spec.

    Attributes:
        base: the policy that it is made of.
        frozen: names of those that stay in evaluation mode; constructors take their gradients away.
    """

    frozen: ClassVar[tuple[str, ...]] = ("base",)
    base: Policy

    def train(self, mode: bool = True) -> Self:
        """Set the mode of what is learned."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self

    @property
    def label(self) -> str:
        """The label of its base."""
        return self.base.label

    def config(self) -> dict[str, Any]:
        """Return JSON that nests the configs of the policies within it."""
        described = super().config()
        del described["spec"]
        parts = self._modules.items()  # named_children() leaves out one that is there twice
        return described | {name: one.config() for name, one in parts if isinstance(one, Policy)}
