"""GoRL: its stages, its neutral cases, its refits, and what it learns."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.common.latent_stages import LIMIT, LatentStages
from trimtab.algorithms.off_policy.gorl_sac import GoRLSAC
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.on_policy.gorl import GoRL
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.algorithms.phases import Budget, Phase
from trimtab.benchmarks.contracts.base import difference
from trimtab.benchmarks.contracts.made_up import made_batch
from trimtab.benchmarks.contracts.methods import Subject, check_captured, rebuilt, written
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.latent import LatentPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import PolicySpec, Rollout, TrimtabError

SetupOf = Callable[..., Setup]
PPO_SMALL: dict[str, Any] = {"hidden": (16,), "rollout_steps": 8, "batch_size": 8, "epochs": 2}
SAC_SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16, "warmup_steps": 12}
REFIT: dict[str, Any] = {"decoder_updates": 6, "decoder_batch_size": 16, "validate_every": 3}
KINDS = [(GoRL, {**PPO_SMALL, **REFIT}), (GoRLSAC, {**SAC_SMALL, **REFIT})]
POINT = PolicySpec(2, 1, 1, (-2.0,), (1.0,))
FLOW = functools.partial(FlowPolicy, hidden=(64, 64), sampling_steps=10)
DDIM = functools.partial(DiffusionPolicy, hidden=(64, 64), sampler="ddim", sampling_steps=20)


def point_setup(policy: Any = FLOW, num_envs: int = 4) -> Setup:
    return Setup(spec=POINT, policy=policy, num_envs=num_envs, discount=0.97)


class Points:
    """Points on a line that are pushed to 0; episodes end after some steps, or far away."""

    def __init__(self, count: int) -> None:
        self.generator = torch.Generator().manual_seed(5)
        self.steps = torch.zeros(count)
        self.obs = self.drawn(count)

    def drawn(self, count: int) -> Tensor:
        return 2 * torch.rand(count, 2, generator=self.generator) - 1

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return observations acted upon, rewards, true next ones, terminations and ends."""
        before = self.obs
        after = before.clone()
        after[:, 1] += 0.2 * action[:, 0, 0]
        after[:, 0] += 0.2 * after[:, 1]
        self.steps += 1
        terminated = after[:, 0].abs() > 2
        ended = terminated | (self.steps >= 20)
        reward = (-4 * after[:, 0].square()).exp()
        self.obs = torch.where(ended[:, None], self.drawn(len(after)), after)
        self.steps *= ~ended
        return before, reward, after, terminated, ended


def play(learner: Algorithm, points: Points, squash: Callable[[Tensor], Tensor]) -> Rollout:
    """Return the next rollout of a learner, whose actions are squashed outside of it."""
    rows: list[tuple[Tensor, ...]] = []
    aux: list[dict[str, Tensor]] = []
    for _ in range(learner.pace.rollout_steps):
        action, stored = learner.explore(points.obs, warmup=False)
        rows.append((action, *points.step(squash(action))))
        aux.append(dict(stored))
        learner.on_transition(rows[-1][2], *[rows[-1][-1]] * 2)
        if rows[-1][-1].any():
            learner.on_episode_end(rows[-1][-1].nonzero()[:, 0].tolist())
    action, obs, reward, after, terminated, ended = (
        torch.stack(one) for one in zip(*rows, strict=True)
    )
    return Rollout(
        obs, action, reward, after, 0.97 * (~terminated).float(), ended,
        aux={name: torch.stack([one[name] for one in aux]) for name in aux[0]},
    )  # fmt: skip


def squash_point(latent: Tensor) -> Tensor:
    """The task's action of x: the tanh, scaled to the limits."""
    return (1.5 * torch.tanh(latent) - 0.5).clamp(-2.0, 1.0)


