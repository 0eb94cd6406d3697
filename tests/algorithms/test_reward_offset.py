"""DSRL's offset of rewards: what it takes from a chunk, and what it does to entropy in the target.

In one state a latent of eight dimensions, in the box [-1, 1], decides by the sign of its first
whether the episode ends with success, reward 1, or goes on, reward 0. Entropy of a latent is worth
alpha times its nats in every decision that follows, so going on for ever can be worth more than
success. The fixed point is found by iteration, the learner's choice by learning.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.steering.dsrl_na import DSRLNA
from trimtab.algorithms.steering.dsrl_sac import DSRLSAC
from trimtab.policies.base import Policy
from trimtab.types import Batch, PolicySpec

GAMMA, ALPHA, DIMENSIONS = 0.9, 0.05, 8
SPEC = PolicySpec(1, 1, DIMENSIONS, (-1.0,) * DIMENSIONS, (1.0,) * DIMENSIONS)
CASES = [(True, 0.0), (True, 1.0), (False, 0.0), (False, 1.0)]


class Plain(Policy):
    """Its action is its latent."""

    def __init__(self, spec: PolicySpec = SPEC) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return the latent, clipped to the limits."""
        return self.normalizer.raw_action(noise)


def batch_of(action: Tensor, valid: Tensor, aux: Tensor | None = None) -> Batch:
    """Decisions of the task above."""
    success = action[:, 0, 0] > 0
    obs = torch.zeros(len(action), 1)
    return Batch(
        obs=obs,
        action=action,
        reward=success.float(),
        next_obs=obs,
        discount=GAMMA * (~success).float(),
        valid=valid,
        aux={} if aux is None else {"latent": aux},
    )


def preference(entropy: bool, offset: float) -> float:
    """Return Q of success minus Q of going on at the fixed point of the soft Bellman operator.

    The policy is the soft-optimal one: each half of the box is uniform, the share of either is the
    softmax of Q / alpha. Its value counts its entropy where ``entropy`` is true.
    """
    success, going_on = 1.0 - offset, 0.0
    half = (DIMENSIONS - 1) * math.log(2.0)  # nats of a uniform latent in the half-box's rest
    for _ in range(2000):
        share = 1 / (1 + math.exp(min((going_on - success) / ALPHA, 500.0)))
        value = share * success + (1 - share) * going_on
        if entropy:
            parts = [p * math.log(p) for p in (share, 1 - share) if p > 0]
            value += ALPHA * (half - sum(parts))
        going_on = -offset + GAMMA * value
    return success - going_on


def test_where_success_is_the_best_choice() -> None:
    wanted = {case: preference(*case) > 0 for case in CASES}
    assert wanted == {(True, 0.0): False, (True, 1.0): True, (False, 0.0): True, (False, 1.0): True}
    # Going on for ever, with the entropy of half a box in every later decision:
    forever = GAMMA * ALPHA * (DIMENSIONS - 1) * math.log(2.0) / (1 - GAMMA)
    assert preference(True, 0.0) == pytest.approx(1.0 - forever, abs=1e-6)
    assert preference(True, 1.0) == pytest.approx(
        1.0 - GAMMA * ALPHA * (DIMENSIONS - 1) * math.log(2.0), abs=1e-3
    )


@pytest.mark.parametrize("kind", [DSRLSAC, DSRLNA])
@pytest.mark.parametrize(("entropy", "offset"), CASES[:3])
def test_learner_makes_the_choice_of_the_fixed_point(
    kind: type[DSRLSAC], entropy: bool, offset: float
) -> None:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"hidden": (32, 32), "learning_rate": 3e-3, "tau": 0.05}
    algorithm = kind(
        Setup(SPEC, base=Plain()),
        magnitude=1.0,
        initial_temperature=ALPHA,
        backup_entropy=entropy,
        reward_offset=offset,
        **settings,
    )
    algorithm.temperature_optimizer.learning_rate = 0.0  # alpha stays
    for _ in range(150):
        latent = 2 * torch.rand(128, 1, DIMENSIONS) - 1
        valid = torch.ones(128, 1, dtype=torch.bool)
        algorithm.update(batch_of(latent, valid, latent if algorithm.aux_shapes else None))
    chosen = algorithm.policy.act(torch.zeros(1, 1), deterministic=True)[0, 0, 0]
    assert (float(chosen) > 0) == (preference(entropy, offset) > 0)
    tried = algorithm.policy.act(torch.zeros(1000, 1))[:, 0, 0]
    share = float((tried > 0).float().mean())
    assert share > 0.7 if chosen > 0 else share < 0.3


@pytest.mark.parametrize("kind", [DSRLSAC, DSRLNA])
def test_a_chunk_loses_the_offset_for_each_step_that_was_executed(kind: type[DSRLSAC]) -> None:
    spec = PolicySpec(1, 4, 1, (-1.0,), (1.0,))
    action = torch.linspace(-1, 1, 5)[:, None, None].expand(-1, 4, 1)
    steps = torch.tensor([4, 3, 2, 1, 4])
    batch = batch_of(action, torch.arange(4) < steps[:, None])
    for offset in (0.0, 1.0, -0.25):
        algorithm = kind(Setup(spec, base=Plain(spec)), hidden=(8,), reward_offset=offset)
        expected = batch.reward - offset * steps
        assert torch.equal(algorithm.target_reward(batch), expected)
    assert torch.equal(kind(Setup(spec, base=Plain(spec))).target_reward(batch), batch.reward)
