"""BRC against its formulas by hand, its divisor of rewards, and that it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module
from torch import nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.brc import BRC, LargestReturn
from trimtab.benchmarks.training.checkpoint import as_read_back
from trimtab.types import Batch, PolicySpec, TrimtabError

BatchOf = Callable[..., Batch]
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
SMALL: dict[str, Any] = {"actor_width": 16, "critic_width": 16}
quadratic = load_module(Path(__file__).with_name("test_linear_quadratic.py"))


def made(**keywords: Any) -> BRC:
    torch.manual_seed(0)
    return BRC(Setup(SPEC, num_envs=2, discount=0.9), **{**SMALL, **keywords})


def act_through(algorithm: BRC, rewards: list[list[float]], how: list[str]) -> None:
    """Pass rewards of two environments to a method; ``how`` says how each step ends."""
    for reward, end in zip(rewards, how, strict=True):
        terminated = torch.tensor([end == "terminated", False])
        ended = torch.tensor([end in ("terminated", "truncated"), False])
        algorithm.on_transition(torch.tensor(reward), terminated, ended)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_divisor_of_a_known_episode(end: str) -> None:
    algorithm = made(initial_temperature=0.5)
    alpha = torch.tensor(0.5)
    assert float(algorithm.divisor(alpha)) == float("inf")
    act_through(algorithm, [[1.0, 9.0], [-2.0, 9.0]], ["", ""])
    assert float(algorithm.divisor(alpha)) == float("inf")  # nothing has finished
    act_through(algorithm, [[4.0, 9.0]], [end])
    # By hand: gamma 0.9; after a time limit the mean reward of 1 is expected for ever, which is 10.
    last = 4.0 + (0.9 * 10.0 if end == "truncated" else 0.0)
    middle = -2.0 + 0.9 * last
    first = 1.0 + 0.9 * middle
    largest = max(last, abs(middle), abs(first))
    # |A| is 4 and alpha a half: 0.5 * 2 / 2 * 10 for the entropy; the outer atoms are at 10.
    assert float(algorithm.divisor(alpha)) == pytest.approx((largest + 5.0) / 10.0)
    # A smaller episode changes nothing, and a larger negative return does.
    act_through(algorithm, [[0.1, 9.0]], ["terminated"])
    assert float(algorithm.divisor(alpha)) == pytest.approx((largest + 5.0) / 10.0)
    act_through(algorithm, [[-40.0, 9.0]], ["terminated"])
    assert float(algorithm.divisor(alpha)) == pytest.approx(4.5)


def test_rewards_of_an_episode_that_goes_on_are_saved() -> None:
    first, second = (LargestReturn(2, 0.9, "cpu") for _ in range(2))
    first.see([1.0, 2.0], [False, False], [False, True])
    state = as_read_back(copy.deepcopy(first.state_dict()))
    assert isinstance(state["rewards"], torch.Tensor)  # lists of many take seconds to write
    second.load_state_dict(state)
    for one in (first, second):
        one.see([3.0, 0.0], [False, False], [True, False])
    # The last reward of 3, and then the mean of 1 and 3 for ever.
    assert float(first.largest) == float(second.largest) == pytest.approx(3 + 0.9 * 20)


def test_a_discount_of_one_is_refused() -> None:
    with pytest.raises(TrimtabError, match="discount=1.0: BRC divides"):
        BRC(Setup(SPEC, discount=1.0), **SMALL)


def test_an_update_by_hand(batch_of: BatchOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses by row, and the steps of torch's own AdamW and Adam."""
    algorithm = made(learning_rate=1e-3, initial_temperature=0.5)
    act_through(algorithm, [[1.0, 0.0], [-2.0, 0.0]], ["", "terminated"])
    for step in range(2):
        algorithm.update(batch_of(algorithm, seed=step))
    batch = batch_of(algorithm, seed=7)
    draws = [torch.randn(len(batch), 2, 2) for _ in range(2)]
    # The first draw is of a', or of what chunks that were cut go on with; they are made equal.
    drawn = iter([draws[0], draws[0], draws[1]])
    monkeypatch.setattr(algorithm.actor, "sample_noise", lambda n: next(drawn))
    critic, target = copy.deepcopy(algorithm.critic), copy.deepcopy(algorithm.target)
    actor, alpha = copy.deepcopy(algorithm.actor), float(algorithm.temperature().detach())
    optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-3, weight_decay=1e-4)
    held = algorithm.critic_optimizer
    for weight, one, two in zip(
        critic.parameters(), held.first_moment, held.second_moment, strict=True
    ):
        optimizer.state[weight] = {
            "step": torch.tensor(2.0), "exp_avg": one.clone(), "exp_avg_sq": two.clone()
        }  # fmt: skip
    with torch.no_grad():
        planned = torch.where(batch.valid[..., None], batch.action, actor(batch.obs, draws[0]))
        done = actor.normalizer.normalize_action(planned)
        following, log_prob = actor.sample_with_log_prob(batch.next_obs, draws[0])
        divisor = (2.0 + 0.5 * alpha * 2.0 * 10.0) / 10.0
        z = torch.linspace(-10, 10, 101)
        masses = target(batch.next_obs, following).softmax(-1)
        aim = torch.zeros(len(batch), 101)
        for row in range(len(batch)):
            mass = (masses[0, row] + masses[1, row]) / 2
            for atom in range(101):
                later = float(z[atom]) - alpha * float(log_prob[row])
                moved = float(batch.reward[row]) / divisor + float(batch.discount[row]) * later
                place = (min(max(moved, -10.0), 10.0) + 10.0) / 0.2
                low = min(int(place), 99)
                aim[row, low] += mass[atom] * (low + 1 - place)
                aim[row, low + 1] += mass[atom] * (place - low)
    loss = torch.zeros(())
    for member in critic.members:
        logits = member(torch.cat([batch.obs, done.flatten(1)], 1))
        loss = loss - (aim * logits.log_softmax(1)).sum(1).mean()
    metrics = algorithm.update(batch)
    assert float(metrics["critic_loss"]) == pytest.approx(float(loss.detach()), rel=1e-4)
    loss.backward()
    optimizer.step()
    for mine, theirs in zip(algorithm.critic.parameters(), critic.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-5)
    # The actor climbs the mean of both, after their step.
    tried, log_prob = actor.sample_with_log_prob(batch.obs, draws[1])
    x = torch.cat([batch.obs, tried.flatten(1)], 1)
    values = [(member(x).softmax(1) * z).sum(1) for member in algorithm.critic.members]
    expected = (alpha * log_prob - (values[0] + values[1]) / 2).mean()
    assert float(metrics["actor_loss"]) == pytest.approx(float(expected.detach()), rel=1e-4)
    entropy = -float(log_prob.mean().detach())
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-4)
    raised = float(algorithm.temperature().detach()) > alpha
    assert raised == (entropy < -2.0)


