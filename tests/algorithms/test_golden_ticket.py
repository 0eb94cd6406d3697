"""The search for a constant noise: who wins, in which order tickets act, and what is found."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.phases import Budget, Outcome, Trial, Trials
from trimtab.algorithms.steering.golden_ticket import GoldenTicket
from trimtab.policies.base import Policy
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.types import PolicySpec, TrimtabError

SPEC = PolicySpec(1, 1, 1, (-2.0,), (2.0,))


class Echo(Policy):
    """Does what its latent says."""

    def __init__(self) -> None:
        super().__init__(SPEC, (1, 1))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return the latents as actions, half as large."""
        return self.normalizer.raw_action(noise / 4)


def outcome(success: list[float], returns: list[float]) -> Outcome:
    steps = torch.full((len(success),), 5)
    return Outcome(torch.tensor(success) * 1.0, torch.tensor(returns), steps)


def search(
    count: int = 4, seed: int = 0, base: Policy | None = None, **keywords: int
) -> GoldenTicket:
    torch.manual_seed(seed)
    return GoldenTicket(Setup(SPEC, base=base or Echo()), tickets=count, **keywords)


def proposed(method: GoldenTicket) -> Trial:
    trial = method.propose()
    assert trial is not None
    return trial


def test_success_ranks_and_the_return_decides_between_equals() -> None:
    method = search(5, episodes=2)
    scores = [  # by hand: 2 and 4 have the most successes, 4 has the higher return of the two
        outcome([0, 1], [90.0, 90.0]),
        outcome([0, 0], [99.0, 99.0]),
        outcome([1, 1], [1.0, 2.0]),
        outcome([1, 0], [50.0, 3.0]),
        outcome([1, 1], [2.0, 2.0]),
    ]
    best_so_far = [0, 0, 2, 2, 4]
    for number, one in enumerate(scores):
        trial = proposed(method)
        assert (trial.episodes, trial.first) == (2, 0)  # the same episodes for every ticket
        assert isinstance(trial.policy.latent, Tensor)
        assert torch.equal(trial.policy.latent, method.tickets.noise[number])
        metrics = method.update(one)
        expected = method.tickets.noise[best_so_far[number]]
        assert torch.equal(method.policy.latent, expected)
        assert metrics["best_norm"] == expected.norm()
    assert metrics["best_success"] == 1.0 and metrics["best_return"] == 2.0
    assert method.propose() is None
    assert method.tickets.ranking().tolist() == [4, 2, 0, 3, 1]


def test_the_ranking_is_that_of_sorting_pairs() -> None:
    method = search(40)
    generator = torch.Generator().manual_seed(3)
    pairs = []
    for _ in range(40):
        success = (torch.rand(4, generator=generator) < 0.5).float()
        returns = torch.randint(3, (4,), generator=generator).float()
        method.update(Outcome(success, returns, torch.full((4,), 5)))
        pairs.append((float(success.mean()), float(returns.mean())))
        best = max(range(len(pairs)), key=lambda i: pairs[i])  # the first of equals
        reached = tuple(float(x) for x in method.tickets.best(method.updates)[1:])
        assert reached == pairs[best]
    expected = sorted(range(40), key=lambda i: pairs[i], reverse=True)
    assert [pairs[i] for i in method.tickets.ranking().tolist()] == [pairs[i] for i in expected]


def test_tickets_are_standard_normal_and_not_clipped() -> None:
    noise = search(20_000).tickets.noise
    assert noise.shape == (20_000, 1, 1)
    assert abs(float(noise.mean())) < 0.03 and abs(float(noise.std()) - 1) < 0.02
    assert float(noise.abs().max()) > 3.5
    assert abs(float(noise.pow(4).mean()) - 3) < 0.25  # on a sphere it would be 1


def test_asking_changes_nothing() -> None:
    method = search()
    before = copy.deepcopy(method.state_dict())
    random = torch.get_rng_state()
    first, second = proposed(method), proposed(method)
    assert torch.equal(first.policy.latent, second.policy.latent)  # type: ignore[arg-type]
    assert torch.equal(random, torch.get_rng_state())
    for name, value in before["tickets"].items():
        assert torch.equal(value, method.state_dict()["tickets"][name]), name
    assert torch.equal(before["policy"]["latent"], method.policy.latent)


def test_finalists_act_again_in_fresh_episodes_that_decide() -> None:
    method = search(4, episodes=2, finalists=2, final_episodes=3)
    for success, reward in ((0.0, 0.0), (1.0, 2.0), (0.0, 1.0), (1.0, 1.0)):
        method.update(outcome([success] * 2, [reward] * 2))
    assert torch.equal(method.policy.latent, method.tickets.noise[1])
    for number, success in ((1, 0.0), (3, 1.0)):  # the best first; the second one is better now
        trial = proposed(method)
        assert (trial.episodes, trial.first) == (3, 2)  # behind those of the first stage
        assert torch.equal(trial.policy.latent, method.tickets.noise[number])  # type: ignore[arg-type]
        method.update(outcome([success] * 3, [0.5] * 3))
        assert torch.equal(method.policy.latent, method.tickets.noise[number])
    assert method.propose() is None


def test_what_is_judged_plays_its_latent_and_needs_no_noise() -> None:
    method = search()
    method.update(outcome([1.0], [1.0]))
    obs = torch.randn(6, 1)
    expected = method.tickets.noise[0].expand(6, 1, 1) / 2
    for deterministic in (True, False):
        assert torch.equal(method.policy.act(obs, deterministic=deterministic), expected)


def test_the_search_finds_what_is_rewarded() -> None:
    """Of 200 normal draws the closest to 1 is within 0.05 of it almost surely."""
    method = search(200)
    while (trial := method.propose()) is not None:
        action = trial.policy.act(torch.zeros(3, 1)).flatten()  # half the latent
        distance = (2 * action - 1.0).abs()
        method.update(Outcome((distance < 0.2).float(), -distance, torch.ones(3)))
    assert abs(float(method.policy.latent) - 1.0) < 0.05
    assert abs(float(method.tickets.noise[0]) - 1.0) > 0.05


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeterministicPolicy(SPEC, hidden=(4,)),
        lambda: DiffusionPolicy(SPEC, hidden=(4,), sampler="ddpm"),
    ],
    ids=["no noise", "a path of noise"],
)
def test_a_base_without_a_latent_chunk_is_refused(make: Callable[[], Policy]) -> None:
    with pytest.raises(TrimtabError, match="not one latent"):
        search(base=make())


def test_a_search_without_steps_is_refused() -> None:
    with pytest.raises(TrimtabError, match="online_steps=0: it searches by acting"):
        search().phases(Budget(0, 0))
    with pytest.raises(TrimtabError, match="offline_steps=3: golden_ticket learns nothing"):
        search().phases(Budget(3, 100))
    (phase,) = search().phases(Budget(0, 100))
    assert isinstance(phase.feed, Trials) and (phase.length, phase.unit) == (100, "steps")
