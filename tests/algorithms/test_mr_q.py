"""MR.Q against the published code's formulas, row by row in float64, and that it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.categorical import symexp, two_hot, two_hot_between
from trimtab.algorithms.off_policy.mr_q import MRQ
from trimtab.benchmarks.training.experience import ReplayedExperience, batch_spec_of
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch, PolicySpec

SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
MIDDLE, HALF = torch.tensor([0.0, 0.75]), torch.tensor([1.0, 1.25])
SMALL: dict[str, Any] = {
    "embedding": 12, "action_embedding": 6, "actor_width": 10, "critic_width": 11, "bins": 9,
    "reward_bound": 2.0, "target_every": 2,
}  # fmt: skip
BatchOf = Callable[..., Batch]
Layers = list[tuple[Tensor, Tensor]]


def made(**settings: Any) -> MRQ:
    torch.manual_seed(0)
    return MRQ(Setup(SPEC, discount=0.9), **{**SMALL, **settings})


def whole(batch: Batch) -> Batch:
    return replace(batch, valid=torch.ones_like(batch.valid), whole=True)


# An independent reading of the published networks, for one row.


def linear(module: nn.Module) -> Layers:
    return [
        (one.weight.detach().double().requires_grad_(), one.bias.detach().double().requires_grad_())
        for one in module.modules()
        if isinstance(one, nn.Linear)
    ]


def elu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x.exp() - 1)


def ln(x: Tensor) -> Tensor:
    spread = ((x - x.mean()) ** 2).mean()
    return (x - x.mean()) / (spread + 1e-5).sqrt()


def through(layers: Layers, x: Tensor, squash: Callable[[Tensor], Tensor] = elu) -> Tensor:
    """Linear layers with layer normalisation and an activation after all but the last."""
    for weight, bias in layers[:-1]:
        x = squash(ln(weight @ x + bias))
    return layers[-1][0] @ x + layers[-1][1]


def encoded(layers: Layers, obs: Tensor) -> Tensor:
    return elu(ln(through(layers, obs)))


def joint(of_action: Layers, of_both: Layers, state: Tensor, action: Tensor) -> Tensor:
    weight, bias = of_action[0]
    return through(of_both, torch.cat([state, elu(weight @ action + bias)]))


def gradients(loss: Tensor, layers: Layers) -> list[Tensor]:
    flat = [part for pair in layers for part in pair]
    return list(torch.autograd.grad(loss, flat, retain_graph=True))


def bins(bound: float, count: int) -> np.ndarray[Any, Any]:
    even = np.linspace(-bound, bound, count)
    return np.sign(even) * (np.exp(np.abs(even)) - 1)


def published_two_hot(value: float, support: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The two bins nearest to a value from below and above, found by a walk over all of them."""
    found = np.zeros(len(support))
    below = max([i for i in range(len(support)) if support[i] < value], default=0)
    below = min(below, len(support) - 2)
    above = below + 1
    share = min(max((value - support[below]) / (support[above] - support[below]), 0.0), 1.0)
    found[below] += 1 - share
    found[above] += share
    return found


def test_an_update_of_the_embedding_is_that_of_the_published_formulas(batch_of: BatchOf) -> None:
    algorithm = made()
    for network in (algorithm.policy_target, algorithm.model_target):
        for weight in network.parameters():
            weight.data.add_(0.3 * torch.randn_like(weight))
    algorithm.updates = 1  # as if the copies were made already
    batch = whole(batch_of(algorithm, count=14, seed=3))
    sequence = batch.sequence
    assert sequence is not None
    batch = replace(batch, sequence=replace(sequence, reward=6 * sequence.reward - 2))
    sequence = batch.sequence
    assert sequence is not None
    lengths = sequence.valid.sum(1)
    ends = batch.discount == 0
    assert lengths.min() == 1 and lengths.max() == 5 and ends[lengths < 5].any()

    encoder, of_action = linear(algorithm.policy.encoder), linear(algorithm.model.action)
    of_both, after = linear(algorithm.model.joint), linear(algorithm.model.next)
    encoder_before = linear(algorithm.policy_target.encoder)
    support = bins(2.0, 9)
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(14):
        state = encoded(encoder, sequence.obs[row, 0].double())
        for step in range(int(lengths[row])):
            last = step == int(lengths[row]) - 1
            reached = (batch.next_obs[row] if last else sequence.obs[row, step + 1]).double()  # type: ignore[index]
            action = ((sequence.action[row, step] - MIDDLE) / HALF).flatten().double()
            both = joint(of_action, of_both, state, action)
            found = after[0][0] @ both + after[0][1]
            done, state, logits = found[0], found[1:13], found[13:]
            target = encoded(encoder_before, reached).detach()
            reward = torch.tensor(published_two_hot(float(sequence.reward[row, step]), support))
            ended = float(last and bool(ends[row]))
            loss = (
                loss
                + (
                    ((state - target) ** 2).mean()
                    - 0.1 * (reward * torch.log_softmax(logits, 0)).sum()
                    + 0.1 * (done - ended) ** 2
                )
                / 14
            )
    metrics = algorithm.update(batch)
    assert float(metrics["embedding_loss"]) == pytest.approx(loss.item(), rel=1e-5)
    expected = gradients(loss, [*encoder, *of_action, *of_both, *after])
    moments = algorithm.embedding_optimizer.first_moment
    for moment, slope in zip(moments, expected, strict=True):
        torch.testing.assert_close(10 * moment.double(), slope, atol=1e-5, rtol=1e-3)


