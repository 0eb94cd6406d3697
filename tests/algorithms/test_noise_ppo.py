"""PPO over a frozen policy's noise: its start, its loss by torch's distributions, its learning."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from trimtab.algorithms.base import Setup
from trimtab.algorithms.on_policy.ppo import Samples
from trimtab.algorithms.steering.noise_ppo import NoisePPO
from trimtab.policies.base import Policy
from trimtab.policies.kinds.latent import LatentPolicy
from trimtab.types import PolicySpec, Rollout

SetupOf = Callable[..., Setup]
SMALL: dict[str, Any] = {"hidden": (16,), "rollout_steps": 8, "batch_size": 8, "epochs": 2}
SPEC = PolicySpec(1, 1, 1, (-2.0,), (2.0,))


class Fork(Policy):
    """Goes one way or the other, as the sign of its latent says, whatever it sees."""

    def __init__(self) -> None:
        super().__init__(SPEC, (1, 1))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return raw actions near the limits, seldom between."""
        return self.normalizer.raw_action(0.9 * torch.tanh(6 * noise))


def test_it_begins_as_the_base(setup_of: SetupOf) -> None:
    setup = setup_of({"base"})
    assert setup.base is not None
    torch.manual_seed(0)
    algorithm = NoisePPO(setup, **SMALL)
    obs = 4 * torch.rand(3000, 5) - 2
    action, aux = algorithm.explore(obs, warmup=False)
    latent = aux["unclipped"]
    assert latent.shape == (3000, 4, 2)  # the whole plan, of which two actions are executed
    assert latent.mean((0,)).abs().max() < 0.1 and (latent.std(0) - 1).abs().max() < 0.1
    with torch.no_grad():
        assert torch.equal(action, setup.base(obs, latent.clamp(-3, 3))[:, :2])
    assert float(latent.abs().max()) > 3  # so the clip was at work


def test_steps_are_those_of_the_environments(setup_of: SetupOf) -> None:
    """Two actions of a plan of four are executed, and the noise is one for each of the four."""
    setup = setup_of({"base"})
    assert setup.base is not None and setup.base.spec.horizon == 4 and setup.spec.horizon == 2
    assert NoisePPO(setup, **SMALL).steps_per_update == 8 * setup.num_envs * 2


def test_what_is_judged_is_the_base_at_the_mean(setup_of: SetupOf) -> None:
    setup = setup_of({"base"})
    assert setup.base is not None
    algorithm = NoisePPO(setup, **SMALL)
    torch.nn.init.normal_(algorithm.actor.network[-1].weight, std=2.0)  # type: ignore[index]
    obs = torch.randn(6, 5)
    assert isinstance(algorithm.policy, LatentPolicy) and algorithm.policy.evaluate_deterministic
    with torch.no_grad():
        normalized = setup.base.normalizer.obs(obs)
        mean = algorithm.actor.network(normalized).reshape(6, 4, 2).clamp(-3, 3)
        expected = setup.base(obs, mean)
    torch.testing.assert_close(algorithm.policy.act(obs, deterministic=True), expected)


@pytest.mark.parametrize("chunk", [4, 1])
def test_the_loss_is_that_of_torchs_distributions(setup_of: SetupOf, chunk: int) -> None:
    torch.manual_seed(1)
    words = {4: "each", 1: "repeated"}
    algorithm = NoisePPO(
        setup_of({"base"}), prior_weight=0.3, noise_chunk=words[chunk], clip=0.2, **SMALL
    )
    with torch.no_grad():
        algorithm.actor.log_std.normal_(std=0.4)
    shape = (50, chunk, 2)
    mean, old_mean, latent = torch.randn(3, *shape) * 0.4
    std, old_std = algorithm.actor.log_std.detach().exp(), 0.8 * torch.ones(chunk, 2)
    new = Independent(Normal(mean, std.expand(shape)), 2)
    old = Independent(Normal(old_mean, old_std.expand(shape)), 2)
    prior = Independent(Normal(torch.zeros(shape), torch.ones(shape)), 2)
    advantage = torch.randn(50)
    part = Samples(
        obs=torch.zeros(50, 5), action=latent, mean=old_mean, log_prob=old.log_prob(latent),
        value=torch.zeros(50), advantage=advantage, target=torch.zeros(50),
    )  # fmt: skip
    ratio = (new.log_prob(latent) - old.log_prob(latent)).exp()
    assert bool((ratio > 1.2).any()) and bool((ratio < 0.8).any())
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    expected = -surrogate + 0.3 * kl_divergence(new, prior).mean()
    found = algorithm.policy_loss(part, mean, algorithm.actor.log_prob(mean, latent))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(algorithm.prior_kl(mean), kl_divergence(new, prior).mean())


def rollout(algorithm: NoisePPO, reward: Callable[[Tensor, Tensor], Tensor]) -> Rollout:
    """Decisions of a bandit in 32 environments: every episode is one action long."""
    steps = algorithm.pace.rollout_steps
    obs = (torch.randint(2, (steps, 32, 1)) * 2.0 - 1.0) * (0.5 + torch.rand(steps, 32, 1))
    action, aux = algorithm.explore(obs.flatten(0, 1), warmup=False)
    return Rollout(
        obs=obs,
        action=action.reshape(steps, 32, 1, 1),
        reward=reward(obs.flatten(0, 1), action).reshape(steps, 32),
        next_obs=obs,
        discount=torch.zeros(steps, 32),
        cut=torch.ones(steps, 32, dtype=torch.bool),
        aux={name: value.reshape(steps, 32, *value.shape[1:]) for name, value in aux.items()},
    )


def way(obs: Tensor, action: Tensor) -> Tensor:
    """One for going the way that the observation's sign points."""
    return (action[:, 0, 0] * obs[:, 0] > 0).float()


def learner(**keywords: Any) -> NoisePPO:
    torch.manual_seed(0)
    setup = Setup(SPEC, base=Fork(), num_envs=32)
    return NoisePPO(
        setup, hidden=(16,), rollout_steps=8, batch_size=64, epochs=6, learning_rate=5e-3,
        normalize_rewards=False, **keywords,
    )  # fmt: skip


def test_it_learns_which_noise_is_rewarded() -> None:
    algorithm = learner()
    before = copy.deepcopy(algorithm.policy.base.state_dict())
    assert 0.4 < float(rollout(algorithm, way).reward.mean()) < 0.6  # the base goes either way
    for _ in range(25):
        algorithm.update(rollout(algorithm, way))
    obs = torch.cat([torch.linspace(-1.5, -0.5, 50), torch.linspace(0.5, 1.5, 50)])[:, None]
    assert float(way(obs, algorithm.policy.act(obs, deterministic=True)).mean()) == 1.0
    assert float(rollout(algorithm, way).reward.mean()) > 0.9
    for name, value in algorithm.policy.base.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_divergence_holds_it_at_the_bases_noise() -> None:
    free, held = (learner(prior_weight=weight) for weight in (0.0, 10.0))
    for algorithm in (free, held):
        for _ in range(15):
            metrics = algorithm.update(rollout(algorithm, way))
    with torch.no_grad():
        assert float(free.prior_kl(free.actor.mean(torch.ones(1, 1)))) > 0.3
    assert float(metrics["prior_kl"]) < 0.05