def test_stage_0_is_ppo_that_acts_through_the_tanh_to_the_last_bit() -> None:
    """Without the pull of the prior: PPO over x, in an environment with the tanh in it."""
    settings = {**PPO_SMALL, "clip": 0.15, "entropy_weight": 0.01, "value_weight": 0.25}
    torch.manual_seed(0)
    gorl = GoRL(point_setup(), prior_weight=0.0, **settings)
    ppo = PPO(gorl.latents, **settings)
    ppo.actor.load_state_dict(gorl.actor.state_dict())
    ppo.critic.load_state_dict(gorl.critic.state_dict())
    assert ppo.actor.spec.action_high == (10.0,)
    worlds, metrics = (Points(4), Points(4)), []
    for rollout in range(6):
        torch.manual_seed(100 + rollout)
        metrics.append(dict(gorl.update(play(gorl, worlds[0], lambda action: action))))
        torch.manual_seed(100 + rollout)
        other = dict(ppo.update(play(ppo, worlds[1], squash_point)))
        assert metrics[-1].pop("stage") == 0
        assert difference(metrics[-1], other) is None
    assert torch.equal(worlds[0].obs, worlds[1].obs)
    for name in ("actor", "critic", "optimizer", "reward_scale"):
        mine, its = (getattr(one, name).state_dict() for one in (gorl, ppo))
        assert difference(mine, its) is None, name
    assert metrics[0]["policy_loss"] != metrics[-1]["policy_loss"]
    # The pull is what tells them apart.
    torch.manual_seed(100)
    gorl.prior_weight = 0.1
    assert difference(dict(gorl.update(play(gorl, worlds[0], lambda x: x))), metrics[0]) is not None


class GaussianSAC(SAC):
    """SAC whose action is no tanh of a Gaussian, but the Gaussian itself, by torch's densities."""

    def sample(self, raw_obs: Any) -> tuple[Tensor, Tensor]:
        """Return samples and their log-densities."""
        mean, log_std = self.actor.distribution(raw_obs)
        noise = self.actor.sample_noise(len(raw_obs))
        drawn = mean + log_std.exp() * noise
        return drawn, Independent(Normal(mean, log_std.exp()), 2).log_prob(drawn)


def test_stage_0_with_sac_is_sac_without_the_term_of_the_tanh(setup_of: SetupOf) -> None:
    torch.manual_seed(0)
    gorl = GoRLSAC(setup_of({"policy"}), prior_weight=0.0, latent_std=0.5, **SAC_SMALL)
    entropy = float(Independent(Normal(torch.zeros(2, 2), 0.5 * torch.ones(2, 2)), 2).entropy())
    assert gorl.target_entropy == pytest.approx(entropy, rel=1e-6)
    plain = GaussianSAC(gorl.latents, target_entropy=entropy, **SAC_SMALL)
    plain.actor.normalizer.action_scale.fill_(1.0)
    parts = ("actor", "critic", "target", "temperature")
    for name in parts:
        getattr(plain, name).load_state_dict(getattr(gorl, name).state_dict())
    for seed in range(30):
        batch = made_batch(gorl, seed=seed)
        found = []
        for learner in (gorl, plain):
            torch.manual_seed(seed)
            executed = batch.action if learner is gorl else batch.aux["latent"]
            whole = torch.ones_like(batch.valid)
            given = dataclasses.replace(batch, action=executed, valid=whole, whole=True)
            found.append(learner.update(given))
        for name in found[1]:
            torch.testing.assert_close(found[0][name], found[1][name], atol=1e-5, rtol=1e-4)
    for name in parts:
        for mine, its in zip(
            getattr(gorl, name).parameters(), getattr(plain, name).parameters(), strict=True
        ):
            torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-3)


def test_the_loss_of_the_encoder_is_the_papers(setup_of: SetupOf) -> None:
    torch.manual_seed(1)
    algorithm = GoRL(setup_of({"policy"}), prior_weight=0.2, later_prior_weight=0.7, **PPO_SMALL)
    with torch.no_grad():
        algorithm.actor.log_std.normal_(std=0.4)
    mean, old_mean, latent = torch.randn(3, 50, 2, 2) * 0.4
    std = algorithm.actor.log_std.detach().exp()
    new = Independent(Normal(mean, std.expand(50, 2, 2)), 2).log_prob(latent)
    old = Independent(Normal(old_mean, 0.8 * torch.ones(50, 2, 2)), 2).log_prob(latent)
    advantage, nothing = torch.randn(50), torch.zeros(50)
    part = Samples(torch.zeros(50, 5), latent, old_mean, old, nothing, advantage, nothing)
    ratio = (new - old).exp()
    for stage, clip, weight, norm in ((0, 0.15, 0.2, 0.5), (1, 0.3, 0.7, 1.0), (3, 0.3, 0.7, 1.0)):
        algorithm.stage = stage
        algorithm.apply_stage()
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        pull = sum(float(one) ** 2 for one in mean.flatten()) / mean.numel()
        pull += sum(float(one) ** 2 for one in std.flatten()) / std.numel()
        found = algorithm.policy_loss(part, mean, algorithm.actor.log_prob(mean, latent))
        expected = -surrogate.mean() + weight * pull
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert algorithm.optimizer.max_gradient_norm == norm
    assert (algorithm.entropy_weight, algorithm.value_weight) == (0.01, 0.25)


