"""How likely a policy's actions are, for methods that move actions to likelier places."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy

__all__ = ["check_served", "log_density"]


def log_density(policy: Policy, obs: Tensor, action: Tensor) -> Tensor:
    """Return the log-density ``[B, H]`` of raw action chunks ``[B, H, A]``, but for a constant.

    A policy without noise is taken for a normal distribution around its actions, of standard
    deviation 1 where these are scaled to [-1, 1].
    """
    if math.prod(policy.noise_shape):
        return policy.log_density(obs, action)
    normalize = policy.normalizer.normalize_action
    with torch.no_grad():
        mean = normalize(policy(obs, policy.sample_noise(len(obs))))
    return -0.5 * (normalize(action) - mean).square().sum(-1)


def check_served(learner: Algorithm) -> None:
    """Check that a method can learn from single transitions, and has a policy to guide by.

    Raises:
        TrimtabError: naming what it wants.
    """
    method, wants, spec = type(learner).__name__, learner.wants, learner.policy.spec
    lacking = [
        name
        for name, wanted in (
            ("n-step returns", wants.n_step > 1),
            ("returns of whole episodes", wants.mc_return),
            ("sequences", wants.sequence > 0),
            ("goals", wants.goal is not None),
            ("costs", wants.cost),
            ("a history", max(wants.history, spec.history) > 1),
            ("observations in parts", bool(learner.policy.reading.observed)),
        )
        if wanted
    ]
    if lacking:
        raise TrimtabError(
            f"source: {method} learns from {', '.join(lacking)}, and what a diffusion model makes "
            "are single transitions; leave source= out, or choose another algorithm="
        )
    known = type(learner.policy).log_density is not Policy.log_density
    if math.prod(learner.policy.noise_shape) and not known:
        raise TrimtabError(
            f"source: the {learner.policy.kind} policy of {method} has no density of its actions "
            "that could guide; choose a method with a Gaussian or a deterministic policy"
        )
