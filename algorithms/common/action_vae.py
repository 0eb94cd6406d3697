"""A variational autoencoder of actions, given the observation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trimtab.policies.networks.mlp import mlp

__all__ = ["ActionVAE", "divergence"]

_WIDTHS = (-4.0, 15.0)
"""Range of the logarithm of the latent's standard deviation."""


class ActionVAE(nn.Module):
    """Encode an action with its observation, and decode it again.

    Fujimoto et al., "Off-Policy Deep Reinforcement Learning without Exploration" (arXiv
    1812.02900), section 4.

    Args:
        obs_dim: length of the observation.
        size: length of the flattened action chunk.
        hidden: widths of the hidden layers of encoder and decoder.
    """

    def __init__(self, obs_dim: int, size: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.latent = 2 * size
        self.encoder = mlp(obs_dim + size, hidden, 2 * self.latent)
        self.decoder = mlp(obs_dim + self.latent, hidden, size)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what decoding makes of an encoded action, and mean and log-width of the latent.

        Args:
            obs: normalised observations ``[B, O]``.
            action: scaled to [-1, 1], ``[B, H, A]``.

        Returns:
            Actions ``[B, H, A]``, and two ``[B, latent]``.
        """
        mean, log_std = self.encoder(torch.cat([obs, action.flatten(1)], dim=1)).chunk(2, dim=1)
        log_std = log_std.clamp(*_WIDTHS)
        latent = mean + log_std.exp() * torch.randn_like(mean)
        decoded = torch.tanh(self.decoder(torch.cat([obs, latent], dim=1)))
        return decoded.reshape(action.shape), mean, log_std


def divergence(mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the mean divergence of a latent's numbers from standard normal ones."""
    return -0.5 * (1.0 + 2.0 * log_std - mean.square() - (2.0 * log_std).exp()).mean()
