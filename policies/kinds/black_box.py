"""A policy of which only its graph is known: what goes in, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.agent import ArrayObs, PolicyInputs
from trimtab.policies.base import Policy
from trimtab.policies.memory import following, state_parts
from trimtab.policies.onnx_session import open_session, run_session
from trimtab.types import Obs, PolicySpec

__all__ = ["OPERATOR", "BlackBoxPolicy"]

OPERATOR = "trimtab::BlackBox"
"""Stands for a black box in a graph that is being exported, until its own graph takes its place."""


class BlackBoxPolicy(Policy):
    """``action = graph(obs, noise)``, carried out by onnxruntime: no weights and no gradients.

    It can be steered by its noise, searched, sampled and judged. The graph is a part of the state,
    bytes like others, so that a bundle of what is steered holds it too. What the graph gives is
    clipped to the limits of the spec. Normalisation is inside of the graph; the normaliser beside
    it only tells others in which range observations lie (``Normalizer.take_range``).

    Args:
        spec: shapes and limits.
        noise: shape of one row's noise.
        size: bytes of the graph.

    Attributes:
        number: of this black box among those of one graph that is being exported.
    """

    computed_by_torch = False
    onnx_bytes: Tensor
    number: int = 0

    def __init__(self, spec: PolicySpec, noise: Sequence[int], size: int) -> None:
        shape = tuple(int(length) for length in noise)
        super().__init__(spec, shape, noise=list(shape), size=int(size))
        self.register_buffer("onnx_bytes", torch.zeros(int(size), dtype=torch.uint8))
        self._opened: tuple[Any, onnxruntime.InferenceSession] | None = None

    @classmethod
    def of(cls, spec: PolicySpec, noise: Sequence[int], graph: bytes) -> BlackBoxPolicy:
        """Return the policy of a graph whose inputs and output have the names of a bundle's.

        Raises:
            TrimtabError: if onnxruntime cannot open it.
        """
        policy = cls(spec, noise, len(graph)).eval()
        policy.onnx_bytes.copy_(torch.frombuffer(bytearray(graph), dtype=torch.uint8))
        policy.session()
        return policy

    @property
    def inputs(self) -> PolicyInputs:
        """What it reads at each decision, and what it hands on to the next one."""
        found = super().inputs
        return replace(found, advance=self.advance) if state_parts(found.parts) else found

    def advance(self, obs: ArrayObs, noise: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return what the graph hands on, by the part that will have it at the next decision.

        Args:
            obs: raw parts ``[B, ...]``.
            noise: ``[B, *noise_shape]``.

        Raises:
            TrimtabError: if onnxruntime fails.
        """
        assert isinstance(obs, Mapping)  # a flat observation alone hands nothing on
        names = list(state_parts(self.spec.parts))
        outputs = [following(name) for name in names]
        values = run_session(self.session(), outputs, {**obs, "noise": noise}, "black box")
        return dict(zip(names, values, strict=True))

    def graph_bytes(self) -> bytes:
        """Return the graph as it would lie in a file."""
        return self.onnx_bytes.cpu().numpy().tobytes()

    def session(self) -> onnxruntime.InferenceSession:
        """Return what carries the graph out; it is opened again where the graph has changed."""
        key = (self.onnx_bytes.data_ptr(), self.onnx_bytes._version)
        if self._opened is None or self._opened[0] != key:
            self._opened = (key, open_session(self.graph_bytes(), "black box"))
        return self._opened[1]

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``.

        Raises:
            TrimtabError: if a gradient is to pass through, or onnxruntime fails.
        """
        parts = dict(obs) if isinstance(obs, Mapping) else {FLAT: obs}
        inputs = {**{name: parts[name] for name in self.spec.layout}, "noise": noise}
        if torch.compiler.is_exporting():
            action = self._stand_in(inputs)
        else:
            action = self._carried_out(inputs)
        low, high = self.normalizer.action_low, self.normalizer.action_high
        return torch.maximum(torch.minimum(action, high), low)

    def _stand_in(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the output of a node in whose place the exporter puts the black box."""
        noise = inputs["noise"]
        return torch.onnx.ops.symbolic(
            OPERATOR,
            list(inputs.values()),
            attrs={"number": self.number},
            dtype=torch.float32,
            shape=[noise.shape[0], self.spec.horizon, self.spec.action_dim],
            version=1,
        )

    def _carried_out(self, inputs: Mapping[str, Tensor]) -> Tensor:
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs.values()):
            raise TrimtabError(
                "a black box gives no gradients; choose a method that steers it from outside"
            )
        arrays = {
            name: np.ascontiguousarray(tensor.detach().cpu().numpy())
            for name, tensor in inputs.items()
        }
        (action,) = run_session(self.session(), ["action"], arrays, "black box")
        return torch.from_numpy(action).to(inputs["noise"].device)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session, which a copy opens for itself."""
        return {**self.__dict__, "_opened": None}