def test_ends_are_predicted_from_the_first_one_that_is_seen_on(batch_of: BatchOf) -> None:
    losses = []
    for weight in (0.1, 50.0):
        algorithm = made(end_weight=weight)
        goes_on = batch_of(algorithm, seed=1)
        goes_on = replace(goes_on, discount=torch.full_like(goes_on.discount, 0.9))
        first = float(algorithm.update(goes_on)["embedding_loss"])
        second = float(algorithm.update(batch_of(algorithm, seed=2))["embedding_loss"])
        losses.append((first, second))
    assert losses[0][0] == losses[1][0] and losses[0][1] < losses[1][1]


@pytest.mark.parametrize("most", [0.05, 20.0])
def test_an_update_of_values_is_that_of_the_published_formulas(
    batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch, most: float
) -> None:
    rate, decay, rows = 1e-3, 1e-4, 14
    algorithm = made(max_gradient_norm=most, learning_rate=rate, squashing_weight=0.3)
    for network in (algorithm.policy_target, algorithm.model_target, algorithm.critic_target):
        for weight in network.parameters():
            weight.data.add_(0.3 * torch.randn_like(weight))
    algorithm.updates = 3  # past the copies and the new size of rewards
    algorithm.rewards.size.fill_(0.4)
    algorithm.rewards.size_of_target.fill_(1.7)
    batch = whole(batch_of(algorithm, count=rows, seed=5))
    sequence = batch.sequence
    assert sequence is not None
    noise = torch.randn(rows, 2, 2)
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    chunk = batch.action.flip(0)  # as if episodes had cut the stored ones
    monkeypatch.setattr(algorithm, "continue_chunks", lambda data: chunk)

    encoder, of_action = linear(algorithm.policy.encoder), linear(algorithm.model.action)
    of_both, actor = linear(algorithm.model.joint), linear(algorithm.policy.network)
    critics = [linear(one) for one in algorithm.critic.members]
    slow_encoder = linear(algorithm.policy_target.encoder)
    slow_actor = linear(algorithm.policy_target.network)
    slow_action, slow_both = (
        linear(algorithm.model_target.action),
        linear(algorithm.model_target.joint),
    )
    slow_critics = [linear(one) for one in algorithm.critic_target.members]

    targets, errors, values = [], [], []
    for row in range(rows):
        length, ended = int(sequence.valid[row].sum()), bool(batch.discount[row] == 0)
        used = min(3, length)
        reached = sequence.obs[row, 3] if length > 3 else batch.next_obs[row]  # type: ignore[index]
        reward = sum(0.9**i * float(sequence.reward[row, i]) for i in range(used))
        goes_on = not (ended and length <= 3)
        state = encoded(slow_encoder, reached.double())
        smoothing = (0.2 * noise[row].flatten().double()).clamp(-0.3, 0.3)
        action = (torch.tanh(through(slow_actor, state, torch.relu)) + smoothing).clamp(-1, 1)
        both = joint(slow_action, slow_both, state, action)
        least = min(through(layers, both).item() for layers in slow_critics)
        targets.append((reward + goes_on * 0.9**used * least * 1.7) / 0.4)
        state = encoded(encoder, sequence.obs[row, 0].double()).detach()
        action = ((chunk[row] - MIDDLE) / HALF).flatten().double()
        both = joint(of_action, of_both, state, action).detach()
        values.append([through(layers, both)[0] for layers in critics])
        errors.append([abs(value.item() - targets[-1]) for value in values[-1]])
    priorities = [max(1.0, max(pair)) ** 0.4 for pair in errors]
    weights = [one / (sum(priorities) / rows) for one in priorities]
    assert min(weights) < 0.95 < 1.05 < max(weights)
    critic_loss = torch.zeros((), dtype=torch.float64)
    for row in range(rows):
        for value in values[row]:
            gap = value - targets[row]
            huber = 0.5 * gap**2 if abs(gap.item()) < 1 else gap.abs() - 0.5
            critic_loss = critic_loss + weights[row] * huber / (2 * rows)
    slopes = [gradients(critic_loss, layers) for layers in critics]
    norm = sum(float(one.square().sum()) for member in slopes for one in member) ** 0.5
    assert (norm > 0.05) and (norm < 20)
    bounded = [[one * min(1.0, most / norm) for one in member] for member in slopes]

    def stepped(layers: Layers, slopes: list[Tensor]) -> Layers:
        flat = [part.detach() for pair in layers for part in pair]
        moved = [
            (1 - rate * decay) * one - rate * slope / (slope.abs() + 1e-8)
            for one, slope in zip(flat, slopes, strict=True)
        ]
        return list(zip(moved[::2], moved[1::2], strict=True))

    critics = [stepped(layers, one) for layers, one in zip(critics, bounded, strict=True)]
    actor_loss = torch.zeros((), dtype=torch.float64)
    for row in range(rows):
        state = encoded(encoder, sequence.obs[row, 0].double()).detach()
        unbounded = through(actor, state, torch.relu)
        both = joint(of_action, of_both, state, torch.tanh(unbounded))
        value = sum(through(layers, both)[0] for layers in critics) / 2
        actor_loss = actor_loss - weights[row] * value / rows
        actor_loss = actor_loss + 0.3 * (unbounded**2).mean() / rows

    fixed = copy.deepcopy([algorithm.policy.encoder.state_dict(), algorithm.model.state_dict()])
    metrics = algorithm.update(batch)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss.item(), rel=1e-5)
    assert float(metrics["actor_loss"]) == pytest.approx(actor_loss.item(), rel=1e-3, abs=1e-4)
    flat = [one for member in bounded for one in member]
    for moment, slope in zip(algorithm.critic_optimizer.first_moment, flat, strict=True):
        torch.testing.assert_close(10 * moment.double(), slope, atol=1e-6, rtol=1e-3)
    expected = gradients(actor_loss, actor)
    for moment, slope in zip(algorithm.policy_optimizer.first_moment, expected, strict=True):
        torch.testing.assert_close(10 * moment.double(), slope, atol=1e-4, rtol=1e-2)
    # The losses of values and actor leave the embedding as it is.
    for before, now in zip(fixed, [algorithm.policy.encoder, algorithm.model], strict=True):
        assert all(torch.equal(before[name], value) for name, value in now.state_dict().items())


