"""The ensemble of critics: many actions in each state are valued as one by one."""

from __future__ import annotations

import pytest
import torch

from trimtab.policies.networks.critic import EnsembleCritic


@pytest.mark.parametrize("hidden", [(), (8,), (8, 6)])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("states", "many"), [(5, 3), (700, 4)])  # in one block, and in several
def test_values_of_many_actions_and_their_gradients(
    hidden: tuple[int, ...], layer_norm: bool, states: int, many: int
) -> None:
    torch.manual_seed(0)
    critic = EnsembleCritic(4, 6, hidden=hidden, members=3, layer_norm=layer_norm).double()
    obs = torch.randn(states, 4, dtype=torch.float64)
    actions = torch.randn(many, states, 3, 2, dtype=torch.float64, requires_grad=True)
    values = critic.of_actions(obs, actions)
    assert values.shape == (3, many, states)
    inputs = [actions, *critic.parameters()]
    found = torch.autograd.grad(values.sin().sum(), inputs)
    one_by_one = torch.stack([critic(obs, action) for action in actions], 1)
    expected = torch.autograd.grad(one_by_one.sin().sum(), inputs)
    torch.testing.assert_close(values, one_by_one)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
