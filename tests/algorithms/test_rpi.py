"""RPI: who acts, what each is worth, and the advantage over the best of all, row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.oracles import Seen, Turns, ValueEnsembles, score, standardized
from trimtab.algorithms.on_policy.rpi import RPI
from trimtab.types import Rollout, TrimtabError

Make = Callable[..., RPI]


@pytest.fixture
def make(setup_of: Callable[..., Setup]) -> Make:
    def made(**keywords: Any) -> RPI:
        torch.manual_seed(4)
        small = {"hidden": (16, 16), "value_hidden": (16,), "rollout_steps": 8, "value_rows": 64}
        settings = {"value_steps": 2, "pretraining_updates": 0, "normalize_observations": False}
        return RPI(setup_of({"oracles"}), **{**small, **settings, **keywords})

    return made


def rolled(data_of: Callable[..., Any], method: RPI, actors: list[int]) -> Rollout:
    """A rollout of three environments in which these act, the first two at the same times."""
    data: Rollout = data_of(method)
    column = torch.tensor(actors, dtype=torch.float32)
    actor = torch.stack([column, column, torch.zeros_like(column)], 1)
    return replace(data, aux={**data.aux, "actor": actor})


def test_who_takes_over_by_each_rule() -> None:
    mean = torch.tensor([[5.0, 5.0, 5.0], [4.0, 3.0, 4.5], [2.0, 4.0, 4.6]])
    deviation = torch.tensor([[2.0, 0.1, 0.1], [0.5, 0.5, 0.3], [1.0, 0.7, 0.3]])
    # Learner 3, 4.9, 4.9 at least; oracles at most 4.5, 3.5, 4.8 and 3, 4.7, 4.9: a tie is close.
    assert score("raps", mean, deviation).argmax(0).tolist() == [1, 0, 0]
    assert score("maps", mean, deviation).argmax(0).tolist() == [1, 2, 2]
    assert score("mean", mean, deviation).argmax(0).tolist() == [0, 0, 0]
    torch.manual_seed(0)
    drawn = score("mamba", torch.zeros(3, 4000), torch.zeros(3, 4000)).argmax(0)
    assert drawn.min() == 1 and float((drawn == 2).float().mean()) == pytest.approx(0.5, abs=0.03)


def test_the_baseline_is_the_best_unless_it_is_doubted(make: Make) -> None:
    mean = torch.tensor([[1.0, 1.0, 3.0], [2.0, 2.0, 2.0], [0.0, 9.0, 1.0]])
    deviation = torch.tensor([[9.0, 9.0, 9.0], [0.4, 0.0, 0.0], [9.0, 0.6, 0.0]])
    assert make(doubt=0.5).baseline(mean, deviation).tolist() == [2.0, 1.0, 3.0]
    assert make(doubt=0.7).baseline(mean, deviation).tolist() == [2.0, 9.0, 3.0]
    assert make(selection="maps").baseline(mean, deviation).tolist() == [2.0, 9.0, 2.0]


def test_turns_switch_once_and_begin_anew() -> None:
    turns = Turns(3)
    switch, chosen = torch.tensor([2, 0, -1]), torch.tensor([1, 2, 2])
    heard = [turns.next(switch, chosen).tolist() for _ in range(2)]
    heard.append(turns.next(torch.tensor([9, 9, 9]), torch.tensor([2, 1, 1])).tolist())
    assert heard == [[0, 2, 0], [0, 2, 0], [2, 2, 0]], (
        "the choice is that of the switch's own state"
    )
    turns.ended([0, 2])
    assert turns.next(torch.tensor([1, 0, 0]), torch.tensor([1, 1, 1])).tolist() == [0, 2, 1]
    assert turns.next(torch.tensor([0, 0, 0]), torch.tensor([2, 2, 2])).tolist() == [2, 2, 1]


def test_some_episodes_are_rolled_in(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    method, heard = make(rollin_share=0.9, rollin_decisions=50), list[torch.Tensor]()

    def spied(switch: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        heard.append(switch)
        return torch.zeros_like(switch)

    monkeypatch.setattr(method.turns, "next", spied)
    for _ in range(400):
        method.explore(torch.randn(3, 5), warmup=False)
    switch = torch.cat(heard)
    assert float((switch >= 0).float().mean()) == pytest.approx(0.9, abs=0.03)
    assert set(switch[switch >= 0].tolist()) == set(range(50))


def test_oracles_act_where_it_is_their_turn(make: Make) -> None:
    obs = torch.randn(3, 5)
    method = make(pretraining_updates=1)
    action, aux = method.explore(obs, warmup=False)
    assert set(aux["actor"].tolist()) <= {1.0, 2.0}, "at first, oracles alone"
    method.turns.actor.copy_(torch.tensor([0, 1, 2]))
    method.turns.switch.fill_(100)
    torch.manual_seed(8)
    action, aux = method.explore(obs, warmup=False)
    assert aux["actor"].tolist() == [0.0, 1.0, 2.0]
    own = method.actor.normalizer.raw_action(aux["unclipped"])
    assert torch.equal(action[0], own[0]) and not torch.equal(action[1:], own[1:])
    for one in (0, 1):  # of flows, which are judged with their noise: another kind has none
        method.oracles[one].evaluate_deterministic = True
    action, aux = method.explore(obs, warmup=False)
    for row, oracle in ((1, 0), (2, 1)):
        plan = method.oracles[oracle].act(obs, deterministic=True)
        torch.testing.assert_close(action[row], plan[row, :2])


@pytest.mark.parametrize("selection", ["raps", "maps"])
@torch.no_grad()
def test_returns_and_advantages_by_hand(
    make: Make, data_of: Callable[..., Any], selection: str
) -> None:
    method = make(gae_decay=0.8, doubt=0.05, selection=selection)
    actors = [0, 0, 0, 1, 1, 0, 2, 2]
    data = rolled(data_of, method, actors)
    last = data.next_obs[-1]
    _, target, actor = method.returns(data)
    mean, deviation = method.critic.moments(data.obs)
    after = method.critic.moments(data.next_obs)
    assert isinstance(last, torch.Tensor) and data.cut.any()
    known, advantage = torch.zeros(8, 3), torch.zeros(8, 3)
    for env in range(3):
        for step in range(8):
            who = actors[step] if env < 2 else 0
            total = gained = 0.0
            weight = factor = 1.0
            for now in range(step, 8):
                base = [
                    float(method.baseline(m[:, now, env], d[:, now, env]))
                    for m, d in ((mean, deviation), after)
                ]
                end = bool(data.cut[now, env]) or now == 7 or (env < 2 and actors[now + 1] != who)
                total += weight * float(data.reward[now, env])
                weight *= float(data.discount[now, env])
                delta = float(data.reward[now, env]) - base[0]
                gained += factor * (delta + float(data.discount[now, env]) * base[1])
                factor *= float(data.discount[now, env]) * 0.8
                if end:
                    total += weight * float(after[0][who, now, env])
                    break
            known[step, env], advantage[step, env] = total, gained
    torch.testing.assert_close(target.view(8, 3), known, atol=1e-5, rtol=1e-5)
    own = data.aux["actor"] == 0
    samples = method.samples(data)
    expected = (advantage - advantage[own].mean()) / advantage[own].std(correction=0)
    expected = torch.where(own, expected / own.float().mean(), 0.0)
    torch.testing.assert_close(samples.target.view(8, 3), expected, atol=1e-4, rtol=1e-4)
    assert actor.view(8, 3)[:, 0].tolist() == actors


def test_oracles_decisions_do_not_move_the_learner(make: Make, data_of: Callable[..., Any]) -> None:
    method = make(batch_size=24, epochs=1)
    data = rolled(data_of, method, [0, 0, 0, 1, 1, 0, 2, 2])
    (part,) = method.minibatches(method.samples(data))
    torch.testing.assert_close(part.target.sort()[0], method.samples(data).target.sort()[0])
    mean = method.actor.head(part.obs)
    shifted = method.actor.log_prob(mean, part.action)
    own = part.target != 0
    assert 0 < int(own.sum()) < 24
    loss = method.policy_loss(part, mean, shifted)
    # A mean over the learner's own: at ratio 1, of standardised advantages, it is 0.
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-5)
    slope = torch.autograd.grad(loss, mean)[0]
    assert (slope[~own] == 0).all() and (slope[own] != 0).any(1).any(1).all()
    alone = standardized(torch.tensor([[1.0, 3.0]]), torch.tensor([[True, False]]))
    assert alone.tolist() == [[0.0, 0.0]]


def test_each_policy_learns_from_its_own_rows(make: Make) -> None:
    method = make(value_steps=1, value_batch_size=7, members=3)
    obs = torch.randn(2, 5)
    method.seen.add(obs, torch.tensor([2.0, -1.0]), torch.tensor([0, 2]))
    values, _ = method.critic.moments(obs)
    rows = method.critic.each(obs[[0, 1, 1]][:, None]).detach()[..., 0]  # [P, E]
    assert rows.shape == (3, 3)
    torch.testing.assert_close(rows.mean(1)[[0, 2]], torch.stack([values[0, 0], values[2, 1]]))
    before = [one.clone() for one in method.critic.networks.parameters()]
    known = ((rows[0] - 2.0).square().mean() + (rows[2] + 1.0).square().mean()) / 3
    assert float(method.learn_values()) == pytest.approx(float(known), rel=1e-4)
    for old, new in zip(before, method.critic.networks.parameters(), strict=True):
        moved = (old != new).flatten(1).any(1)
        assert not moved[3:6].any(), "the first oracle has no rows"
    assert (before[-1][[0, 6]] != list(method.critic.networks.parameters())[-1][[0, 6]]).all()


def test_the_learners_old_rows_are_forgotten() -> None:
    seen = Seen(4, 1)
    seen.add(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    seen.add(torch.tensor([[3.0]]), torch.tensor([3.0]), torch.tensor([0]))
    assert seen.actor.tolist() == [-1.0, 1.0, 0.0, -1.0]
    obs, target, counts = seen.draw(3, 5)
    assert obs[:2, :, 0].tolist() == [[3.0] * 5, [2.0] * 5] and target[0].tolist() == [3.0] * 5
    assert counts.all(1).tolist() == [True, True, False]
    seen.add(torch.arange(3.0)[:, None], torch.arange(3.0), torch.tensor([2, 2, 1]))
    assert seen.target.tolist() == [1.0, 2.0, 3.0, 0.0]


def test_moments_are_those_of_the_members() -> None:
    values = ValueEnsembles(2, policies=2, members=4, hidden=(8,))
    obs = torch.randn(3, 5, 2)
    mean, deviation = values.moments(obs)
    one = values.networks.of_rows(obs[1, 2].expand(8, 1, 2)).view(2, 4)
    torch.testing.assert_close(mean[:, 1, 2], one.mean(1))
    torch.testing.assert_close(deviation[:, 1, 2], one.std(1, correction=0))
    torch.testing.assert_close(values(obs)[..., 0], mean[0])


def test_without_oracles_it_ends_in_one_line(setup_of: Callable[..., Setup]) -> None:
    with pytest.raises(TrimtabError, match=r"rpi imitates other policies: add oracles="):
        RPI(setup_of(set()))
