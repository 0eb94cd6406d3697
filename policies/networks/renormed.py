"""Perceptrons with batch renormalisation of the input and after each activation.

Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity" (arXiv 1902.05605), in its code ``sbx/sac/policies.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab.policies.networks.batch_norm import BatchRenorm
from trimtab.policies.networks.critic import EnsembleCritic, Members
from trimtab.policies.networks.mlp import check_widths

__all__ = ["RenormedCritic", "RenormedPerceptron"]


class RenormedPerceptron(nn.Module):
    """``[B, inputs]`` to ``[B, outputs]``: each hidden layer is linear, ReLU, renormalisation.

    Args:
        inputs: width of the input, which is renormalised first.
        hidden: widths of the hidden layers.
        outputs: width of the linear output.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        check_widths(hidden)
        widths = [inputs, *hidden]
        self.norms = nn.ModuleList(BatchRenorm(width) for width in widths)
        pairs = zip(widths, [*hidden, outputs], strict=True)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    def forward(self, x: Tensor, learning: bool = False) -> Tensor:
        """Return the outputs; ``learning`` as in :class:`BatchRenorm`."""
        x = self.norms[0](x, learning)
        *hidden, last = self.layers
        for layer, norm in zip(hidden, list(self.norms)[1:], strict=True):
            x = norm(layer(x).relu(), learning)
        output: Tensor = last(x)
        return output


class RenormedCritic(EnsembleCritic):
    """Q functions whose perceptrons have batch renormalisation, each with its own statistics.

    Called as other critics are, they are judged by their running statistics.

    Args:
        obs_dim: length of the observation.
        action_size: length of the flattened action chunk.
        hidden: widths of the hidden layers.
        members: number E of Q functions.
    """

    def __init__(
        self, obs_dim: int, action_size: int, *, hidden: Sequence[int], members: int = 2
    ) -> None:
        super().__init__(obs_dim, action_size, hidden=hidden, members=members)
        widths = [obs_dim + action_size, *hidden]
        self.norms = nn.ModuleList(BatchRenorm(width, members) for width in widths)

    def of_rows(self, x: Tensor, members: Members = None, learning: bool = False) -> Tensor:
        """Return values ``[E, B]`` of each member's own rows ``[E, B, inputs]``.

        Args:
            x: rows.
            members: None: single members have no pass of their own.
            learning: whether the batch's own statistics normalise it, and the running ones follow.
        """
        assert members is None
        first, *others = self.norms
        x = first(x, learning)
        for layer in self.network:
            x = others.pop(0)(layer(x), learning) if isinstance(layer, nn.ReLU) else layer(x)
        return x.squeeze(-1)

    def of_actions(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return values ``[E, N, B]`` of N actions ``[N, B, H, A]`` in each state ``[B, O]``."""
        return torch.stack([self(obs, action) for action in actions], dim=1)
