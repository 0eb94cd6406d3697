"""Negative-aware tuning of a flow policy, on its forward process, by a critic.

Zheng et al., "DiffusionNFT: Online Diffusion Reinforcement with Forward Process" (arXiv
2509.16117), carried over from pictures to actions. No likelihood and no chain is needed: a sample
x_0 of the old policy is noised again, and its worth r in [0, 1] says how much the velocity is to be
drawn towards it, and how much its mirror image in the old velocity:

- noising:  x_t = (1 - t) eps + t x_0, with t on the sampler's own grid
- two ways: v+ = (1 - b) v_old + b v,   v- = (1 + b) v_old - b v,   xhat = x_t + (1 - t) v
- policy:   L = 5 / b mean [r |xhat+ - x_0|^2 / w+ + (1 - r) |xhat- - x_0|^2 / w-]
                + c mean |v - v_start|^2,   w = mean |xhat - x_0| of each sample, without gradients
- worth:    r = clip(clip(A / std A, -5, 5) / 10 + 1/2, 0, 1)

An adaptation (``faithful`` is False): the paper tunes models of pictures by given rewards. Here a
state is a prompt, a group is some samples of the slow actor at a replayed state, and their reward
is the value of a critic learned off-policy (see ``group_actor_critic``; time runs from noise to
action). Published for pictures: groups of 24, a learning rate of 3e-4, c 1e-4, b 1 or 0.1; their
code also bounds the gradient's norm by 1, has a weight decay of 1e-4 and judges an average of the
weights with a rate of 0.9.

Besides: A is divided by its own deviation over the batch (there: by that of all rewards),
as values of different states differ by more than those of different actions; one level t is drawn
for each sample; the old policy follows by a slow average after every step (there: after epochs, at
a rate that grows); the entries of executed actions alone count.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.group_actor_critic import GroupActorCritic
from trimtab.policies.networks.samplers import euler_steps
from trimtab.settings import Bounds, NonNegative
from trimtab.types import Batch, Obs

MOST = 5.0
"""Advantages are cut at so many deviations; it is the factor of the loss, too."""


class NFT(GroupActorCritic):
    """Negative-aware tuning on the forward process.

    Args:
        setup: needs ``base``, or ``policy`` with ``dataset``; a flow policy.
        strength: b, how far the two ways are from the old velocity.
        reference_weight: c.
        common: settings of ``GroupActorCritic``.
    """

    faithful = False
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        strength: Annotated[float, Bounds(least=1e-6)] = 1.0,
        reference_weight: NonNegative = 1e-4,
        **common: Any,
    ) -> None:
        self.strength, self.reference_weight = strength, reference_weight
        super().__init__(setup, **common)
        self.reference = copy.deepcopy(self.slow.network)
        self.levels = euler_steps(self.actor.sampler)

    def actor_loss(self, data: Batch, rows: Obs, noise: Tensor) -> dict[str, Tensor]:
        """Return the loss over fresh samples of the slow actor."""
        with torch.no_grad():
            chunk = self.slow(rows, noise)
            advantage = self.advantage(rows, chunk)
            worth = self.worth(advantage)
        loss = self.loss(rows, self.slow.normalizer.normalize_action(chunk), worth)
        return {"actor_loss": loss, "advantage": advantage.abs().mean()}

    @staticmethod
    def worth(advantage: Tensor) -> Tensor:
        """Return r ``[B]`` of advantages ``[B]``."""
        scaled = advantage / (advantage.std() + 1e-4)
        return (scaled.clamp(-MOST, MOST) / (2 * MOST) + 0.5).clamp(0.0, 1.0)

    def loss(self, rows: Obs, clean: Tensor, worth: Tensor) -> Tensor:
        """Return the policy's loss.

        Args:
            rows: observations of B samples.
            clean: normalised samples x_0 of the old policy, ``[B, H, A]``.
            worth: r, ``[B]``.
        """
        steps, executed = self.levels, slice(self.act_steps)
        level = torch.randint(steps, (len(clean),), device=clean.device) / steps
        noisy = torch.lerp(torch.randn_like(clean), clean, level[:, None, None])
        vector = self.actor.normalizer.obs(rows)
        velocity = self.actor.network(noisy, level, self.actor.network.condition(vector))
        with torch.no_grad():
            old, start = (
                network(noisy, level, network.condition(vector))[:, executed]
                for network in (self.slow.network, self.reference)
            )
        velocity, noisy, clean = velocity[:, executed], noisy[:, executed], clean[:, executed]
        left, change = (1 - level)[:, None, None], self.strength * (velocity - old)

        def distance(way: Tensor) -> Tensor:
            error = noisy + left * way - clean
            scale = error.detach().abs().mean((1, 2)).clamp_min(1e-5)
            return error.square().mean((1, 2)) / scale

        both = worth * distance(old + change) + (1 - worth) * distance(old - change)
        kept = (velocity - start).square().mean()
        total: Tensor = MOST / self.strength * both.mean() + self.reference_weight * kept
        return total
