"""What single kinds of policy promise: their normalisers, densities, steering and clones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from trimtab.policies.base import Policy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.registry import build_policy
from trimtab.types import PolicySpec, TrimtabError

drawn = load_module(Path(__file__).with_name("drawn.py"))
draws, batch_for, statistics = drawn.draws, drawn.batch_for, drawn.statistics
SPEC = PolicySpec(3, 2, 2, (-1.0, -4.0), (1.0, 2.0))


# The base class and the normaliser.


def test_masked_mean_is_the_mean_over_taken_actions() -> None:
    policy = GaussianPolicy(SPEC, hidden=(4,))
    error = torch.arange(12.0).reshape(3, 2, 2)
    valid = torch.tensor([[True, False], [True, True], [False, False]])
    expected = error[valid].mean()  # the average over dimensions, then over the marked actions
    torch.testing.assert_close(policy.masked_mean(error, valid), expected)


def test_unfitted_normaliser_maps_the_limits_to_one() -> None:
    normalizer = GaussianPolicy(SPEC, hidden=(4,)).normalizer
    corners = torch.tensor([SPEC.action_low, SPEC.action_high])
    expected = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    torch.testing.assert_close(normalizer.normalize_action(corners), expected)
    torch.testing.assert_close(normalizer.raw_action(expected), corners)
    obs = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(normalizer.obs(obs), obs)


def test_fitted_normaliser_maps_the_data_to_one_and_keeps_the_limits() -> None:
    normalizer = GaussianPolicy(SPEC, hidden=(4,)).normalizer
    low, high = torch.tensor([-0.5, -9.0]), torch.tensor([0.25, 1.0])  # -9 is below the limit -4
    obs_low, obs_high = torch.tensor([0.0, -3.0, 5.0]), torch.tensor([2.0, 3.0, 5.0])
    normalizer.fit(statistics(obs_low, obs_high, low, high))
    ends = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    torch.testing.assert_close(
        normalizer.raw_action(ends), torch.tensor([[-0.5, -4.0], [0.25, 1.0]])
    )
    torch.testing.assert_close(
        normalizer.raw_action(100 * ends), torch.tensor([[-1.0, -4.0], [1.0, 2.0]])
    )
    raw = torch.tensor([[0.1, 0.2]])
    torch.testing.assert_close(normalizer.raw_action(normalizer.normalize_action(raw)), raw)
    # The constant third dimension is shifted only, so a value that moved is not blown up.
    torch.testing.assert_close(normalizer.obs(obs_high[None] + 1)[0], torch.tensor([2, 4 / 3, 1]))


def test_constant_action_dimension_is_reproduced() -> None:
    torch.manual_seed(0)
    for kind in (GaussianPolicy, DiffusionPolicy, TanhGaussianPolicy):
        policy = kind(SPEC, hidden=(8, 8))
        low, high = torch.tensor([-0.5, 0.7]), torch.tensor([0.5, 0.7])
        policy.fit_normalizer(statistics(-torch.ones(3), torch.ones(3), low, high))
        action = policy.act(torch.randn(50, 3))
        assert (action[:, :, 1] - 0.7).abs().max() < 1e-3
        assert action[:, :, 0].std() > 1e-3
        data = torch.tensor([[0.2, 0.7]])  # what cloning regresses to must be finite
        torch.testing.assert_close(
            policy.normalizer.normalize_action(data)[0, 1], torch.tensor(0.0)
        )


# The registry.


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "difusion"}, "did you mean diffusion"),
        ({"kind": "torch.nn.Linear"}, "unknown kind"),
        ({"kind": ["flow"]}, "unknown kind"),
        ({}, "unknown kind None"),
        ({"kind": "flow"}, "spec"),
        ({"kind": "flow", "spec": {"obs_dim": 3}}, "horizon"),
        ({"kind": "flow", "spec": {**SPEC.to_json(), "action_low": [0.0]}}, "action limits"),
        ({"kind": "flow", "spec": SPEC.to_json(), "sampling_steps": 0}, "sampling_steps"),
        ({"kind": "flow", "spec": SPEC.to_json(), "hidden": []}, "at least one hidden layer"),
        ({"kind": "gaussian", "spec": SPEC.to_json(), "hidden": [-2]}, "policy.hidden="),
        ({"kind": "diffusion", "spec": SPEC.to_json(), "sampler": "heun"}, "unknown sampler"),
        ({"kind": "latent", "base": {"kind": "flow"}, "actor": {"kind": "flow"}}, "spec"),
    ],
)
def test_wrong_configs_are_said_in_one_line(config: dict[str, Any], words: str) -> None:
    with pytest.raises(TrimtabError, match=words) as caught:
        build_policy(config)
    assert "\n" not in str(caught.value)


def test_a_neutral_value_that_is_no_default_is_in_the_config() -> None:
    class Wider(GaussianPolicy):
        neutral = MappingProxyType({"std": 0.1})

        def __init__(self, spec: PolicySpec, *, std: float = 0.2) -> None:
            super().__init__(spec, hidden=(8,), std=std)

    for std in (0.1, 0.2):  # a policy that is built from the config has the same
        assert Wider(SPEC, std=std).config()["std"] == std


# The tanh-Gaussian density.


@pytest.fixture
def squashed() -> TanhGaussianPolicy:
    torch.manual_seed(5)
    policy = TanhGaussianPolicy(SPEC, hidden=(16, 16), layer_norm=True)
    with torch.no_grad():
        policy.network[-1].weight.mul_(4.0)  # type: ignore[operator]
    return policy


def test_log_prob_is_that_of_torch(squashed: TanhGaussianPolicy) -> None:
    obs, noise = draws(squashed, 200)
    with torch.no_grad():
        mean, log_std = squashed.distribution(obs)
        action, log_prob = squashed.sample_with_log_prob(obs, noise)
        base = Independent(Normal(mean, log_std.exp()), 2)
        theirs = TransformedDistribution(base, [TanhTransform(cache_size=1)])
        scaled = theirs.transforms[0](mean + log_std.exp() * noise)
        torch.testing.assert_close(log_prob, theirs.log_prob(scaled), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(squashed.normalizer.raw_action(action), squashed(obs, noise))


def test_density_integrates_to_one() -> None:
    torch.manual_seed(5)
    policy = TanhGaussianPolicy(PolicySpec(2, 1, 1, (-3.0,), (3.0,)), hidden=(16,))
    noise = torch.linspace(-7, 7, 20_001)[:, None, None]
    for seed in range(3):
        obs = torch.randn(1, 2, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            action, log_prob = policy.sample_with_log_prob(obs.expand(len(noise), 2), noise)
        integral = torch.trapezoid(log_prob.exp().double(), action.flatten().double())
        assert abs(float(integral) - 1.0) < 1e-3


def test_log_prob_is_finite_where_tanh_is_flat(squashed: TanhGaussianPolicy) -> None:
    obs, noise = draws(squashed)
    action, log_prob = squashed.sample_with_log_prob(obs, 100 * noise.sign())
    assert action.isfinite().all() and log_prob.isfinite().all()
    log_prob.sum().backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in squashed.parameters())


def test_width_is_clamped() -> None:
    policy = TanhGaussianPolicy(SPEC, hidden=(4,), log_std_min=-1.0, log_std_max=0.5)
    _, log_std = policy.distribution(1e4 * draws(policy, 100)[0])
    assert log_std.min() == -1.0 and log_std.max() == 0.5


def test_limits_are_finite_and_in_order() -> None:
    for high in (math.inf, SPEC.action_low[0]):
        with pytest.raises(TrimtabError, match="must be finite, the lower one first"):
            replace(SPEC, action_high=(high, 2.0))


# Steering.


def steered(base: Policy) -> LatentPolicy:
    return LatentPolicy(TanhGaussianPolicy(latent_spec(base, 1.5), hidden=(8,)), base)


def test_steered_policy_is_the_composition() -> None:
    torch.manual_seed(1)
    base = FlowPolicy(SPEC, hidden=(8, 8), sampling_steps=3)
    policy = steered(base)
    obs, noise = draws(policy)
    latent = policy.actor(obs, noise)
    assert latent.abs().max() <= 1.5
    assert torch.equal(policy(obs, noise), base(obs, latent))
    decoded = policy.decode(obs, latent)
    assert torch.equal(decoded, base(obs, latent)) and not decoded.requires_grad
    assert policy.label == "flow" and policy.spec == base.spec


def test_base_of_a_steered_policy_is_frozen() -> None:
    torch.manual_seed(1)
    policy = steered(FlowPolicy(SPEC, hidden=(8, 8), sampling_steps=3)).train()
    assert policy.actor.training and not policy.base.training
    policy(*draws(policy)).sum().backward()
    assert all(weight.grad is not None for weight in policy.actor.parameters())
    for weight in policy.base.parameters():
        assert weight.grad is None and not weight.requires_grad


def test_steering_composes() -> None:
    torch.manual_seed(1)
    once = steered(FlowPolicy(SPEC, hidden=(8, 8), sampling_steps=3))
    twice = steered(once)
    obs, noise = draws(twice)
    expected = once.base(obs, once.actor(obs, twice.actor(obs, noise)))
    assert torch.equal(twice(obs, noise), expected)
    rebuilt = build_policy(json.loads(json.dumps(twice.config())))
    rebuilt.load_state_dict(twice.state_dict())
    assert torch.equal(rebuilt(obs, noise), expected)


def test_what_cannot_be_steered_is_refused() -> None:
    path = DiffusionPolicy(SPEC, hidden=(8,), sampler="ddpm")
    with pytest.raises(TrimtabError, match="not one latent"):
        latent_spec(path, 1.5)
    base = FlowPolicy(SPEC, hidden=(8,))
    longer = replace(latent_spec(base, 1.5), horizon=3)
    with pytest.raises(TrimtabError, match="steering: the actor maps"):
        LatentPolicy(GaussianPolicy(longer), base)
    blind = replace(latent_spec(base, 1.5), obs_dim=7)
    with pytest.raises(TrimtabError, match="7 observations"):
        LatentPolicy(GaussianPolicy(blind), base)


# Learning: two equally likely actions, and nothing in between.


def clone_two_modes(policy: Policy, updates: int) -> Tensor:
    """Clone actions of -0.8 and 0.8 and return 2000 samples of the clone."""
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    batch = batch_for(policy.spec, count=256)
    for _ in range(updates):
        sign = torch.randint(2, (256, 1, 1), generator=generator) * 2.0 - 1.0
        loss = policy.bc_loss(replace(batch, action=0.8 * sign))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy.act(batch.obs[:1].expand(2000, -1)).flatten()


@pytest.mark.parametrize("kind", [FlowPolicy, DiffusionPolicy])
def test_generative_policies_keep_both_modes(kind: Callable[..., Policy]) -> None:
    torch.manual_seed(2)
    policy = kind(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), hidden=(64, 64))
    action = clone_two_modes(policy, 1000)
    assert 0.3 < float((action > 0).float().mean()) < 0.7
    assert float((action.abs() < 0.4).float().mean()) < 0.2
    assert abs(float(action.abs().median()) - 0.8) < 0.1


def test_gaussian_policy_predicts_the_mean_of_two_modes() -> None:
    torch.manual_seed(2)
    policy = GaussianPolicy(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), hidden=(64, 64))
    action = clone_two_modes(policy, 300)
    assert abs(float(action.mean())) < 0.2
    assert float((action.abs() > 0.6).float().mean()) < 0.05
