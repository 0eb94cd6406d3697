"""Networks whose weights and features lie on unit hyperspheres: SimbaV2's.

Lee et al., "Hyperspherical Normalization for Scalable Deep Reinforcement Learning" (arXiv
2502.15280), section 4, with the numbers of the published code (dojeon-ai/SimbaV2,
``scale_rl/agents/simbaV2/simbaV2_layer.py``). With ``n(x) = x / max(|x|, 1e-8)``, d the width and L
the number of blocks:

- embedding:  h <- n(s * (W n([x, c])))
- block:      g = n(V relu(t * (U h)) + 1e-8),  h <- n(h + a * (g - h)),  U to 4 d features
- head:       W_2 (s * (W_1 h)) + b

The weights of each output unit have norm 1 (``project_weights_`` after every step of an optimiser).
s, t and a are learned vectors, stored as ``scale`` and multiplied by ``initial / scale``, so that
one learning rate suits them and the unit weights: sqrt(2 / d) and the same, half of both inside a
block, for a 1 / (L + 1) and 1 / sqrt(d), in a head 1 and 1.

A network is one, ``[B, inputs]`` to ``[B, outputs]``, or E ``members`` of it in one pass,
``[E, B, inputs]`` to ``[E, B, outputs]``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "Head", "HypersphericalCritic", "HypersphericalLinear", "Scaler", "make_body",
    "project_weights_",
]  # fmt: skip

_SMALLEST = 1e-8
_EXPANSION = 4
"""Features inside a block for each one outside."""
_SHIFT = 3.0
"""c, which keeps the length of the input within its direction."""


def _unit(x: Tensor, dim: int = -1) -> Tensor:
    """Return ``x`` with norm 1 along a dimension."""
    return functional.normalize(x, dim=dim, eps=_SMALLEST)


class HypersphericalLinear(nn.Module):
    """Linear layers without a bias, whose weights of each output unit have norm 1.

    They begin orthogonal.

    Args:
        inputs: width of the input.
        outputs: width of the output.
        members: layers E side by side; None: one without that dimension.
    """

    def __init__(self, inputs: int, outputs: int, members: int | None = None) -> None:
        super().__init__()
        weight = torch.empty(members or 1, inputs, outputs)
        for member in weight:
            nn.init.orthogonal_(member)
        self.weight = nn.Parameter(_unit(weight if members else weight[0], dim=-2))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x @ weight``."""
        return x @ self.weight


@torch.no_grad()
def project_weights_(network: nn.Module) -> None:
    """Give the weights of each output unit norm 1 again; scalers and biases stay."""
    for layer in network.modules():
        if isinstance(layer, HypersphericalLinear):
            layer.weight.copy_(_unit(layer.weight, dim=-2))


class Scaler(nn.Module):
    """A learned factor of each feature.

    Args:
        width: number of features.
        initial: the factor at the start.
        scale: what is stored for it, to which a learning rate is relative.
        members: as in :class:`HypersphericalLinear`.
    """

    def __init__(self, width: int, initial: float, scale: float, members: int | None) -> None:
        super().__init__()
        shape = (1, width) if members is None else (members, 1, width)
        self.weight = nn.Parameter(torch.full(shape, scale))
        self.ratio = initial / scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the features ``[..., width]`` scaled."""
        return x * (self.weight * self.ratio)


class Embedding(nn.Module):
    """The input ``[..., inputs]`` as a feature ``[..., width]`` of norm 1."""

    def __init__(self, inputs: int, width: int, members: int | None) -> None:
        super().__init__()
        scale = math.sqrt(2.0 / width)
        self.linear = HypersphericalLinear(inputs + 1, width, members)
        self.scaler = Scaler(width, scale, scale, members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features."""
        x = functional.pad(x, (0, 1), value=_SHIFT)
        return _unit(self.scaler(self.linear(_unit(x))))


class Block(nn.Module):
    """A step along the sphere from the features towards those of a perceptron of them."""

    def __init__(self, width: int, blocks: int, members: int | None) -> None:
        super().__init__()
        inner = _EXPANSION * width
        scale = math.sqrt(2.0 / width) / math.sqrt(_EXPANSION)
        self.first = HypersphericalLinear(width, inner, members)
        self.scaler = Scaler(inner, scale, scale, members)
        self.second = HypersphericalLinear(inner, width, members)
        self.step = Scaler(width, 1.0 / (blocks + 1), 1.0 / math.sqrt(width), members)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features ``[..., width]`` after the block, of norm 1."""
        inner = torch.relu(self.scaler(self.first(x))) + _SMALLEST
        return _unit(x + self.step(_unit(self.second(inner)) - x))


class Head(nn.Module):
    """What is read from features ``[..., width]``: ``[..., outputs]``, of any size."""

    def __init__(self, width: int, outputs: int, members: int | None = None) -> None:
        super().__init__()
        self.first = HypersphericalLinear(width, width, members)
        self.scaler = Scaler(width, 1.0, 1.0, members)
        self.second = HypersphericalLinear(width, outputs, members)
        shape = (1, outputs) if members is None else (members, 1, outputs)
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        outputs: Tensor = self.second(self.scaler(self.first(x))) + self.bias
        return outputs


def make_body(inputs: int, width: int, blocks: int, members: int | None = None) -> nn.Sequential:
    """Return an embedding and its blocks, ``[..., inputs]`` to features ``[..., width]``."""
    stack = [Block(width, blocks, members) for _ in range(blocks)]
    return nn.Sequential(Embedding(inputs, width, members), *stack)


class HypersphericalCritic(nn.Module):
    """Q functions as distributions over fixed atoms, E in one pass.

    Args:
        obs_dim: length of the observation.
        action_size: length of the flattened action chunk.
        width: of the features.
        blocks: how many there are.
        members: number E of Q functions.
        atoms: number M of values.
        bound: they lie evenly from ``-bound`` to ``bound``.

    Attributes:
        support: the atoms, ``[M]``.
    """

    support: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_size: int,
        *,
        width: int,
        blocks: int,
        members: int,
        atoms: int,
        bound: float,
    ) -> None:
        super().__init__()
        self.register_buffer("support", torch.linspace(-bound, bound, atoms))
        self.body = make_body(obs_dim + action_size, width, blocks, members)
        self.head = Head(width, atoms, members)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return logits ``[E, B, M]`` of ``obs`` ``[B, O]`` and chunks ``[B, H, A]``."""
        logits: Tensor = self.head(self.body(torch.cat([obs, action.flatten(1)], dim=1)))
        return logits
