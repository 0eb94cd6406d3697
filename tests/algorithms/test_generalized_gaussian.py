"""SAC and PPO with a generalised Gaussian error: its density, both losses, and their parents."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Laplace, Normal

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.common.generalized_gaussian import negative_log_density, shape_of
from trimtab.algorithms.off_policy.generalized_gaussian_sac import GeneralizedGaussianSAC
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.on_policy.generalized_gaussian_ppo import GeneralizedGaussianPPO
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.benchmarks.contracts.base import difference
from trimtab.types import TrimtabError

SetupOf = Callable[..., Setup]
DataOf = Callable[..., Any]
SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 8}
ROLLOUTS: dict[str, Any] = SMALL | {"rollout_steps": 8, "epochs": 2, "value_clip": 0.1}


def test_the_density_is_a_normal_and_a_laplace_distributions_and_sums_to_one() -> None:
    error = torch.linspace(-3, 3, 61)
    error = error[error.abs() > 1e-2]
    two, one = torch.tensor(2.0), torch.tensor(1.0)
    normal, laplace = Normal(0.0, math.sqrt(0.5)), Laplace(0.0, 1.0)
    torch.testing.assert_close(negative_log_density(error, two), -normal.log_prob(error))
    torch.testing.assert_close(negative_log_density(error, one), -laplace.log_prob(error))
    x = torch.linspace(-400, 400, 8_000_001, dtype=torch.float64)
    for shape in (0.5, 1.3, 1.9):
        density = (-negative_log_density(x, torch.tensor(shape, dtype=torch.float64))).exp()
        assert torch.trapezoid(density, x) == pytest.approx(1.0, abs=1e-3)
    # The likeliest shape of a sample is that of the distribution that it is from.
    torch.manual_seed(0)
    shapes = torch.linspace(0.5, 2.0, 151)
    for sample, known in ((normal.sample((100_000,)), 2.0), (laplace.sample((100_000,)), 1.0)):
        losses = torch.stack([negative_log_density(sample, shape).mean() for shape in shapes])
        assert shapes[losses.argmin()] == pytest.approx(known, abs=0.03)


def test_gradients_are_finite_at_an_error_of_zero_and_at_large_ones() -> None:
    error = torch.tensor([0.0, 1e-6, 1.0, 1e6], requires_grad=True)
    output = torch.tensor([-100.0, 0.0, 3.0, 100.0], requires_grad=True)
    shape = shape_of(output)
    assert shape.min() >= 0.05 and shape.max() <= 2.0
    negative_log_density(error, shape).sum().backward()
    assert error.grad is not None and output.grad is not None
    assert error.grad.isfinite().all() and output.grad.isfinite().all()


CASES: list[tuple[type[Algorithm], type[Algorithm], dict[str, Any], dict[str, Any]]] = [
    (GeneralizedGaussianSAC, SAC, SMALL, {"shape": 2.0, "members": 1}),
    (GeneralizedGaussianPPO, PPO, ROLLOUTS, {"shape": 2.0}),
]


@pytest.mark.bits
@pytest.mark.parametrize(("kind", "parent", "settings", "neutral"), CASES)
def test_at_a_shape_of_two_it_is_its_parent(
    kind: Any,
    parent: Any,
    settings: dict[str, Any],
    neutral: dict[str, Any],
    setup_of: SetupOf,
    data_of: DataOf,
) -> None:
    found = []
    for method, own in ((kind, neutral), (parent, {})):
        torch.manual_seed(0)
        learner = method(setup_of(set()), **settings, **own)
        metrics: dict[str, Any] = {}
        for step in range(4):
            metrics = learner.update(data_of(learner, seed=step))
        metrics.pop("shape", None)
        found.append({"state": learner.state_dict(), "metrics": metrics})
    assert difference(*found) is None


def test_the_critics_loss_by_hand(setup_of: SetupOf, data_of: DataOf) -> None:
    torch.manual_seed(0)
    learner = GeneralizedGaussianSAC(setup_of(set()), **SMALL, members=3)
    rows = 7
    outputs, backup = torch.randn(2, 3, rows, 2), torch.randn(3, rows)
    loss, mean_shape = learner.error_loss(outputs, backup)
    wanted, shapes = 0.0, []
    for critic in range(2):
        for row in range(rows):
            raw = outputs[critic, :, row, 1]
            beta = [0.05 + 1.95 / (1 + math.exp(-float(one))) for one in raw]
            for member in range(3):
                error = abs(float(outputs[critic, member, row, 0] - backup[member, row]))
                likelihood = -(error ** beta[member]) + math.log(beta[member] / 2)
                likelihood -= math.lgamma(1 / beta[member])
                wanted -= 0.5 * beta[member] / sum(beta) * likelihood / rows
            shapes += beta
    assert float(loss) == pytest.approx(wanted, rel=1e-5)
    assert float(mean_shape) == pytest.approx(sum(shapes) / len(shapes), rel=1e-5)


def test_members_have_their_own_targets_and_the_actor_climbs_the_least_mean(
    setup_of: SetupOf, data_of: DataOf
) -> None:
    torch.manual_seed(0)
    learner = GeneralizedGaussianSAC(setup_of(set()), **SMALL, members=3)
    data = data_of(learner)
    alpha = torch.tensor(0.5)
    torch.manual_seed(1)
    found = learner.next_value(data, alpha)
    torch.manual_seed(1)
    action, log_prob = learner.sample(data.next_obs)
    every = learner.target.outputs_of(learner.actor.normalizer.obs(data.next_obs), action)
    assert every.shape[:3] == (2, 3, len(data))
    for member in range(3):
        least = torch.minimum(every[0, member, :, 0], every[1, member, :, 0])
        torch.testing.assert_close(found[member], least - 0.5 * log_prob)
    value = learner.target(learner.actor.normalizer.obs(data.next_obs), action)
    torch.testing.assert_close(value, every[..., 0].mean(1))


def test_a_value_learns_the_shape_of_its_noise(setup_of: SetupOf, data_of: DataOf) -> None:
    """In one state returns have Laplace's noise, in the other normal noise."""
    torch.manual_seed(0)
    learner = GeneralizedGaussianPPO(
        setup_of(set()), hidden=(16,), normalize_observations=False, learning_rate=1e-2, clip=0.2
    )
    part = learner.samples(data_of(learner))[torch.zeros(2000, dtype=torch.long)]
    obs = torch.zeros_like(part.obs)
    obs[1000:, 0] = 1.0
    critic: Any = learner.critic
    for _ in range(400):
        noise = torch.cat([Laplace(0.0, 1.0).sample((1000,)), 0.5**0.5 * torch.randn(1000)])
        target = torch.where(obs[:, 0] > 0, 2.0, -1.0) + noise
        values = {**vars(part), "obs": obs, "target": target, "value": target}
        learner.optimizer.step(learner.value_loss(type(part)(**values)) + 0 * held(learner))
    value, output = critic.network(obs[[0, -1]]).detach().unbind(-1)
    torch.testing.assert_close(value, torch.tensor([-1.0, 2.0]), rtol=0, atol=0.1)
    shape = shape_of(output)
    assert shape[0] == pytest.approx(1.0, abs=0.15) and shape[1] > 1.7


def held(learner: PPO) -> Tensor:
    """A sum of the actor's weights, so that its optimiser finds them in a loss."""
    return torch.stack([weight.sum() for weight in learner.actor.parameters()]).sum()


@pytest.mark.parametrize("shape", [0.5, 2.5])
def test_a_given_shape_is_from_one_to_two(shape: float, setup_of: SetupOf) -> None:
    with pytest.raises(TrimtabError, match="shape"):
        GeneralizedGaussianPPO(setup_of(set()), shape=shape)
