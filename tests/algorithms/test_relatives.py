"""The relatives of PPO, SAC and TD3 against closed forms and against their parents."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.expectiles import AnnealedExpectile, expectile_loss
from trimtab.algorithms.off_policy.annealed_sac import AnnealedSAC
from trimtab.algorithms.off_policy.annealed_td3 import AnnealedTD3
from trimtab.algorithms.off_policy.mdpo_sac import MDPOSAC
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.algorithms.on_policy.dropout_ppo import DropoutPPO
from trimtab.algorithms.on_policy.mdpo import MDPO
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.algorithms.on_policy.spo import SPO
from trimtab.algorithms.on_policy.trpo import TRPO, conjugate_gradients
from trimtab.policies.kinds.diagonal_gaussian import gaussian_kl
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.networks.critic import EnsembleCritic
from trimtab.types import Batch, Rollout, TrimtabError

SetupOf = Callable[..., Setup]
SMALL: dict[str, Any] = {"hidden": (16, 16), "rollout_steps": 32, "batch_size": 24, "epochs": 2}
TINY: dict[str, Any] = {"hidden": (16, 16), "batch_size": 16}


def samples_of(algorithm: PPO, data_of: Callable[..., Rollout]) -> Samples:
    """A rollout's samples whose actions are likely under the policy, as gathered ones are."""
    data = data_of(algorithm)
    with torch.no_grad():
        obs = data.obs.flatten(0, 1)
        torch.manual_seed(3)
        action = algorithm.policy.unclipped(obs, algorithm.policy.sample_noise(len(obs)))
    shape = (*data.reward.shape, *algorithm.policy.noise_shape)
    data.aux["unclipped"].copy_(action.reshape(shape))  # type: ignore[union-attr]
    return algorithm.samples(data)


def test_trust_region_bounds_the_divergence_and_improves(
    setup_of: SetupOf, data_of: Callable[..., Rollout]
) -> None:
    for delta in (0.001, 0.01, 0.1):
        torch.manual_seed(0)
        trpo = TRPO(setup_of(set()), delta=delta, **SMALL)
        samples = samples_of(trpo, data_of)
        old_log_std = trpo.policy.log_std.detach().clone()
        metrics = trpo.improve_policy(samples)
        with torch.no_grad():
            mean = trpo.policy.head(samples.obs)
            kl = gaussian_kl(samples.mean, old_log_std, mean, trpo.policy.log_std).mean().item()
        assert kl == pytest.approx(float(metrics["kl"]), rel=1e-5)
        assert 0.3 * delta < kl <= delta
        assert metrics["policy_loss"] < 0


def test_conjugate_gradients_solve() -> None:
    torch.manual_seed(1)
    root = torch.randn(6, 6, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(6)
    right = torch.randn(6, dtype=torch.float64)
    found = conjugate_gradients(lambda vector: matrix @ vector, right, 12)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, right), rtol=1e-6, atol=1e-8)


def test_divergence_is_that_of_torch() -> None:
    torch.manual_seed(2)
    mean, other = torch.randn(5, 2, 3), torch.randn(5, 2, 3)
    log_std, other_log_std = torch.randn(2, 3), torch.randn(2, 3)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(
        normal(mean, log_std.exp()), normal(other, other_log_std.exp())
    ).sum((1, 2))
    torch.testing.assert_close(gaussian_kl(mean, log_std, other, other_log_std), expected)


def ratio_gradient(algorithm: PPO, ratio: float, advantages: list[float]) -> torch.Tensor:
    """The loss's gradient by each sample's ratio, at one ratio for all samples."""
    log_ratio = torch.full((len(advantages),), ratio).log().requires_grad_()
    nothing = torch.zeros(len(advantages))
    chunk = torch.zeros(len(advantages), 1, 1)
    part = Samples(chunk[:, 0], chunk, chunk, nothing, nothing, torch.tensor(advantages), nothing)
    (gradient,) = torch.autograd.grad(algorithm.policy_loss(part, chunk, log_ratio), log_ratio)
    return gradient / ratio


def test_simple_policy_optimisation_leads_back_where_the_clip_is_flat(setup_of: SetupOf) -> None:
    advantages = [1.0, -1.0]
    spo, ppo = (kind(setup_of(set()), clip=0.2, **SMALL) for kind in (SPO, PPO))
    # At the optimum 1 + sign(A) eps the gradient is 0; beyond it points back, where PPO's is 0.
    assert ratio_gradient(spo, 1.2, advantages)[0].abs() < 1e-6
    assert ratio_gradient(spo, 0.8, advantages)[1].abs() < 1e-6
    assert ratio_gradient(spo, 1.4, advantages)[0] > 0.1
    assert ratio_gradient(ppo, 1.4, advantages)[0] == 0
    torch.testing.assert_close(
        ratio_gradient(spo, 1.0, advantages), ratio_gradient(ppo, 1.0, advantages)
    )


