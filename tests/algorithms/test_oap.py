"""OAP: answers by an oracle that is known, its loss worked out by hand, and what it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.oap import OAP, prefers_first
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.types import Batch, TrimtabError

SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]


@pytest.fixture
def make(setup_of: SetupOf) -> Callable[..., OAP]:
    def made(**settings: object) -> OAP:
        torch.manual_seed(0)
        asked = {"queries": 4, "query_every": 2, "kept": 6, "batch_size": 16} | settings
        return OAP(
            setup_of(OAP.needs.required), hidden=(8, 8), actor_every=1, warmup_steps=0, **asked
        )  # type: ignore[arg-type]

    return made


def test_the_nearer_action_is_preferred_and_the_datas_where_both_are() -> None:
    best = torch.zeros(4, 2, 1)
    first = torch.tensor([[0.1, 0.1], [0.5, 0.5], [0.3, 0.3], [0.1, 9.0]])[..., None]
    second = torch.tensor([[0.2, 0.2], [0.4, 0.4], [0.3, 0.3], [0.2, 0.0]])[..., None]
    valid = torch.tensor([[True, True], [True, True], [True, True], [True, False]])
    found = prefers_first(first, second, best, valid)
    assert found.tolist() == [True, False, False, True]  # the last one's 9 was never executed


def test_answers_are_those_of_the_oracle(make: Callable[..., OAP], batch_of: BatchOf) -> None:
    method = make()
    data = batch_of(method)
    method.ask(data)
    normalizer = method.policy.normalizer
    own, theirs = method.policy.squashed(data.obs), normalizer.normalize_action(data.action)
    torch.manual_seed(3)
    for row in range(4):
        kept = method.answers.preferred[row]
        assert torch.equal(kept, own[row]) or torch.equal(kept, theirs[row])
    assert method.answers.written == 4
    torch.testing.assert_close(method.answers.obs[:4], normalizer.obs(data.obs)[:4])
    # An oracle that acts as the actor does prefers the actor's actions; one far off the data's.
    method.teacher = method.policy
    method.ask(data)
    assert method.answers.own == 1.0
    for place, row in zip((4, 5, 0, 1), range(4), strict=True):  # a ring of six
        torch.testing.assert_close(method.answers.preferred[place], own[row])


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_oracle_answers_as_it_is_judged(
    deterministic: bool, make: Callable[..., OAP], batch_of: BatchOf
) -> None:
    method, told = make(), []
    act = method.teacher.act

    def watched(obs: Any, **words: Any) -> Any:
        told.append(words)
        return act(obs, **words)

    method.teacher.act = watched  # type: ignore[method-assign]
    method.teacher.evaluate_deterministic = deterministic
    method.ask(batch_of(method))
    assert told == [{"deterministic": deterministic}]


def test_the_loss_by_hand(make: Callable[..., OAP], batch_of: BatchOf) -> None:
    method = make(asked_share=0.25)
    data = batch_of(method)
    squashed = method.policy.squashed(data.obs)
    value = method.actor_value(method.policy.normalizer.obs(data.obs), squashed)
    target = method.policy.normalizer.normalize_action(data.action)
    error = (squashed - target).square()
    imitation = error[data.valid].mean()
    climb = -2.5 * value.mean() / value.abs().mean()
    torch.testing.assert_close(method.policy_loss(data, value, squashed), climb + imitation)
    method.ask(data)
    torch.manual_seed(5)
    found = method.policy_loss(data, value, squashed)
    torch.manual_seed(5)
    rows = torch.randint(4, (16,))
    own = torch.tanh(method.policy.network(method.answers.obs[rows])).view(16, 2, 2)
    answered = (
        (own - method.answers.preferred[rows]).square()[method.answers.valid[rows].bool()].mean()
    )
    torch.testing.assert_close(found, climb + 0.75 * imitation + 0.25 * answered)


def test_queries_come_at_their_times_and_end(make: Callable[..., OAP], batch_of: BatchOf) -> None:
    method = make(most_queries=9)
    asked = [int(method.update(batch_of(method, seed=step))["queries_asked"]) for step in range(7)]
    assert asked == [4, 4, 8, 8, 8, 8, 8]  # a third time would pass the nine
    again = make(most_queries=9)
    for name, part in method.state().items():
        again.state()[name].load_state_dict(part.state_dict())
    assert again.answers.written == 8


def test_without_answers_it_is_td3_bc(
    make: Callable[..., OAP], setup_of: SetupOf, batch_of: BatchOf
) -> None:
    method = make(most_queries=0)
    torch.manual_seed(0)
    plain = TD3BC(
        setup_of(TD3BC.needs.required), hidden=(8, 8), actor_every=1, batch_size=16, warmup_steps=0
    )
    for step in range(3):
        torch.manual_seed(step)
        ours = method.update(batch_of(method, seed=step))
        torch.manual_seed(step)
        assert torch.equal(
            plain.update(batch_of(plain, seed=step))["actor_loss"], ours["actor_loss"]
        )


def test_an_oracles_answers_move_the_actor_towards_it(
    make: Callable[..., OAP], batch_of: BatchOf
) -> None:
    def distance(share: float) -> float:
        method = make(
            asked_share=share, queries=16, query_every=1, kept=32, alpha=0.0, learning_rate=3e-3
        )
        goal = torch.full((1, 2, 2), 0.5)
        method.teacher.act = lambda obs, **_: method.policy.normalizer.raw_action(  # type: ignore[method-assign]
            goal.expand(len(obs), 2, 2)
        )
        for step in range(300):
            method.update(batch_of(method, seed=step))
        probe = batch_of(method, seed=999)
        return float((method.policy.squashed(probe.obs) - goal).square().mean().detach())

    # The data's actions are uniform, so that plain imitation stays in their middle.
    assert distance(1.0) < 0.7 * distance(0.0)


def test_a_base_that_plans_too_little(setup_of: SetupOf) -> None:
    with pytest.raises(TrimtabError, match=r"plans 1 action\(s\), a decision here has 2"):
        OAP(setup_of(OAP.needs.required, plan=1))
