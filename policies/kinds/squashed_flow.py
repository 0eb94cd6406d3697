"""A flow policy that begins in the middle of an action's range, and is squashed into it: FPO's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from trimtab.policies.base import Policy
from trimtab.policies.networks.initial import lecun_uniform_
from trimtab.policies.networks.mlp import Activation, DenoisingNetwork
from trimtab.policies.networks.samplers import Euler
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.settings import Bounds, Positive, Size, Steps
from trimtab.types import Obs, PolicySpec


class SquashedFlowPolicy(Policy):
    """``action = squash(x_1)`` with ``dx/dt = scale network(x, t, obs)`` from the noise ``x_0``.

    McAllister et al., "Flow Matching Policy Gradients" (arXiv 2507.21053), in their code. The end
    ``x_1`` of the flow is unbounded (:meth:`latent`): on-policy learning needs the loss of what was
    drawn and not of what was executed. The network's first layer reads observation, point and the
    sines and cosines of t, 2 t, 4 t, ...; its weights begin LeCun-uniform.

    Args:
        spec: shapes and limits.
        hidden: widths of the hidden layers.
        activation: of the hidden layers: relu, tanh, elu, gelu or silu.
        time_dim: width of the time features.
        sampling_steps: Euler steps at acting time.
        output_scale: what the network's output is multiplied by.
        squash: ``tanh``, or ``clip`` to the limits of the spec.
        normalize_observations: keep a running mean and standard deviation of observations.
    """

    built_by_method = True

    def __init__(
        self,
        spec: PolicySpec,
        *,
        hidden: Sequence[Size] = (32, 32, 32, 32),
        activation: Activation = "silu",
        time_dim: Annotated[int, Bounds(least=0, most=32)] = 8,
        sampling_steps: Steps = 10,
        output_scale: Positive = 0.25,
        squash: Literal["tanh", "clip"] = "tanh",
        normalize_observations: bool = False,
    ) -> None:
        shape = (spec.horizon, spec.action_dim)
        super().__init__(spec, shape)
        if normalize_observations:
            self.normalizer = RunningNormalizer(spec)
        self.sampler, self.output_scale, self.squash = Euler(sampling_steps), output_scale, squash
        network = DenoisingNetwork(spec.obs_dim, shape, hidden, time_dim, activation)
        network.frequencies = 2.0 ** torch.arange(time_dim // 2)
        # Two layers make one sum: their inputs count together.
        first = (network.obs_layer, network.action_layer)
        lecun_uniform_(first, sum(layer.in_features for layer in first))
        lecun_uniform_(network.body.modules())
        self.network = network

    def velocity(self, point: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Return the velocity of the flow ``[B, H, A]``.

        Args:
            point: where it is, ``[B, H, A]``.
            time: from 0 (noise) to 1 (action), ``[B]`` or ``[1]``.
            condition: what ``network.condition`` returns for normalised observations ``[B, O]``.
        """
        output: Tensor = self.network(point, time, condition)
        return self.output_scale * output

    def latent(self, normalized_obs: Tensor, noise: Tensor) -> Tensor:
        """Return the end of the flow ``[B, H, A]`` for observations already normalised."""
        condition = self.network.condition(normalized_obs)
        return self.sampler(lambda x, time: self.velocity(x, time, condition), noise)

    def squashed(self, latent: Tensor) -> Tensor:
        """Return ends of the flow ``[B, H, A]`` as raw actions."""
        bounded = torch.tanh(latent) if self.squash == "tanh" else latent
        return self.normalizer.raw_action(bounded)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``."""
        return self.squashed(self.latent(self.normalizer.obs(obs), noise))