def test_the_divergence_of_the_sac_encoder_is_that_of_torch(setup_of: SetupOf) -> None:
    torch.manual_seed(2)
    made = [GoRLSAC(setup_of({"policy"}), prior_weight=c, **SAC_SMALL) for c in (0.0, 0.6)]
    made[1].load_state_dict(copy.deepcopy(made[0].state_dict()))
    batch = made_batch(made[0])
    losses = []
    for one in made:
        torch.manual_seed(3)
        losses.append(one.update_actor(batch.obs, batch.obs, torch.tensor(0.5))[0])
    torch.manual_seed(2)
    again = GoRLSAC(setup_of({"policy"}), **SAC_SMALL)
    with torch.no_grad():
        mean, log_std = again.actor.distribution(batch.obs)
    mine = Independent(Normal(mean, log_std.exp()), 2)
    prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 2)
    expected = 0.6 * kl_divergence(mine, prior).mean()
    torch.testing.assert_close(losses[1] - losses[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("kind", "small"), KINDS)
def test_phases_spend_the_budget_on_learning_and_collecting(
    kind: Any, small: Any, setup_of: SetupOf
) -> None:
    algorithm: LatentStages = kind(setup_of({"policy"}), **small)  # 3 environments, 2 actions
    phases = algorithm.phases(Budget(0, 6005))
    steps = {phase.name: phase.length for phase in phases if phase.unit == "steps"}
    assert sum(steps.values()) == 6005
    assert [steps[f"collect {m}"] for m in range(3)] == [300] * 3
    learned = [sum(steps.get(f"{part} {m}", 0) for part in ("warm-up", "encode")) for m in range(4)]
    for share, found in zip((2, 2, 1, 1), learned, strict=True):
        assert abs(found - share / 6 * (6005 - 900)) <= 12
    assert [phase.length for phase in phases if phase.unit == "updates"] == [6, 6, 6]
    # What was gathered under the decoder before is let go exactly where a new one begins to act.
    first = ["encode 1", "encode 2", "encode 3"] if kind is GoRL else [
        "warm-up 1", "warm-up 2", "warm-up 3"
    ]  # fmt: skip
    assert [phase.name for phase in phases if phase.fresh] == first
    assert algorithm.phases(Budget(0, 0)) == ()
    with pytest.raises(TrimtabError, match="offline_steps=5: .* learns from what it does itself"):
        algorithm.phases(Budget(5, 6000))
    with pytest.raises(TrimtabError, match=r"online_steps=20: 4 stages .* 3 collections of 6 do"):
        algorithm.phases(Budget(0, 20))
    with pytest.raises(TrimtabError, match="stage_lengths: it is empty"):
        kind(setup_of({"policy"}), stage_lengths=[])


def test_a_stage_that_is_shorter_than_a_rollout_would_learn_nothing() -> None:
    algorithm = GoRL(point_setup(), stage_lengths=[3.0, 1.0], **PPO_SMALL)  # 4 environments
    enough = {phase.name: phase.length for phase in algorithm.phases(Budget(0, 4 * 34))}
    assert enough["encode 1"] == 8 * 4
    told = "2 stages of learning of at least 32 steps .* or a smaller algorithm.rollout_steps$"
    with pytest.raises(TrimtabError, match=told):
        algorithm.phases(Budget(0, 4 * 30))


def test_at_least_two_decisions_are_collected_and_kept() -> None:
    """One validates. With one alone nothing would, and the decoder would keep its first weights."""
    algorithm = GoRL(point_setup(num_envs=1), stage_lengths=[1.0, 1.0], **PPO_SMALL)
    phases = {phase.name: phase.length for phase in algorithm.phases(Budget(0, 20))}
    assert phases["collect 0"] == 2
    with pytest.raises(TrimtabError, match="kept_decisions=1: must be from 2 to"):
        GoRL(point_setup(), kept_decisions=1, **PPO_SMALL)


def test_a_warm_up_is_at_most_half_of_its_stage(setup_of: SetupOf) -> None:
    algorithm = GoRLSAC(setup_of({"policy"}), warmup_steps=500, stage_lengths=[1.0, 1.0])
    phases = {phase.name: phase.length for phase in algorithm.phases(Budget(0, 600))}
    assert (phases["warm-up 0"], phases["encode 0"]) == (144, 144)


def test_only_a_decoder_that_can_be_refitted_is_taken(setup_of: SetupOf) -> None:
    refused = {
        "a tanh_gaussian policy has no imitation loss": functools.partial(TanhGaussianPolicy),
        "policy.sampler=ddim": functools.partial(DiffusionPolicy, sampler="ddpm"),
    }
    for told, policy in refused.items():
        with pytest.raises(TrimtabError, match=told) as error:
            GoRL(setup_of({"policy"}, policy=policy))
        assert "\n" not in str(error.value)
    assert GoRL(setup_of({"policy"}, policy=functools.partial(GaussianPolicy))).decoder.is_identity


def fill(algorithm: LatentStages, obs: Tensor, chunk: Tensor) -> None:
    """Give a method what it would have collected."""
    algorithm.begin_collecting()
    algorithm.collected.keep(obs, chunk)


def refit(algorithm: LatentStages, updates: int) -> None:
    """Refit the decoder, and begin the next stage."""
    algorithm.begin_fitting()
    for _ in range(updates):
        algorithm.fit(algorithm.collected.sample(algorithm.decoder_batch_size))
    algorithm.begin_stage(algorithm.stage + 1)


@pytest.mark.parametrize(("policy", "error"), [(FLOW, 0.03), (DDIM, 0.1)], ids=["flow", "ddim"])
def test_a_refit_keeps_both_modes_and_their_weights(policy: Any, error: float) -> None:
    """DDIM divides by a small number in its first step, which moves some mass between modes."""
    torch.manual_seed(3)
    algorithm = GoRL(
        point_setup(policy), decoder_learning_rate=2e-3, validate_every=100, **PPO_SMALL
    )
    rows = 8000
    upper = torch.rand(rows) < 0.7
    chunk = torch.where(upper, 1.5, -1.0) + 0.1 * torch.randn(rows)
    fill(algorithm, torch.randn(rows, 2), chunk.reshape(rows, 1, 1))
    refit(algorithm, 2000)
    assert not algorithm.decoder.is_identity and float(algorithm.collected.least_loss) < 1
    latent, obs = torch.randn(6000, 1, 1), torch.randn(6000, 2)
    with torch.no_grad():
        found = algorithm.decoder.before_tanh(obs, latent).flatten()
        action = algorithm.decoder(obs, latent)
    torch.testing.assert_close(action.flatten(), squash_point(found))
    assert abs(float((found > 0.25).float().mean()) - float(upper.float().mean())) < error
    for mode, share in ((1.5, found > 0.25), (-1.0, found <= 0.25)):
        assert abs(float(found[share].mean()) - mode) < 0.2
        assert float(found[share].std()) < 0.35


def test_the_best_validation_weights_are_kept_and_held_out_rows_are_not_learned_from() -> None:
    torch.manual_seed(4)
    algorithm = GoRL(
        point_setup(), validate_every=1, validation_share=0.25, decoder_learning_rate=3e-3,
        **PPO_SMALL,
    )  # fmt: skip
    marked = torch.arange(40.0)
    fill(algorithm, torch.stack([marked, marked], 1), torch.randn(40, 1, 1))
    algorithm.begin_fitting()
    held = {float(one) for one in algorithm.collected.validation().obs[:, 0]}
    drawn = {float(one) for one in algorithm.collected.sample(4000).obs[:, 0]}
    assert len(held) == 10 and held != {*range(10)} and drawn == {*range(40)} - held
    least, kept = math.inf, None
    for step in range(300):
        torch.manual_seed(step)
        batch = algorithm.collected.sample(16)
        loss = float(algorithm.fit(batch)["validation_loss"])
        assert loss <= least
        if loss < least:
            least, kept = loss, copy.deepcopy(algorithm.candidate.state_dict())
    assert kept is not None
    assert difference(kept, algorithm.fitted.state_dict()) is None
    assert (
        difference(kept, algorithm.candidate.state_dict()) is not None
    )  # it went on to worse ones
    before = copy.deepcopy(algorithm.decoder.state_dict())
    assert bool(before["identity"])  # what acts and is judged changes with the next stage alone
    algorithm.begin_stage(1)
    assert difference(kept, algorithm.decoder.base.state_dict()) is None


@pytest.mark.parametrize(("kind", "small"), KINDS)
def test_a_stage_begins_with_everything_fresh(kind: Any, small: Any, setup_of: SetupOf) -> None:
    def make() -> LatentStages:
        torch.manual_seed(5)
        made: LatentStages = kind(setup_of({"policy"}), **small)
        return made

    subject = Subject(lambda seed, device: make(), "gorl")
    algorithm: Any = subject.taught(0, 4)
    fill(algorithm, torch.randn(50, 5), torch.randn(50, 2, 2))
    begun = copy.deepcopy(algorithm.state_dict())
    torch.manual_seed(6)
    refit(algorithm, 4)
    fresh = algorithm.learner(algorithm.latents, **algorithm.keywords)
    parts = ("actor_optimizer", "critic_optimizer") if kind is GoRLSAC else ("optimizer",)
    for name in parts:
        state = getattr(algorithm, name).state_dict()
        assert difference(state, getattr(fresh, name).state_dict()) is None, name
        assert difference(begun[name], state) is not None, name
    normalizer, moved = algorithm.actor.normalizer.state_dict(), dict(begun["policy"])
    units = {**fresh.actor.normalizer.state_dict(), "action_scale": torch.ones(2)}
    assert difference(normalizer, units) is None
    if kind is GoRL:
        assert float(moved["actor.normalizer.count"]) > 0 == float(normalizer["count"])
        assert not algorithm.actor.normalizer.fitted
        assert (
            difference(algorithm.reward_scale.state_dict(), fresh.reward_scale.state_dict()) is None
        )
    else:
        assert torch.equal(algorithm.temperature.log, fresh.temperature.log)
        target = algorithm.target.state_dict()
        assert difference(target, algorithm.critic.state_dict()) is None
    for weight, old in zip(algorithm.critic.parameters(), begun["critic"].values(), strict=True):
        assert weight.ndim == 1 or not torch.equal(weight, old)
    # A fresh encoder draws about N(0, I), so the refitted decoder meets what it learned from.
    with torch.no_grad():
        noise = torch.randn(4000, 2, 2)
        latent = algorithm.actor(torch.randn(4000, 5), noise)
    assert abs(float(latent.std()) - 1) < 0.25 and abs(float(latent.mean())) < 0.3


def test_the_encoder_that_earned_the_most_collects() -> None:
    algorithm = GoRL(point_setup(num_envs=2), score_episodes=2, **PPO_SMALL)
    obs, (weight, *_) = torch.zeros(2, 2), list(algorithm.actor.parameters())

    def episode(mark: float, first: float, second: float) -> None:
        with torch.no_grad():
            weight.fill_(mark)
        for _ in range(2):
            algorithm.explore(obs, warmup=False)
            algorithm.on_transition(torch.tensor([first, second]) / 2, *[torch.zeros(2)] * 2)
        algorithm.on_episode_end([0, 1])

    for mark, first, second in ((1, 1, 2), (2, 5, 4), (3, 9, -9), (4, 4, 4.5)):
        episode(mark, first, second)
    assert float(algorithm.scores.best) == 4.5
    algorithm.begin_collecting()
    assert torch.equal(weight, torch.full_like(weight, 2.0))
    episode(7, 100, 100)  # what it earns while it collects is no score
    algorithm.begin_collecting()
    assert torch.equal(weight, torch.full_like(weight, 2.0))
    algorithm.collected.keep(torch.randn(9, 2), torch.randn(9, 1, 1))
    refit(algorithm, 2)
    assert float(algorithm.scores.best) == -math.inf
    # Row 1 has begun its episode before the stage: what it earned then is no score of the stage.
    algorithm.explore(obs, warmup=False)
    algorithm.on_episode_end([0])
    algorithm.begin_stage(0)
    algorithm.on_transition(torch.tensor([0.0, 50.0]), *[torch.zeros(2)] * 2)
    algorithm.on_episode_end([1])
    assert algorithm.scores.last.size == 0
    episode(8, 1, 1)
    assert float(algorithm.scores.best) == 1
    # Without a score the latest encoder collects.
    algorithm.begin_stage(0)
    with torch.no_grad():
        weight.fill_(9.0)
    algorithm.begin_collecting()
    assert torch.equal(weight, torch.full_like(weight, 9.0))


def test_what_is_collected_is_the_chunk_before_the_tanh_and_no_more(setup_of: SetupOf) -> None:
    torch.manual_seed(7)
    algorithm = GoRL(setup_of({"policy"}), kept_decisions=20, **PPO_SMALL)
    obs = torch.randn(9, 5)
    algorithm.explore(obs, warmup=False)
    assert algorithm.collected.size == 0
    algorithm.begin_collecting()
    action, aux = algorithm.explore(obs, warmup=False)
    assert torch.equal(algorithm.collected.obs[:9], obs)
    chunk = algorithm.collected.action[:9]
    assert torch.equal(chunk, aux["unclipped"].clamp(-LIMIT, LIMIT))
    assert torch.equal(algorithm.decoder.squash(chunk), action)
    for _ in range(3):
        algorithm.explore(obs, warmup=False)
    assert algorithm.collected.size == 20
    algorithm.begin_fitting()
    algorithm.explore(obs, warmup=False)
    assert algorithm.collected.written == 36
    normalizer = algorithm.candidate.normalizer
    stored = algorithm.collected.action[:20].flatten(0, 1)
    inside = normalizer.normalize_action(stored)
    torch.testing.assert_close(inside.amax(0), torch.ones(2))
    torch.testing.assert_close(inside.amin(0), -torch.ones(2))


@pytest.mark.parametrize("number", [0, 1], ids=["ppo-flow", "sac-diffusion"])
def test_encoder_and_decoder_are_one_graph(number: int) -> None:
    torch.manual_seed(8)
    (kind, small), policy = KINDS[number], (FLOW, DDIM)[number]
    policy = functools.partial(policy, sampling_steps=2, hidden=(16,))
    algorithm: Any = kind(point_setup(policy), **small)
    assert isinstance(algorithm.policy, LatentPolicy) and algorithm.policy.evaluate_deterministic
    assert "replays within" in written(rebuilt(algorithm.policy, POINT))  # the identity
    fill(algorithm, torch.randn(50, 2), torch.randn(50, 1, 1))
    refit(algorithm, 4)
    assert "replays within" in written(rebuilt(algorithm.policy, POINT))
    obs = torch.randn(5, 2)
    with torch.no_grad():  # judged at the encoder's mean
        latent = algorithm.actor(obs, torch.zeros(5, 1, 1))
        expected = squash_point(algorithm.decoder.base(obs, latent))
    torch.testing.assert_close(algorithm.policy.act(obs, deterministic=True), expected)


@pytest.mark.parametrize(("kind", "small"), KINDS)
def test_a_state_of_a_later_stage_is_taken_on_by_a_new_one(kind: Any, small: Any) -> None:
    torch.manual_seed(9)
    first: Any = kind(point_setup(), **small)
    fill(first, torch.randn(50, 2), torch.randn(50, 1, 1))
    refit(first, 4)
    second: Any = kind(point_setup(), **small)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    obs = torch.randn(4, 2)
    found = []
    for one in (first, second):
        torch.manual_seed(1)
        found.append(one.explore(obs, warmup=False))
    assert difference(found[0], found[1]) is None
    if kind is GoRL:
        assert (second.clip, second.prior_weight) == (0.3, 1e-3)
        assert second.optimizer.max_gradient_norm == 1.0


@pytest.mark.parametrize(("kind", "small"), KINDS)
def test_a_gpu_replays_the_updates_of_encoder_and_decoder(kind: Any, small: Any) -> None:
    """Two stages fit into the few steps of the check, so that it sees a refit, too."""
    if kind is GoRL:
        small = {**small, "rollout_steps": 4}

    def make(seed: int, device: str) -> Algorithm:
        torch.manual_seed(seed)
        made: LatentStages = kind(point_setup(num_envs=3), stage_lengths=(1.0, 1.0), **small)
        fill(made, torch.randn(50, 2), torch.randn(50, 1, 1))
        made.begin_fitting()
        return made

    phases = make(0, "cpu").phases(Budget(0, 40))  # type: ignore[attr-defined]
    assert any(phase.unit == "updates" for phase in phases)
    assert "same bits" in check_captured(Subject(make, "gorl", POINT))


def carry_out(algorithm: LatentStages, phases: tuple[Phase, ...], points: Points) -> None:
    """Go through phases as a run does."""
    for phase in phases:
        assert phase.begin is not None
        phase.begin()
        if phase.unit == "updates":
            for _ in range(phase.length):
                algorithm.fit(algorithm.collected.sample(phase.batch_size or 1))
            continue
        for _ in range(phase.length // (algorithm.pace.rollout_steps * len(points.obs))):
            rollout = play(algorithm, points, lambda action: action)
            if phase.update is not None:
                phase.update(rollout)


def earn(act: Callable[[Tensor], Tensor]) -> float:
    """Return the mean reward of 500 points in their first 20 steps."""
    world, rewards = Points(500), []
    for _ in range(20):
        with torch.no_grad():
            rewards.append(world.step(act(world.obs))[1])
    return float(torch.stack(rewards).mean())


def check_it_learned(
    algorithm: LatentStages, train: Callable[[tuple[Phase, ...]], None], sampled: float
) -> None:
    """Check that stage 0 learns, and that z ~ N(0, I) decodes to what it has learned after it.

    Args:
        algorithm: with two stages.
        train: goes through phases.
        sampled: the least mean reward of what collects, whose latents are sampled.
    """

    def decode_prior(obs: Tensor) -> Tensor:
        decoder: Tensor = algorithm.decoder(obs, torch.randn(len(obs), 1, 1))
        return decoder

    at_random = earn(decode_prior)
    phases = algorithm.phases(Budget(0, 40_960 if algorithm.pace.rollout_steps else 12_800))
    first = next(n for n, phase in enumerate(phases) if phase.unit == "updates") + 1
    train(phases[:first])
    collected = earn(algorithm.policy.act)
    train(phases[first:])
    refitted = earn(decode_prior)
    learned = earn(lambda obs: algorithm.policy.act(obs, deterministic=True))
    found = (at_random, collected, refitted, learned)
    assert at_random < 0.4 and collected > sampled and learned > 0.78, found
    assert abs(refitted - collected) < 0.12, found


def test_it_learns_and_a_refitted_decoder_knows_what_was_learned() -> None:
    torch.manual_seed(10)
    setup = point_setup(num_envs=16)
    algorithm = GoRL(
        setup, stage_lengths=(1.0, 1.0), collect_share=0.1, decoder_updates=800,
        decoder_learning_rate=1e-3, rollout_steps=32, batch_size=128, epochs=8, hidden=(32, 32),
        learning_rate=2e-3,
    )  # fmt: skip
    world = Points(16)
    check_it_learned(algorithm, lambda phases: carry_out(algorithm, phases, world), 0.75)


def test_with_sac_it_learns_and_a_refitted_decoder_knows_what_was_learned() -> None:
    torch.manual_seed(11)
    algorithm = GoRLSAC(
        point_setup(num_envs=8), stage_lengths=(1.0, 1.0), collect_share=0.2, decoder_updates=800,
        decoder_learning_rate=1e-3, hidden=(64, 64), batch_size=128, learning_rate=1e-3,
        initial_temperature=0.1, warmup_steps=800, tau=0.02,
    )  # fmt: skip
    world = Points(8)
    shape = {"latent": (1, 1)}
    ring = ReplayBuffer(20_000, 2, (1, 1), num_envs=8, discount=0.97, aux=shape)

    def train(phases: tuple[Phase, ...]) -> None:
        """Go through phases as a run does, with updates for each decision of all points."""
        for phase in phases:
            if phase.fresh:
                ring.clear()
            assert phase.begin is not None
            phase.begin()
            for _ in range(phase.length // (8 if phase.unit == "steps" else 1)):
                if phase.unit == "updates":
                    algorithm.fit(algorithm.collected.sample(phase.batch_size or 1))
                    continue
                action, aux = algorithm.explore(world.obs, warmup=False)
                obs, reward, after, terminated, ended = world.step(action)
                ring.add(obs, action, reward, after, terminated, ended, aux)
                algorithm.on_transition(reward, terminated, ended)
                if ended.any():
                    algorithm.on_episode_end(ended.nonzero()[:, 0].tolist())
                if phase.update is not None:
                    for _ in range(3):
                        phase.update(ring.sample(128))

    check_it_learned(algorithm, train, 0.5)
