"""Methods that choose among samples: their values by solution, and what they learn to choose."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.selection.best_of_n import BestOfN
from trimtab.algorithms.selection.idql import IDQL
from trimtab.algorithms.selection.qc import QChunking
from trimtab.policies.base import Policy
from trimtab.types import Batch, PolicySpec

chain = load_module(Path(__file__).with_name("chain.py"))
small = load_module(Path(__file__).with_name("small.py"))
SMALL: dict[str, Any] = small.SMALL
bandit = small.bandit


# Values on the chain of three states, whose solutions are those of linear systems.


class Held(Policy):
    """Proposes one plan, or where ``free``, pushes whose signs are those of its noise."""

    def __init__(self, spec: PolicySpec, plan: tuple[int, ...], free: bool) -> None:
        super().__init__(spec, (spec.horizon, 1))
        self.held, self.free = chain.PUSH * torch.tensor(plan)[None, :, None], free
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return raw actions."""
        plan = chain.PUSH * noise.sign() if self.free else self.held.expand(len(obs), -1, -1)
        return plan + 0 * self.weight

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return a loss that moves nothing."""
        return 0 * self.weight


def decisions(length: int) -> Batch:
    """Every decision of the chain once; an end cuts a chunk, whose rest repeats the last push."""
    rows = []
    for state in range(chain.STATES):
        for signs in itertools.product((-1, 1), repeat=length):
            reached, reward, steps = chain.play(state, signs)
            taken = [*signs[:steps], *[signs[steps - 1]] * (length - steps)]
            rows.append((state, taken, reward, reached, steps))
    following = [0 if reached is None else reached for _, _, _, reached, _ in rows]
    return Batch(
        obs=torch.tensor(chain.seen([row[0] for row in rows])),
        action=chain.PUSH * torch.tensor([row[1] for row in rows]).float()[..., None],
        reward=torch.tensor([row[2] for row in rows]).float(),
        next_obs=torch.tensor(chain.seen(following)),
        discount=torch.tensor([0.0 if row[3] is None else chain.GAMMA for row in rows]),
        valid=torch.arange(length)[None] < torch.tensor([row[4] for row in rows])[:, None],
    )


def best_values(length: int) -> dict[tuple[int, ...], float]:
    """Return Q of every decision under the best policy, by value iteration."""
    value = np.zeros(chain.STATES)
    found: dict[tuple[int, ...], float] = {}
    for _ in range(200):
        for state, *signs in [
            (s, *p) for s in range(chain.STATES) for p in itertools.product((-1, 1), repeat=length)
        ]:
            reached, reward, _ = chain.play(state, signs)
            found[state, *signs] = reward + (0 if reached is None else chain.GAMMA * value[reached])
        value = np.array([max(q for key, q in found.items() if key[0] == s) for s in range(3)])
    return found


EXACT: dict[str, Any] = {"hidden": (32, 32), "learning_rate": 5e-3, "tau": 0.2, "critics": 2}


@pytest.mark.parametrize("kind", [BestOfN, QChunking])
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("free", [False, True])
def test_critics_solve_the_chain(kind: type[BestOfN], length: int, free: bool) -> None:
    """One proposal: the values of the plan that is always played. Many: those of the best policy.

    With many, an end that cuts a chunk is told with every rest of it.
    """
    torch.manual_seed(0)
    plan = (-1, 1)[:length]
    spec = PolicySpec(chain.STATES, length, 1, (-1.0,), (1.0,))
    many = 12 if free else 1
    algorithm = kind(
        Setup(spec, base=Held(spec, plan, free)),
        **EXACT, layer_norm=False, target_candidates=many,
    )  # fmt: skip
    data = decisions(length)
    for step in range(400):
        if step == 300:
            algorithm.critic_optimizer.learning_rate = 1e-3
        algorithm.update(data)
    known = best_values(length) if free else chain.decision_values(plan)
    for (state, *signs), value in known.items():
        steps = chain.play(state, signs)[2]
        if free or tuple(signs[steps:]) == plan[steps:]:  # what the batch, continued, tells of
            action = chain.PUSH * torch.tensor(signs).float()[None, :, None]
            with torch.no_grad():
                found = algorithm.policy.value(torch.tensor(chain.seen([state])), action)
            assert (found - value).abs().max() < 0.15, (state, signs, found, value)


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_v_is_the_expectile_of_what_actions_are_worth(expectile: float) -> None:
    """One state, five rewards: V solves sum_i w_i (q_i - V) = 0, Q is the rewards."""
    torch.manual_seed(0)
    spec = PolicySpec(1, 1, 1, (-1.0,), (1.0,))
    reward = np.array([0.0, 0.3, 0.4, 1.0, 2.0])
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        pull = np.where(reward > middle, expectile, 1 - expectile) * (reward - middle)
        low, high = (middle, high) if pull.sum() > 0 else (low, middle)
    algorithm = IDQL(
        Setup(spec, base=Held(spec, (1,), False)), hidden=(32, 32), learning_rate=5e-3,
        tau=0.1, expectile=expectile,
    )  # fmt: skip
    action = torch.linspace(-1, 1, 5)[:, None, None]
    data = Batch(
        obs=torch.ones(5, 1), action=action, reward=torch.tensor(reward).float(),
        next_obs=torch.ones(5, 1), discount=torch.zeros(5),
        valid=torch.ones(5, 1, dtype=torch.bool),
    )  # fmt: skip
    for _ in range(500):
        algorithm.update(data)
    with torch.no_grad():
        assert float(algorithm.value(torch.ones(1, 1))) == pytest.approx(low, abs=0.05)
        assert (algorithm.critic(data.obs, action) - data.reward).abs().max() < 0.05


def test_with_expectile_a_half_critics_are_those_of_the_data_on_the_chain() -> None:
    torch.manual_seed(0)
    spec = PolicySpec(chain.STATES, 1, 1, (-1.0,), (1.0,))
    algorithm = IDQL(Setup(spec, base=Held(spec, (1,), True)), expectile=0.5, **EXACT)
    data = decisions(1)
    for _ in range(500):
        algorithm.update(data)
    following = chain.coin_values()
    with torch.no_grad():
        found = algorithm.critic(data.obs, data.action)
        values = algorithm.value(torch.eye(3)).squeeze(1)
    for row, (state, sign) in enumerate(itertools.product(range(3), (-1, 1))):
        reached, reward = chain.STEPS[state, sign]
        known = reward + (0.0 if reached is None else chain.GAMMA * following[reached])
        assert (found[:, row] - known).abs().max() < 0.1
        assert abs(float(values[state]) - following[state]) < 0.1


# What they learn.


class Fork(Policy):
    """Goes one way or the other, as the sign of its noise says, whatever it sees."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))
        self.sharpness = nn.Parameter(torch.tensor(6.0))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return raw actions near the limits, seldom between."""
        return self.normalizer.raw_action(0.9 * torch.tanh(self.sharpness * noise))

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return a loss that moves nothing."""
        return 0 * self.sharpness


@pytest.mark.parametrize("kind", [BestOfN, QChunking, IDQL])
def test_learns_which_samples_are_rewarded(kind: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    spec = PolicySpec(1, 1, 1, (-2.0,), (2.0,))
    algorithm = kind(Setup(spec, base=Fork(spec)), **SMALL)

    def rewarded(obs: Tensor, action: Tensor) -> Tensor:
        return (action[:, 0, 0] * obs[:, 0] > 0).float()

    obs = (torch.randint(2, (1000, 1)) * 2.0 - 1.0) * (0.5 + torch.rand(1000, 1))
    action, _ = algorithm.explore(obs, warmup=True)
    reward = rewarded(obs, action)
    assert 0.4 < float(reward.mean()) < 0.6  # the base goes either way
    for _ in range(150):
        rows = torch.randint(1000, (128,))
        algorithm.update(bandit(obs[rows], action[rows], reward[rows]))
    assert float(rewarded(obs, algorithm.policy.act(obs)).mean()) > 0.97
    tried, _ = algorithm.explore(obs, warmup=False)
    assert float(rewarded(obs, tried).mean()) > (0.6 if kind is IDQL else 0.97)
