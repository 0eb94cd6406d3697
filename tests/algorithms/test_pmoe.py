"""PMOE: its parent, its losses by hand, the draw of an expert, and experts that share the work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.pmoe import PMOE
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.benchmarks.contracts.base import difference
from trimtab.policies.kinds.mixture_tanh_gaussian import MixtureTanhGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import squashed_sample
from trimtab.types import Batch, PolicySpec

SetupOf = Callable[..., Setup]
DataOf = Callable[..., Any]
SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 8}


@pytest.mark.bits
def test_with_one_expert_it_is_sac(setup_of: SetupOf, data_of: DataOf) -> None:
    found = []
    for kind, own in ((SAC, {}), (PMOE, {"experts": 1})):
        torch.manual_seed(0)
        learner: Any = kind(setup_of(set()), **SMALL, **own, learning_rate=1e-2)
        metrics = [learner.update(data_of(learner, seed=step)) for step in range(4)]
        obs = torch.ones(3, 5)
        actions = [learner.explore(obs, warmup=warmup)[0] for warmup in (True, False)]
        actions.append(learner.policy.act(obs, deterministic=True))
        found.append({"state": learner.state_dict(), "metrics": metrics, "actions": actions})
    assert difference(*found) is None


def test_a_step_of_the_actor_by_hand(setup_of: SetupOf, data_of: DataOf) -> None:
    torch.manual_seed(0)
    learner = PMOE(setup_of(set()), **SMALL, experts=3, learning_rate=1e-2)
    data: Batch = data_of(learner)
    obs, alpha = learner.actor.normalizer.obs(data.obs), torch.tensor(0.3)
    hand = copy.deepcopy(learner.actor)
    adam = torch.optim.Adam(hand.parameters(), 1e-2)
    torch.manual_seed(1)
    noise = torch.randn(3, len(obs), 2, 2)
    losses, best = [], []
    for row in range(len(obs)):
        one = obs[row][None]
        mean, log_std = hand.all_experts(one)
        drawn = [squashed_sample(mean[k], log_std[k], noise[k, row][None]) for k in range(3)]
        values = [learner.critic(one, action).amin(0)[0] for action, _ in drawn]
        j = max(range(3), key=lambda k: float(values[k].detach()))
        best.append(j)
        assert hand.router is not None
        share = torch.softmax(hand.router(one)[0], 0)
        missed = sum((share[k] - float(k == j)) ** 2 for k in range(3)) / 3
        losses.append(alpha * drawn[j][1][0] - values[j] + missed)
    assert len(set(best)) > 1
    adam.zero_grad()
    torch.stack(losses).mean().backward()
    adam.step()
    torch.manual_seed(1)
    _, log_prob = learner.update_actor(data.obs, obs, alpha)
    for one, other in zip(learner.actor.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert log_prob.shape == (len(obs),)


def test_the_noise_draws_experts_by_their_shares_and_none_is_the_likeliest() -> None:
    torch.manual_seed(0)
    policy = MixtureTanhGaussianPolicy(
        PolicySpec(2, 2, 1, (-1.0,), (1.0,)), experts=3, hidden=(8,), log_std_min=-20
    )
    router = policy.router
    assert router is not None and policy.noise_shape == (5,)
    with torch.no_grad():
        last: Any = policy.network[-1]
        last.weight.zero_()
        # Means of the three, each of two steps, and then widths of nearly nothing.
        last.bias.copy_(torch.tensor([-1.0, -1.0, 0.0, 0.0, 1.0, 1.0] + [-20.0] * 6))
        router.weight.zero_()
        router.bias.copy_(torch.tensor([0.2, 0.5, 0.3]).log())
    obs = torch.zeros(20_000, 2)
    action = policy.act(obs)
    assert (action[:, 0] - action[:, 1]).abs().max() < 1e-6  # a chunk is one expert's
    for mean, share in ((-1.0, 0.2), (0.0, 0.5), (1.0, 0.3)):
        near = (action[:, 0, 0] - torch.tanh(torch.tensor(mean))).abs() < 1e-3
        assert near.float().mean() == pytest.approx(share, abs=0.015)
    assert policy.act(obs[:3], deterministic=True).abs().max() < 1e-3
    # The density is that of the drawn expert alone.
    _, log_prob = policy.sample_with_log_prob(obs[:4], torch.zeros(4, 5))
    wanted = squashed_sample(
        torch.zeros(4, 2, 1), torch.full((4, 2, 1), -20.0), torch.zeros(4, 2, 1)
    )
    torch.testing.assert_close(log_prob, wanted[1])


def test_the_router_learns_which_expert_is_best() -> None:
    """On the left it pays to push left, on the right to push right; each has its expert."""
    torch.manual_seed(0)
    learner = PMOE(
        Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,))),
        hidden=(32, 32),
        learning_rate=3e-3,
        tau=0.05,
        initial_temperature=0.1,
    )

    def reward(side: Tensor, action: Tensor) -> Tensor:
        return -(action[:, 0, 0] - 0.7 * side[:, 0]).square()

    for step in range(500):
        side = torch.where(torch.rand(128, 1) < 0.5, -1.0, 1.0)
        action, _ = learner.explore(side, warmup=step < 100)
        whole = torch.ones(128, 1, dtype=torch.bool)
        learner.update(Batch(side, action, reward(side, action), side, torch.zeros(128), whole))
    sides = torch.tensor([[-1.0], [1.0]])
    with torch.no_grad():
        share = learner.actor.route(sides).softmax(1)
    assert share.max(1).values.min() > 0.8  # it is sure in both states
    assert reward(sides, learner.policy.act(sides, deterministic=True)).min() > -0.03
