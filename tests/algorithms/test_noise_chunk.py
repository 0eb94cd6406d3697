"""One latent for a whole chunk, in place of one for each of its actions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.steering.dsrl_na import DSRLNA
from trimtab.algorithms.steering.dsrl_sac import DSRLSAC
from trimtab.algorithms.steering.frozen import Frozen
from trimtab.algorithms.steering.repeated_noise import RepeatedNoise
from trimtab.policies.kinds.repeated_noise import RepeatedNoisePolicy
from trimtab.types import Batch

SetupOf = Callable[..., Setup]
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 8}
BOTH = pytest.mark.parametrize("method", [DSRLSAC, DSRLNA])


@BOTH
def test_every_action_of_a_chunk_has_the_same_latent(
    method: type[DSRLSAC], setup_of: SetupOf
) -> None:
    setup = setup_of({"base"})
    assert setup.base is not None and setup.base.noise_shape == (4, 2)
    torch.manual_seed(0)
    algorithm = method(setup, noise_chunk="repeated", **SMALL)
    assert algorithm.actor.noise_shape == (1, 2)
    obs = torch.randn(6, 5)
    for warmup in (True, False):
        torch.manual_seed(1)
        action, _ = algorithm.explore(obs, warmup=warmup)
        torch.manual_seed(1)
        latent = (
            torch.randn(6, 1, 2).clamp(-1.5, 1.5) if warmup else algorithm.actor.act(obs)
        )  # the actor's own, or the base's in the box
        repeated = torch.cat([latent] * 4, dim=1)
        with torch.no_grad():
            assert torch.equal(action, setup.base(obs, repeated)[:, :2])


@BOTH
def test_the_critics_are_about_the_one_latent(
    method: type[DSRLSAC], setup_of: SetupOf, batch_of: Callable[..., Batch]
) -> None:
    algorithm = method(setup_of({"base"}), noise_chunk="repeated", **SMALL)
    inputs = [part for part in algorithm.critic.parameters() if part.ndim == 3][0].shape
    assert 5 + 1 * 2 in inputs  # observation and latent, not 5 + 4 * 2
    before = copy.deepcopy(algorithm.actor.state_dict())
    metrics = algorithm.update(batch_of(algorithm))
    assert all(torch.as_tensor(value).isfinite() for value in metrics.values())
    assert any(not torch.equal(v, before[k]) for k, v in algorithm.actor.state_dict().items())


@BOTH
def test_each_is_what_it_was(
    method: type[DSRLSAC], setup_of: SetupOf, batch_of: Callable[..., Batch]
) -> None:
    states = []
    for keywords in ({}, {"noise_chunk": "each"}):
        torch.manual_seed(2)
        algorithm = method(setup_of({"base"}), **keywords, **SMALL)
        algorithm.update(batch_of(algorithm))
        states.append(algorithm.actor.state_dict())
        assert algorithm.neutral["noise_chunk"] == "each"
        assert not isinstance(algorithm.policy.base, RepeatedNoisePolicy)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_control_is_the_base_with_its_noise_repeated(setup_of: SetupOf) -> None:
    control, frozen = RepeatedNoise(setup_of({"base"})), Frozen(setup_of({"base"}))
    obs, noise = torch.randn(6, 5), torch.randn(6, 1, 2)
    repeated = noise.repeat(1, 4, 1)
    with torch.no_grad():
        assert torch.equal(control.policy(obs, noise), frozen.policy(obs, repeated))
    assert control.policy.evaluate_deterministic == frozen.policy.evaluate_deterministic
    assert control.policy.label == frozen.policy.label
