"""NFT's loss against loops over samples, where its gradient vanishes, and what it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.finetuning.nft import NFT
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import PolicySpec

bandit = load_module(Path(__file__).with_name("small.py")).bandit

LOW, HIGH = (-1.0, -0.5), (1.0, 2.0)
EXECUTED, PLANNED = PolicySpec(3, 2, 2, LOW, HIGH), PolicySpec(3, 3, 2, LOW, HIGH)
SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 12, "critics": 3, "states": 5, "group": 4}


def made(spec: PolicySpec = EXECUTED, plan: PolicySpec = PLANNED, **keywords: Any) -> NFT:
    torch.manual_seed(5)
    base = FlowPolicy(plan, hidden=(16, 16), sampling_steps=4)
    return NFT(Setup(spec, base=base), **{**SMALL, **keywords})


def nudge(network: torch.nn.Module, size: float = 0.05) -> None:
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(size * torch.randn_like(weight))


def test_loss_is_that_of_every_sample() -> None:
    """As the paper writes it: time from data to noise, so t becomes 1 - t and v becomes -v."""
    algorithm = made(strength=0.6, reference_weight=0.3)
    torch.manual_seed(1)
    nudge(algorithm.actor.network)
    nudge(algorithm.slow.network)
    rows, clean, worth = torch.randn(16, 3), 2 * torch.rand(16, 3, 2) - 1, torch.rand(16)
    torch.manual_seed(2)
    found = algorithm.loss(rows, clean, worth)
    torch.manual_seed(2)
    level, noise = torch.randint(4, (16,)) / 4, torch.randn_like(clean)
    total, kept = 0.0, 0.0
    with torch.no_grad():
        for row in range(16):
            t = 1 - level[row]
            x0, x_t = clean[row], (1 - t) * clean[row] + t * noise[row]
            v, v_old, v_start = (
                -network(x_t[None], level[row : row + 1], network.condition(rows[row : row + 1]))[0]
                for network in (
                    algorithm.actor.network, algorithm.slow.network, algorithm.reference,
                )
            )  # fmt: skip
            for share, way in (
                (worth[row], 0.4 * v_old + 0.6 * v), (1 - worth[row], 1.6 * v_old - 0.6 * v)
            ):  # fmt: skip
                error = (x_t - t * way - x0)[:2]
                total += float(share * error.square().mean() / error.abs().mean()) * 5 / 0.6 / 16
            kept += float((v - v_start)[:2].square().mean()) / 16
    assert found.item() == pytest.approx(total + 0.3 * kept, rel=1e-4)


def gradient(algorithm: NFT, clean: Tensor, worth: Tensor) -> Tensor:
    torch.manual_seed(2)
    loss = algorithm.loss(torch.zeros(len(clean), 3), clean, worth)
    weights = list(algorithm.actor.network.parameters())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])


def test_a_sample_worth_a_half_teaches_nothing_and_the_rest_is_odd() -> None:
    """At the old policy the two ways are mirror images: what one gains the other loses."""
    algorithm = made(reference_weight=0.0)
    clean = 2 * torch.rand(40, 3, 2) - 1
    half = torch.full((40,), 0.5)
    assert gradient(algorithm, clean, half).abs().max() < 1e-6
    shift = 0.4 * torch.rand(40)
    up, down = gradient(algorithm, clean, half + shift), gradient(algorithm, clean, half - shift)
    torch.testing.assert_close(up, -down, atol=1e-5, rtol=1e-3)
    assert up.norm() > 0.1


def test_worth_is_cut_and_centred() -> None:
    advantage = torch.tensor([0.0, 1.0, -1.0, 2.0, -2.0])
    deviation = (10 / 4) ** 0.5 + 1e-4
    known = [x / deviation / 10 + 0.5 for x in (0, 1, -1, 2, -2)]
    assert NFT.worth(advantage).tolist() == pytest.approx(known, rel=1e-5)
    spike = torch.zeros(1000)
    spike[0], spike[1] = 100.0, -100.0
    assert NFT.worth(spike)[:2].tolist() == [1.0, 0.0]


def test_the_old_policy_is_what_draws_the_samples() -> None:
    algorithm = made()
    nudge(algorithm.actor.network, 0.3)
    nudge(algorithm.critic, 0.3)
    rows, noise = torch.randn(20, 3), algorithm.slow.sample_noise(20)
    torch.manual_seed(2)
    found = algorithm.actor_loss(None, rows, noise)  # type: ignore[arg-type]
    with torch.no_grad():
        chunk = algorithm.slow(rows, noise)
        normalize = algorithm.slow.normalizer.normalize_action
        value = algorithm.policy.critic(rows, normalize(chunk)[:, :2]).mean(0).reshape(5, 4)
        worth = NFT.worth((value - value.mean(1, keepdim=True)).flatten())
    torch.manual_seed(2)
    torch.testing.assert_close(found["actor_loss"], algorithm.loss(rows, normalize(chunk), worth))


def test_it_learns_which_actions_are_good() -> None:
    spec = PolicySpec(3, 1, 2, (-1.0, -1.0), (1.0, 1.0))

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return -(action[:, 0] - 0.5 * torch.tanh(obs[:, :2])).square().sum(1)

    algorithm = made(
        spec, spec, hidden=(32, 32), batch_size=64, states=32, group=8, learning_rate=2e-3,
        critic_learning_rate=3e-3, actor_tau=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    test = torch.randn(500, 3)
    before = reward(test, algorithm.slow.act(test)).mean().item()
    for _ in range(300):
        obs, action = torch.randn(64, 3), 2 * torch.rand(64, 1, 2) - 1
        algorithm.update(bandit(obs, action, reward(obs, action)))
    after = reward(test, algorithm.slow.act(test)).mean().item()
    assert after > 0.4 * before, (before, after)


def test_a_longer_plan_counts_where_it_is_executed() -> None:
    algorithm = made(reference_weight=0.0)
    nudge(algorithm.actor.network)
    with torch.no_grad():  # so that the third action of a plan moves no velocity of the others
        for network in (algorithm.actor.network, algorithm.slow.network):
            network.action_layer.weight[:, 4:6] = 0
    clean, worth = 2 * torch.rand(8, 3, 2) - 1, torch.rand(8)
    other = clean.clone()
    other[:, 2] = 0.3
    assert torch.equal(
        gradient(algorithm, clean, worth)[:16], gradient(algorithm, other, worth)[:16]
    )


def test_learned_state_comes_back() -> None:
    first, second = made(), made()
    nudge(first.actor.network)
    nudge(first.reference)
    second.load_state_dict(first.state_dict())
    for name in ("actor", "reference"):
        pairs = zip(
            getattr(first, name).parameters(), getattr(second, name).parameters(), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs)
