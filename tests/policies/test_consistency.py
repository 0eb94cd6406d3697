"""The consistency policy against its definition, and what cloning by ConRFT's loss leads to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.latent import latent_spec
from trimtab.types import Batch, PolicySpec, TrimtabError

SPEC = PolicySpec(3, 2, 2, (-1.0, -4.0), (1.0, 2.0))
LINE = PolicySpec(1, 1, 1, (-1.0,), (1.0,))


def made(seed: int = 0, **keywords: Any) -> ConsistencyPolicy:
    torch.manual_seed(seed)
    return ConsistencyPolicy(SPEC, hidden=(16, 16), **keywords)


def batch(count: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    valid = torch.ones(count, 2, dtype=torch.bool)
    valid[:2, 1] = False
    return Batch(
        obs=torch.randn(count, 3, generator=generator),
        action=low + (high - low) * torch.rand(count, 2, 2, generator=generator),
        reward=torch.zeros(count),
        next_obs=torch.zeros(count, 3),
        discount=torch.ones(count),
        valid=valid,
    )


def by_hand(policy: ConsistencyPolicy, x: Tensor, sigma: float, obs: Tensor) -> Tensor:
    """f(x, sigma) of the class's docstring, for the default levels."""
    least, most, s = 0.002, 80.0, 0.5
    skip = s**2 / ((sigma - least) ** 2 + s**2)
    out = (sigma - least) * s / math.sqrt(sigma**2 + s**2)
    position = (math.log(sigma) - math.log(least)) / (math.log(most) - math.log(least))
    condition = policy.network.condition(obs)
    inside: Tensor = policy.network(
        x / math.sqrt(sigma**2 + s**2), torch.full((1,), position), condition
    )
    return skip * x + out * inside


def test_levels_are_those_of_karras() -> None:
    policy = made()
    first, last = 80 ** (1 / 7), 0.002 ** (1 / 7)
    expected = [(first + i / 39 * (last - first)) ** 7 for i in range(40)]
    torch.testing.assert_close(policy.sigmas, torch.tensor(expected))
    assert policy.sigmas[0] == pytest.approx(80.0) and policy.sigmas[-1] == pytest.approx(0.002)


def test_a_chunk_at_the_lowest_level_is_clean() -> None:
    policy = made()
    x, condition = torch.randn(5, 2, 2), policy.network.condition(torch.randn(5, 3))
    assert torch.equal(policy.denoise(x, policy.sigmas[-1:], condition), x)


@pytest.mark.parametrize("sigma", [0.002, 0.3, 5.0, 80.0])
def test_denoising_by_hand(sigma: float) -> None:
    policy = made()
    x, obs = sigma * torch.randn(5, 2, 2), torch.randn(5, 3)
    found = policy.denoise(x, torch.full((5,), sigma), policy.network.condition(obs))
    torch.testing.assert_close(found, by_hand(policy, x, sigma, obs))


def test_one_step_is_one_evaluation_at_the_highest_level() -> None:
    policy = made()
    assert policy.noise_shape == (2, 2)
    obs, noise = torch.randn(5, 3), torch.randn(5, 2, 2)
    expected = policy.normalizer.raw_action(by_hand(policy, 80.0 * noise, 80.0, obs))
    torch.testing.assert_close(policy(obs, noise), expected)


def test_several_steps_add_noise_again() -> None:
    policy = made(sampling_steps=3)
    assert policy.noise_shape == (3, 2, 2)
    obs, noise = torch.randn(5, 3), torch.randn(5, 3, 2, 2)
    clean = by_hand(policy, 80.0 * noise[:, 0], 80.0, obs)
    for step, level in ((1, 14), (2, 27)):  # thirds of 40, rounded up
        sigma = float(policy.sigmas[level])
        noisy = clean.clamp(-1, 1) + math.sqrt(sigma**2 - 0.002**2) * noise[:, step]
        clean = by_hand(policy, noisy, sigma, obs)
    torch.testing.assert_close(policy(obs, noise), policy.normalizer.raw_action(clean))


def test_every_level_can_be_a_step() -> None:
    policy = made(sampling_steps=40)
    action = policy(torch.randn(5, 3), policy.sample_noise(5))
    assert action.isfinite().all()


def test_cloning_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, data = made(), batch()
    obs = data.obs
    assert isinstance(obs, Tensor)
    levels, noise = torch.tensor([0, 7, 20, 30, 38, 38]), torch.randn(6, 2, 2)
    asked: list[int] = []

    def drawn(most: int, shape: tuple[int, ...], **_: Any) -> Tensor:
        asked.append(most)
        return levels

    monkeypatch.setattr(torch, "randint", drawn)
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    found = policy.bc_loss(data)
    assert asked == [39]  # the lowest level, where f is the identity, is left out
    clean = policy.normalizer.normalize_action(data.action)
    total = torch.zeros(())
    for row in range(6):
        sigma = float(policy.sigmas[levels[row]])
        x = clean[row : row + 1] + sigma * noise[row : row + 1]
        error = (by_hand(policy, x, sigma, obs[row : row + 1])[0] - clean[row]).square()
        total = total + (sigma**-2 + 4.0) * (error.mean(1) * data.valid[row]).sum()
    torch.testing.assert_close(found, total / data.valid.sum())


def clone_two_modes(policy: ConsistencyPolicy) -> Tensor:
    """Clone actions of -0.8 and 0.8 and return 2000 samples of the clone."""
    torch.manual_seed(2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    obs = torch.zeros(256, 1)
    ones = torch.ones(256)
    data = Batch(obs, torch.zeros(256, 1, 1), ones, obs, ones, ones[:, None] > 0)
    for _ in range(800):
        sign = torch.randint(2, (256, 1, 1)) * 2.0 - 1.0
        optimizer.zero_grad()
        policy.bc_loss(replace(data, action=0.8 * sign)).backward()
        optimizer.step()
    return policy.act(torch.zeros(2000, 1)).flatten()


def test_a_clone_has_both_modes_in_several_steps() -> None:
    torch.manual_seed(0)
    action = clone_two_modes(ConsistencyPolicy(LINE, hidden=(64, 64), sampling_steps=8))
    assert 0.3 < float((action > 0).float().mean()) < 0.7
    assert float((action.abs() < 0.4).float().mean()) < 0.2
    assert abs(float(action.abs().median()) - 0.8) < 0.1


def test_a_clone_in_one_step_is_the_mean() -> None:
    # The least reconstruction error from noise alone is at the mean of both modes.
    torch.manual_seed(0)
    action = clone_two_modes(ConsistencyPolicy(LINE, hidden=(64, 64)))
    assert abs(float(action.mean())) < 0.2 and float(action.abs().quantile(0.9)) < 0.4


def test_one_step_can_be_steered_and_several_cannot() -> None:
    assert latent_spec(made(), 1.5).action_high == (1.5, 1.5)
    with pytest.raises(TrimtabError, match="not one latent"):
        latent_spec(made(sampling_steps=2), 1.5)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"levels": 1}, "levels"),
        ({"sampling_steps": 0}, "sampling_steps"),
        ({"sampling_steps": 41}, "from 1 to 40"),
        ({"sigma_min": 0.0}, "sigma_min"),
        ({"sigma_min": 90.0}, "sigma_max"),
        ({"sigma_data": 0.0}, "sigma_data"),
    ],
)
def test_wrong_settings_are_said_in_one_line(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(TrimtabError, match=word) as caught:
        made(**wrong)
    assert "\n" not in str(caught.value)
