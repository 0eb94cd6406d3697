"""Steering in noise space, on a base made by hand whose latent decides which way it goes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.steering.dsrl_na import DSRLNA
from trimtab.algorithms.steering.dsrl_sac import DSRLSAC
from trimtab.datasets.sources.mixture import Mixture
from trimtab.policies.base import Policy
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.normalizer import Normalizer, RunningNormalizer
from trimtab.policies.registry import build_policy
from trimtab.types import Batch, PolicySpec, TrimtabError

SPEC = PolicySpec(1, 1, 1, (-2.0,), (2.0,))
SMALL: dict[str, Any] = {"hidden": (32, 32), "learning_rate": 3e-3, "initial_temperature": 0.1}


class Fork(Policy):
    """Goes one way or the other, as the sign of its latent says, whatever it sees."""

    def __init__(self, spec: PolicySpec = SPEC) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))
        self.sharpness = nn.Parameter(torch.tensor(6.0))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return raw actions near the limits, seldom between."""
        return self.normalizer.raw_action(0.9 * torch.tanh(self.sharpness * noise))


@pytest.fixture(params=[DSRLSAC, DSRLNA], ids=["sac", "na"])
def make(request: pytest.FixtureRequest) -> Callable[..., DSRLSAC]:
    """Steer a fork, or another base."""

    def build(
        base: Policy | None = None, spec: PolicySpec = SPEC, seed: int = 0, **keywords: Any
    ) -> DSRLSAC:
        torch.manual_seed(seed)
        steer: DSRLSAC = request.param(Setup(spec, base=base or Fork()), **{**SMALL, **keywords})
        return steer

    return build


def reward_of(obs: Tensor, action: Tensor) -> Tensor:
    """One for going the way that the observation's sign points."""
    return (action[:, 0, 0] * obs[:, 0] > 0).float()


def observations(count: int) -> Tensor:
    return (torch.randint(2, (count, 1)) * 2.0 - 1.0) * (0.5 + torch.rand(count, 1))


def played(algorithm: DSRLSAC, count: int, *, warmup: bool) -> Batch:
    """Decisions of a bandit: every episode is one action long."""
    obs = observations(count)
    action, aux = algorithm.explore(obs, warmup=warmup)
    return Batch(
        obs=obs,
        action=action,
        reward=reward_of(obs, action),
        next_obs=obs,
        discount=torch.zeros(count),
        valid=torch.ones(count, 1, dtype=torch.bool),
        aux=aux,
    )


def rows_of(batch: Batch, index: Tensor) -> Batch:
    return Batch(
        obs=batch.obs[index],
        action=batch.action[index],
        reward=batch.reward[index],
        next_obs=batch.next_obs[index],
        discount=batch.discount[index],
        valid=batch.valid[index],
        aux={name: value[index] for name, value in batch.aux.items()},
    )