def test_dropout_leaves_out_what_correlates_least(setup_of: SetupOf) -> None:
    surrogate = torch.tensor([0.1, 5.0, 0.2, 4.0, -3.0, -0.1, 0.0, 1.0])
    pairs = surrogate[:, None] * surrogate[None]
    correlation = (pairs - pairs.diag().diag()).sum(1)
    for share in (0.0, 0.3, 0.5, 1.0):
        kept = DropoutPPO(setup_of(set()), dropout=share, **SMALL).kept(surrogate)
        for side in (correlation >= 0, correlation < 0):
            order = correlation[side].argsort()
            dropped = int(share * len(order))
            expected = torch.ones(len(order), dtype=torch.bool)
            expected[order[:dropped]] = False
            assert torch.equal(kept[side], expected), share


def test_the_correlation_is_what_lowers_the_surrogates_variance() -> None:
    x = torch.randn(9, dtype=torch.float64)
    phi = x * (x.sum() - x)
    variance = x.square().mean() - x.mean().square()
    torch.testing.assert_close(81 * variance, 8 * x.square().sum() - phi.sum())


def mirror_descent(setup_of: SetupOf, **more: Any) -> MDPO:
    torch.manual_seed(0)
    return MDPO(setup_of(set()), decay_steps=1920, **{**SMALL, **more})


def test_mirror_descent_weighs_the_divergence_more_and_more(
    setup_of: SetupOf, data_of: Callable[..., Rollout]
) -> None:
    moved = []
    for updates in (0, 9):  # of the 10 that decay_steps says
        mdpo = mirror_descent(setup_of, learning_rate=1e-2)
        samples = samples_of(mdpo, data_of)
        mdpo.updates = updates
        metrics = mdpo.improve(samples)
        assert metrics["step_size"] == pytest.approx(1 - updates / 10)
        assert metrics["learning_rate"] == 1e-2  # theirs stays while t_k falls
        with torch.no_grad():
            mean = mdpo.policy.head(samples.obs)
        moved.append(gaussian_kl(mean, mdpo.policy.log_std, samples.mean, mdpo.old_log_std).mean())
        assert metrics["kl"] == pytest.approx(moved[-1].item(), rel=1e-5)
    assert moved[1] < 0.5 * moved[0]


def test_mirror_descent_steps_over_the_whole_rollout_by_hand(
    setup_of: SetupOf, data_of: Callable[..., Rollout]
) -> None:
    """Ten steps of torch's Adam on equation 6, whatever the minibatches of the value are."""
    mdpo = mirror_descent(setup_of, learning_rate=1e-2, policy_steps=10)
    samples = samples_of(mdpo, data_of)
    mdpo.updates = 5
    byhand = copy.deepcopy(mdpo.policy)
    adam = torch.optim.Adam(byhand.parameters(), lr=1e-2, eps=1e-5)
    normal = torch.distributions.Normal
    old = normal(samples.mean, byhand.log_std.detach().exp())
    advantage = (samples.advantage - samples.advantage.mean()) / samples.advantage.std()
    for _ in range(10):
        new = normal(byhand.head(samples.obs), byhand.log_std.exp())
        ratio = (new.log_prob(samples.action).sum((1, 2)) - samples.log_prob).exp()
        kl = torch.distributions.kl_divergence(new, old).sum((1, 2))
        adam.zero_grad()
        (-(ratio * advantage).mean() + kl.mean() / 0.5).backward()
        torch.nn.utils.clip_grad_norm_(byhand.parameters(), 0.5)
        adam.step()
    for batch_size in (24, 96):
        mine = mirror_descent(setup_of, learning_rate=1e-2, batch_size=batch_size)
        mine.updates = 5
        mine.improve(samples)
        for name, weight in mine.policy.named_parameters():
            expected = dict(byhand.named_parameters())[name]
            torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("warmup_steps", [0, 40])
def test_the_expectile_falls_in_a_line_from_the_runs_first_step(warmup_steps: int) -> None:
    line = AnnealedExpectile(0.9, 100, warmup_steps, updates_per_step=0.5)
    for step in (warmup_steps, 50, 60, 100, 130):
        expected = max(0.9 - 0.4 * step / 100, 0.5)
        line.count.updates.fill_((step - warmup_steps) // 2)
        assert float(line()) == pytest.approx(expected)


def test_expectile_goes_from_the_mean_to_the_maximum() -> None:
    backup = torch.tensor([0.0, 1.0, 5.0])
    grid = torch.linspace(-1.0, 6.0, 7001)
    for expectile, expected in ((0.5, 2.0), (0.9999, 5.0)):
        losses = [expectile_loss(value.expand(1, 3), backup, expectile) for value in grid]
        best = grid[torch.stack(losses).argmin()].item()
        assert best == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("annealed", "parent"), [(AnnealedSAC, SAC), (AnnealedTD3, TD3)])
