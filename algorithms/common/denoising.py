"""What a diffusion policy does by chance: its chains, their densities, and its mode."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.networks.chains import DiffusionChain, chain_noise, log_density, walk
from trimtab.policies.networks.mlp import DenoisingNetwork

__all__ = ["DenoisingNetwork", "Denoising"]


class Denoising:
    """Chains of a diffusion policy, under its own network or a candidate for it.

    Observations are normalised ones. A density is that of the executed part of a chunk, summed.

    Args:
        policy: says shapes, units and sampler.
        floor: least standard deviation of a step.
        act_steps: actions of a chunk that are executed.
    """

    def __init__(self, policy: DiffusionPolicy, *, floor: float, act_steps: int) -> None:
        self.policy, self.act_steps = policy, act_steps
        device = policy.normalizer.obs_shift.device
        self.chain = DiffusionChain(policy.sampler, floor=floor).to(device)
        self.steps = torch.arange(self.chain.steps, device=device).split(1)

    def chains(self, network: DenoisingNetwork, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return chains ``[B, K + 1, H, A]`` and the log-densities of their steps ``[B, K]``."""
        spec, condition = self.policy.spec, network.condition(obs)
        shape = (len(obs), self.chain.steps + 1, spec.horizon, spec.action_dim)
        noise = chain_noise(shape, obs.device)
        points = walk(self.chain, lambda x, k: network(x, self.chain.time(k), condition), noise)
        # What a step's density is of is its noise, so nothing has to be computed again.
        drawn = noise[:, 1:, : self.act_steps]
        one = torch.ones((), device=obs.device)
        std = self.chain.deviations[:, None, None]
        density = (log_density(drawn, 0 * one, one) - std.log()).sum((2, 3))
        return torch.stack(points, 1), density

    def density(
        self, network: DenoisingNetwork, obs: Tensor, chain: Tensor, step: Tensor
    ) -> Tensor:
        """Return the log-density of one step ``[1]`` of each chain under ``network``, ``[B]``."""
        point, reached = chain.index_select(1, torch.cat([step, step + 1])).unbind(1)
        prediction = network(point, self.chain.time(step), network.condition(obs))
        mean = self.chain.mean(point, prediction, step)
        each = log_density(reached, mean, self.chain.std(step))
        return each[:, : self.act_steps].sum((1, 2))

    def executed(self, chunk: Tensor) -> Tensor:
        """Return what is executed of normalised chunks ``[B, H, A]``, normalised again."""
        normalizer = self.policy.normalizer
        return normalizer.normalize_action(normalizer.raw_action(chunk[:, : self.act_steps]))

    def plan(self, network: DenoisingNetwork, obs: Tensor, noise: Tensor) -> Tensor:
        """Return what the policy's sampler makes of ``noise``: normalised chunks ``[B, H, A]``."""
        condition = network.condition(obs)
        return self.policy.sampler(lambda x, time: network(x, time, condition), noise)

    def mode(self, network: DenoisingNetwork, obs: Tensor) -> Tensor:
        """Return what is executed of noise 0, normalised."""
        noise = torch.zeros(len(obs), *self.policy.noise_shape, device=obs.device)
        return self.executed(self.plan(network, obs, noise))