class Rows:
    """A source that draws the first rows of some decisions."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def sample(self, batch_size: int) -> Batch:
        """Return the first rows."""
        return rows_of(self.batch, torch.arange(batch_size))


def test_learns_which_latent_is_rewarded(make: Callable[..., DSRLSAC]) -> None:
    algorithm = make()
    before = copy.deepcopy(algorithm.policy.base.state_dict())
    warm = played(algorithm, 1000, warmup=True)
    assert 0.4 < float(warm.reward.mean()) < 0.6  # the base goes either way
    for _ in range(400):
        algorithm.update(rows_of(warm, torch.randint(len(warm), (128,))))
    torch.manual_seed(1)
    obs = observations(1000)
    for deterministic in (True, False):
        action = algorithm.policy.act(obs, deterministic=deterministic)
        assert float(reward_of(obs, action).mean()) > 0.9
    assert float(played(algorithm, 1000, warmup=False).reward.mean()) > 0.9
    for name, value in algorithm.policy.base.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_given_base_is_not_touched(make: Callable[..., DSRLSAC]) -> None:
    given = Fork()
    algorithm = make(given)
    algorithm.update(played(algorithm, 32, warmup=True))
    assert algorithm.policy.base is not given
    assert given.sharpness.requires_grad and given.sharpness.grad is None
    assert given.sharpness.item() == 6.0
    assert algorithm.policy.base.sharpness.grad is None


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("magnitude", [0.5, 1.5])
def test_stored_latent_is_the_one_that_acted(warmup: bool, magnitude: float) -> None:
    torch.manual_seed(0)
    algorithm = DSRLSAC(Setup(SPEC, base=Fork()), magnitude=magnitude, **SMALL)
    batch = played(algorithm, 500, warmup=warmup)
    latent = batch.aux["latent"]
    assert torch.equal(algorithm.policy.decode(batch.obs, latent), batch.action)
    assert latent.shape == (500, *algorithm.aux_shapes["latent"])
    assert latent.abs().max() <= magnitude
    assert latent.std() > 0.1


def test_noise_aliased_steering_learns_from_actions_alone() -> None:
    torch.manual_seed(0)
    algorithm = DSRLNA(Setup(SPEC, base=Fork()), **SMALL)
    batch = played(algorithm, 32, warmup=True)
    assert not algorithm.aux_shapes and not batch.aux
    algorithm.update(batch)  # so a demonstration, which has no latent, does as well


@pytest.mark.parametrize("magnitude", [0.5, 1.5])
def test_warmup_is_the_base_clipped_to_the_box(
    make: Callable[..., DSRLSAC], magnitude: float
) -> None:
    algorithm = make(magnitude=magnitude)
    obs = observations(4000)
    torch.manual_seed(3)
    action, _ = algorithm.explore(obs, warmup=True)
    torch.manual_seed(3)
    latent = torch.randn(4000, 1, 1).clamp(-magnitude, magnitude)
    assert torch.equal(action, algorithm.policy.base(obs, latent).detach())


def test_after_warmup_it_acts_as_what_is_judged_does(make: Callable[..., DSRLSAC]) -> None:
    algorithm = make()
    obs = observations(50)
    torch.manual_seed(3)
    action, _ = algorithm.explore(obs, warmup=False)
    torch.manual_seed(3)
    assert torch.equal(action, algorithm.policy.act(obs))


def test_a_plan_longer_than_what_is_executed(make: Callable[..., DSRLSAC]) -> None:
    algorithm = make(Fork(PolicySpec(1, 3, 1, (-2.0,), (2.0,))), spec=SPEC)
    batch = played(algorithm, 32, warmup=True)
    assert batch.action.shape == (32, 1, 1)
    algorithm.update(batch)
    torch.manual_seed(3)
    plan = algorithm.policy.act(batch.obs)
    torch.manual_seed(3)
    action, aux = algorithm.explore(batch.obs, warmup=False)
    assert plan.shape == (32, 3, 1) and torch.equal(action, plan[:, :1])
    assert all(latent.shape == (32, 3, 1) for latent in aux.values())


def test_a_base_whose_noise_is_a_path_is_refused(make: Callable[..., DSRLSAC]) -> None:
    with pytest.raises(TrimtabError, match="not one latent"):
        make(DiffusionPolicy(SPEC, hidden=(8,), sampler="ddpm"))


def test_actor_sees_what_the_base_sees(
    make: Callable[..., DSRLSAC], setup_of: Callable[..., Setup]
) -> None:
    base = setup_of({"base"}).base
    assert base is not None
    algorithm = make(base, spec=PolicySpec(5, 4, 2, base.spec.action_low, base.spec.action_high))
    obs = torch.randn(4, 5)
    normalized = algorithm.actor.normalizer.obs(obs)
    assert torch.equal(normalized, base.normalizer.obs(obs)) and not torch.equal(normalized, obs)


def test_actor_clips_what_the_base_clips(make: Callable[..., DSRLSAC]) -> None:
    torch.manual_seed(0)
    base = DiagonalGaussianPolicy(SPEC, hidden=(8,), normalize_observations=True)
    assert isinstance(base.normalizer, RunningNormalizer)
    base.normalizer.see(torch.randn(100, 1))
    algorithm = make(base)
    obs = torch.tensor([[-1e3], [0.3], [50.0]])
    seen = base.normalizer.obs(obs)
    assert seen.abs().max() == 10.0
    assert torch.equal(algorithm.actor.normalizer.obs(obs), seen)
    rebuilt = build_policy(json.loads(json.dumps(algorithm.policy.config())))
    rebuilt.load_state_dict(algorithm.policy.state_dict())
    noise = torch.randn(3, 1, 1)
    assert torch.equal(rebuilt(obs, noise), algorithm.policy(obs, noise))
    base.normalizer.see(100 + torch.randn(100, 1))  # what the base does later is its own affair
    assert torch.equal(algorithm.actor.normalizer.obs(obs), seen)


def test_actor_of_a_base_that_does_not_clip_does_not(make: Callable[..., DSRLSAC]) -> None:
    algorithm = make()
    assert type(algorithm.actor.normalizer) is Normalizer
    assert "obs_limit" not in algorithm.actor.config()
    obs = torch.tensor([[-1e3], [1e3]])
    assert torch.equal(algorithm.actor.normalizer.obs(obs), obs)


# The losses, by hand, on a few rows.


@pytest.fixture
def few() -> Batch:
    generator = torch.Generator().manual_seed(5)
    return Batch(
        obs=torch.randn(6, 1, generator=generator),
        action=4 * torch.rand(6, 1, 1, generator=generator) - 2,
        reward=torch.randn(6, generator=generator),
        next_obs=torch.randn(6, 1, generator=generator),
        discount=torch.tensor([0.9, 0.9, 0.0, 0.9, 0.0, 0.9]),
        valid=torch.ones(6, 1, dtype=torch.bool),
        aux={"latent": 3 * torch.rand(6, 1, 1, generator=generator) - 1.5},
    )


def with_noise(
    algorithm: DSRLSAC, monkeypatch: pytest.MonkeyPatch, count: int
) -> tuple[Tensor, Tensor]:
    """Fix the actor's noise: that of the next latent, then that of the actor's step."""
    noise = torch.randn(2, count, 1, 1, generator=torch.Generator().manual_seed(6))
    drawn = iter(noise)
    monkeypatch.setattr(algorithm.actor, "sample_noise", lambda n: next(drawn))
    return noise[0], noise[1]


def warmed(algorithm: DSRLSAC) -> None:
    """Take steps, so that critics and targets differ."""
    for _ in range(3):
        algorithm.update(played(algorithm, 32, warmup=True))


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_critic_losses_by_hand(
    make: Callable[..., DSRLSAC],
    few: Batch,
    monkeypatch: pytest.MonkeyPatch,
    entropy: bool,
    offset: float,
) -> None:
    algorithm = make(backup_entropy=entropy, reward_offset=offset)
    warmed(algorithm)
    old = copy.deepcopy(algorithm)
    next_noise, _ = with_noise(algorithm, monkeypatch, 6)
    metrics = algorithm.update(few)

    na = isinstance(algorithm, DSRLNA)
    expected = 0.0
    with torch.no_grad():
        latent, log_prob = old.actor.sample_with_log_prob(few.next_obs, next_noise)
        for row in range(6):
            obs, next_obs = few.obs[row : row + 1], few.next_obs[row : row + 1]
            w = latent[row : row + 1]
            # Q_A compares chunks in units of the limits, Q_W latents in units of the box.
            seen = old.policy.base(next_obs, 1.5 * w) / 2.0 if na else w
            value = old.target(next_obs, seen).min()
            if entropy:
                value = value - old.temperature() * log_prob[row]
            backup = few.reward[row] - offset + few.discount[row] * value
            stored = few.action if na else few.aux["latent"] * 2.0 / 1.5
            critic = old.action_critic if isinstance(old, DSRLNA) else old.critic
            error = critic(obs, stored[row : row + 1] / 2.0) - backup
            expected += 0.5 * float(error.square().sum()) / 6
    assert metrics["critic_loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["temperature"] == pytest.approx(old.temperature().item())


def test_distillation_by_hand(few: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    algorithm = DSRLNA(Setup(SPEC, base=Fork()), **SMALL)
    warmed(algorithm)
    old = copy.deepcopy(algorithm)
    scaled = torch.linspace(-1.2, 1.2, 6)[:, None, None]
    monkeypatch.setattr(algorithm, "distillation_latent", lambda obs: scaled)
    metrics = algorithm.update(few)
    with torch.no_grad():
        # Q_A teaches as it is after its own step of this update.
        taught = algorithm.action_critic(few.obs, old.policy.base(few.obs, 1.5 * scaled) / 2.0)
        learned = old.critic(few.obs, scaled)
        expected = sum(0.5 * float((learned[i] - taught[i]).square().mean()) for i in range(2))
    assert metrics["distillation_loss"] == pytest.approx(expected, rel=1e-4)


def test_actor_climbs_the_critics_over_latents(
    make: Callable[..., DSRLSAC], few: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make()
    warmed(algorithm)
    old = copy.deepcopy(algorithm)
    _, noise = with_noise(algorithm, monkeypatch, 6)
    metrics = algorithm.update(few)
    with torch.no_grad():
        latent, log_prob = old.actor.sample_with_log_prob(few.obs, noise)
        # Critics are those after their step of this update, the actor that before its own.
        value = algorithm.critic(few.obs, latent).amin(0)
        expected = (old.temperature() * log_prob - value).mean().item()
    assert metrics["actor_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_noise_critics_reach_the_actions_critics() -> None:
    torch.manual_seed(0)
    algorithm = DSRLNA(Setup(SPEC, base=Fork()), **SMALL)
    warm = played(algorithm, 1000, warmup=True)
    for _ in range(400):
        algorithm.update(rows_of(warm, torch.randint(len(warm), (128,))))
    obs, latent = observations(500), 2 * torch.rand(500, 1, 1) - 1
    with torch.no_grad():
        taught = algorithm.action_critic(obs, algorithm.decode_normalized(obs, latent))
        error = (algorithm.critic(obs, latent) - taught).abs().mean()
        assert float(error) < 0.1 < 0.3 < float(taught.std())


def uniform_rows(latent: Tensor, seed: int) -> Tensor:
    """Which rows differ from the normal latents that ``seed`` draws first, at magnitude 2."""
    torch.manual_seed(seed)
    return (latent != torch.randn(latent.shape) / 2.0).flatten(1).all(1)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_distillation_latents_fill_the_box_and_follow_the_base(share: float) -> None:
    algorithm = DSRLNA(Setup(SPEC, base=Fork()), uniform_share=share, magnitude=2.0, **SMALL)
    torch.manual_seed(4)
    latent = algorithm.distillation_latent(torch.zeros(8000, 1))
    rows = uniform_rows(latent, 4)
    assert int(rows.sum()) == int(8000 * share)
    uniform, normal = latent[rows], latent[~rows]
    if share > 0:
        assert uniform.abs().max() <= 1 and abs(float(uniform.std()) - 1 / 3**0.5) < 0.03
    if share < 1:
        assert abs(float(normal.std()) - 1 / 2.0) < 0.03  # N(0, 1) in units of the box
        assert normal.abs().max() > 1


def test_offline_and_online_rows_get_both_kinds_of_latents() -> None:
    algorithm = DSRLNA(Setup(SPEC, base=Fork()), magnitude=2.0, **SMALL)
    offline, online = (played(algorithm, 4000, warmup=True) for _ in range(2))
    batch = Mixture([Rows(offline), Rows(online)], [1, 1]).sample(2000)
    torch.manual_seed(5)
    rows = uniform_rows(algorithm.distillation_latent(batch.obs), 5)
    assert int(rows.sum()) == 1000
    for part in (rows[:1000], rows[1000:]):  # a mixture's first half is its first source
        assert abs(float(part.float().mean()) - 0.5) < 0.06  # four standard deviations
    torch.manual_seed(6)
    assert not torch.equal(rows, uniform_rows(algorithm.distillation_latent(batch.obs), 6))
    torch.manual_seed(5)  # the run's random state decides it, so a resumed run draws the same
    assert torch.equal(rows, uniform_rows(algorithm.distillation_latent(batch.obs), 5))
