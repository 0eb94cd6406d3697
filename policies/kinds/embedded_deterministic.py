"""The deterministic policy of MR.Q, which acts on an embedding of the state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.policies.base import Policy
from trimtab.policies.networks.embedding import normed, perceptron
from trimtab.settings import Size
from trimtab.types import Obs, PolicySpec


class EmbeddedDeterministicPolicy(Policy):
    """``action = tanh(network(encoder(obs)))``, scaled to the action limits; it takes no noise.

    Fujimoto et al., "Towards General-Purpose Model-Free Reinforcement Learning" (arXiv 2501.16142),
    appendix B.2. Its noise has shape ``(0,)``, so it cannot be steered through it.

    Args:
        spec: shapes and limits.
        embedding: length Z of a state's embedding, and width of its encoder.
        width: of the hidden layers after it.
    """

    built_by_method = True
    evaluate_deterministic = True

    def __init__(self, spec: PolicySpec, *, embedding: Size = 512, width: Size = 512) -> None:
        super().__init__(spec, (0,))
        self.encoder = nn.Sequential(
            *perceptron(spec.obs_dim, embedding, embedding), *normed(embedding, "elu")
        )
        self.network = perceptron(embedding, width, spec.horizon * spec.action_dim, "relu")

    def embed(self, normalized_obs: Tensor) -> Tensor:
        """Return embeddings ``[..., Z]`` of normalised observations ``[..., O]``."""
        embedded: Tensor = self.encoder(normalized_obs)
        return embedded

    def before_squashing(self, embedded: Tensor) -> Tensor:
        """Return what a tanh makes actions of, ``[B, H, A]``, for embeddings ``[B, Z]``."""
        action: Tensor = self.network(embedded)
        return action.reshape(-1, self.spec.horizon, self.spec.action_dim)

    def squashed(self, obs: Obs) -> Tensor:
        """Return actions scaled to [-1, 1], ``[B, H, A]``, for raw ``obs`` ``[B, O]``."""
        return torch.tanh(self.before_squashing(self.embed(self.normalizer.obs(obs))))

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``; ``noise`` ``[B, 0]`` is empty."""
        # The empty noise is added up so that an exported graph still has it as an input.
        return self.normalizer.raw_action(self.squashed(obs) + noise.sum())
