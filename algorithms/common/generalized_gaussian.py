"""The generalised Gaussian distribution of errors, whose tails are as heavy as its shape is small.

Nadarajah, "A generalized normal distribution" (Journal of Applied Statistics 32, 2005), equation 1:
``p(x) = beta / (2 alpha Gamma(1 / beta)) exp(-(|x| / alpha)^beta)``, with beta the shape and alpha
the scale. A shape of 2 is a normal distribution, a shape of 1 a Laplace distribution.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["negative_log_density", "shape_of"]

_LEAST, _MOST = 0.05, 2.0
_NEAR = 1e-3
"""Errors nearer to 0 have no gradient: below a shape of 1 it would grow without bound there."""


def negative_log_density(error: Tensor, shape: Tensor) -> Tensor:
    """Return ``-log p(error)`` for a scale of 1, of both broadcast together.

    Args:
        error: those nearer to 0 than 0.001 count as 0.001.
        shape: positive.
    """
    constant = math.log(2.0) - shape.log() + torch.lgamma(1.0 / shape)
    return error.abs().clamp_min(_NEAR).pow(shape) + constant


def shape_of(output: Tensor) -> Tensor:
    """Return the shapes, between 0.05 and 2, that a network's outputs stand for."""
    return _LEAST + (_MOST - _LEAST) * torch.sigmoid(output)
