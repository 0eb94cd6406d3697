"""Policy-guided diffusion: closed forms for Gaussian data, autograd, rows by loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor
from torch.distributions import Normal

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.common.edm import NoiseLevels, denoised, denoising_loss, heun_sample
from trimtab.algorithms.generation.policy_guided_diffusion import PolicyGuidedDiffusion
from trimtab.algorithms.offline.bc import BehaviorCloning
from trimtab.algorithms.offline.cal_ql import CalQL
from trimtab.algorithms.offline.decision_transformer import DecisionTransformer
from trimtab.algorithms.offline.iql import IQL
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.settings import keywords_of
from trimtab.types import Batch, TrimtabError

SetupOf = Callable[..., Setup]
LENGTH = 5
SMALL: dict[str, Any] = {"length": LENGTH, "hidden": (8, 8), "rollouts": 300, "fit_updates": 40,
                         "sampling_steps": 12}  # fmt: skip


@pytest.fixture
def make(setup_of: SetupOf) -> Callable[..., PolicyGuidedDiffusion]:
    """A generator for TD3+BC, or for another method, whose model is that of normal data."""

    def made(method: type[Algorithm] = TD3BC, **keywords: Any) -> PolicyGuidedDiffusion:
        torch.manual_seed(4)
        given, settings = setup_of(set(method.needs.required)), {"hidden": (16,)}
        learner = method(given, **(settings if "hidden" in keywords_of(method) else {}))
        generator = PolicyGuidedDiffusion(given, learner, **{**SMALL, **keywords})
        # Where F is 0, D is c_skip x: the exact denoiser of normal data, at every level.
        with torch.no_grad():
            generator.average.out.weight.zero_()
            assert generator.average.out.bias is not None
            generator.average.out.bias.zero_()
        return generator

    return made


# ---- the diffusion -------------------------------------------------------------------------------


def test_the_loss_is_the_closed_form_for_normal_data() -> None:
    torch.manual_seed(0)
    levels, spread, offset = NoiseLevels(data=0.5), 0.8, 0.3
    nodes, weights = hermegauss(60)
    sigma = np.exp(levels.log_mean + levels.log_std * nodes)
    scale = (sigma**2 + 0.25) / (0.5 * sigma) ** 2
    skip = 0.25 / (sigma**2 + 0.25)
    # E (c_skip (y + sigma n) - y)^2, and what c_out^2 F^2 adds, which the weight makes F^2.
    error = (1 - skip) ** 2 * spread**2 + skip**2 * sigma**2
    expected = float((weights * scale * error).sum() / weights.sum()) + offset**2
    clean = spread * torch.randn(20_000, 2, 3)
    found = denoising_loss(lambda x, level: torch.full_like(x, offset), clean, levels)
    assert float(found) == pytest.approx(expected, rel=0.02)
    # Data of the spread that is expected: the best there is has a loss of 1 at every level.
    best = denoising_loss(lambda x, level: 0 * x, 0.5 * clean / spread, levels)
    assert float(best) == pytest.approx(1.0, rel=0.02)


def test_the_network_reads_scaled_rows_and_a_quarter_of_the_logarithm() -> None:
    noisy, seen = torch.randn(2, 3, 4), list[Tensor]()

    def network(rows: Tensor, level: Tensor) -> Tensor:
        seen.extend([rows, level])
        return torch.ones_like(rows)

    found = denoised(network, noisy, torch.tensor([2.0, 0.1]), 0.5)
    for row, sigma in enumerate((2.0, 0.1)):
        total = sigma**2 + 0.25
        assert torch.allclose(seen[0][row], noisy[row] / math.sqrt(total))
        assert float(seen[1][row]) == pytest.approx(math.log(sigma) / 4)
        expected = 0.25 / total * noisy[row] + sigma * 0.5 / math.sqrt(total)
        assert torch.allclose(found[row], expected, atol=1e-6)


def test_levels_and_renewed_noise() -> None:
    levels = NoiseLevels()
    steps = levels.steps(3)
    middle = (0.5 * 80 ** (1 / 7) + 0.5 * 0.002 ** (1 / 7)) ** 7
    assert steps == pytest.approx([80.0, middle, 0.002, 0.0])
    assert [levels.renewal(one, 256) for one in (80.0, 1.0, 0.01)] == [0.0, 80 / 256, 0.0]
    assert levels.renewal(1.0, 10) == math.sqrt(2) - 1


@pytest.mark.parametrize(("churn", "steps"), [(0.0, 200), (80.0, 256)])
def test_sampling_has_the_distribution_of_normal_data(churn: float, steps: int) -> None:
    torch.manual_seed(1)
    mean, spread = 0.7, 0.4

    def exact(x: Tensor, sigma: float) -> Tensor:
        return mean + spread**2 / (spread**2 + sigma**2) * (x - mean)

    noise = torch.randn(4000, 2, 2)
    found = heun_sample(exact, noise, NoiseLevels(churn=churn), steps)
    if not churn:  # the path of the differential equation, in closed form
        shrunk = spread / math.sqrt(spread**2 + 80.0**2)
        assert torch.allclose(found, mean + (80 * noise - mean) * shrunk, atol=2e-3)
    assert float(found.mean()) == pytest.approx(mean, abs=0.02)
    assert float(found.std()) == pytest.approx(spread, rel=0.025)


# ---- trajectories --------------------------------------------------------------------------------


def two_episodes() -> Dataset:
    """Return an episode that ends for good after 7 steps, and one that is cut after 8."""
    rng = np.random.default_rng(0)

    def episode(steps: int, ended: bool) -> Episode:
        flags = np.zeros(steps, bool)
        last = flags.copy()
        last[-1] = True
        return Episode(
            observations=rng.normal(size=(steps + 1, 5)).astype(np.float32),
            actions=rng.uniform(-0.4, 0.4, (steps, 2)).astype(np.float32),
            rewards=rng.normal(size=steps).astype(np.float32),
            terminations=last if ended else flags,
            truncations=flags if ended else last,
        )

    episodes = [episode(7, True), episode(8, False)]
    return Dataset("toy/ends-v0", "toy/Ends-v0", {}, episodes, (-1.0, -0.5), (1.0, 2.0))


def test_rows_of_the_data_by_a_loop(make: Callable[..., PolicyGuidedDiffusion]) -> None:
    generator, data = make(), two_episodes()
    source = ReplayBuffer.from_dataset(
        data, window=2, discount=0.9, chunked=True, batch_spec=generator.batch_spec
    )
    batch = source.sample(40)
    rows = generator.rows(batch)
    assert isinstance(batch.obs, Tensor)
    kinds = set()
    for row, first in zip(rows, batch.obs, strict=True):
        (episode, start), = (
            (one, at) for one in data.episodes for at in range(len(one.rewards))
            if np.array_equal(one.observations[at], first.numpy())
        )  # fmt: skip
        expected = []
        for at in range(start, len(episode.rewards), 2):
            steps = [at, min(at + 1, len(episode.rewards) - 1)]
            ended = bool(episode.terminations[at : at + 2].any())
            action = np.concatenate([episode.actions[step] for step in steps])
            reward = episode.rewards[at : at + 2].sum()
            expected.append([*episode.observations[at], *action, reward, ended, 1.0])
        expected = expected[:LENGTH]
        kinds.add((len(expected) < LENGTH, expected[-1][-2]))
        while len(expected) < LENGTH:
            expected.append([*expected[-1][:-2], 0.0, 0.0])
        assert np.allclose(row.numpy(), expected, atol=1e-6)
    assert {(True, 1.0), (True, 0.0)} <= {(short, float(end)) for short, end in kinds}


def test_transitions_end_where_an_episode_does(
    make: Callable[..., PolicyGuidedDiffusion], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = make(rollouts=1)
    rows = torch.randn(1, LENGTH, 12)
    made: dict[str, Any] = {"trajectories": lambda count, guidance: rows}
    monkeypatch.setattr(generator, "trajectories", made["trajectories"])
    for terminal, going_on, expected in (
        ([0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 2, 3]),
        ([0, 0, 1, 0, 0], [1, 1, 1, 0, 0], [0, 1, 2]),  # ended for good: the last one counts
        ([0, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1]),  # cut: what follows is not known
        ([1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0]),  # nothing is real after an end
    ):
        rows[0, :, -2], rows[0, :, -1] = torch.tensor(terminal), torch.tensor(going_on)
        found = generator.transitions(0.0)
        assert torch.equal(found["obs"], rows[0, expected, :5])
        assert torch.equal(found["next_obs"], rows[0, [one + 1 for one in expected], :5])
        gamma = [0.0 if terminal[one] else 0.99 for one in expected]
        assert torch.allclose(found["discount"], torch.tensor(gamma))
        low, high = torch.tensor([-1.0, -0.5]), torch.tensor([1.0, 2.0])
        clipped = rows[0, :, 5:9].reshape(-1, 2, 2).clamp(low, high)
        assert torch.equal(found["action"], clipped[expected])
        assert torch.equal(found["next_action"], clipped[[one + 1 for one in expected]])
    rows[..., -1] = 0
    with pytest.raises(TrimtabError, match=r"none of the 1 trajectories.*fit_updates"):
        generator.transitions(0.0)
    rows[0, 0, 0] = math.nan
    with pytest.raises(TrimtabError, match="not finite"):
        generator.transitions(0.0)


# ---- guidance ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [TD3BC, IQL])
def test_guidance_is_the_gradient_of_the_density(
    make: Callable[..., PolicyGuidedDiffusion], method: type[Algorithm]
) -> None:
    generator = make(method, normalized=False)
    generator.mean, generator.std = torch.randn(12) / 9, 0.5 + torch.rand(12)
    rows = 0.3 * torch.randn(3, LENGTH, 12)
    raw = rows * generator.std + generator.mean
    policy, wide = generator.learner.policy, generator.std[5:9].reshape(2, 2)
    found = generator.direction(rows)
    for row in range(3):
        for step in range(LENGTH):
            obs, action = raw[row, step, None, :5], raw[row, step, 5:9].reshape(2, 2)
            with torch.no_grad():
                mean = policy(obs, torch.zeros(1, *policy.noise_shape))[0]
            # Of a normal density around the policy's mean; its width is 1 at the beginning, where
            # actions are scaled to [-1, 1], and so is that which stands for a deterministic one.
            unit = torch.tensor([1.0, 1.25])
            moved = action.clone().requires_grad_()
            Normal(mean, unit).log_prob(moved).sum().backward()
            assert moved.grad is not None
            expected = (moved.grad * wide).flatten()
            assert torch.allclose(found[row, step], expected, atol=1e-5)
    unit_norm = make(method)
    unit_norm.mean, unit_norm.std = generator.mean, generator.std
    unit_norm.learner.policy.load_state_dict(policy.state_dict())
    scaled = found / found.flatten(1).norm(dim=1)[:, None, None]
    assert torch.allclose(unit_norm.direction(rows), scaled, atol=1e-5)


def test_without_guidance_the_data_and_with_more_of_it_the_policy(
    make: Callable[..., PolicyGuidedDiffusion],
) -> None:
    generator = make(sampling_steps=40)
    generator.mean = torch.linspace(-0.3, 0.3, 12)
    generator.std = torch.linspace(0.1, 0.3, 12)
    torch.manual_seed(2)
    plain = generator.trajectories(600, 0.0)
    assert torch.allclose(plain.mean((0, 1)), generator.mean, atol=0.02)
    assert torch.allclose(plain.std((0, 1)), generator.std, rtol=0.06)
    away = []
    for weight in (0.0, 0.25, 1.0, 4.0):
        torch.manual_seed(2)
        rows = generator.trajectories(100, weight)
        obs, action = rows[..., :5].reshape(-1, 5), rows[..., 5:9].reshape(-1, 2, 2)
        away.append(float((generator.learner.policy.act(obs) - action).square().mean()))
    assert away == sorted(away, reverse=True) and away[-1] < 0.1 * away[0]


def test_the_weight_falls_and_bows_over_the_steps(
    make: Callable[..., PolicyGuidedDiffusion], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = make(cosine_weight=0.3, sampling_steps=4)
    generator.direction = lambda rows: torch.ones(2, LENGTH, 4)  # type: ignore[method-assign]
    moved: list[float] = []

    def sampled(
        denoiser: Any, noise: Tensor, levels: Any, steps: int, guide: Callable[..., Tensor]
    ) -> Tensor:
        rows = torch.zeros(2, LENGTH, 12)
        for step in range(steps):
            change = guide(rows, 1.0, step)
            assert change[..., :5].abs().max() == 0 and change[..., 9:].abs().max() == 0
            moved.append(float(change[0, 0, 5]))
        return rows

    place = "trimtab.algorithms.generation.policy_guided_diffusion.heun_sample"
    monkeypatch.setattr(place, sampled)
    generator.trajectories(2, 2.0)
    wanted = [2 * (1 - n / 4 + 0.3 * math.sin(math.pi * (n + 1) / 4)) for n in range(4)]
    assert moved == pytest.approx(wanted, abs=1e-6)


def test_the_first_transitions_are_not_guided(make: Callable[..., PolicyGuidedDiffusion]) -> None:
    generator, weights = make(guidance=0.5, refresh_every=2), list[float]()
    transitions = generator.transitions

    def spied(guidance: float) -> dict[str, Tensor]:
        weights.append(guidance)
        return transitions(guidance)

    generator.transitions = spied  # type: ignore[method-assign]
    generator.mean[-1], generator.mean[-2] = 1.0, 0.0  # every row goes on, none is terminal
    generator.std[-2:] = 1e-3
    for _ in range(5):
        generator.sample(4)
    assert weights == [0.0, 0.5, 0.5]


def test_the_policy_may_be_asked_about_cleaned_rows(
    make: Callable[..., PolicyGuidedDiffusion],
) -> None:
    asked = list[float]()
    generator = make(guide_denoised=True)
    direction = generator.direction

    def spied(rows: Tensor) -> Tensor:
        asked.append(float(rows.std()))
        return direction(rows)

    generator.direction = spied  # type: ignore[method-assign]
    generator.trajectories(50, 1.0)
    generator.guide_denoised, wide = False, list(asked)
    asked.clear()
    generator.trajectories(50, 1.0)
    assert max(asked) > 70
    asked = wide
    # 11 of 12 steps are guided, and what they are asked about is as wide as data, or less.
    assert len(asked) == 11 and max(asked) < 1.5


# ---- learning, and what is served ----------------------------------------------------------------


def test_updates_warm_up_decay_and_are_averaged(
    make: Callable[..., PolicyGuidedDiffusion],
) -> None:
    generator = make(learning_rate=1.0, ema_every=2, ema_rate=0.25)
    source = ReplayBuffer.from_dataset(
        two_episodes(), window=2, discount=0.9, chunked=True, batch_spec=generator.batch_spec
    )
    generator.begin(source)
    rows = generator.rows(source.sample(4096)).flatten(0, 1)
    assert torch.allclose(generator.mean, rows.mean(0), atol=0.06)
    assert torch.allclose(generator.std, rows.std(0), atol=0.06)
    rates = []
    before = [one.clone() for one in generator.average.parameters()]
    for number in range(40):
        if number >= 2:
            generator.updates = number
            generator.learning_rate = 1e-6
        found = generator.update(source.sample(8))
        rates.append(generator.optimizer.learning_rate / generator.learning_rate)
        if number == 1:
            pairs = zip(
                before, generator.average.parameters(), generator.network.parameters(), strict=True
            )
            for old, mean, new in pairs:
                assert torch.allclose(mean, 0.75 * old + 0.25 * new, atol=1e-6)
    assert list(found) == ["denoising_loss"] and not found["denoising_loss"].requires_grad  # type: ignore[union-attr]
    expected = [0.1 + 0.9 * k / 4 for k in range(4)]
    expected += [0.5 * (1 + math.cos(math.pi * k / 36)) for k in range(36)]
    assert rates == pytest.approx(expected, abs=1e-6)


def test_made_anew_and_continued_to_the_same_bits(
    make: Callable[..., PolicyGuidedDiffusion],
) -> None:
    generator, other = make(refresh_every=2, rollouts=60), make(refresh_every=2, rollouts=60)
    for one in (generator, other):
        one.mean[-1] = 1.0  # all go on
    first = generator.sample(4)
    held = generator.made["obs"]
    generator.sample(4)
    assert generator.made["obs"] is held
    other.load_state_dict(generator.state_dict())
    torch.manual_seed(9)
    expected = [generator.sample(4) for _ in range(3)]
    assert generator.made["obs"] is not held
    torch.manual_seed(9)
    for one in expected:
        found = other.sample(4)
        assert isinstance(one.obs, Tensor) and isinstance(found.obs, Tensor)
        assert torch.equal(one.obs, found.obs) and torch.equal(one.action, found.action)
    assert isinstance(first, Batch) and first.action.shape == (4, 2, 2)
    generator.learner.update(first)


def test_what_cannot_be_served_is_one_line(
    setup_of: SetupOf, make: Callable[..., PolicyGuidedDiffusion]
) -> None:
    for method, words in (
        (CalQL, "CalQL learns from returns of whole episodes"),
        (
            DecisionTransformer,
            "DecisionTransformer learns from returns of whole episodes, sequences",
        ),
        (BehaviorCloning, "flow policy of BehaviorCloning has no density"),
    ):
        with pytest.raises(TrimtabError, match=words) as caught:
            make(method)
        assert "\n" not in str(caught.value)
    for wrong in ({"length": 1}, {"real_share": 1.5}, {"rollouts": 0}, {"hidden": (8,) * 4}):
        with pytest.raises(TrimtabError, match=r"source\.|levels"):
            make(**wrong)  # type: ignore[arg-type]