def test_networks_may_have_no_blocks(batch_of: BatchOf) -> None:
    algorithm = made(critic_blocks=0, actor_blocks=0)
    assert not algorithm.actor.network.blocks
    assert float(algorithm.update(batch_of(algorithm))["critic_loss"]) > 0


def test_every_layer_begins_orthogonal() -> None:
    algorithm = made()
    last = algorithm.actor.network.output
    for part in (algorithm.actor, algorithm.critic):
        for layer in part.modules():
            if isinstance(layer, nn.Linear):
                # The actor's last layer is two: those of the means, and those of the deviations.
                blocks = layer.weight.chunk(2) if layer is last else [layer.weight]
                for block, square in zip(blocks, (2.0, 1.0), strict=False):
                    weight = block if len(block) <= block.shape[1] else block.T
                    found = weight @ weight.T
                    torch.testing.assert_close(
                        found, square * torch.eye(len(weight)), atol=1e-5, rtol=0
                    )
                assert float(layer.bias.detach().abs().max()) == 0.0


def test_it_finds_the_riccati_solution() -> None:
    """The linear-quadratic task of ``test_linear_quadratic.py``; rewards are divided by 0.2."""
    torch.manual_seed(0)
    spec = PolicySpec(3, 1, 1, (-1.0,), (1.0,))
    algorithm = BRC(
        Setup(spec, discount=quadratic.chain.GAMMA), actor_width=32, critic_width=64,
        learning_rate=3e-3, tau=0.05, initial_temperature=1e-3, entropy_per_dimension=-2.0,
    )  # fmt: skip
    over = torch.tensor([True])
    algorithm.on_transition(torch.tensor([-2.0]), over, over)
    generator = torch.Generator().manual_seed(1)
    _, feedback = quadratic.riccati()
    position = torch.linspace(-0.8, 0.8, 9)[:, None]
    obs = torch.cat([position, torch.zeros(9, 2)], 1)

    def update() -> None:
        algorithm.update(quadratic.quadratic(128, False, generator))

    def error() -> float:
        action = algorithm.policy.act(obs, deterministic=True)
        return float((action[:, 0] + feedback * position).abs().mean())

    assert error() > 0.3
    assert quadratic.exact.settled(update, error, 0.15, 400) < 0.15 < feedback / 5
