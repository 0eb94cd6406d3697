"""FamO2O: the encoding of a balance, its density, and both policies' losses, row by row."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline_to_online.famo2o import FamO2O
from trimtab.algorithms.phases import Budget
from trimtab.policies.kinds.balanced_gaussian import BalancedGaussianPolicy
from trimtab.types import Batch, PolicySpec, TrimtabError

SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]
SPEC = PolicySpec(3, 2, 2, (-1.0, -1.0), (1.0, 1.0))


@pytest.fixture
def method(setup_of: SetupOf) -> FamO2O:
    torch.manual_seed(2)
    made = FamO2O(
        setup_of({"dataset"}), hidden=(16, 16), least_balance=2.0, most_balance=6.0,
        initial_temperature=0.3, target_entropy=-0.25, most_weight=3.0, expectile=0.8,
        decay_updates=None,
    )  # fmt: skip
    with torch.no_grad():
        made.policy.free_log_std.copy_(torch.randn(2, 2) * 0.3)
        made.policy.balance_log_std.fill_(-0.7)
    return made


def test_a_balance_is_told_by_its_waves() -> None:
    policy = BalancedGaussianPolicy(SPEC, hidden=(8,), least_balance=8.0, most_balance=14.0)
    heard: list[torch.Tensor] = []
    policy.network.register_forward_pre_hook(lambda _, read: heard.append(read[0]))
    features = torch.randn(2, 3)
    policy.mean_at(features, torch.tensor([8.0, 13.5]))
    for row, balance in enumerate((8.0, 13.5)):
        angles = [balance, balance / 10_000 ** (2 / 6), balance / 10_000 ** (4 / 6)]
        waves = [wave(angle) for angle in angles for wave in (math.sin, math.cos)]
        assert heard[0][row].tolist() == pytest.approx([*features[row].tolist(), *waves], abs=1e-5)


def test_it_acts_at_the_mode_of_its_balance(method: FamO2O) -> None:
    policy = method.policy
    obs = torch.randn(4, 5)
    features = policy.normalizer.obs(obs)
    mode = 2.0 + 4.0 * (torch.tanh(policy.balance_network(features))[:, 0] + 1) / 2
    noise = torch.randn(4, 2, 2)
    chunk = policy.mean_at(features, mode) + policy.free_log_std.exp() * noise
    scale, shift = torch.tensor([1.0, 1.25]), torch.tensor([0.0, 0.75])
    torch.testing.assert_close(policy(obs, noise), chunk.clamp(-1, 1) * scale + shift)
    other = policy.mean_at(features, mode + 1.0)
    assert (other - policy.mean_at(features, mode)).abs().max() > 1e-3, "it does not listen"
    ends = policy.spread(torch.tensor([-1.0, 1.0]))
    assert ends.tolist() == [2.0, 6.0]


@pytest.mark.parametrize("online", [False, True])
def test_both_policies_losses_by_hand(method: FamO2O, batch_of: BatchOf, online: bool) -> None:
    data = replace(batch_of(method), whole=True)
    before = copy.deepcopy(method)
    offline_phase, online_phase = method.phases(Budget(offline_steps=2, online_steps=2))
    update = (online_phase if online else offline_phase).update
    assert update is not None
    torch.manual_seed(6)
    found = update(data)
    torch.manual_seed(6)
    drawn, drawn_action = torch.randn(16), torch.randn(16, 2, 2)
    chance = torch.randn(16) if online else torch.rand(16)
    policy = before.policy
    obs = policy.normalizer.obs(data.obs)
    action = policy.normalizer.normalize_action(data.action)
    advantage = before.target(obs, action).amin(0) - before.value(obs)[:, 0]
    width = math.exp(-0.7)
    loss, entropy, total, weights, told_all = 0.0, 0.0, 0.0, [], []
    for row in range(16):
        # The balance: its density by torch, and the target critics after their own step.
        mean = policy.balance_network(obs[row][None])[0, 0]
        density = TransformedDistribution(Normal(mean, width), TanhTransform(cache_size=1))
        squashed = torch.tanh(mean + width * drawn[row])
        balance = (2 + 2 * (squashed + 1)).detach()
        reached = policy.mean_at(obs[row][None], balance[None])[0]
        reached = reached + policy.free_log_std.exp() * drawn_action[row]
        log_prob = float(density.log_prob(squashed).detach())
        worth = method.target(obs[row][None], reached[None].detach()).min()
        loss += 0.3 * log_prob - float(worth)
        entropy -= log_prob
        # The universal policy: with the balance policy after its step.
        if online:
            mean = method.policy.balance_network(obs[row][None])[0, 0]
            width_now = float(method.policy.balance_log_std.exp())
            told = 2 + 2 * (torch.tanh(mean + width_now * chance[row]).detach() + 1)
        else:
            told = 2 + 4 * chance[row]
        told_all.append(float(told))
        weights.append(min(math.exp(float(told * advantage[row])), 3.0))
        middle = policy.mean_at(obs[row][None], told[None])[0]
        density_of = Normal(middle, policy.free_log_std.exp()).log_prob(action[row])
        done = int(data.valid[row].sum())
        total -= weights[-1] * float(density_of[:done].sum())
    assert float(found["balance_loss"]) == pytest.approx(loss / 16, abs=1e-4)
    assert float(found["balance_entropy"]) == pytest.approx(entropy / 16, abs=1e-4)
    assert float(found["weight"]) == pytest.approx(sum(weights) / 16, abs=1e-4)
    assert min(weights) < 1 and max(told_all) - min(told_all) > 0.5
    assert float(found["actor_loss"]) == pytest.approx(total / int(data.valid.sum()), abs=1e-4)
    # The temperature falls while the entropy is above its target, and rises below it.
    error = entropy / 16 + 0.25
    moved = float(method.temperature.log - before.temperature.log)
    assert moved == pytest.approx(-math.copysign(3e-4, error), abs=1e-6)


def test_each_step_moves_its_own_weights(method: FamO2O, batch_of: BatchOf) -> None:
    """The balance policy climbs through the universal one, which does not move by that."""
    for still, moving in (("policy_optimizer", "adaptive"), ("balance_optimizer", "universal")):
        made = copy.deepcopy(method)
        getattr(made, still).learning_rates[0] = 0.0
        made.learning_rate = 0.0 if still == "policy_optimizer" else made.learning_rate
        before = {k: v.clone() for k, v in made.policy.named_parameters()}
        made.update(batch_of(made))
        changed = {k for k, v in made.policy.named_parameters() if not torch.equal(v, before[k])}
        own = {id(weight) for weight in getattr(made.policy, moving)()}
        assert changed == {k for k, v in made.policy.named_parameters() if id(v) in own}


def test_bad_settings_are_one_line(setup_of: SetupOf) -> None:
    with pytest.raises(TrimtabError, match=r"most_balance=1: must be at least 2"):
        FamO2O(setup_of({"dataset"}), least_balance=2, most_balance=1)
    with pytest.raises(TrimtabError, match=r"policy.most_balance=2: must be above 2"):
        FamO2O(setup_of({"dataset"}), least_balance=2, most_balance=2)
    with pytest.raises(TrimtabError, match=r"initial_temperature=0: must be at least 1e-09"):
        FamO2O(setup_of({"dataset"}), initial_temperature=0)
