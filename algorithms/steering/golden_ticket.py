"""Golden Ticket: the best constant noise of a frozen policy, found by trying; nothing is trained.

"Golden Ticket" (arXiv 2603.15757), with the public code of "The Lottery Ticket Hypothesis for
Improving Pretrained Robot Diffusion and Flow Policies". The random w ~ N(0, I) that a frozen
generative policy starts from is replaced by one vector, the same in every state. It is found by
plain random search with common random numbers:

- tickets:  w_1 ... w_M ~ N(0, I), each a whole latent chunk, neither clipped nor projected
- search:   each w_i acts in the same E episodes; S_i is its share of successes, R_i its mean return
- choice:   the i with the largest S_i; among equals the one with the largest R_i

The paper's code has M = 5000 and E = 100 in simulation, M = 25 and E = 10 in its example, and 50
episodes in all on hardware; our defaults are those of the example. What won the search has luck in
its score, so a run is judged in other episodes than those of the search, and these steps count as
the run's own.

Deviations from the public code:

- the search ends where the run's ``online_steps`` would not hold another whole trial; what is
  judged until then is the best ticket so far, of those whose episodes have all ended;
- a task without success is searched by its mean return alone;
- ``finalists`` adds a second stage, which is ours and off by default: that many of the best tickets
  act in ``final_episodes`` fresh episodes, and their scores in these decide.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.phases import Budget, Outcome, Phase, Trial, Trials
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.constant_noise import ConstantNoisePolicy
from trimtab.settings import Bounds, Count
from trimtab.types import Metrics


class GoldenTicket(Algorithm):
    """Random search over constant noise of a frozen base policy.

    Args:
        setup: needs ``base``.
        tickets: number M of vectors that are tried.
        episodes: number E of episodes that each acts in.
        finalists: how many of the best act again, in fresh episodes; 0: none does.
        final_episodes: number of those episodes.
    """

    needs = Needs({"base"})
    unsaved = frozenset({"candidate"})  # each trial sets its latent
    pace = Pace(batch_size=1)

    def __init__(
        self,
        setup: Setup,
        *,
        tickets: Count = 25,
        episodes: Count = 10,
        finalists: Annotated[int, Bounds(least=0, most_of="tickets")] = 0,
        final_episodes: Count = 50,
    ) -> None:
        assert setup.base is not None
        self.episodes, self.final_episodes = episodes, final_episodes
        base = setup.base.to(setup.device)
        self.policy: ConstantNoisePolicy = ConstantNoisePolicy(base)
        self.candidate = ConstantNoisePolicy(base)
        self.tickets = Tickets(tickets, finalists, base.noise_shape).to(setup.device)

    def update(self, data: Outcome) -> Metrics:
        """Write down what the proposed ticket has reached, and judge by the best one so far."""
        success, returns = data.success.mean(), data.returns.mean()
        self.tickets.score(self.updates, success, returns)
        self.updates += 1
        best, best_success, best_return = self.tickets.best(self.updates)
        self.policy.latent.copy_(best)
        return {
            "ticket_success": success,
            "ticket_return": returns,
            "best_success": best_success,
            "best_return": best_return,
            "best_norm": best.norm(),
        }

    def propose(self) -> Trial | None:
        """Return the trial of the next ticket, or of the next finalist, or None after the last."""
        tried = self.updates
        if tried >= self.tickets.count + self.tickets.finalists:
            return None
        self.candidate.latent.copy_(self.tickets.next_noise(tried))
        if tried < self.tickets.count:
            return Trial(self.candidate, self.episodes)
        return Trial(self.candidate, self.final_episodes, first=self.episodes)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Search, for as many environment steps as there are."""
        if budget.online_steps < 1:
            raise TrimtabError(
                "golden_ticket: online_steps=0: it searches by acting; give it environment steps"
            )
        if budget.offline_steps:
            raise TrimtabError(
                f"offline_steps={budget.offline_steps}: golden_ticket learns nothing from data; "
                "leave it out"
            )
        first = (self.episodes,) * self.tickets.count
        feed = Trials(self.propose, first + (self.final_episodes,) * self.tickets.finalists)
        return (Phase("search", budget.online_steps, "steps", feed, self.update),)


class Tickets(nn.Module):
    """Latent chunks in the order in which they are tried, and what each has reached.

    Args:
        count: number M of tickets.
        finalists: number of those that act again.
        shape: of a latent chunk.
    """

    noise: Tensor  # [M, H, A]
    success: Tensor  # [M] share of successes; -1 before its trial
    returns: Tensor  # [M] mean return
    final_success: Tensor  # [K] those of the second stage, in the order of the first one's scores
    final_returns: Tensor  # [K]

    def __init__(self, count: int, finalists: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.count, self.finalists = count, finalists
        self.register_buffer("noise", torch.randn(count, *shape))
        for stage, size in (("", count), ("final_", finalists)):
            self.register_buffer(f"{stage}success", torch.full((size,), -1.0))
            self.register_buffer(f"{stage}returns", torch.full((size,), -math.inf))

    def next_noise(self, tried: int) -> Tensor:
        """Return the latent ``[H, A]`` that acts after ``tried`` trials."""
        if tried < self.count:
            return self.noise[tried]
        place = tried - self.count
        return self.noise.index_select(0, self.ranking()[place : place + 1])[0]

    def score(self, tried: int, success: Tensor, returns: Tensor) -> None:
        """Write down what acted after ``tried`` trials."""
        if tried < self.count:
            self.success[tried], self.returns[tried] = success, returns
        else:
            place = tried - self.count
            self.final_success[place], self.final_returns[place] = success, returns

    def ranking(self) -> Tensor:
        """Return the tickets' numbers ``[M]``, best first by the first stage."""
        by_return = self.returns.argsort(descending=True, stable=True)
        by_success = self.success[by_return].argsort(descending=True, stable=True)
        return by_return[by_success]

    def best(self, tried: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return latent ``[H, A]``, success and return of the best ticket after ``tried`` trials.

        Once a finalist has acted, finalists are compared with one another only: by episodes that
        have not chosen them.
        """
        final = tried > self.count
        success = self.final_success if final else self.success
        returns = self.final_returns if final else self.returns
        equal = success == success.amax()
        place = torch.where(equal, returns, -math.inf).argmax().reshape(1)
        ticket = self.ranking().index_select(0, place) if final else place
        return (
            self.noise.index_select(0, ticket)[0],
            success.index_select(0, place)[0],
            returns.index_select(0, place)[0],
        )
