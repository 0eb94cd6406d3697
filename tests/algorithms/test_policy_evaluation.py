"""Off-policy evaluation against values that are known: a chain's, a linear-quadratic task's."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path

import pytest
import torch
from loading import load_module
from tests.algorithms.chain import GAMMA, PUSH, STATES, STEPS, plan_values, play, seen

from trimtab.algorithms.common.policy_evaluation import (
    FittedQ,
    ModelValue,
    per_decision_weighted,
    step_log_ratios,
)
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diagonal_gaussian import DiagonalGaussianPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.regression_gaussian import RegressionGaussianPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.types import PolicySpec

Known = load_module(Path(__file__).with_name("small.py")).Known


def held(sign: int) -> object:
    """Return a policy of the chain that always pushes one way."""
    return lambda obs: torch.full((len(obs), 1, 1), sign * PUSH)


def test_fitted_q_finds_the_solution_of_the_linear_system() -> None:
    torch.manual_seed(0)
    pairs = list(STEPS)
    obs = torch.from_numpy(seen([state for state, _ in pairs]))
    action = torch.tensor([sign * PUSH for _, sign in pairs]).reshape(-1, 1, 1)
    reward = torch.tensor([STEPS[pair][1] for pair in pairs])
    ends = [STEPS[pair][0] for pair in pairs]
    following = torch.from_numpy(seen([0 if end is None else end for end in ends]))
    discount = torch.tensor([0.0 if end is None else GAMMA for end in ends])
    for sign in (-1, 1):
        act = held(sign)
        fitted = FittedQ(
            STATES, 1, rewards=(-0.5, 2.0), discount=GAMMA, hidden=(32, 32),
            learning_rate=5e-3, tau=0.1,
        )  # fmt: skip
        for _ in range(500):
            fitted.update(obs, action, reward, following, discount, act)  # type: ignore[arg-type]
        states = torch.from_numpy(seen(range(STATES)))
        found = fitted.value(states, act(states))  # type: ignore[operator]
        assert found.numpy() == pytest.approx(plan_values([sign]), abs=0.05)


def test_fitted_q_target_by_hand() -> None:
    torch.manual_seed(0)
    fitted = FittedQ(2, 1, rewards=(-1.0, 3.0), discount=0.5, hidden=(8,))
    assert (fitted.limits, fitted.unit) == ((-2.0, 6.0), 6.0)
    obs, following = torch.randn(3, 2), torch.randn(3, 2)
    action, reward = torch.randn(3, 1, 1), torch.tensor([1.0, 3.0, 90.0])
    discount = torch.tensor([0.5, 0.0, 0.5])
    old = copy.deepcopy(fitted)
    loss = fitted.update(obs, action, reward, following, discount, lambda s: s[:, :1, None])
    total = 0.0
    for row in range(3):
        one = slice(row, row + 1)
        later = 6.0 * float(old.target(following[one], following[one, :1, None]))
        backup = min(max(float(reward[row]) + float(discount[row]) * later, -2.0), 6.0)
        total += (float(old.critic(obs[one], action[one]).detach()) - backup / 6.0) ** 2 / 3
    assert float(loss) == pytest.approx(total, rel=1e-5)
    with pytest.raises(TrimtabError, match="discount"):
        FittedQ(2, 1, rewards=(0.0, 1.0), discount=1.0)


def test_model_rollouts_by_a_loop() -> None:
    model = ModelValue(1, 1, hidden=(4,), members=2, unit=3.0)
    model.dynamics = Known()
    model.reward = lambda s, a: torch.stack([s[:, 0], 3.0 * a[:, 0, 0]])  # type: ignore[assignment]
    starts = torch.tensor([[1.0], [-2.0], [0.5]])
    found = model.value(starts, lambda s: 0.5 * s[:, None], decisions=3, discount=0.9)
    for start, value in zip(starts[:, 0].tolist(), found.tolist(), strict=True):
        state, total = start, 0.0
        for step in range(3):
            total += (0.9 * 0.8) ** step * 3.0 * (state + 1.5 * state) / 2
            state *= 1.5
        assert value == pytest.approx(total, rel=1e-5)


def test_learned_models_come_to_the_value_of_a_linear_quadratic_task() -> None:
    """s' = 0.8 s + 0.5 a, a = -0.4 s, r = -s^2 - 0.1 a^2: V = -1.016 s^2 / (1 - 0.36 gamma)."""
    torch.manual_seed(0)
    model = ModelValue(1, 1, hidden=(32, 32), members=2, learning_rate=3e-3)
    for _ in range(500):
        obs, action = 2 * torch.rand(128, 1) - 1, 2 * torch.rand(128, 1, 1) - 1
        reward = -(obs[:, 0] ** 2) - 0.1 * action[:, 0, 0] ** 2
        following = 0.8 * obs + 0.5 * action[:, 0]
        model.update(obs, action, reward, following, torch.zeros(128))
    starts = torch.linspace(-1, 1, 21)[:, None]
    found = model.value(starts, lambda s: -0.4 * s[:, None], decisions=12, discount=0.9)
    truth = -1.016 * starts[:, 0] ** 2 / (1 - 0.36 * 0.9)
    assert float(found.mean()) == pytest.approx(float(truth.mean()), rel=0.08)


