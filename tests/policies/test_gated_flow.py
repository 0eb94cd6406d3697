"""The flow of SAC Flow: the density of its path, by three ways, and its gate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform

from trimtab.policies.kinds.gated_flow import GatedFlowPolicy
from trimtab.types import PolicySpec


def flow_of(horizon: int, actions: int, steps: int) -> GatedFlowPolicy:
    torch.manual_seed(6)
    spec = PolicySpec(3, horizon, actions, (-3.0,) * actions, (1.0,) * actions)
    policy = GatedFlowPolicy(spec, steps=steps, hidden=(16,), log_std_hidden=(16,))
    with torch.no_grad():
        last = policy.gate[-1]
        assert isinstance(last, nn.Linear)
        last.weight.normal_()  # as learning leaves it, so that the gate depends on the point
        last.bias.fill_(0.5)
        for weight in policy.candidate.parameters():
            weight.mul_(2.0)
    return policy.double()


def path_of(policy: GatedFlowPolicy, obs: Tensor, noise: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the points ``[B, D]`` of the path, the last one squashed, and its log-density."""
    normal = Normal(torch.zeros(()).double(), 1.0)
    std = (-5 + 3.5 * (torch.tanh(policy.width(obs)) + 1)).exp()
    x = noise[:, 0].flatten(1)
    points, density = [x], normal.log_prob(x).sum(1)
    for step in range(policy.steps):
        half = 16
        angle = step / policy.steps * 1e4 ** (-torch.arange(half) / (half - 1)).double()
        time = policy.time(torch.cat([angle.sin(), angle.cos()])).expand(len(x), -1)
        read = torch.cat([obs, x, time], 1)
        gate, candidate = torch.sigmoid(policy.gate(read)), policy.candidate(read)
        mean = (1 - gate / policy.steps) * x + gate / policy.steps * candidate
        x = mean + std * noise[:, step + 1].flatten(1)
        points.append(x)
        density = density + Normal(mean, std).log_prob(x).sum(1)
    squash = TanhTransform()
    points[-1] = squash(x)
    return points, density - squash.log_abs_det_jacobian(x, points[-1]).sum(1)


def test_path_and_density_are_those_of_a_loop() -> None:
    policy = flow_of(2, 2, 4)
    obs, noise = torch.randn(50, 3).double(), torch.randn(50, 5, 2, 2).double()
    action, density = policy.sample_with_log_prob(obs, noise)
    points, known = path_of(policy, obs, noise)
    torch.testing.assert_close(action.flatten(1), points[-1], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(density, known, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(policy(obs, noise), policy.normalizer.raw_action(action))


def test_density_is_that_of_the_noise_over_the_jacobian_of_the_path() -> None:
    policy = flow_of(1, 2, 3)
    obs, noise = torch.randn(10, 3).double(), torch.randn(10, 4, 1, 2).double()
    _, density = policy.sample_with_log_prob(obs, noise)
    for row in range(10):

        def whole(drawn: Tensor, row: int = row) -> Tensor:
            points, _ = path_of(policy, obs[row : row + 1], drawn.reshape(1, 4, 1, 2))
            return torch.cat(points, 1)[0]

        jacobian = torch.autograd.functional.jacobian(whole, noise[row].flatten())
        assert isinstance(jacobian, Tensor)
        own = Normal(torch.zeros(()).double(), 1.0).log_prob(noise[row]).sum()
        expected = own - torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(density[row], expected, atol=1e-5, rtol=1e-5)


def test_density_of_one_step_integrates_over_its_start_to_the_histogram_of_actions() -> None:
    policy = flow_of(1, 1, 1)
    obs = torch.tensor([[0.3, -0.8, 0.5]]).double()
    edges = torch.linspace(-0.96, 0.96, 25).double()
    with torch.no_grad():
        count = 200_000
        drawn = torch.randn(count, 2, 1, 1, generator=torch.Generator().manual_seed(0)).double()
        actions, _ = policy.sample_with_log_prob(obs.expand(count, -1), drawn)
        seen = torch.histogram(actions.flatten(), edges).hist / count
        # The noise that leads from each start to each action, and the density there.
        starts = torch.linspace(-6, 6, 401).double()
        places = torch.linspace(-0.96, 0.96, 24 * 8 + 1).double()
        start, place = torch.meshgrid(starts, places, indexing="ij")
        many = start.reshape(-1, 1, 1, 1)
        still = torch.cat([many, torch.zeros_like(many)], 1)
        rows = obs.expand(len(many), -1)
        mean, log_std = policy.walk(rows, still)
        step = (torch.atanh(place.reshape(-1, 1)) - mean) / log_std.exp()
        noise = torch.cat([many, step[:, :, None, None]], 1)
        action, density = policy.sample_with_log_prob(rows, noise)
    torch.testing.assert_close(action.flatten(), place.flatten(), atol=1e-6, rtol=0)
    of_actions = torch.trapezoid(density.exp().reshape(401, -1), starts, dim=0)
    pieces = (of_actions[1:] + of_actions[:-1]) / 2 * (places[1] - places[0])
    expected = pieces.reshape(24, 8).sum(1)
    assert expected.sum() > 0.5 and expected.max() > 3 * expected.min()  # a shape to be found
    assert (seen - expected).abs().max() < 5 * (0.25 / count) ** 0.5


def test_a_known_width_stands_in_the_density_of_every_step() -> None:
    policy, width = flow_of(1, 2, 3), 0.2
    for network, bias in ((policy.width, None), (policy.candidate, 0.4)):
        last = network[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        value = math.atanh((math.log(width) + 5) / 3.5 - 1) if bias is None else bias
        nn.init.constant_(last.bias, value)
    noise = torch.zeros(1, 4, 1, 2).double()
    action, density = policy.sample_with_log_prob(torch.randn(1, 3).double(), noise)
    constant = 8 * 0.5 * math.log(2 * math.pi) + 3 * 2 * math.log(width)
    expected = -constant - torch.log1p(-action.square()).sum()
    torch.testing.assert_close(density[0], expected, atol=1e-6, rtol=1e-6)


def test_its_gate_is_nearly_open_at_first() -> None:
    policy = GatedFlowPolicy(PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0)))
    obs, x = torch.randn(9, 3), torch.randn(9, 2)
    time = policy.time(policy.times)[2]
    read = torch.cat([obs, x, time.expand(9, -1)], 1)
    expected = (policy.candidate(read) - x) / (1 + math.exp(-5))
    torch.testing.assert_close(policy.velocity(obs, x, time), expected)
    assert policy.times.shape == (4, 32) and policy.noise_shape == (5, 1, 2)
