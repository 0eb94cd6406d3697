"""Embeddings of states and actions that predict what comes next.

Fujimoto et al., "Towards General-Purpose Model-Free Reinforcement Learning" (arXiv 2501.16142),
appendix B.2, by the published code (facebookresearch/MRQ, ``MRQ/models.py``). All perceptrons have
layer normalisation without weights of its own, and begin with Xavier-uniform weights and biases 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.policies.networks.mlp import ACTIVATIONS, Activation

__all__ = ["EmbeddedCritic", "EmbeddingModel", "normed", "perceptron"]


def normed(width: int, activation: Activation) -> list[nn.Module]:
    """Return layer normalisation without weights, and an activation."""
    return [nn.LayerNorm(width, elementwise_affine=False), ACTIVATIONS[activation]()]


def perceptron(
    inputs: int, width: int, outputs: int, activation: Activation = "elu"
) -> nn.Sequential:
    """Return a perceptron with two hidden layers, ``[..., inputs]`` to ``[..., outputs]``."""
    network = nn.Sequential(
        nn.Linear(inputs, width),
        *normed(width, activation),
        nn.Linear(width, width),
        *normed(width, activation),
        nn.Linear(width, outputs),
    )
    return begin_(network)


def begin_(network: nn.Sequential) -> nn.Sequential:
    """Give linear layers Xavier-uniform weights with the gain of ReLU, and biases 0."""
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, nn.init.calculate_gain("relu"))
            nn.init.zeros_(layer.bias)
    return network


class EmbeddingModel(nn.Module):
    """Joint embeddings of states and actions, of which all that comes next is a linear function.

    Args:
        state_size: length Z of a state's embedding.
        action_size: length of a flattened action chunk.
        action_embedding: length of an action's embedding.
        bins: number M of bins of the reward.
    """

    def __init__(
        self, state_size: int, action_size: int, *, action_embedding: int, bins: int
    ) -> None:
        super().__init__()
        self.sizes = (1, state_size, bins)
        self.action = begin_(nn.Sequential(nn.Linear(action_size, action_embedding), nn.ELU()))
        self.joint = perceptron(state_size + action_embedding, state_size, state_size)
        self.next = begin_(nn.Sequential(nn.Linear(state_size, sum(self.sizes))))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Return joint embeddings ``[B, Z]`` of embedded states ``[B, Z]`` and of actions.

        Args:
            state: embeddings of states.
            action: chunks ``[B, H, A]``.
        """
        joint: Tensor = self.joint(torch.cat([state, self.action(action.flatten(1))], dim=1))
        return joint

    def predict(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what comes next: whether it is the end, the embedding, the reward.

        Args:
            state: embeddings of states ``[B, Z]``.
            action: chunks ``[B, H, A]``.

        Returns:
            ``[B]``, ``[B, Z]``, and logits ``[B, M]``.
        """
        ends, following, reward = self.next(self(state, action)).split(self.sizes, dim=1)
        return ends[:, 0], following, reward


class EmbeddedCritic(nn.Module):
    """E Q functions of joint embeddings: perceptrons with three hidden layers.

    Args:
        inputs: length Z of a joint embedding.
        width: of the hidden layers.
        members: number E.
    """

    def __init__(self, inputs: int, width: int, members: int = 2) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            nn.Sequential(
                *perceptron(inputs, width, width),
                *normed(width, "elu"),
                *begin_(nn.Sequential(nn.Linear(width, 1))),
            )
            for _ in range(members)
        )

    def forward(self, joint: Tensor) -> Tensor:
        """Return values ``[E, B]`` of joint embeddings ``[B, Z]``."""
        return torch.stack([member(joint)[:, 0] for member in self.members])