def test_importance_weights_by_a_loop() -> None:
    torch.manual_seed(1)
    ratio, reward = torch.randn(4, 3), torch.randn(4, 3)
    taken = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    ended = torch.tensor([True, True, False, True])
    found, effective = per_decision_weighted(ratio, reward, taken, ended, 0.9)
    total, weights = 0.0, [1.0] * 4
    for step in range(3):
        for row in range(4):
            if taken[row, step]:
                weights[row] *= math.exp(float(ratio[row, step]))
        earned = sum(weights[i] * float(reward[i, step]) for i in range(4) if taken[i, step])
        known = [i for i in range(4) if taken[i, step] or ended[i]]
        total += 0.9**step * earned / sum(weights[i] for i in known)
    assert float(found) == pytest.approx(total, rel=1e-6)
    kish = sum(weights) ** 2 / sum(weight**2 for weight in weights)
    assert float(effective) == pytest.approx(kish, rel=1e-6)
    clipped = step_log_ratios(torch.tensor([9.0, -9.0, 0.5]), torch.zeros(3))
    assert clipped.tolist() == [2.0, -6.0, 0.5]


def test_an_episode_that_was_cut_is_no_episode_that_ended() -> None:
    """Rewards of 1 throughout: a second episode that was cut says nothing of what comes later."""
    taken = torch.arange(10) < torch.tensor([[10], [2]])
    zeros, discount = torch.zeros(2, 10), 0.99
    whole = sum(discount**step for step in range(10))
    early = sum(discount**step / (1 if step < 2 else 2) for step in range(10))
    for ended, truth in (([False, False], whole), ([True, True], early)):
        found, _ = per_decision_weighted(zeros, zeros + 1, taken, torch.tensor(ended), discount)
        assert float(found) == pytest.approx(truth, rel=1e-6)


def test_importance_weighting_of_all_that_may_happen_is_exact() -> None:
    """Every sequence of pushes once is a fair coin; a policy that pushes up in 3 of 4 is judged."""
    length, up = 4, 0.75
    ratio, reward = torch.zeros(2**length, length), torch.zeros(2**length, length)
    taken = torch.zeros(2**length, length, dtype=torch.bool)
    truth = 0.0
    for row, signs in enumerate(itertools.product((-1, 1), repeat=length)):
        state: int | None = 0
        chance, earned = 1.0, 0.0
        for step, sign in enumerate(signs):
            chance *= up if sign > 0 else 1 - up
            if state is None:  # chances of what is no longer done still sum to 1
                continue
            ratio[row, step] = math.log((up if sign > 0 else 1 - up) / 0.5)
            taken[row, step] = True
            state, gained, _ = play(state, [sign])
            reward[row, step] = gained
            earned += GAMMA**step * gained
        truth += chance * earned
    found, _ = per_decision_weighted(ratio, reward, taken, torch.ones(2**length).bool(), GAMMA)
    assert float(found) == pytest.approx(truth, rel=1e-6)


SPEC = PolicySpec(3, 2, 2, (-2.0, -1.0), (2.0, 3.0))


@pytest.mark.parametrize(
    "kind", [GaussianPolicy, DiagonalGaussianPolicy, RegressionGaussianPolicy, TanhGaussianPolicy]
)
def test_densities_are_those_of_torch(kind: type[Policy]) -> None:
    torch.manual_seed(0)
    policy = kind(SPEC, hidden=(8,))  # type: ignore[call-arg]
    obs = torch.randn(5, 3)
    action = policy.normalizer.raw_action(1.6 * torch.rand(5, 2, 2) - 0.8)
    scale, shift = policy.normalizer.action_scale, policy.normalizer.action_shift
    transforms: list[torch.distributions.Transform] = []
    if isinstance(policy, TanhGaussianPolicy):
        mean, log_std = policy.distribution(obs)
        std = log_std.exp()
        transforms.append(torch.distributions.TanhTransform())
    else:
        mean = policy(obs, torch.zeros(5, 2, 2))
        mean = policy.normalizer.normalize_action(mean)  # no limit is met at these weights
        std = (policy(obs, torch.full((5, 2, 2), 1e-3)) - policy(obs, torch.zeros(5, 2, 2))) / scale
        std = std / 1e-3
    transforms.append(torch.distributions.AffineTransform(shift, scale))
    normal = torch.distributions.Normal(mean, std)
    known = torch.distributions.TransformedDistribution(normal, transforms)
    expected = known.log_prob(action).sum(-1)
    found = policy.log_density(obs, action)
    assert found.shape == (5, 2)
    assert found.detach().numpy() == pytest.approx(expected.detach().numpy(), rel=2e-3, abs=2e-3)


def test_a_policy_without_a_density_says_so() -> None:
    policy = DeterministicPolicy(SPEC, hidden=(8,))
    with pytest.raises(TrimtabError, match="deterministic policy has no density"):
        policy.log_density(torch.zeros(1, 3), torch.zeros(1, 2, 2))