# Known answers.


def test_two_hot_rewards_are_those_of_a_walk_over_the_bins() -> None:
    support = symexp(torch.linspace(-10, 10, 65, dtype=torch.float64))
    np.testing.assert_allclose(support.numpy(), bins(10.0, 65), rtol=1e-12)
    value = torch.cat([torch.randn(50, dtype=torch.float64) * 30, support[[0, 7, 32, 64]]])
    value = torch.cat([value, torch.tensor([1e9, -1e9], dtype=torch.float64)])
    found = two_hot_between(value, support)
    for row, one in enumerate(value.tolist()):
        np.testing.assert_allclose(found[row].numpy(), published_two_hot(one, support.numpy()))
    torch.testing.assert_close((found * support).sum(-1), value.clamp(support[0], support[-1]))
    even = torch.linspace(-5, 5, 21, dtype=torch.float64)
    torch.testing.assert_close(two_hot_between(value, even), two_hot(value, even))


def test_a_stretch_of_a_ring_is_what_happened() -> None:
    """Observations count the steps of each episode, so that a loop knows what follows what."""
    spec = PolicySpec(2, 1, 1, (-1.0,), (1.0,))
    algorithm = MRQ(Setup(spec, discount=0.9), **SMALL)
    buffer = ReplayBuffer(
        400, 2, (1, 1), discount=0.9, chunked=True, seed=0, batch_spec=batch_spec_of(algorithm)
    )
    lengths, ended = [7, 1, 4, 12, 2, 9], [True, True, False, True, False, False]
    for episode, length in enumerate(lengths):
        for step in range(length):
            last = step == length - 1
            buffer.add(
                np.array([[episode, step]]), np.zeros((1, 1, 1)), np.array([step + 1.0]),
                np.array([[episode, step + 1]]), np.array([last and ended[episode]]),
                np.array([last and not ended[episode]]),
            )  # fmt: skip
    batch = buffer.sample(300)
    steps = algorithm.stretch(batch)
    reward, discount, after = algorithm.n_step_return(steps)
    kinds = set()
    for row in range(300):
        episode, first = (int(one) for one in steps.obs[row, 0])
        length = lengths[episode]
        for step in range(min(5, length - first)):
            now = first + step
            end = now == length - 1
            assert steps.valid[row, step] == 1 and steps.reward[row, step] == now + 1
            assert steps.following[row, step].tolist() == [episode, now + 1]
            assert bool(steps.ended[row, step]) == (end and ended[episode])
            kinds.add((end, ended[episode]))
        assert not steps.valid[row, length - first :].any()
        used = min(3, length - first)
        total = sum(0.9**i * (first + i + 1) for i in range(used))
        over = ended[episode] and first + used == length
        assert float(reward[row]) == pytest.approx(total, rel=1e-6)
        assert float(discount[row]) == pytest.approx(0.0 if over else 0.9**used, rel=1e-6)
        assert after[row].tolist() == [episode, first + used]
    assert len(kinds) == 4


