"""Values as distributions over fixed atoms: projections of targets, and the loss against them.

Bellemare et al., "A Distributional Perspective on Reinforcement Learning" (arXiv 1707.06887),
algorithm 1 (C51); Farebrother et al., "Stop Regressing: Training Value Functions via Classification
for Scalable Deep RL" (arXiv 2403.03950), sections 3.1 (two-hot) and 3.2 (HL-Gauss).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from trimtab.settings import Bounds

__all__ = [
    "Atoms", "cross_entropy", "expectation", "hl_gauss", "project", "symexp", "two_hot",
    "two_hot_between",
]  # fmt: skip

Atoms = Annotated[int, Bounds(least=2, most=4096)]
"""A number of atoms. With more, the spacing that 32 bits hold would shift every projected mean."""


def project(atoms: Tensor, mass: Tensor, support: Tensor) -> Tensor:
    """Return a distribution over ``support`` with the mass of moved atoms split between neighbours.

    An atom between two points of the support gives each a share by its distance, so that means
    within the support stay. Atoms outside are clamped to its ends.

    Args:
        atoms: where the mass lies, ``[..., K]``.
        mass: ``[..., K]``, non-negative, with sum 1.
        support: ``[M]`` evenly spaced values, rising.

    Returns:
        ``[..., M]``.
    """
    low, last = support[0], len(support) - 1
    position = ((atoms - low) / (support[1] - low)).clamp(0, last)
    lower = position.floor()
    upper_share = position - lower
    index = lower.nan_to_num().long()  # what is no number stays so in the mass, and a run says it
    found = mass.new_zeros(*mass.shape[:-1], len(support))
    found.scatter_add_(-1, index, mass * (1 - upper_share))
    # An atom on a point gives its upper neighbour nothing, so the last one may name itself.
    return found.scatter_add_(-1, (index + 1).clamp(max=last), mass * upper_share)


def two_hot(value: Tensor, support: Tensor) -> Tensor:
    """Return the distribution ``[..., M]`` on the two atoms nearest to each value ``[...]``."""
    atom = value[..., None]
    return project(atom, torch.ones_like(atom), support)


def two_hot_between(value: Tensor, support: Tensor) -> Tensor:
    """Return what :func:`two_hot` does, for values ``support`` that may lie unevenly, rising."""
    value = value.clamp(support[0], support[-1])
    upper = torch.searchsorted(support, value).clamp(1, len(support) - 1)
    lower = upper - 1
    share = (value - support[lower]) / (support[upper] - support[lower])
    found = value.new_zeros(*value.shape, len(support))
    found.scatter_(-1, lower[..., None], (1 - share)[..., None])
    return found.scatter_(-1, upper[..., None], share[..., None])


def symexp(value: Tensor) -> Tensor:
    """Return ``sign(x) (exp(|x|) - 1)``: points that lie dense near 0 and wide far from it.

    Hafner et al., "Mastering Diverse Domains through World Models" (arXiv 2301.04104), equation 9.
    """
    return value.sign() * value.abs().expm1()


def hl_gauss(value: Tensor, support: Tensor, deviation: float) -> Tensor:
    """Return a normal distribution around each value, as masses of the bins around the atoms.

    Args:
        value: ``[...]``; clamped to the support's ends.
        support: ``[M]`` evenly spaced values, the middles of the bins.
        deviation: standard deviation, in widths of a bin.

    Returns:
        ``[..., M]`` with sum 1: what lies outside of all bins is left out and the rest scaled up.
    """
    width = support[1] - support[0]
    edges = torch.cat([support - width / 2, support[-1:] + width / 2])
    centre = value.clamp(support[0], support[-1])[..., None]
    below = torch.erf((edges - centre) / (math.sqrt(2.0) * deviation * width))
    mass = below.diff(dim=-1)
    return mass / mass.sum(-1, keepdim=True)


def expectation(logits: Tensor, support: Tensor) -> Tensor:
    """Return the mean ``[...]`` of the distributions that logits ``[..., M]`` stand for."""
    return (logits.softmax(-1) * support).sum(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy ``[...]`` of logits ``[..., M]`` against distributions of them."""
    return -(target * logits.log_softmax(-1)).sum(-1)
