"""Cloning by worth: noisy plans to choose from, and imitation losses that weigh decisions."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import count
from trimtab.policies.base import Policy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.networks.chains import DiffusionChain, chain_noise, walk
from trimtab.types import Batch, Obs

__all__ = ["NoisyPlans", "advantage_weight", "weighted_bc_loss"]


class NoisyPlans:
    """Draws plans of a policy that are worth trying.

    A diffusion policy denoises with noise in every step, of at least ``floor``, as in DPPO's
    baselines (arXiv 2409.00588); what other policies sample is taken as it is.

    Args:
        policy: what learns; its present weights count.
        floor: least standard deviation of a denoising step.

    Raises:
        TrimtabError: if the policy's decisions cannot be cloned one by one.
    """

    def __init__(self, policy: Policy, floor: float) -> None:
        if type(policy).bc_errors is Policy.bc_errors:
            raise TrimtabError(
                f"this method clones decisions by their worth, which a {policy.kind} policy "
                "cannot; start from another one, such as flow or diffusion"
            )
        self.policy = policy
        self.chain: DiffusionChain | None = None
        if isinstance(policy, DiffusionPolicy):
            chain = DiffusionChain(policy.sampler, floor=floor)
            self.chain = chain.to(policy.normalizer.obs_shift.device)

    @torch.no_grad()
    def draw(self, obs: Obs) -> Tensor:
        """Return raw plans ``[N, H, A]``."""
        policy, chain = self.policy, self.chain
        if chain is None or not isinstance(policy, DiffusionPolicy):
            return policy.act(obs)
        network, spec = policy.network, policy.spec
        condition = network.condition(policy.normalizer.obs(obs))
        shape = (count(obs), chain.steps + 1, spec.horizon, spec.action_dim)
        noise = chain_noise(shape, condition.device)
        points = walk(chain, lambda x, i: network(x, chain.time(i), condition), noise)
        return policy.normalizer.raw_action(points[-1])


def advantage_weight(advantage: Tensor, beta: float | Tensor, most: float) -> Tensor:
    """Return ``min(exp(beta A), most)`` of advantages ``[B]``.

    Peng et al., "Advantage-Weighted Regression" (arXiv 1910.00177), with their bound.
    """
    return (beta * advantage).exp().clamp(max=most)


def weighted_bc_loss(policy: Policy, batch: Batch, weight: Tensor) -> Tensor:
    """Return the mean over valid actions of ``weight`` times their imitation error.

    Args:
        policy: what clones.
        batch: with chunks as long as its plans.
        weight: of each decision, ``[B]``.
    """
    return policy.masked_mean(policy.bc_errors(batch) * weight[:, None, None], batch.valid)
