"""Stochastic chains against diffusers' steps, torch's densities, autograd, and known marginals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.tuned_diffusion import TunedDiffusionPolicy
from trimtab.policies.networks.chains import (
    NOISE_LIMIT,
    Chain,
    DiffusionChain,
    FlowChain,
    NoiseNetwork,
    chain_noise,
    guarded_log_ratio,
    log_density,
    walk,
)
from trimtab.policies.networks.samplers import cosine_schedule
from trimtab.types import PolicySpec, TrimtabError

SPEC = PolicySpec(3, 2, 2, (-1.0, -4.0), (1.0, 2.0))


def field(point: Tensor, time: Tensor) -> Tensor:
    """A smooth made-up prediction, small enough that not everything is clipped."""
    return 0.6 * torch.sin(2 * point + time[:, None, None]) - 0.2 * point


def noise_for(chain: Chain, rows: int = 7, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return chain_noise((rows, chain.steps + 1, 2, 3), torch.device("cpu"))


def test_implicit_steps_with_noise_are_those_of_diffusers(schedulers: dict[str, Any]) -> None:
    ours = DiffusionChain(cosine_schedule("ddim", 20, 5), eta=1.0)
    theirs = schedulers["ddim"](num_train_timesteps=20, beta_schedule="squaredcos_cap_v2")
    theirs.set_timesteps(5)
    noise = noise_for(ours)
    points = walk(ours, lambda x, i: field(x, ours.time(i)), noise)
    x = noise[:, 0]
    for index, step in enumerate(theirs.timesteps):
        predicted = field(x, torch.full((1,), int(step) / 20))
        x = theirs.step(
            predicted, step, x, eta=1.0, use_clipped_model_output=True,
            variance_noise=noise[:, index + 1],
        ).prev_sample  # fmt: skip
        torch.testing.assert_close(points[index + 1], x, atol=2e-5, rtol=1e-5)


def test_ancestral_steps_are_those_of_diffusers(schedulers: dict[str, Any]) -> None:
    ours = DiffusionChain(cosine_schedule("ddpm", 20, 20))
    theirs = schedulers["ddpm"](num_train_timesteps=20, beta_schedule="squaredcos_cap_v2")
    theirs.set_timesteps(20)
    x = noise_for(ours)[:, 0]
    for index, step in enumerate(theirs.timesteps):
        predicted = field(x, torch.full((1,), int(step) / 20))
        generator = torch.Generator().manual_seed(index)
        known = theirs.step(predicted, step, x, generator=generator).prev_sample
        drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(index))
        mean = ours.mean(x, predicted, index)
        x = mean + ours.std(index) * drawn
        torch.testing.assert_close(x, known, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_an_untouched_tuned_policy_acts_as_its_base(sampler: str) -> None:
    torch.manual_seed(0)
    base = DiffusionPolicy(SPEC, hidden=(16,), sampler=sampler, train_steps=8, sampling_steps=4)
    tuned = TunedDiffusionPolicy(base, tuned_steps=3)
    obs, noise = torch.randn(9, 3), base.sample_noise(9)
    torch.testing.assert_close(tuned(obs, noise), base(obs, noise), atol=2e-6, rtol=1e-5)
    with torch.no_grad():
        for weight in tuned.tuned.parameters():
            weight.mul_(1.3)
    assert (tuned(obs, noise) - base(obs, noise)).abs().max() > 1e-2


def test_only_the_last_steps_are_tuned() -> None:
    torch.manual_seed(0)
    base = DiffusionPolicy(SPEC, hidden=(16,), train_steps=8, sampling_steps=4)
    tuned = TunedDiffusionPolicy(base, tuned_steps=1)
    seen: list[int] = []
    tuned.tuned.register_forward_hook(lambda *_: seen.append(1))
    base.network.register_forward_hook(lambda *_: seen.append(0))
    tuned(torch.randn(2, 3), tuned.sample_noise(2))
    assert seen == [0, 0, 0, 1]
    assert not any(weight.requires_grad for weight in tuned.base.parameters())
    with pytest.raises(TrimtabError, match="tuned_steps=5"):
        TunedDiffusionPolicy(base, tuned_steps=5)


CHAINS: dict[str, Chain] = {
    "ddim": DiffusionChain(cosine_schedule("ddim", 20, 5), floor=0.1),
    "ddpm": DiffusionChain(cosine_schedule("ddpm", 6, 6)),
    "tapered": FlowChain(5, level=0.4, limit=9.0),
    "constant": FlowChain(5, noise="constant", level=0.4, limit=9.0),
    "odds": FlowChain(5, noise="odds", level=0.4, limit=9.0),
    "euler": FlowChain(4, drift=False, limit=9.0),
}


@pytest.mark.parametrize("name", CHAINS)
def test_rows_may_be_at_different_steps(name: str) -> None:
    chain = CHAINS[name]
    torch.manual_seed(1)
    point, predicted = torch.randn(6, 2, 3), torch.randn(6, 2, 3)
    index = torch.randint(chain.steps, (6,))
    mixed = chain.mean(point, predicted, index)
    for row in range(6):
        step = int(index[row])
        alone = chain.mean(point[row : row + 1], predicted[row : row + 1], step)
        torch.testing.assert_close(mixed[row], alone[0])
        assert chain.std(index)[row].item() == chain.std(step).item()
        assert chain.time(index)[row].item() == chain.time(step).item()


@pytest.mark.parametrize("name", CHAINS)
def test_sensitivity_is_the_derivative_of_the_mean(name: str) -> None:
    chain = CHAINS[name]
    for index in range(chain.steps):
        predicted = torch.zeros(1, 1, 1, requires_grad=True)
        mean = chain.mean(torch.zeros(1, 1, 1), predicted, index)
        (slope,) = torch.autograd.grad(mean.sum(), predicted)
        assert abs(slope.item()) == pytest.approx(chain.sensitivity[index].item(), rel=1e-4)


def test_floors_and_limits() -> None:
    raw, floored = (DiffusionChain(cosine_schedule("ddpm", 20, 20), floor=f) for f in (0, 0.1))
    assert torch.equal(floored.deviations, raw.deviations.clamp_min(0.1))
    assert raw.deviations[-1] == 0 and (raw.deviations < 0.1).sum() == 2
    noise = noise_for(raw, rows=2000)
    assert noise[:, 1:].abs().max() == NOISE_LIMIT and noise[:, 0].abs().max() > NOISE_LIMIT
    flow = FlowChain(2, level=0.1, limit=1.0)
    assert flow.mean(torch.full((1, 1, 1), 3.0), torch.zeros(1, 1, 1), 1).item() == 1.0
    assert torch.equal(
        FlowChain(4, level=0.2).deviations, 0.2 * torch.tensor([1, 0.75, 0.5, 0.25]).sqrt()
    )


@pytest.mark.parametrize("noise", ["tapered", "constant", "odds"])
def test_noise_keeps_the_marginals_of_the_flow(noise: str) -> None:
    """Between N(0, 1) and N(m, s^2) the velocity is known, so the end of the chain is, too."""
    goal, spread, steps = 0.7, 0.4, 200
    level = 0.8 if noise == "odds" else 1.5 / steps**0.5
    chain = FlowChain(steps, noise=noise, level=level, limit=50.0)

    def velocity(x: Tensor, index: int) -> Tensor:
        t = index / steps
        variance = (1 - t) ** 2 + (t * spread) ** 2
        slope = (t * spread**2 - (1 - t)) / variance  # Cov(a - eps, x_t) / Var(x_t)
        return goal + slope * (x - t * goal)

    torch.manual_seed(0)
    draws = torch.randn(40_000, steps + 1, 1, 1)
    end = walk(chain, velocity, draws)[-1]
    assert end.mean().item() == pytest.approx(goal, abs=0.02)
    assert end.std().item() == pytest.approx(spread, abs=0.02)
    # And the noise is not small: where a chain starts hardly says where it ends.
    related = torch.corrcoef(torch.stack([end.flatten(), draws[:, 0].flatten()]))[0, 1]
    assert related < 0.75
    undrifted = FlowChain(steps, noise=noise, level=level, drift=False, limit=50.0)
    assert walk(undrifted, velocity, draws)[-1].std().item() > spread + 0.05


def test_densities_are_those_of_torch() -> None:
    torch.manual_seed(0)
    value, mean = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    std = torch.rand(4, 1, 1) + 0.1
    torch.testing.assert_close(log_density(value, mean, std), Normal(mean, std).log_prob(value))


def test_guarded_ratio_is_the_formula_and_has_no_bias() -> None:
    torch.manual_seed(0)
    old, new = torch.randn(1, 2, 3), torch.randn(1, 2, 3)
    new = old + 0.1 * (new - old)
    for std in (torch.full((1, 1, 1), 0.05), torch.full((1, 1, 1), 0.5)):
        value = old + std * torch.randn(60_000, 2, 3)
        found = guarded_log_ratio(value, new, old, std)
        plain = (Normal(new, std).log_prob(value) - Normal(old, std).log_prob(value)).mean((1, 2))
        bias = (new - old).square().mean((1, 2)) / (2 * std.flatten() ** 2)
        torch.testing.assert_close(found, std.flatten() * (plain + bias), atol=1e-4, rtol=1e-3)
        shift = (new - old).square().mean().sqrt() / math.sqrt(6)
        assert abs(found.mean().item()) < 0.02 * shift
        assert found.std().item() == pytest.approx(shift.item(), rel=0.02)
        assert plain.mean().item() < -1e-3


def test_learned_noise_keeps_to_its_bounds() -> None:
    torch.manual_seed(0)
    network = NoiseNetwork(3, (2, 2), torch.ones(4), (8,))
    obs = 50 * torch.randn(500, 3)
    with torch.no_grad():
        network.network[-1].weight.mul_(30)
    std = network(obs, torch.tensor([0.3]), 0.1, 0.24)
    assert std.shape == (500, 2, 2)
    assert 0.0999 < std.min().item() < 0.105 and 0.235 < std.max().item() < 0.2401
    torch.nn.init.zeros_(network.network[-1].weight)
    torch.nn.init.zeros_(network.network[-1].bias)
    middle = network(obs, torch.tensor([0.3]), 0.1, 0.24)
    assert torch.allclose(middle, torch.tensor(math.sqrt(0.1 * 0.24)))


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(TrimtabError, match="noise=pink: there are tapered"):
        FlowChain(3, noise="pink", level=0.1)
    with pytest.raises(TrimtabError, match="at least 0"):
        FlowChain(3, level=-0.1)
