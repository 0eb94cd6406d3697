"""Distilling a policy of many steps: teachers whose paths are known in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.one_step import KarrasDenoiser, same_noise_loss
from trimtab.algorithms.finetuning.consistency_distillation import ConsistencyDistillation
from trimtab.policies.base import Policy
from trimtab.policies.kinds.consistency import ConsistencyPolicy
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import Batch, PolicySpec, TrimtabError

SPEC = PolicySpec(2, 1, 2, (-1.0, -2.0), (1.0, 2.0))
SMALL: dict[str, Any] = {"hidden": (32, 32), "batch_size": 128}
WIDTH = 0.2  # standard deviation of the known teachers' actions, in normalised units


def mean_of(obs: Tensor) -> Tensor:
    """Mean of the known teachers' normalised actions ``[B, 1, 2]``."""
    return 0.4 * torch.tanh(obs)[:, None, :]


class Field(nn.Module):
    """The exact field of actions N(mean(s), WIDTH^2), for one kind of teacher."""

    def condition(self, obs: Tensor) -> Tensor:
        return obs


class ExactVelocity(Field):
    def forward(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        t, mean = time[:, None, None], mean_of(condition)
        variance = (1 - t).square() + (t * WIDTH).square()
        off = (x - t * mean) / variance
        return mean + t * WIDTH**2 * off - (1 - t) * off  # E[a - eps | x_t]


class ExactNoise(Field):
    def __init__(self, alpha: Tensor) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        alpha = self.alpha[(time * len(self.alpha)).round().long()][:, None, None]
        return (
            (1 - alpha).sqrt()
            * (x - alpha.sqrt() * mean_of(condition))
            / (alpha * WIDTH**2 + 1 - alpha)
        )


def flow(steps: int = 20) -> FlowPolicy:
    policy = FlowPolicy(SPEC, hidden=(8, 8), sampling_steps=steps)
    policy.network = ExactVelocity()  # type: ignore[assignment]
    return policy


def diffusion() -> DiffusionPolicy:
    policy = DiffusionPolicy(SPEC, hidden=(8, 8), train_steps=30, sampling_steps=30)
    policy.network = ExactNoise(policy.alpha)  # type: ignore[assignment]
    return policy


def batch(count: int = 128) -> Batch:
    ones = torch.ones(count)
    return Batch(
        obs=torch.randn(count, 2),
        action=torch.zeros(count, 1, 2),
        reward=ones,
        next_obs=torch.zeros(count, 2),
        discount=ones,
        valid=torch.ones(count, 1, dtype=torch.bool),
    )


def made(base: Policy, **keywords: Any) -> ConsistencyDistillation:
    torch.manual_seed(0)
    return ConsistencyDistillation(Setup(SPEC, base=base), **{**SMALL, **keywords})


def clean_by_hand(x: Tensor, sigma: float, obs: Tensor) -> Tensor:
    """E[a | a + sigma eps = x]."""
    return (WIDTH**2 * x + sigma**2 * mean_of(obs)) / (WIDTH**2 + sigma**2)


def test_flow_denoises_at_every_level_as_bayes_rule_says() -> None:
    student = ConsistencyPolicy(SPEC, hidden=(8, 8))
    denoiser = KarrasDenoiser(flow(), student)
    obs = torch.randn(40, 2)
    x = mean_of(obs) + student.sigmas[:, None, None] * torch.randn(40, 1, 2)
    found = denoiser(x, torch.arange(40), denoiser.condition(obs))
    for level, sigma in enumerate(student.sigmas.tolist()):
        row = slice(level, level + 1)
        expected = clean_by_hand(x[row], sigma, obs[row])
        torch.testing.assert_close(found[row], expected, atol=2e-4, rtol=1e-3)


def test_diffusion_denoises_at_its_own_levels_as_bayes_rule_says() -> None:
    teacher = diffusion()
    student = ConsistencyPolicy(SPEC, hidden=(8, 8), levels=30)
    student.sigmas = ((1 - teacher.alpha) / teacher.alpha).sqrt().flip(0)
    denoiser = KarrasDenoiser(teacher, student)
    torch.testing.assert_close(denoiser.time, torch.arange(29, -1, -1) / 30)
    obs = torch.randn(30, 2)
    x = mean_of(obs) + student.sigmas[:, None, None] * torch.randn(30, 1, 2)
    found = denoiser(x, torch.arange(30), obs)
    for level, sigma in enumerate(student.sigmas.tolist()):
        row = slice(level, level + 1)
        expected = clean_by_hand(x[row], sigma, obs[row]).clamp(-1, 1)
        torch.testing.assert_close(found[row], expected, atol=2e-3, rtol=1e-3)


def test_time_runs_in_a_line_between_levels_and_stands_still_beyond() -> None:
    teacher = diffusion()
    known = ((1 - teacher.alpha) / teacher.alpha).sqrt()
    student = ConsistencyPolicy(SPEC, hidden=(8, 8), levels=3)
    middle = (known[4] * known[5]).sqrt()  # half way in its logarithm
    student.sigmas = torch.stack([known[-1] * 10, middle, known[0] / 10])
    expected = torch.tensor([29 / 30, 4.5 / 30, 0.0])
    torch.testing.assert_close(KarrasDenoiser(teacher, student).time, expected)


def test_steps_follow_the_path() -> None:
    """x - m shrinks on the path as sqrt(WIDTH^2 + sigma^2) does; Heun errs by its third order."""
    student = ConsistencyPolicy(SPEC, hidden=(8, 8), levels=160)
    denoiser = KarrasDenoiser(flow(), student)
    obs = torch.randn(64, 2)
    start = mean_of(obs) + 80.0 * torch.randn(64, 1, 2)
    x = start
    for level in range(159):
        x = denoiser.step(x, torch.full((64,), level), obs)
    shrunk = math.sqrt((WIDTH**2 + 0.002**2) / (WIDTH**2 + 80.0**2))
    expected = mean_of(obs) + shrunk * (start - mean_of(obs))
    torch.testing.assert_close(x, expected, atol=2e-3, rtol=0)


def test_one_step_of_heun_by_hand() -> None:
    student = ConsistencyPolicy(SPEC, hidden=(8, 8))
    denoiser = KarrasDenoiser(flow(), student)
    obs, x = torch.randn(5, 2), torch.randn(5, 1, 2)
    high, low = student.sigmas[20].item(), student.sigmas[21].item()
    first = (x - clean_by_hand(x, high, obs)) / high
    reached = x + (low - high) * first
    second = (reached - clean_by_hand(reached, low, obs)) / low
    expected = x + (low - high) * 0.5 * (first + second)
    found = denoiser.step(x, torch.full((5,), 20), obs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_same_noise_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, obs, noise = made(flow(3)), torch.randn(6, 2), torch.randn(6, 1, 2)
    monkeypatch.setattr(algorithm.student, "sample_noise", lambda n: noise)
    student = algorithm.student
    with torch.no_grad():
        taught = algorithm.teacher(obs, noise) / torch.tensor([1.0, 2.0])
        learned = student.denoise(
            80 * noise, torch.full((1,), 80.0), student.network.condition(obs)
        )
    found = same_noise_loss(student, algorithm.teacher, obs)
    torch.testing.assert_close(found, (learned - taught).square().mean())


def test_consistency_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made(flow(3), target="consistency")
    student, teacher = algorithm.student, algorithm.teacher
    obs, start, noise = torch.randn(4, 2), torch.randn(4, 1, 2), torch.randn(4, 1, 2)
    level = torch.tensor([0, 10, 25, 38])
    monkeypatch.setattr(teacher, "sample_noise", lambda n: start)
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    monkeypatch.setattr(torch, "randint", lambda most, shape, **_: level if most == 39 else None)
    found = algorithm.consistency(obs)
    expected = 0.0
    for row in range(4):
        one = obs[row : row + 1]
        clean = teacher(one, start[row : row + 1]) / torch.tensor([1.0, 2.0])
        high, low = student.sigmas[level[row]], student.sigmas[level[row] + 1]
        x = clean + high * noise[row : row + 1]
        slope = (x - clean_by_hand(x, float(high), one)) / high
        reached = x + (low - high) * slope
        slope = (slope + (reached - clean_by_hand(reached, float(low), one)) / low) / 2
        condition = student.network.condition(one)
        difference = student.denoise(x, high[None], condition) - student.denoise(
            x + (low - high) * slope, low[None], condition
        )
        bend = 0.00054 * math.sqrt(2)
        distance = math.sqrt(float(difference.detach().square().sum()) + bend**2) - bend
        expected += distance / float(high - low)
    assert float(found.detach()) == pytest.approx(expected / 4, rel=1e-3)


def test_the_lower_level_is_a_fixed_target() -> None:
    """At the last level but one the target is the path's clean end, whatever the student is."""
    algorithm = made(flow(3), target="consistency")
    torch.manual_seed(1)
    loss = algorithm.consistency(torch.randn(16, 2))
    (gradient,) = torch.autograd.grad(loss, [algorithm.student.network.obs_layer.bias])
    assert float(gradient.abs().sum()) > 0
    assert not any(weight.requires_grad for weight in algorithm.teacher.parameters())


@pytest.mark.parametrize("base", [flow, diffusion])
def test_a_student_of_the_same_noise_acts_as_its_teacher(base: Any) -> None:
    algorithm = made(base(), learning_rate=3e-3, ema_decay=0.98)
    before = missed(algorithm)
    for _ in range(400):
        algorithm.update(batch())
    assert missed(algorithm) < 0.03 < 0.15 < before


def missed(algorithm: ConsistencyDistillation) -> float:
    """Mean difference of the judged student from the exact map of noise, normalised."""
    torch.manual_seed(5)
    obs, noise = torch.randn(500, 2), torch.randn(500, 1, 2)
    with torch.no_grad():
        action = algorithm.policy(obs, noise) / torch.tensor([1.0, 2.0])
    return float((action - mean_of(obs) - WIDTH * noise).abs().mean())


def test_consistency_leads_to_the_same_map_without_being_shown_it() -> None:
    algorithm = made(flow(4), target="consistency", learning_rate=2e-3, ema_decay=0.99)
    before = missed(algorithm)
    for _ in range(1200):
        algorithm.update(batch())
    assert missed(algorithm) < 0.06 < 0.15 < before


def test_a_student_of_several_steps() -> None:
    algorithm = made(flow(3), target="consistency", sampling_steps=3)
    algorithm.update(batch(16))
    assert algorithm.policy.noise_shape == (3, 1, 2)


@pytest.mark.parametrize("kind", [FlowPolicy, DiffusionPolicy])
def test_consistency_waits_for_no_device(kind: Any) -> None:
    setup = Setup(SPEC, base=kind(SPEC, hidden=(8, 8)).to("meta"), device="meta")
    algorithm = ConsistencyDistillation(setup, target="consistency", **SMALL)
    data = replace(batch(6), obs=torch.zeros(6, 2, device="meta"))
    assert algorithm.update(data)["distillation_loss"].device.type == "meta"  # type: ignore[union-attr]


def test_student_reads_and_commands_in_the_units_of_its_base() -> None:
    base = flow()
    base.normalizer.obs_shift += 3.0
    base.normalizer.action_scale *= 0.5
    algorithm = made(base)
    for name, value in base.normalizer.state_dict().items():
        assert torch.equal(algorithm.policy.normalizer.state_dict()[name], value)
    assert algorithm.policy.spec == base.spec


def test_a_steered_policy_can_be_distilled() -> None:
    base = flow(4)
    steered = LatentPolicy(TanhGaussianPolicy(latent_spec(base, 1.5), hidden=(8,)), base)
    assert made(steered).update(batch(16))["distillation_loss"] > 0
    with pytest.raises(TrimtabError, match="target=same_noise"):
        made(steered, target="consistency")


@pytest.mark.parametrize(
    ("base", "keywords", "word"),
    [
        (lambda: GaussianPolicy(SPEC, hidden=(8,)), {}, "student of a gaussian policy"),
        (lambda: TanhGaussianPolicy(SPEC, hidden=(8,)), {}, "student of a tanh_gaussian policy"),
        (lambda: DeterministicPolicy(SPEC, hidden=(8,)), {}, "student of a deterministic policy"),
        (lambda: DiffusionPolicy(SPEC, hidden=(8,), sampler="ddpm"), {}, "one latent"),
        (flow, {"target": "both"}, "target=both"),
        (flow, {"sampling_steps": 2}, "sampling_steps=2"),
        (flow, {"levels": 1}, "levels"),
        (flow, {"batch_size": 0}, "batch_size"),
        (flow, {"ema_decay": 1.5}, "ema_decay"),
    ],
)
def test_what_cannot_be_distilled_is_said_in_one_line(
    base: Any, keywords: dict[str, Any], word: str
) -> None:
    with pytest.raises(TrimtabError, match=word) as caught:
        made(base(), **keywords)
    assert "\n" not in str(caught.value)