def test_weights_are_those_of_a_draw_by_priority() -> None:
    """Their mean over alike draws is the mean over draws with P ~ max(1, |error|)^0.4."""
    algorithm = made()
    error = torch.tensor([[0.2, -3.0, 1.0, 0.5], [0.9, 2.0, -32.0, 0.1]])
    weight = algorithm.priority(error)
    priority = np.array([1.0, 3.0, 32.0, 1.0]) ** 0.4
    gain = torch.tensor([1.0, -2.0, 5.0, 0.3])
    drawn = float((priority / priority.sum()) @ gain.numpy())
    assert float((weight * gain).mean()) == pytest.approx(drawn, rel=1e-6)
    assert made(priority_exponent=0.0).priority(error).tolist() == [1.0] * 4


def test_values_are_in_units_of_the_mean_reward(batch_of: BatchOf) -> None:
    algorithm = made(target_every=3)
    drawn = []
    for number in range(6):
        batch = batch_of(algorithm, seed=number)
        assert batch.sequence is not None
        rewards = (number + 1) * (batch.sequence.reward - 0.5)
        batch = replace(batch, sequence=replace(batch.sequence, reward=rewards))
        if number < 3:
            drawn.append(rewards[batch.sequence.valid])
        algorithm.update(batch)
    mean = torch.cat(drawn).abs().mean()
    torch.testing.assert_close(algorithm.rewards.size, mean)
    assert algorithm.rewards.size_of_target == 1
    for number in range(6):  # the next round: what was the size is that of the copies
        batch = batch_of(algorithm, seed=number)
        assert batch.sequence is not None
        reward = torch.full_like(batch.sequence.reward, -7.0)
        algorithm.update(replace(batch, sequence=replace(batch.sequence, reward=reward)))
    torch.testing.assert_close(algorithm.rewards.size_of_target, mean)
    assert algorithm.rewards.size == 7


