"""Known faults of DSRL's public code, each put back into a copy, and a check that notices it.

Every check first passes with the method as it is, and then has to fail with the fault. Those of
stepping and of time limits are in ``tests/benchmarks/training/test_chunk_faults.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.steering.dsrl_na import DSRLNA
from trimtab.algorithms.steering.dsrl_sac import DSRLSAC
from trimtab.policies.base import Policy
from trimtab.types import Batch, Obs, PolicySpec

SPEC = PolicySpec(3, 2, 1, (-2.0,), (2.0,))
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 8, "magnitude": 1.5}


class Doubling(Policy):
    """Adds to its latent what it sees, so that two passes are never one."""

    def __init__(self, spec: PolicySpec = SPEC) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return raw actions inside the limits for all latents of the box."""
        return self.normalizer.raw_action(0.6 * noise + 0.1 * torch.tanh(obs[:, :1, None]))


def steered(method: type[DSRLSAC]) -> DSRLSAC:
    torch.manual_seed(0)
    return method(Setup(SPEC, base=Doubling()), **SMALL)


# Warm-up: the base acts once, on the latent that is stored.


class DenoisedTwice(DSRLSAC):
    """The warm-up's actions go through the base again, as latents; the first latent is stored."""

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the public code does."""
        if not warmup:
            return super().explore(obs, warmup=warmup)
        latent = self.sample_base_latent(obs)
        action = self.policy.decode(obs, self.policy.decode(obs, latent))
        return action[:, : self.act_steps], {"latent": latent}


class DenoisedTwiceNA(DSRLNA):
    """The same with nothing stored beside the action."""

    explore_once = DSRLNA.explore

    def explore(self, obs: Obs, *, warmup: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Act as the public code does."""
        action, aux = self.explore_once(obs, warmup=warmup)
        return (self.policy.decode(obs, action) if warmup else action), aux


def check_stored_is_what_acted(algorithm: DSRLSAC) -> None:
    obs = torch.randn(64, 3)
    for warmup in (True, False):
        action, aux = algorithm.explore(obs, warmup=warmup)
        expected = algorithm.policy.base(obs, aux["latent"])[:, : algorithm.act_steps]
        assert torch.equal(action, expected.detach()), "another latent acted than is stored"


def check_warmup_is_the_base(algorithm: DSRLSAC) -> None:
    obs = torch.randn(64, 3)
    torch.manual_seed(4)
    action, _ = algorithm.explore(obs, warmup=True)
    torch.manual_seed(4)
    latent = torch.randn(64, 2, 1).clamp(-1.5, 1.5)
    with torch.no_grad():
        assert torch.equal(action, algorithm.policy.base(obs, latent)), "not the base acts"


def test_the_warmup_denoises_once() -> None:
    check_stored_is_what_acted(steered(DSRLSAC))
    for method in (DSRLSAC, DSRLNA):
        check_warmup_is_the_base(steered(method))
    with pytest.raises(AssertionError, match="another latent acted"):
        check_stored_is_what_acted(steered(DenoisedTwice))
    for fault in (DenoisedTwice, DenoisedTwiceNA):
        with pytest.raises(AssertionError, match="not the base acts"):
            check_warmup_is_the_base(steered(fault))


# Magnitude: the box is as large as it is said, for both methods.


class BoxOfOne(DSRLNA):
    """The actor's box is that of tiled actions, [-1, 1], whatever ``magnitude`` says."""

    def __init__(self, setup: Setup, **keywords: Any) -> None:
        super().__init__(setup, **{**keywords, "magnitude": 1.0})
        self.magnitude = keywords["magnitude"]


class DecodedAsOne(DSRLNA):
    """The actor's box is right, and the critics see actions of latents in a box of [-1, 1]."""

    def decode_normalized(self, raw_obs: Obs, latent: Tensor) -> Tensor:
        """Return actions as if the box were [-1, 1]."""
        return super().decode_normalized(raw_obs, latent / self.magnitude)


def check_box(algorithm: DSRLSAC) -> None:
    """An actor that is sure of its bounds acts, and is judged, at the bounds of the box."""
    with torch.no_grad():
        head: Any = algorithm.actor.network[-1]
        head.weight.zero_()
        head.bias.copy_(torch.tensor([20.0, -20.0, -20.0, -20.0]))  # means, log standard deviations
    obs = torch.randn(64, 3)
    expected = algorithm.policy.base(obs, torch.tensor([[1.5], [-1.5]]).expand(64, 2, 1)).detach()
    for action in (
        algorithm.explore(obs, warmup=False)[0],
        algorithm.policy.act(obs, deterministic=True),
    ):
        torch.testing.assert_close(action, expected, msg="the box is not that of magnitude")


def check_decoded(algorithm: DSRLNA) -> None:
    """The targets' actions are those of the latents that the actor means."""
    obs, noise = torch.randn(64, 3), torch.randn(64, 2, 1)
    with torch.no_grad():
        scaled, _ = algorithm.actor.sample_with_log_prob(obs, noise)
        played = algorithm.policy(obs, noise)
        decoded = algorithm.decode_normalized(obs, scaled)
        normalized = algorithm.policy.base.normalizer.normalize_action(played)
        torch.testing.assert_close(decoded, normalized, msg="the critics see other actions")


def test_the_magnitude_is_that_of_both_methods() -> None:
    for method in (DSRLSAC, DSRLNA):
        check_box(steered(method))
    with pytest.raises(AssertionError, match="not that of magnitude"):
        check_box(steered(BoxOfOne))
    right, wrong = steered(DSRLNA), steered(DecodedAsOne)
    assert isinstance(right, DSRLNA) and isinstance(wrong, DSRLNA)
    check_decoded(right)
    with pytest.raises(AssertionError, match="other actions"):
        check_decoded(wrong)


# The target: a time limit, whose ``discount`` is gamma, is worth what follows it.


class LimitEnds(DSRLSAC):
    """Takes what was cut by its time limit for an end: nothing follows it."""

    def update(self, data: Batch) -> Any:
        """Learn from a batch in which no row is worth what follows."""
        return super().update(Batch(**{**vars(data), "discount": torch.zeros_like(data.discount)}))


def check_limit_is_worth_what_follows(algorithm: DSRLSAC) -> None:
    """In one state for ever, with reward 1 and gamma 1/2, Q grows towards 2; cut, it ends at 1."""
    obs = torch.zeros(8, 3)
    batch = Batch(
        obs=obs,
        action=torch.zeros(8, 2, 1),
        reward=torch.ones(8),
        next_obs=obs,
        discount=torch.full((8,), 0.5),
        valid=torch.ones(8, 2, dtype=torch.bool),
        aux={"latent": torch.rand(8, 2, 1) - 0.5},
    )
    for _ in range(250):
        algorithm.update(batch)
    metrics = algorithm.update(batch)
    assert float(metrics["q_mean"]) > 1.7, "a time limit is worth nothing"


def test_a_time_limit_is_no_end() -> None:
    keywords = {**SMALL, "learning_rate": 1e-2, "tau": 0.1}
    for method, passes in ((DSRLSAC, True), (LimitEnds, False)):
        torch.manual_seed(0)
        algorithm = method(Setup(SPEC, base=Doubling()), **keywords)
        if passes:
            check_limit_is_worth_what_follows(algorithm)
        else:
            with pytest.raises(AssertionError, match="worth nothing"):
                check_limit_is_worth_what_follows(algorithm)
