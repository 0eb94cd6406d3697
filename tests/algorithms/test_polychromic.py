"""Polychromic PPO: its sets by brute force, ReinFlow without them, and the ways that it keeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.finetuning.polychromic import (
    Polychromic,
    same_way,
    set_advantage,
    set_worth,
)
from trimtab.algorithms.finetuning.reinflow import ReinFlow
from trimtab.benchmarks.contracts.made_up import NUM_ENVS, data_for, make_setup
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Batch, PolicySpec, Rollout, TrimtabError

SMALL: dict[str, Any] = {"hidden": (16,), "rollout_steps": 8, "batch_size": 8, "epochs": 2}


def made(kind: type[ReinFlow], num_envs: int = NUM_ENVS, **settings: Any) -> Any:
    torch.manual_seed(0)
    given = make_setup({"start"})
    setup = Setup(given.spec, base=given.base, num_envs=num_envs)
    return kind(setup, **{**SMALL, **settings})


def worth(returns: list[float], ways: list[int]) -> float:
    """Return the worth of a set: mean return times the share of ways, 0 where there is one."""
    distinct = len(set(ways))
    return max(sum(returns), 0.0) / len(returns) * (distinct / len(ways) if distinct > 1 else 0.0)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_advantages_are_those_of_all_sets_by_brute_force(size: int) -> None:
    torch.manual_seed(size)
    returns = torch.randn(6, 5) + 0.5
    ways = torch.randint(0, 3, (6, 5))
    ways[0] = 0  # all the same
    ways[1] = torch.arange(5)  # none
    found = set_advantage(returns, ways[:, :, None] == ways[:, None], size)
    for state in range(6):
        sets = list(itertools.combinations(range(5), size))
        worths = [
            worth([float(returns[state, i]) for i in one], [int(ways[state, i]) for i in one])
            for one in sets
        ]
        mean = sum(worths) / len(sets)
        for vine in range(5):
            having = [w - mean for w, one in zip(worths, sets, strict=True) if vine in one]
            expected = sum(having) / len(having)
            assert found[state, vine].item() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(found[0], torch.zeros(5)), "copies of one trajectory are worth nothing"
    assert found.sum(1).abs().max() < 1e-5


def test_a_rare_way_is_worth_more_than_a_common_one() -> None:
    returns, ways = torch.ones(1, 4), torch.tensor([[0, 0, 0, 1]])
    same = ways[:, :, None] == ways[:, None]
    found = set_advantage(returns, same, 2)[0]
    # Sets of two: three of six have both ways, each worth 1.
    assert found.tolist() == pytest.approx([1 / 3 - 1 / 2] * 3 + [1 - 1 / 2])
    # What fails is no better for being different.
    assert set_worth(torch.tensor([-1.0, 0.5]), torch.eye(2, dtype=torch.bool)).item() == 0.0


def test_trajectories_are_alike_by_where_they_were_and_not_when() -> None:
    torch.manual_seed(0)
    path = torch.randn(3, 4, 5, 2)
    path[0, 1] = path[0, 0].flip(0)  # the same places, the other way round
    path[0, 2] = path[0, 0] + 0.2
    path[0, 3] = path[0, 2] + torch.tensor([0.2, 0.2])  # alike only to the one between
    seen = set()
    for radius in (0.1, 0.25, 0.8, 1.5):
        found = same_way(path, radius)
        for state in range(3):
            near = [[False] * 4 for _ in range(4)]
            for i, j in itertools.product(range(4), repeat=2):

                def away(one: Tensor, other: Tensor) -> float:
                    least = [min(float((x - y).square().mean()) for y in other) for x in one]
                    return max(least) ** 0.5

                one, other = path[state, i], path[state, j]
                near[i][j] = max(away(one, other), away(other, one)) <= radius
            groups = [{i} for i in range(4)]
            for i, j in itertools.product(range(4), repeat=2):
                if near[i][j]:
                    joined = groups[i] | groups[j]
                    for member in joined:
                        groups[member] = joined
            expected = [[j in groups[i] for j in range(4)] for i in range(4)]
            assert found[state].tolist() == expected
            seen.add((state, sum(map(sum, expected))))
    assert {count for state, count in seen if state == 0} == {6, 16}
    assert len(seen) > 4


def test_without_vines_it_is_reinflow_to_the_last_bit() -> None:
    def taught(method: ReinFlow) -> dict[str, Any]:
        for seed in range(2):
            assert method.branches() is None
            torch.manual_seed(7 + seed)
            method.update(data_for(method, seed))
        return method.state_dict()

    ours = taught(made(Polychromic, roots=NUM_ENVS, divergence_weight=0.0))
    torch.testing.assert_close(ours, taught(made(ReinFlow)), rtol=0, atol=0)


def test_two_vines_have_nothing_to_be_compared_with() -> None:
    ours, theirs = made(Polychromic), made(ReinFlow)
    assert ours.vines == 2
    data = data_for(ours, 0)
    assert isinstance(data, Rollout)
    old: Callable[[Tensor, Tensor], Tensor] = lambda obs, chain: chain[:, 0, 0, 0]  # noqa: E731
    found, plain = (one.decisions(data, old).advantage for one in (ours, theirs))
    assert torch.equal(found, plain) and found[1:].abs().min() > 0


def test_the_first_decisions_of_vines_have_the_advantage_of_sets_and_the_rest_that_of_ppo() -> None:
    """Three vines from each of two states; episodes end early, late, or with the rollout."""
    ours = made(Polychromic, 8, roots=2, set_size=2, window=3, radius=0.1, entries=[3, 0])
    theirs = made(ReinFlow, 8)
    torch.manual_seed(3)
    rows = 8
    cut = torch.zeros(rows, 8, dtype=torch.bool)
    cut[1, 1] = cut[4, 1] = cut[1, 2] = cut[2, 5] = cut[7, 6] = cut[3, 0] = True
    obs = torch.randn(rows + 1, 8, 5) * 0.4
    obs[1:3, 2] = obs[1:3, 1]  # two vines alike, whose environments go on differently
    data = Rollout(
        obs=obs[:-1],
        action=torch.zeros(rows, 8, 2, 2),
        reward=torch.rand(rows, 8),
        next_obs=obs[1:],
        discount=0.9 * (~cut).float(),
        cut=cut,
        aux={"chain": torch.randn(rows, 8, 3, 4, 2)[:, :, : ours.points]},
    )
    old: Callable[[Tensor, Tensor], Tensor] = lambda obs, chain: chain[:, 0, 0, 0]  # noqa: E731
    found, plain = (one.decisions(data, old) for one in (ours, theirs))
    assert torch.equal(found.target, plain.target)
    advantage, gae = found.advantage.view(rows, 8), plain.advantage.view(rows, 8)
    reward = theirs.reward_scale.scale(data.reward)
    following = ours.policy.normalizer.obs(data.next_obs)[..., [3, 0]]
    ends = [int(cut[:, i].nonzero()[0]) if cut[:, i].any() else rows - 1 for i in range(8)]
    replaced = set()
    for state in range(2):
        vines = range(4 * state + 1, 4 * state + 4)
        returns = torch.tensor(
            [sum(0.9**t * float(reward[t, i]) for t in range(ends[i] + 1)) for i in vines]
        )
        # A path stays where its episode ended; what the environment does later is not of it.
        path = torch.stack(
            [torch.stack([following[min(t, ends[i]), i] for t in range(rows)]) for i in vines]
        )
        wanted = set_advantage(returns[None], same_way(path[None], 0.1), 2)[0]
        assert wanted.abs().max() > 0
        for place, i in enumerate(vines):
            for t in range(min(ends[i] + 1, 3)):
                torch.testing.assert_close(advantage[t, i], wanted[place])
                replaced.add((t, i))
    assert len(replaced) == 2 * 2 + 4 * 3
    for t, i in itertools.product(range(rows), range(8)):
        assert (t, i) in replaced or advantage[t, i] == gae[t, i]


def test_the_divergence_is_an_estimate_of_kl() -> None:
    torch.manual_seed(1)
    method, bare = (made(Polychromic, divergence_weight=weight) for weight in (0.5, 0.0))
    obs = torch.randn(6, 5)
    chain = method.explore(obs, warmup=False)[1]["chain"]
    now, _ = method.density(obs, chain)
    old = now.detach() + 0.3 * torch.randn(6)
    advantage = torch.randn(6)
    losses = [one.surrogate_loss(obs, chain, old, advantage)[0] for one in (method, bare)]
    by_hand = sum(
        float(torch.exp(d) - 1 - d) for d in (now - old).detach().unbind()
    ) / 6  # fmt: skip
    assert (losses[0] - losses[1]).item() == pytest.approx(0.5 * by_hand, abs=1e-6)


def test_vines_begin_where_the_first_of_their_group_has_been() -> None:
    method = made(Polychromic, 6, roots=2)
    shares = []
    for seed in range(20):
        torch.manual_seed(seed)
        method.reward_scale.carried.fill_(2.0)
        source, share = method.branches()
        assert source.tolist() == [0, 0, 0, 3, 3, 3]
        # Of each group one state, and returns that count from it on; the first environment goes on.
        assert len(set(share[:3].tolist())) == len(set(share[3:].tolist())) == 1
        assert method.reward_scale.carried.tolist() == [2, 0, 0, 2, 0, 0]
        shares += [float(share[0]), float(share[3])]
    assert len(set(shares)) == 40 and min(shares) < 0.1 and max(shares) > 0.9


def test_settings_that_do_not_fit_are_said() -> None:
    with pytest.raises(TrimtabError, match="roots=2: must divide num_envs=3"):
        made(Polychromic, roots=2)
    with pytest.raises(TrimtabError, match="29 vines have more than 10000 such sets"):
        made(Polychromic, 30, set_size=10)
    with pytest.raises(TrimtabError, match=r"entries=\[4, 5\]: an observation has only 5"):
        made(Polychromic, entries=[4, 5])
    assert made(Polychromic, 4).set_size == 2  # of three vines there is one set of three


# A point on a line goes either way from 0 in six decisions; both ends are good, one a bit better.

LINE, DECISIONS = PolicySpec(1, 1, 1, (-1.0,), (1.0,)), 6


def walk(act: Callable[[Tensor], tuple[Tensor, Any]], count: int) -> Rollout:
    position, rows = torch.zeros(count, 1), []
    for step in range(DECISIONS):
        action, aux = act(position)
        reached = position + 0.3 * action[:, 0]
        right, left = (reached[:, 0] > 1.0).float(), (reached[:, 0] < -1.0).float()
        reward = (right + 0.8 * left) * (step == DECISIONS - 1)
        rows.append((position, action, reward, reached, aux))
        position = reached
    obs, action, reward, next_obs, aux = zip(*rows, strict=True)
    cut = torch.zeros(DECISIONS, count, dtype=torch.bool)
    cut[-1] = True
    return Rollout(
        torch.stack(obs), torch.stack(action), torch.stack(reward), torch.stack(next_obs),
        0.99 * (~cut).float(), cut, {k: torch.stack([one[k] for one in aux]) for k in aux[0]},
    )  # fmt: skip


def shares(policy: FlowPolicy) -> tuple[float, float]:
    """Return how often a policy arrives at the right end, and at the left one."""
    torch.manual_seed(3)
    end = walk(lambda obs: (policy.act(obs), {}), 500).next_obs[-1]
    assert isinstance(end, Tensor)
    return (end > 1.0).float().mean().item(), (end < -1.0).float().mean().item()


def test_it_keeps_both_ways_of_a_clone_where_ppo_keeps_the_better_one() -> None:
    torch.manual_seed(0)
    clone = FlowPolicy(LINE, hidden=(32, 32), sampling_steps=4)
    optimizer = torch.optim.Adam(clone.parameters(), 3e-3)
    for _ in range(400):
        side, step = torch.sign(torch.randn(128, 1)), torch.randint(0, DECISIONS, (128, 1))
        obs = side * 0.3 * step + 0.05 * torch.randn(128, 1) * (step > 0)
        action = (side * 0.75 + 0.3 * torch.randn(128, 1)).clamp(-1, 1)[:, None]
        nothing = torch.zeros(128)
        whole = torch.ones(128, 1, dtype=torch.bool)
        loss = clone.bc_loss(Batch(obs, action, nothing, obs, nothing, whole))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def tuned(kind: type[ReinFlow], **more: Any) -> tuple[float, float]:
        torch.manual_seed(0)
        method = kind(
            Setup(LINE, base=clone, num_envs=64), hidden=(32,), rollout_steps=DECISIONS,
            batch_size=96, epochs=4, clip=0.05, learning_rate=1e-3, critic_learning_rate=5e-3,
            entropy_weight=0.0, **more,
        )  # fmt: skip
        for _ in range(32):
            method.update(walk(lambda obs: method.explore(obs, warmup=False), 64))
        assert isinstance(method.policy, FlowPolicy)
        return shares(method.policy)

    before, plain = shares(clone), tuned(ReinFlow)
    ours = tuned(Polychromic, roots=8, divergence_weight=0.0)  # so it is not for staying near
    print(f"right, left: clone {before}, ReinFlow {plain}, Polychromic {ours}")
    assert min(before) > 0.05 and sum(before) < 0.6
    assert plain[0] > 0.85 and plain[1] < 0.1
    assert min(ours) > 0.2 and sum(ours) > 0.7