def state_of(algorithm: MRQ, name: str) -> list[Tensor]:
    return [one.detach().clone() for one in getattr(algorithm, name).parameters()]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_embedding_learns_in_rounds_that_no_decision_pays_for() -> None:
    """Through what a run makes updates due with: 4 of the embedding, then 1 for each decision."""
    spec = PolicySpec(2, 1, 1, (-1.0,), (1.0,))
    algorithm = MRQ(Setup(spec), **{**SMALL, "target_every": 4, "warmup_steps": 2, "batch_size": 8})
    buffer = ReplayBuffer(
        100, 2, (1, 1), discount=0.99, chunked=True, seed=0, batch_spec=batch_spec_of(algorithm)
    )
    experience = ReplayedExperience(buffer, algorithm)
    made_due = []
    for step in range(12):
        draw = np.random.default_rng(step).normal
        no = np.array([False])
        buffer.add(draw(size=(1, 2)), draw(size=(1, 1, 1)), draw(size=1), draw(size=(1, 2)), no, no)
        experience.count(step + 1)
        kinds = []
        for batch in experience.due():
            kinds.append(algorithm.paced)
            before = {
                name: state_of(algorithm, name) for name in ("model", "critic", "policy_target")
            }
            encoder = state_of(algorithm, "policy")[:6]
            copies = algorithm.updates % 8 == 0
            policy = state_of(algorithm, "policy")
            assert isinstance(batch, Batch)
            algorithm.update(batch)
            assert equal(before["model"], state_of(algorithm, "model")) == kinds[-1]
            assert equal(encoder, state_of(algorithm, "policy")[:6]) == kinds[-1]
            assert equal(before["critic"], state_of(algorithm, "critic")) != kinds[-1]
            target = state_of(algorithm, "policy_target")
            assert equal(target, policy if copies else before["policy_target"])
        made_due.append(kinds)
    assert made_due == [
        [], [False] * 4 + [True], [True], [True], [True],
        [False] * 4 + [True], [True], [True], [True], [False] * 4 + [True], [True], [True],
    ]  # fmt: skip


def test_its_start_is_the_published_one() -> None:
    torch.manual_seed(0)
    algorithm = MRQ(Setup(SPEC))
    shapes = [
        tuple(one.weight.shape)
        for part in (algorithm.policy, algorithm.model, algorithm.critic.members[0])
        for one in part.modules()
        if isinstance(one, nn.Linear)
    ]
    assert shapes == [
        (512, 5), (512, 512), (512, 512), (512, 512), (512, 512), (4, 512),
        (256, 4), (512, 768), (512, 512), (512, 512), (1 + 512 + 65, 512),
        (512, 512), (512, 512), (512, 512), (1, 512),
    ]  # fmt: skip
    for module in algorithm.model.modules():
        if isinstance(module, nn.Linear):
            outputs, inputs = module.weight.shape
            bound = 2**0.5 * (6 / (inputs + outputs)) ** 0.5
            assert 0.98 * bound < float(module.weight.abs().max()) <= bound
            assert (module.bias == 0).all()


def test_it_warms_up_with_uniform_actions_and_adds_noise_to_its_own() -> None:
    algorithm, obs = made(), torch.zeros(4000, 5)
    uniform, _ = algorithm.explore(obs, warmup=True)
    third = (((uniform - MIDDLE) / HALF).abs() < 1 / 3).float()
    assert (third.mean((0, 1)) - 1 / 3).abs().max() < 0.03
    acted, _ = algorithm.explore(obs, warmup=False)
    away = (acted - algorithm.policy(obs, torch.zeros(4000, 0))).detach() / HALF
    assert float(away.std()) == pytest.approx(0.2, rel=0.05)
    assert away.mean((0, 1)).abs().max() < 0.02


def test_solves_a_point_mass() -> None:
    """As SAC does in its tests, through the ring that a run has."""
    sac = load_module(Path(__file__).with_name("test_sac.py"))
    torch.manual_seed(0)
    algorithm = MRQ(
        Setup(PolicySpec(1, 1, 1, (-1.0,), (1.0,)), num_envs=16, discount=0.9),
        embedding=32, action_embedding=16, actor_width=32, critic_width=32, batch_size=128,
        target_every=25, learning_rate=3e-3, embedding_learning_rate=1e-3,
        warmup_steps=16 * 20 * 5, updates_per_decision=1 / 16,
    )  # fmt: skip
    buffer = ReplayBuffer(
        16_000, 1, (1, 1), num_envs=16, discount=0.9, chunked=True, seed=0,
        batch_spec=batch_spec_of(algorithm),
    )  # fmt: skip
    experience = ReplayedExperience(buffer, algorithm)
    steps, no = 0, np.zeros(16, dtype=bool)
    for episode in range(24):
        mass = sac.PointMass(16)
        for step in range(20):
            obs = mass.x
            action, _ = algorithm.explore(obs, warmup=episode < 5)
            reward = mass.step(action)
            buffer.add(obs, action, reward, mass.x, no, no | (step == 19))
            steps += 16
            experience.count(steps)
            for batch in experience.due():
                assert isinstance(batch, Batch)
                algorithm.update(batch)
    assert sac.cost(None) > 0.8
    assert sac.cost(algorithm) < 0.1
