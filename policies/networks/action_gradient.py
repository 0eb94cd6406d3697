"""How an ensemble's mean value changes with the action, written out without autograd.

So a policy that climbs its critic is one straight piece of graph, which can be exported, and one
pass through the layers gives values and slopes together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.policies.networks.critic import EnsembleCritic, EnsembleLayerNorm, EnsembleLinear

_EPSILON = 1e-5  # of torch's layer normalisation


def obs_share(critic: EnsembleCritic, obs: Tensor) -> Tensor:
    """Return the observation's share of the first layer ``[E, B, width]``, the same for any action.

    Args:
        critic: the ensemble.
        obs: normalised observations ``[B, O]``.
    """
    first = critic.network[0]
    assert isinstance(first, EnsembleLinear)
    rows = obs.expand(critic.members, -1, -1)
    return torch.baddbmm(first.bias, rows, first.weight[:, : obs.shape[1]])


def value_and_gradient(
    critic: EnsembleCritic, share: Tensor, action: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the ensemble's mean value ``[B]``, and its gradient by the action ``[B, D]``.

    Args:
        critic: the ensemble.
        share: what :func:`obs_share` returned, ``[E, B, width]``.
        action: normalised and flattened ``[B, D]``.
    """
    x, kept = _forward(critic, share, action)
    slope = torch.full_like(x, 1.0 / critic.members)
    return x.squeeze(-1).mean(0), _backward(critic, kept, slope, action.shape[1])


def bound_and_gradient(
    critic: EnsembleCritic, share: Tensor, action: Tensor, pessimism: float
) -> tuple[Tensor, Tensor]:
    """Return ``mean_i Q_i - pessimism std_i Q_i`` ``[B]``, and its gradient ``[B, D]``.

    The gradient is by the action. The standard deviation over E members is that of a sample, with
    E - 1; of one member it is 0. Where all members agree, its slope is taken as 0.

    Args:
        critic: the ensemble.
        share: what :func:`obs_share` returned, ``[E, B, width]``.
        action: normalised and flattened ``[B, D]``.
        pessimism: weight of the deviation.
    """
    x, kept = _forward(critic, share, action)
    others = max(critic.members - 1, 1)
    mean = x.mean(0)
    apart = x - mean
    deviation = (apart.square().sum(0) / others).sqrt()
    slope = 1.0 / critic.members - pessimism / others * apart / deviation.clamp_min(1e-12)
    bound = (mean - pessimism * deviation).squeeze(-1)
    return bound, _backward(critic, kept, slope, action.shape[1])


_Kept = list[tuple[nn.Module, Tensor, Tensor]]
"""Of each layer, what its slope depends on."""


def _forward(critic: EnsembleCritic, share: Tensor, action: Tensor) -> tuple[Tensor, _Kept]:
    """Return the members' values ``[E, B, 1]``, and what the way back needs."""
    first, *rest = critic.network
    assert isinstance(first, EnsembleLinear)
    x = share + torch.matmul(action, first.weight[:, -action.shape[1] :])
    kept: _Kept = []
    for layer in rest:
        if isinstance(layer, EnsembleLayerNorm):
            deviation = (x.var(-1, correction=0, keepdim=True) + _EPSILON).sqrt()
            centred = functional.layer_norm(x, x.shape[-1:])
            kept.append((layer, centred, deviation))
            x = torch.addcmul(layer.bias, centred, layer.weight)
        elif isinstance(layer, EnsembleLinear):
            kept.append((layer, x, x))
            x = layer(x)
        else:
            assert isinstance(layer, nn.ReLU)
            kept.append((layer, x, x))
            x = x.clamp_min(0.0)
    return x, kept


def _backward(critic: EnsembleCritic, kept: _Kept, slope: Tensor, size: int) -> Tensor:
    """Return the gradient by actions ``[B, size]`` of what has a slope by values ``[E, B, 1]``."""
    first = critic.network[0]
    assert isinstance(first, EnsembleLinear)
    for layer, seen, deviation in reversed(kept):
        if isinstance(layer, EnsembleLayerNorm):
            slope = slope * layer.weight
            along = (slope * seen).mean(-1, keepdim=True)
            slope = (slope - slope.mean(-1, keepdim=True) - seen * along) / deviation
        elif isinstance(layer, EnsembleLinear):
            slope = torch.matmul(slope, layer.weight.transpose(1, 2))
        else:
            slope = slope * (seen > 0)
    return torch.matmul(slope, first.weight[:, -size:].transpose(1, 2)).sum(0)
