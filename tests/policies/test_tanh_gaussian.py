"""The squashed Gaussian's density against numerical integration and the change of variables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import PolicySpec, TrimtabError


def policy_with(mean: list[float], log_std: list[float]) -> TanhGaussianPolicy:
    """A policy in double precision that has this distribution in every state."""
    count = len(mean)
    policy = TanhGaussianPolicy(
        PolicySpec(1, 1, count, (-3.0,) * count, (5.0,) * count), hidden=(), log_std_min=-20.0
    ).double()
    layer = policy.network[-1]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(torch.tensor([*mean, *log_std], dtype=torch.float64))
    return policy


def density(policy: TanhGaussianPolicy, squashed: Tensor) -> Tensor:
    """The policy's density ``[M]`` at actions in [-1, 1] ``[M, A]``, by their noise."""
    obs = torch.zeros(len(squashed), 1, dtype=torch.float64)
    mean, log_std = policy.distribution(obs)
    noise = (torch.atanh(squashed)[:, None] - mean) / log_std.exp()
    action, log_prob = policy.sample_with_log_prob(obs, noise)
    torch.testing.assert_close(action, squashed[:, None], atol=1e-7, rtol=1e-7)
    return log_prob.detach().exp()


CASES = [(0.0, 0.0), (0.7, -1.0), (-1.5, 0.3), (2.0, 0.0), (0.0, 1.0), (0.3, -4.0)]


@pytest.mark.parametrize(("mean", "log_std"), CASES)
def test_density_integrates_to_one(mean: float, log_std: float) -> None:
    policy = policy_with([mean], [log_std])
    # Even steps before squashing are dense where the squashed density is steep, near the limits.
    # The grid ends where an action in double precision still differs from its limit.
    grid = torch.linspace(-12, 12, 100_001, dtype=torch.float64).tanh()
    integral = torch.trapezoid(density(policy, grid[:, None]), grid)
    assert abs(float(integral) - 1) < 1e-4


@pytest.mark.parametrize(("mean", "log_std"), CASES)
def test_density_is_that_of_the_change_of_variables(mean: float, log_std: float) -> None:
    policy = policy_with([mean], [log_std])
    grid = np.linspace(-0.999, 0.999, 2001)
    raw, std = np.arctanh(grid), np.exp(log_std)
    normal = np.exp(-0.5 * ((raw - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    expected = normal / (1 - grid**2)  # d atanh(a) / d a
    ours = density(policy, torch.from_numpy(grid)[:, None]).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-12)


def test_dimensions_are_independent() -> None:
    means, log_stds = [0.2, -0.8], [-0.5, 0.4]
    squashed = 1.8 * torch.rand(50, 2, dtype=torch.float64) - 0.9
    alone = [
        density(policy_with([mean], [log_std]), squashed[:, i : i + 1])
        for i, (mean, log_std) in enumerate(zip(means, log_stds, strict=True))
    ]
    joint = density(policy_with(means, log_stds), squashed)
    torch.testing.assert_close(joint, alone[0] * alone[1], rtol=1e-6, atol=1e-12)


def test_density_far_out_is_finite() -> None:
    policy = policy_with([0.0], [2.0])
    _, log_prob = policy.sample_with_log_prob(
        torch.zeros(3, 1, dtype=torch.float64),
        torch.tensor([-60.0, 0.0, 60.0], dtype=torch.float64).reshape(3, 1, 1),
    )
    assert torch.isfinite(log_prob).all()


def test_activation_is_chosen() -> None:
    spec = PolicySpec(2, 1, 1, (-1.0,), (1.0,))
    assert isinstance(TanhGaussianPolicy(spec).network[1], nn.ReLU)
    assert isinstance(TanhGaussianPolicy(spec, activation="elu").network[1], nn.ELU)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_of_observations_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(TrimtabError, match="obs_limit=.*: must be"):
        TanhGaussianPolicy(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), hidden=(), obs_limit=limit)
