"""Our Adam against torch's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from trimtab.algorithms.common.adam import Adam, Group, clip_gradients


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model: nn.Module, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    loss: Tensor = model(torch.randn(16, 3, generator=generator)).square().mean()
    return (1 + step) * loss


@pytest.mark.parametrize("bound", [None, 0.05])
def test_steps_are_those_of_torch(bound: float | None) -> None:
    ours, theirs = network(), network()
    mine = Adam(ours.parameters(), 1e-2, epsilon=1e-5, max_gradient_norm=bound)
    other = torch.optim.Adam(theirs.parameters(), lr=1e-2, eps=1e-5, fused=True)
    for step in range(20):
        mine.learning_rate = other.param_groups[0]["lr"] = 1e-2 / (1 + step)
        mine.step(loss_of(ours, step))
        other.zero_grad()
        loss_of(theirs, step).backward()
        if bound is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), bound)
        other.step()
        for weight, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
            if bound is None:
                assert torch.equal(weight, expected)
            torch.testing.assert_close(weight, expected, rtol=1e-5, atol=1e-7)


def test_other_weights_get_no_gradients_and_stay() -> None:
    actor, critic = network(), nn.Linear(2, 1)
    before = copy.deepcopy(critic.state_dict())
    Adam(actor.parameters(), 0.1).step(critic(actor(torch.ones(4, 3))).mean())
    assert all(weight.grad is None for model in (actor, critic) for weight in model.parameters())
    assert all(torch.equal(before[name], now) for name, now in critic.state_dict().items())


def test_gradients_that_lie_otherwise_in_memory() -> None:
    weight, scale = nn.Parameter(torch.randn(3, 5)), torch.randn(5, 3)
    other = nn.Parameter(weight.detach().clone())
    theirs = torch.optim.Adam([other], lr=0.1)
    Adam([weight], 0.1, max_gradient_norm=1e6).step((weight.t() * scale).square().sum())
    (other.t() * scale).square().sum().backward()
    theirs.step()
    torch.testing.assert_close(weight, other)
    flat = nn.Parameter(torch.zeros(4))
    Adam([flat], 0.1, max_gradient_norm=1.0).step(flat.sum())  # its gradient is one expanded number
    torch.testing.assert_close(flat.detach(), torch.full((4,), -0.1))


def test_goes_on_where_it_was() -> None:
    ours = network()
    optimizer = Adam(ours.parameters(), 1e-2)
    for step in range(5):
        optimizer.step(loss_of(ours, step))
    other = copy.deepcopy(ours)
    resumed = Adam(other.parameters(), 1e-2)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(5, 10):
        optimizer.step(loss_of(ours, step))
        resumed.step(loss_of(other, step))
    for weight, again in zip(ours.parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, again)


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_gradients_are_bounded_together(most: float) -> None:
    gradients = (torch.full((3,), 2.0), torch.full((2,), 2.0))
    expected = [min(1.0, most / 20.0**0.5) * gradient for gradient in gradients]
    clip_gradients(gradients, most)
    for scaled, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(scaled, right)


def test_groups_and_decoupled_weight_decay_are_those_of_torch() -> None:
    ours, theirs = network(), network()
    mine = Adam([Group([*ours[0].parameters()], 1e-2, 0.1), Group([*ours[2].parameters()], 1e-3)])
    other = torch.optim.AdamW(
        [
            {"params": theirs[0].parameters(), "lr": 1e-2, "weight_decay": 0.1},
            {"params": theirs[2].parameters(), "lr": 1e-3, "weight_decay": 0.0},
        ],
        fused=True,
    )
    for step in range(20):
        mine.step(loss_of(ours, step))
        other.zero_grad()
        loss_of(theirs, step).backward()
        other.step()
    for weight, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_weights_that_a_loss_leaves_out_stay_as_torchs_do() -> None:
    def heads() -> nn.ModuleList:
        torch.manual_seed(1)
        return nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])

    ours, theirs = heads(), heads()
    mine = Adam(ours.parameters(), 1e-2, weight_decay=0.05, partial=True)
    other = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.05, fused=True)
    for step in range(9):
        head = 0 if step % 3 else 1
        mine.step(loss_of(ours[head], step))
        other.zero_grad()
        loss_of(theirs[head], step).backward()
        other.step()
        if step == 4:  # and resumed
            state = copy.deepcopy(mine.state_dict())
            mine = Adam(ours.parameters(), 1e-2, weight_decay=0.05, partial=True)
            mine.load_state_dict(state)
    for weight, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(weight, expected)
    with pytest.raises(RuntimeError, match="unused|not have been used"):
        Adam(ours.parameters(), 1e-2).step(loss_of(ours[0], 0))


def test_single_numbers_of_gradients_are_bounded() -> None:
    weight, other = (nn.Parameter(torch.tensor([1.0, 1.0, 1.0])) for _ in range(2))
    scale = torch.tensor([5.0, 0.2, -3.0])
    Adam([weight], 0.1, epsilon=1.0, max_gradient=0.5).step((weight * scale).sum())
    theirs = torch.optim.Adam([other], lr=0.1, eps=1.0)
    (other * scale).sum().backward()
    nn.utils.clip_grad_value_([other], 0.5)
    theirs.step()
    torch.testing.assert_close(weight, other)
