"""The flow of MEow: its inverse, its determinant, and what its density integrates to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from trimtab.policies.kinds.normalizing_flow import NormalizingFlowPolicy
from trimtab.types import PolicySpec, TrimtabError


def flow_of(horizon: int, actions: int, precise: bool = True) -> NormalizingFlowPolicy:
    """Return a flow whose prior's widths differ, which its first weights do not make them do."""
    torch.manual_seed(4)
    spec = PolicySpec(3, horizon, actions, (-3.0,) * actions, (1.0,) * actions)
    policy = NormalizingFlowPolicy(spec, hidden=(16, 16), log_std_max=0.5)
    with torch.no_grad():
        for weight in policy.prior.parameters():
            weight.add_(0.5 * torch.randn_like(weight))
    return policy.double() if precise else policy


def scaled(policy: NormalizingFlowPolicy, obs: Tensor, noise: Tensor) -> Tensor:
    """Return actions scaled to [-1, 1]."""
    action: Tensor = policy.normalizer.normalize_action(policy(obs, noise))
    return action


@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2)])
def test_it_inverts(shape: tuple[int, int], precise: bool) -> None:
    policy = flow_of(*shape, precise=precise)
    kind = torch.float64 if precise else torch.float32
    obs, noise = torch.randn(300, 3, dtype=kind), torch.randn(300, *shape, dtype=kind)
    with torch.no_grad():
        action = scaled(policy, obs, noise)
        inside = (action.abs() < 1 - 1e-4).all(2).all(1)
        assert inside.float().mean() > 0.5
        found, _ = policy.inverse(obs, action)
        again = scaled(policy, obs, found.reshape(noise.shape))
        width = policy.log_std(obs).exp()
    torch.testing.assert_close(again[inside], action[inside], atol=1e-5, rtol=0)
    if precise:  # in 32 bits a tanh near 1 has lost what its inverse needs
        missed = (found - noise.flatten(1)) * width
        assert missed[inside].abs().max() < 1e-5


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2)])
def test_density_is_that_of_the_noise_over_the_jacobian(shape: tuple[int, int]) -> None:
    policy, size = flow_of(*shape), math.prod(shape)
    obs, noise = torch.randn(20, 3).double(), 0.7 * torch.randn(20, *shape).double()
    action = scaled(policy, obs, noise).detach()
    found = policy.log_prob(obs, action)
    _, log_slope = policy.inverse(obs, action)
    for row in range(20):
        one = obs[row : row + 1]

        def end(drawn: Tensor, one: Tensor = one) -> Tensor:
            return scaled(policy, one, drawn.reshape(1, *shape)).flatten()

        jacobian = torch.autograd.functional.jacobian(end, noise[row].flatten())
        assert isinstance(jacobian, Tensor) and jacobian.shape == (size, size)
        determinant = torch.linalg.slogdet(jacobian).logabsdet
        own = policy.log_std(one).sum() + log_slope[row]
        torch.testing.assert_close(own, determinant, atol=1e-8, rtol=1e-8)
        normal = Normal(torch.zeros(()).double(), 1.0).log_prob(noise[row]).sum()
        torch.testing.assert_close(found[row], normal - determinant, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("actions", [1, 2])
def test_the_normaliser_is_the_integral_over_the_box(actions: int) -> None:
    policy = flow_of(1, actions)
    places = torch.tanh(torch.linspace(-6, 6, 401).double())  # dense where the density is steep
    grid = torch.cartesian_prod(*[places] * actions).reshape(-1, 1, actions)
    for obs in torch.randn(3, 3).double():
        with torch.no_grad():
            height = policy.energy(obs.expand(len(grid), -1), grid).exp()
            known = policy.log_normalizer(obs[None])
        height = height.reshape([401] * actions)
        for _ in range(actions):
            height = torch.trapezoid(height, places)
        torch.testing.assert_close(height.log(), known[0], atol=2e-3, rtol=0)


def test_widths_stay_within_their_bounds() -> None:
    policy = flow_of(1, 2)
    log_std = policy.log_std(1e3 * torch.randn(200, 3).double())
    assert log_std.min() >= -5.0 and log_std.max() <= 0.5
    assert log_std.max() - log_std.min() > 1.0
    spec = policy.spec
    with pytest.raises(TrimtabError, match="log_std_max=-6"):
        NormalizingFlowPolicy(spec, log_std_max=-6.0)
    # Beyond these the width of 32 bits, or one over it, is infinite and actions are no numbers.
    for wrong in ({"log_std_max": 100.0}, {"log_std_min": -100.0}):
        with pytest.raises(TrimtabError, match="must be"):
            NormalizingFlowPolicy(spec, **wrong)


def test_it_starts_as_the_public_code_does() -> None:
    policy = NormalizingFlowPolicy(PolicySpec(3, 1, 3, (-1.0,) * 3, (1.0,) * 3))
    assert [coupling.mask.tolist() for coupling in policy.couplings] == [  # type: ignore[operator]
        [1, 0, 1], [0, 1, 0], [1, 0, 1], [0, 1, 0],
    ]  # fmt: skip
    assert all(not layer.weight.any() for layer in policy.prior.layers)  # type: ignore[operator]
    weight = policy.couplings[0].network.layers[1].weight  # type: ignore[union-attr, index]
    assert isinstance(weight, Tensor)
    torch.testing.assert_close(weight @ weight.T, torch.eye(64), atol=1e-5, rtol=0)
