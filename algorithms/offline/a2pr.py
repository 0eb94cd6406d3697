"""A2PR: TD3 that is held to good actions only, those of the data or those that a VAE makes of them.

Liu et al., "Adaptive Advantage-Guided Policy Regularization for Offline Reinforcement Learning"
(arXiv 2405.19909). TD3 with a value V and a variational autoencoder of actions beside it:

- value:   L_V = mean (V(s) - min(y, y'))^2,  y' the critics' target and y the same with the critics
           themselves in place of their targets, both with one smoothed next action
- VAE:     L = weight mean 1[Q_1(s, a) > V(s)] |x - a|^2 + KL / 2,  x = decode(encode(s, a)), so
           that it is of actions that are better than usual
- target:  x = decode(encode(s, mu(s))), or a; the one with the greater advantage Q_1(s, .) - V(s)
- actor:   L_mu = -lambda mean Q_1(s, mu(s)) + mean m |mu(s) - target|^2, with
           lambda = alpha / mean |Q_1(s, mu(s))| and m = ``mask`` where x is at least as good as V,
           or a is better, else 0

As coded, the actor's target is what the VAE makes of the actor's own action, with gradients through
it; V is that of before its step. The weights of V and VAE get no gradients of the actor's loss.

Deviations from the authors' code: widths and number of hidden layers are the same for actor,
critics and V (there: 3 layers for the actor, 4 for critics and V). Actions of a chunk that its
episode cut short are left out of both imitation terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.policies.networks.mlp import mlp
from trimtab.settings import NonNegative, Size
from trimtab.types import Batch, Metrics

_WIDTHS = (-4.0, 15.0)
"""Range of the logarithm of the latent's standard deviation."""


class A2PR(TD3BC):
    """TD3 with regularisation towards actions of positive advantage.

    Args:
        setup: needs ``dataset``.
        mask: weight of the regularisation where it applies.
        vae_weight: of the autoencoder's reconstruction.
        vae_hidden: widths of its hidden layers.
        vae_learning_rate: Adam's, for it.
        hidden: widths of the hidden layers of actor, critics and V.
        td3_bc: settings of TD3+BC; ``learning_rate`` is V's, too.
    """

    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        mask: NonNegative = 0.5,
        vae_weight: NonNegative = 1.0,
        vae_hidden: Sequence[Size] = (750, 750),
        vae_learning_rate: NonNegative = 1e-3,
        hidden: Sequence[Size] = (256, 256, 256),
        **td3_bc: Any,
    ) -> None:
        super().__init__(setup, hidden=hidden, **td3_bc)
        self.mask, self.vae_weight = mask, vae_weight
        spec = setup.spec
        self.value = mlp(spec.obs_dim, hidden, 1).to(setup.device)
        self.vae = ActionVAE(spec.obs_dim, spec.horizon * spec.action_dim, vae_hidden).to(
            setup.device
        )
        self.value_optimizer = Adam(self.value.parameters(), self.critic_optimizer.learning_rate)
        self.vae_optimizer = Adam(self.vae.parameters(), vae_learning_rate)

    def update(self, data: Batch) -> Metrics:
        """Take one step of critics, V and autoencoder, every few times of actor and targets."""
        normalizer = self.policy.normalizer
        obs = normalizer.obs(data.obs)
        action = normalizer.normalize_action(self.continue_chunks(data))

        # Critics: regress both to the lesser target value of a smoothed next action.
        next_obs = normalizer.obs(data.next_obs)
        with torch.no_grad():
            following = self.smoothed_action(data.next_obs)
            next_value = self.critic_target(next_obs, following).amin(0)
            backup = data.reward + data.discount * next_value
        estimate = self.critic(obs, action)
        critic_loss = self.critic_loss(estimate, backup)
        self.critic_optimizer.step(critic_loss)

        # V: the lesser of what the critics and their targets say of that next action.
        with torch.no_grad():
            fresh = data.reward + data.discount * self.critic(next_obs, following).amin(0)
            worth = self.critic(obs, action, slice(1))[0]
        value = self.value(obs).squeeze(-1)
        value_loss = (value - torch.minimum(fresh, backup)).square().mean()
        self.value_optimizer.step(value_loss)

        # Autoencoder: of the actions that are better than usual.
        usual = value.detach()
        better = worth > usual
        decoded, mean, log_std = self.vae(obs, action)
        error = (decoded - action).square() * better[:, None, None]
        vae_loss = self.vae_weight * self.policy.masked_mean(error, data.valid)
        vae_loss = vae_loss + 0.5 * divergence(mean, log_std)
        self.vae_optimizer.step(vae_loss)

        if self.actor_due:
            actor_loss = self.regularized(data, obs, action, worth, usual)
            self.policy_optimizer.step(actor_loss)
            polyak(self.critic_target, self.critic, self.tau)
            polyak(self.policy_target, self.policy, self.tau)
            self.last_metrics = {"actor_loss": actor_loss.detach()}
        self.updates += 1
        return {
            "critic_loss": critic_loss.detach(),
            "value_loss": value_loss.detach(),
            "vae_loss": vae_loss.detach(),
            "q_mean": estimate.detach().mean(),
            "better": better.float().mean(),
            **self.last_metrics,
        }

    def regularized(
        self, data: Batch, obs: Tensor, action: Tensor, worth: Tensor, usual: Tensor
    ) -> Tensor:
        """Return the actor's loss.

        Args:
            data: the batch.
            obs: its normalised observations ``[B, O]``.
            action: its scaled actions ``[B, H, A]``.
            worth: Q_1 of them ``[B]``.
            usual: V ``[B]``.
        """
        squashed = self.policy.squashed(data.obs)
        value = self.critic(obs, squashed, slice(1))[0]
        decoded, _, _ = self.vae(obs, squashed)
        with torch.no_grad():
            decoded_worth = self.critic(obs, decoded, slice(1))[0]
            held = self.mask * ((decoded_worth >= usual) | (worth > usual))
        reference = torch.where((decoded_worth >= worth)[:, None, None], decoded, action)
        error = (squashed - reference).square() * held[:, None, None]
        scale = self.alpha / value.abs().mean().detach()
        loss: Tensor = -scale * value.mean() + self.policy.masked_mean(error, data.valid)
        return loss


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
