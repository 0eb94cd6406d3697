"""CrossQ against SAC, its batch renormalisation against the formula, and its joint pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.crossq import CrossQ
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.benchmarks.contracts.base import difference
from trimtab.policies.networks.batch_norm import BatchRenorm
from trimtab.policies.networks.renormed import RenormedCritic, RenormedPerceptron
from trimtab.types import Batch, PolicySpec, TrimtabError

BatchOf = Callable[..., Batch]
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))


@pytest.mark.bits
@pytest.mark.parametrize("actor_every", [1, 3])
def test_without_its_normalisation_and_with_targets_it_is_sac(
    batch_of: BatchOf, actor_every: int
) -> None:
    states = []
    for kind, own in (
        (SAC, {}),
        (CrossQ, {"renormalize": False, "target_network": True, "first_decay": 0.9}),
    ):
        torch.manual_seed(0)
        algorithm = kind(
            Setup(SPEC), hidden=(16, 16), learning_rate=3e-4, actor_every=actor_every, **own
        )
        torch.manual_seed(1)
        metrics = [
            {name: float(value) for name, value in algorithm.update(batch).items()}
            for batch in (batch_of(algorithm, seed=step) for step in range(7))
        ]
        states.append({"metrics": metrics, **algorithm.state_dict()})
    assert difference(*states) is None


def by_formula(
    x: Tensor, mean: Tensor, variance: Tensor, running_mean: Tensor, running_var: Tensor
) -> Tensor:
    """Batch renormalisation with its corrections, one feature at a time."""
    found = torch.empty_like(x)
    for feature in range(x.shape[1]):
        std = torch.sqrt(variance[feature] + 1e-3)
        known = torch.sqrt(running_var[feature] + 1e-3)
        ratio = min(max(float(std / known), 1 / 3), 3.0)
        shift = min(max(float((mean - running_mean)[feature] / known), -5.0), 5.0)
        found[:, feature] = (x[:, feature] - mean[feature]) / std * ratio + shift
    return found


def test_renormalisation_is_the_formula() -> None:
    torch.manual_seed(0)
    norm = BatchRenorm(4, warmup=1).double()
    with torch.no_grad():
        norm.weight.copy_(torch.rand(1, 4) + 0.5)
        norm.bias.copy_(torch.rand(1, 4))
    sizes = torch.tensor([0.1, 1.0, 3.0, 30.0])  # two of the corrections are at their bounds
    first, second = (sizes * torch.randn(16, 4).double() + 2 * sizes for _ in range(2))
    weight, bias = norm.weight[0], norm.bias[0]
    # The first batch is not corrected: plain batch normalisation.
    plain = functional.batch_norm(first, None, None, weight, bias, True, 0.0, 1e-3)
    torch.testing.assert_close(norm(first, learning=True), plain)
    mean, variance = first.mean(0), first.var(0, correction=0)
    torch.testing.assert_close(norm.running_mean[0], 0.01 * mean)
    torch.testing.assert_close(norm.running_var[0], 0.99 + 0.01 * variance)
    # The second one is, towards the statistics before it.
    mean, variance = second.mean(0), second.var(0, correction=0)
    expected = by_formula(second, mean, variance, norm.running_mean[0], norm.running_var[0])
    before = norm.running_mean.clone(), norm.running_var.clone()
    torch.testing.assert_close(norm(second, learning=True), expected * weight + bias)
    torch.testing.assert_close(norm.running_mean, 0.99 * before[0] + 0.01 * mean)
    # Later calls use the running ones, and leave them.
    held = norm.running_mean.clone(), norm.running_var.clone()
    still = (second - held[0]) / torch.sqrt(held[1] + 1e-3) * weight + bias
    torch.testing.assert_close(norm(second), still)
    assert torch.equal(norm.running_mean, held[0]) and int(norm.seen) == 2


def test_corrections_get_no_gradient() -> None:
    """So a batch's own mean and size have none, corrected or not."""
    torch.manual_seed(0)
    norm = BatchRenorm(3, warmup=0)
    x = torch.randn(8, 3, requires_grad=True)
    (slope,) = torch.autograd.grad((norm(x, learning=True) * torch.randn(8, 3)).sum(), x)
    assert float(slope.abs().max()) > 1e-2
    torch.testing.assert_close(slope.sum(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        (slope * x).sum(0).detach(), torch.zeros(3), atol=1e-2, rtol=0
    )  # but for epsilon


@pytest.mark.parametrize("warmup", [0, 100])
def test_members_have_statistics_of_their_own(warmup: int) -> None:
    torch.manual_seed(0)
    together = BatchRenorm(4, 3, warmup=warmup)
    x = torch.randn(3, 16, 4) * torch.tensor([1.0, 5.0, 0.2])[:, None, None]
    for learning in (True, True, False):
        alone = []
        for member in range(3):
            one = BatchRenorm(4, warmup=warmup)
            state = {
                name: value[member] if value.ndim else value
                for name, value in together.state_dict().items()
            }
            one.load_state_dict(state)
            alone.append(one(x[member], learning))
        torch.testing.assert_close(together(x, learning), torch.stack(alone))


def test_a_critic_is_its_perceptrons() -> None:
    torch.manual_seed(0)
    critic = RenormedCritic(3, 4, hidden=(8, 6), members=2)
    obs, action = torch.randn(10, 3), torch.randn(10, 2, 2)
    rows = torch.cat([obs, action.flatten(1)], 1)
    critic.of_rows(rows.expand(2, -1, -1), learning=True)
    values = critic(obs, action)
    for member in range(2):
        single = RenormedPerceptron(7, (8, 6), 1)
        linear = [layer for layer in critic.network if not isinstance(layer, nn.ReLU)]
        with torch.no_grad():
            for own, layer in zip(single.layers, linear, strict=True):
                own.weight.copy_(layer.weight[member].T)
                own.bias.copy_(layer.bias[member, 0])
        for norm, shared in zip(single.norms, critic.norms, strict=True):
            norm.load_state_dict(
                {n: v[member] if v.ndim else v for n, v in shared.state_dict().items()}
            )
        torch.testing.assert_close(single(rows)[:, 0], values[member])


def test_both_states_are_one_batch() -> None:
    torch.manual_seed(0)
    algorithm = CrossQ(Setup(SPEC), hidden=(16, 16))
    obs, action = torch.randn(8, 5), torch.rand(8, 2, 2)
    other = action.clone()
    other[4:] = -other[4:]
    with torch.no_grad():
        assert torch.equal(
            algorithm.critic(obs, action)[:, :4], algorithm.critic(obs, other)[:, :4]
        )
        pair = (algorithm.by_batch(obs, one)[:, :4] for one in (action, other))
        assert not torch.allclose(*pair, atol=1e-2)
    assert "target" not in algorithm.state_dict()


def test_the_critics_loss_by_hand(batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    algorithm = CrossQ(Setup(SPEC), hidden=(16,), initial_temperature=0.5)
    for step in range(2):  # so that running statistics differ from those of the batch
        algorithm.update(batch_of(algorithm, seed=step))
    batch = batch_of(algorithm, seed=5)
    noise = torch.randn(len(batch), 2, 2)
    monkeypatch.setattr(algorithm.actor, "sample_noise", lambda n: noise)
    normalizer, critic = algorithm.actor.normalizer, algorithm.critic
    assert isinstance(critic, RenormedCritic)
    with torch.no_grad():
        following, log_prob = algorithm.actor.sample_with_log_prob(batch.next_obs, noise)
        planned = torch.where(
            batch.valid[..., None], batch.action, algorithm.actor(batch.obs, noise)
        )
        done = normalizer.normalize_action(planned)
        x = torch.cat(
            [
                torch.cat([batch.obs, done.flatten(1)], 1),
                torch.cat([batch.next_obs, following.flatten(1)], 1),
            ]
        )
        values = []
        for member in range(2):
            y = x
            for norm, layer in zip(
                critic.norms, [critic.network[0], critic.network[2]], strict=True
            ):
                y = (y - y.mean(0)) / torch.sqrt(y.var(0, correction=0) + 1e-3)
                y = y * norm.weight[member] + norm.bias[member]
                y = y @ layer.weight[member] + layer.bias[member]
                y = y.clamp(min=0) if layer is critic.network[0] else y
            values.append(y[:, 0])
        rows, alpha = len(batch), algorithm.temperature()
        least = torch.minimum(values[0][rows:], values[1][rows:]) - alpha * log_prob
        target = batch.reward + batch.discount * least
        expected = sum(0.5 * (value[:rows] - target).square().mean() for value in values)
    metrics = algorithm.update(batch)
    assert float(metrics["critic_loss"]) == pytest.approx(float(expected), rel=1e-4)


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(TrimtabError, match="target_critics: has no effect on CrossQ"):
        CrossQ(Setup(SPEC), target_critics=1)
    with pytest.raises(TrimtabError, match="batch_size=1: must be from 2"):
        CrossQ(Setup(SPEC), batch_size=1)


def test_values_of_many_actions_are_those_of_each_by_itself() -> None:
    torch.manual_seed(0)
    critic = RenormedCritic(5, 2, hidden=(16,), members=2)
    for _ in range(20):
        critic.of_rows((3 * torch.randn(64, 7) + 2).expand(2, -1, -1), learning=True)
    obs, actions = torch.randn(4, 5), torch.rand(3, 4, 1, 2)
    each = torch.stack([critic(obs, action) for action in actions], dim=1)
    torch.testing.assert_close(critic.of_actions(obs, actions), each)