def test_annealed_to_its_end_is_its_parent(
    annealed: Any, parent: Any, setup_of: SetupOf, batch_of: Callable[..., Batch]
) -> None:
    made = []
    schedule = {"expectile": 0.9, "anneal_steps": 10, "warmup_steps": 0}
    for kind, more in ((annealed, schedule), (parent, {})):
        torch.manual_seed(0)
        algorithm = kind(setup_of(set()), **TINY, **more)
        start = algorithm.update(batch_of(algorithm))["critic_loss"]
        if more:
            algorithm.expectile.count.updates.fill_(10)
        made.append((start, algorithm.update(batch_of(algorithm, seed=1)), algorithm))
    assert made[0][0] != made[1][0]
    values = torch.tensor([[0.0, 1.0]])
    losses = [one[2].critic_loss(values, torch.tensor([0.5, 3.0])) for one in made]
    torch.testing.assert_close(losses[0], losses[1])


def test_old_policy_is_set_when_the_actor_moves(setup_of: SetupOf) -> None:
    with pytest.raises(TrimtabError, match="multiple of actor_every=2"):
        MDPOSAC(setup_of(set()), **TINY, actor_every=2, old_policy_updates=3)


@pytest.mark.parametrize("pessimistic", [True, False])
def test_off_policy_mirror_descent_by_hand(
    setup_of: SetupOf,
    batch_of: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
    pessimistic: bool,
) -> None:
    torch.manual_seed(0)
    settings = {"initial_temperature": 0.2, "divergence_weight": 0.7, "learning_rate": 1e-2}
    mdpo = MDPOSAC(setup_of(set()), pessimistic_actor=pessimistic, **settings, **TINY)
    data = batch_of(mdpo)
    for _ in range(5):
        mdpo.update(data)
    obs, noise = data.obs, mdpo.actor.sample_noise(len(data))

    def log_density(actor: TanhGaussianPolicy, unsquashed: torch.Tensor) -> torch.Tensor:
        mean, log_std = actor.distribution(obs)
        normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(unsquashed)
        return (normal - torch.log1p(-unsquashed.tanh().square())).sum((1, 2))

    with torch.no_grad():
        mean, log_std = mdpo.actor.distribution(obs)
        unsquashed = mean + log_std.exp() * noise
        values = mdpo.critic(mdpo.actor.normalizer.obs(obs), unsquashed.tanh())
        value = values.amin(0) if pessimistic else values.mean(0)
        ours = log_density(mdpo.actor, unsquashed)
        old = log_density(mdpo.old_actor, unsquashed)
        assert (ours - old).abs().max() > 1e-3  # the actor moved and the old one stayed
        expected = (0.7 * ours - (0.7 - 0.2) * old - value).mean()
    monkeypatch.setattr(mdpo.actor, "sample_noise", lambda count: noise)
    loss, log_prob = mdpo.update_actor(obs, mdpo.actor.normalizer.obs(obs), torch.tensor(0.2))
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(log_prob, ours, rtol=1e-3, atol=1e-3)


def test_the_old_policy_is_set_every_thousandth_update(
    setup_of: SetupOf, batch_of: Callable[..., Batch]
) -> None:
    torch.manual_seed(0)
    mdpo = MDPOSAC(setup_of(set()), initial_temperature=0.2, **TINY)
    data = batch_of(mdpo)
    start = copy.deepcopy(mdpo.old_actor.state_dict())
    mdpo.updates = 997
    for number in (998, 999, 1000):
        before = copy.deepcopy(mdpo.actor.state_dict())
        mdpo.update(data)
        wanted = before if number == 1000 else start
        for name, weight in mdpo.old_actor.state_dict().items():
            assert torch.equal(weight, wanted[name])
    assert mdpo.temperature().item() == pytest.approx(0.2)


def test_behaviour_cloning_term_and_scale_are_those_of_the_paper(
    setup_of: SetupOf, batch_of: Callable[..., Batch]
) -> None:
    method = TD3BC(setup_of({"dataset"}), alpha=2.5, **TINY)
    data = batch_of(method)
    value = torch.linspace(-3.0, 1.0, len(data))
    squashed = torch.zeros(len(data), 2, 2)
    target = method.policy.normalizer.normalize_action(data.action)
    kept = data.valid[:, :, None].expand_as(target)
    expected = -2.5 / value.abs().mean() * value.mean() + target[kept].square().mean()
    torch.testing.assert_close(method.policy_loss(data, value, squashed), expected)


def test_members_of_an_ensemble_can_be_asked_alone() -> None:
    torch.manual_seed(0)
    critic = EnsembleCritic(3, 2, hidden=(8,), members=5, layer_norm=True)
    obs, action = torch.randn(7, 3), torch.randn(7, 1, 2)
    members = torch.tensor([4, 1])
    for some in (members, slice(1), slice(1, 4)):
        torch.testing.assert_close(critic(obs, action, some), critic(obs, action)[some])
