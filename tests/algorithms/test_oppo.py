"""OPPO: its losses by hand, its update by a peer's optimiser, and that preferences are followed."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.oppo import OPPO, preference_loss
from trimtab.benchmarks.training.evaluate import torch_act
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.policies.agent import Agent
from trimtab.types import Batch, PolicySpec, TrimtabError

SPEC = PolicySpec(3, 1, 2, (-1.0, -2.0), (1.0, 4.0))
LENGTH = 4
SMALL: dict[str, Any] = {
    "latent": 3, "embedding": 8, "layers": 2, "heads": 2, "context": LENGTH, "foresee": 3,
    "batch_size": 16, "rise_updates": 2, "dropout": 0.0,
}  # fmt: skip


def recorded(actions: list[NDArray[Any]], rewards: list[NDArray[Any]]) -> Dataset:
    episodes = [
        Episode(
            observations=np.random.default_rng(i).normal(size=(len(action) + 1, 3)),
            actions=action,
            rewards=reward,
            terminations=np.zeros(len(action)),
            truncations=np.arange(len(action)) == len(action) - 1,
        )
        for i, (action, reward) in enumerate(zip(actions, rewards, strict=True))
    ]
    return Dataset("t/t-v0", "x/y", {}, tuple(episodes), SPEC.action_low, SPEC.action_high)


def some() -> Dataset:
    generator = np.random.default_rng(0)
    lengths = (2, 7, 5)
    return recorded(
        [generator.uniform(-1, 1, size=(steps, 2)) for steps in lengths],
        [generator.normal(size=steps) for steps in lengths],
    )


def learner(dataset: Dataset, **settings: Any) -> OPPO:
    torch.manual_seed(0)
    setup = Setup(SPEC, statistics=dataset.statistics(), discount=1.0)
    return OPPO(setup, **SMALL | settings)


def source(method: OPPO, dataset: Dataset) -> ReplayBuffer:
    return ReplayBuffer.from_dataset(
        dataset, discount=1.0, chunked=True, seed=0, successors=False, batch_spec=method.batch_spec
    )


def test_the_preference_by_hand() -> None:
    optimal = torch.zeros(2, requires_grad=True)
    # Distances from the optimal embedding: 3 and 1, 2 and 5, 4 and 4, of three pairs.
    embedded = torch.tensor(
        [[3.0, 0.0], [0.0, 2.0], [4.0, 0.0], [0.0, 1.0], [5.0, 0.0], [0.0, 4.0]]
    )
    embedded.requires_grad_(True)
    first, second = torch.tensor([1.0, 1.0, 7.0]), torch.tensor([0.0, 0.0, 7.0])
    # Pair 1 prefers the farther: 3 - 1 + 1; pair 2 the nearer by more than the margin; pair 3 none.
    loss = preference_loss(optimal, embedded, first, second, 1.0)
    torch.testing.assert_close(loss, torch.tensor(1.5), atol=1e-5, rtol=0)
    slope_of_optimal, slope = torch.autograd.grad(loss, (optimal, embedded))
    wanted = torch.zeros(6, 2)
    wanted[0, 0], wanted[3, 1] = 0.5, -0.5  # towards, and away from, over two pairs
    torch.testing.assert_close(slope, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(slope_of_optimal, torch.tensor([-0.5, 0.5]), atol=1e-5, rtol=0)
    # The order within a pair says nothing, and answers turned round prefer the others.
    swapped = preference_loss(optimal, embedded.roll(3, 0), second, first, 1.0)
    torch.testing.assert_close(swapped, loss)
    turned = preference_loss(optimal, embedded, second, first, 1.0)
    torch.testing.assert_close(turned, torch.tensor(4.0 / 2), atol=1e-5, rtol=0)  # 5 - 2 + 1
    nothing = preference_loss(optimal, embedded, first, first, 1.0)
    assert nothing.item() == 0.0 and not torch.autograd.grad(nothing, embedded)[0].any()


def test_the_teacher_sums_the_rewards_that_follow() -> None:
    dataset = some()
    method = learner(dataset)
    batch = source(method, dataset).sample(64)
    seen = set()
    for row in range(64):
        episode, start = next(
            (episode, start)
            for episode in dataset.episodes
            for start in range(len(episode))
            if np.array_equal(episode.observations[start], batch.obs[row])  # type: ignore[index]
        )
        foreseen = sum(float(reward) for reward in episode.rewards[start : start + 3])
        assert float(batch.reward[row]) == pytest.approx(foreseen, abs=1e-5)
        seen.add(min(len(episode) - start, 3))
    assert seen == {1, 2, 3}


def test_an_embedding_sees_its_whole_stretch_and_no_padding() -> None:
    dataset = some()
    method = learner(dataset)
    for name, weight in method.encoder.named_parameters():
        if weight.ndim == 2 and name.startswith("transformer"):
            weight.data *= 15
    data = source(method, dataset).sample(32).sequence
    assert data is not None
    seen = method.policy.read(data, method.policy.optimal.expand(*data.valid.shape, -1))
    with torch.no_grad():
        before = method.encoder(seen)
        for place in range(LENGTH):
            for name in ("obs", "action"):
                changed = getattr(seen, name).clone()
                changed[:, place] += 1.0
                after = method.encoder(dataclasses.replace(seen, **{name: changed}))
                differs = (after != before).any(1)
                assert torch.equal(differs, seen.there[:, place]), (name, place)


def loss_by_rows(method: OPPO, batch: Batch) -> torch.Tensor:
    """Return the loss of encoder and decoder by a loop over stretches and decisions."""
    data = batch.sequence
    assert data is not None
    policy, pairs = method.policy, len(batch.reward) // 2
    seen = policy.read(data, policy.optimal.detach().expand(*data.valid.shape, -1))
    embedded = method.encoder(seen)
    asked = embedded[:, None].expand(-1, LENGTH, -1)
    actions = policy.actions(dataclasses.replace(seen, asked=asked))
    total = torch.zeros(())
    for half in range(2):
        rows = range(half * pairs, (half + 1) * pairs)
        errors = [
            (actions[row, place] - seen.action[row, place]).square().mean()
            for row in rows
            for place in range(LENGTH)
            if seen.there[row, place]
        ]
        total = total + torch.stack(errors).mean()
        norms = torch.stack([embedded[row].square().sum().sqrt() for row in rows])
        total = total + 0.1 * (norms - 1).square().mean()
    pulls = []
    for pair in range(pairs):
        rewards = batch.reward[pair], batch.reward[pairs + pair]
        if rewards[0] != rewards[1]:
            better, worse = (
                (pair, pairs + pair) if rewards[0] > rewards[1] else (pairs + pair, pair)
            )
            near, far = (
                (policy.optimal.detach() - embedded[row] + 1e-6).square().sum().sqrt()
                for row in (better, worse)
            )
            pulls.append((near - far + 1).clamp_min(0))
    return total + 0.1 * torch.stack(pulls).mean()


def test_an_update_is_that_of_a_peer() -> None:
    dataset = some()
    method = learner(dataset)
    peer = copy.deepcopy(method)
    batch = source(method, dataset).sample(16)
    method.update(batch)

    optimal = peer.policy.optimal
    decoder = [one for one in peer.policy.parameters() if one is not optimal]
    encoder = list(peer.encoder.parameters())
    loss_by_rows(peer, batch).backward()
    assert optimal.grad is None
    for part, rate in ((decoder, 5e-5), (encoder, 1e-4)):  # half of the rise
        norm = torch.nn.utils.clip_grad_norm_(part, 0.25)
        assert norm > 0.25, "the bound has to bind to be tested"
        torch.optim.AdamW(part, lr=rate, weight_decay=1e-4).step()
    for mine, theirs in zip(method.encoder.parameters(), encoder, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=0)
    mine_decoder = [one for one in method.policy.parameters() if one is not method.policy.optimal]
    for mine, theirs in zip(mine_decoder, decoder, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=0)

    # z* moves last, by embeddings of the encoder as it has become.
    peer.encoder.load_state_dict(method.encoder.state_dict())
    data = batch.sequence
    assert data is not None
    seen = peer.policy.read(data, optimal.detach().expand(*data.valid.shape, -1))
    optimizer = torch.optim.AdamW([optimal], lr=1e-3, weight_decay=1e-4)
    optimizer.zero_grad()
    preference_loss(optimal, peer.encoder(seen).detach(), *batch.reward.chunk(2), 1.0).backward()
    optimizer.step()
    torch.testing.assert_close(method.policy.optimal, optimal, atol=1e-6, rtol=0)


def test_what_is_preferred_is_done() -> None:
    """Episodes of two kinds; the one that more reward follows is imitated, the other is not."""
    kinds = np.random.default_rng(0).choice([-1.0, 1.0], size=60)
    actions = [np.repeat([[kind, 0.0]], 6, axis=0) for kind in kinds]
    done = {}
    for sign in (1.0, -1.0):
        dataset = recorded(actions, [sign * action[:, 0] for action in actions])
        method = learner(
            dataset, embedding=16, layers=1, learning_rate=3e-3, encoder_learning_rate=3e-3,
            optimal_learning_rate=3e-2, batch_size=32,
        )  # fmt: skip
        drawn = source(method, dataset)
        for _ in range(120):
            method.update(drawn.sample(32))
        agent = Agent(torch_act(method.policy), 1, method.policy.inputs, deterministic=True)
        obs = np.zeros((1, 3), np.float32)
        done[sign] = [float(agent.act(obs)[0, 0, 0]) for _ in range(6)]  # told of no rewards
    assert done[1.0] == pytest.approx([1.0] * 6, abs=0.2)
    assert done[-1.0] == pytest.approx([-1.0] * 6, abs=0.2)


def test_settings_that_do_not_fit() -> None:
    dataset = some()
    for settings, line in (
        ({"batch_size": 15}, "batch_size=15.*even"),
        ({"encoder_heads": 3}, "encoder_heads=3"),
        ({"heads": 3}, "embedding=8.*multiple of heads=3"),
        ({"context": 1}, "context=1"),
        ({"foresee": 0}, "foresee=0"),
        ({"latent": 0}, "latent=0"),
    ):
        with pytest.raises(TrimtabError, match=line):
            learner(dataset, **settings)
