"""The unrolled samplers against diffusers' own loops and against closed forms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.networks.samplers import Euler, Field, cosine_alphas, cosine_schedule
from trimtab.types import PolicySpec, TrimtabError

HORIZON, DIM = 3, 2
# All steps, a divisor of them, numbers that do not divide them, and a single step.
STEPS = [(20, 20), (20, 5), (20, 7), (20, 8), (20, 1), (100, 10), (100, 30), (1, 1)]


@pytest.fixture
def field() -> Field:
    """A nonlinear noise estimate that depends on time and is often outside what is clipped."""
    weight = torch.randn(HORIZON * DIM, HORIZON * DIM, generator=torch.Generator().manual_seed(1))

    def estimate(x: Tensor, time: Tensor) -> Tensor:
        return (1.5 * torch.tanh(x.flatten(1) @ weight + torch.sin(5 * time))).reshape(x.shape)

    return estimate


def noise_of(shape: tuple[int, ...], seed: int = 2) -> Tensor:
    return torch.randn(16, *shape, generator=torch.Generator().manual_seed(seed))


def loop(scheduler: Any, steps: int, field: Field, latent: Tensor, **keywords: Any) -> Tensor:
    """Denoise as diffusers' pipelines do."""
    scheduler.set_timesteps(steps)
    action = latent
    for t in scheduler.timesteps:
        time = torch.full((1,), int(t) / scheduler.config.num_train_timesteps)
        action = scheduler.step(field(action, time), int(t), action, **keywords).prev_sample
    return action


@pytest.mark.parametrize("train_steps", [1, 2, 5, 20, 100, 1000])
@pytest.mark.parametrize("name", ["ddim", "ddpm"])
def test_the_schedule_is_that_of_diffusers_to_the_last_bit(
    train_steps: int, name: str, schedulers: dict[str, Any]
) -> None:
    theirs = schedulers[name](num_train_timesteps=train_steps, beta_schedule="squaredcos_cap_v2")
    assert cosine_alphas(train_steps) == theirs.alphas_cumprod.tolist()
    for steps in {1, 2, 3, 5, 7, train_steps}:
        if steps <= train_steps:
            theirs.set_timesteps(steps)
            sampler = cosine_schedule(name, train_steps, steps)
            assert sampler.timesteps == theirs.timesteps.tolist()


@pytest.mark.parametrize(("train_steps", "steps"), STEPS)
def test_ddim_is_diffusers_loop(
    train_steps: int, steps: int, field: Field, schedulers: dict[str, Any]
) -> None:
    sampler = cosine_schedule("ddim", train_steps, steps)
    assert sampler.noise_shape(HORIZON, DIM) == (HORIZON, DIM)
    noise = noise_of((HORIZON, DIM))
    theirs = loop(
        schedulers["ddim"](num_train_timesteps=train_steps, beta_schedule="squaredcos_cap_v2"),
        steps,
        field,
        noise,
        eta=0.0,
        use_clipped_model_output=True,
    )
    assert (sampler(field, noise) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize(("train_steps", "steps"), STEPS)
def test_ddpm_is_diffusers_loop(
    train_steps: int,
    steps: int,
    field: Field,
    schedulers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler = cosine_schedule("ddpm", train_steps, steps)
    assert sampler.noise_shape(HORIZON, DIM) == (steps, HORIZON, DIM)
    noise = noise_of((steps, HORIZON, DIM))
    path = iter(noise[:, 1:].unbind(1))
    module = sys.modules[schedulers["ddpm"].__module__]
    monkeypatch.setattr(module, "randn_tensor", lambda *a, **k: next(path))
    theirs = loop(
        schedulers["ddpm"](
            num_train_timesteps=train_steps,
            beta_schedule="squaredcos_cap_v2",
            variance_type="fixed_small",
            clip_sample=True,
        ),
        steps,
        field,
        noise[:, 0],
    )
    assert next(path, None) is None, "diffusers drew less noise than the path holds"
    assert (sampler(field, noise) - theirs).abs().max() < 1e-5


def test_samples_stay_where_clean_chunks_are(field: Field) -> None:
    # The last step returns the clipped estimate of the clean chunk itself.
    for name in ("ddim", "ddpm"):
        sampler = cosine_schedule(name, 20, 5)
        chunk = sampler(field, 10 * noise_of(sampler.noise_shape(HORIZON, DIM)))
        assert chunk.abs().max() <= 1.0 + 1e-6


def test_policy_unrolls_its_network_and_trains_on_the_schedule(schedulers: dict[str, Any]) -> None:
    torch.manual_seed(0)
    spec = PolicySpec(4, HORIZON, DIM, (-2.0, 0.0), (2.0, 3.0))
    policy = DiffusionPolicy(spec, hidden=(16, 16), train_steps=20, sampling_steps=5)
    scheduler = schedulers["ddim"](num_train_timesteps=20, beta_schedule="squaredcos_cap_v2")
    torch.testing.assert_close(policy.alpha, scheduler.alphas_cumprod)
    obs, noise = torch.randn(16, 4), noise_of((HORIZON, DIM))
    condition = policy.network.condition(obs)
    with torch.no_grad():
        chunk = loop(
            scheduler,
            5,
            lambda x, time: policy.network(x, time, condition),
            noise,
            use_clipped_model_output=True,
        )
        difference = policy(obs, noise) - policy.normalizer.raw_action(chunk)
    assert difference.abs().max() < 1e-5


@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_euler_against_the_closed_form_of_a_linear_field(steps: int) -> None:
    rate, shift = -0.7, 0.3
    noise = noise_of((HORIZON, DIM))
    end = Euler(steps)(lambda x, time: rate * x + shift, noise)
    expected = (noise + shift / rate) * (1 + rate / steps) ** steps - shift / rate
    assert (end - expected).abs().max() < 1e-5


@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_euler_takes_the_field_at_the_start_of_each_step(steps: int) -> None:
    noise = noise_of((HORIZON, DIM))
    end = Euler(steps)(lambda x, time: time.expand_as(x), noise)
    assert (end - noise - (steps - 1) / (2 * steps)).abs().max() < 1e-5


def test_euler_follows_straight_paths_exactly_and_converges_on_curved_ones() -> None:
    noise, target = noise_of((HORIZON, DIM)), noise_of((HORIZON, DIM), seed=3)
    straight = Euler(3)(lambda x, time: target - noise, noise)
    torch.testing.assert_close(straight, target, atol=1e-6, rtol=0)
    grown = noise * torch.tensor(1.0).exp()
    errors = [float((Euler(n)(lambda x, time: x, noise) - grown).abs().max()) for n in (10, 20)]
    assert 1.7 < errors[0] / errors[1] < 2.3  # first order: half the step, half the error


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: cosine_schedule("ddim", 20, 0), "from 1 to 20"),
        (lambda: cosine_schedule("ddpm", 20, 21), "from 1 to 20"),
        (lambda: cosine_schedule("heun", 20, 5), "ddim or ddpm"),
    ],
)
def test_wrong_settings_are_said_in_one_line(make: Callable[[], Any], word: str) -> None:
    with pytest.raises(TrimtabError, match=word) as caught:
        make()
    assert "\n" not in str(caught.value)
