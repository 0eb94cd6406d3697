"""OAP: offline reinforcement learning that asks which of two actions is the better one.

Yang et al., "Boosting Offline Reinforcement Learning with Action Preference Query" (arXiv
2306.03362), on TD3+BC (arXiv 2106.06860). Nobody interacts: now and then an oracle is shown an
action of the data and the actor's own in the same state, and says which it prefers. Where it is the
data's, imitation is encouraged; where it is the actor's, it is suppressed:

- query:  every k updates, for n rows of the batch:  p(s) = a of the data, or mu(s) as it is then
- actor:  L_mu = -lambda mean Q_1(s, mu(s)) + (1 - w) mean (mu(s) - a)^2
                 + w mean over asked rows (mu(s) - p(s))^2
          with lambda = alpha / mean |Q_1(s, mu(s))|, which gets no gradient

The oracle is ``base``, a policy that is good at the task: it prefers the action that is nearer to
its own, as it is judged (a policy that is judged by samples answers by one), and the data's where
both are as near. It is asked about states of the data alone, and how
often is counted (``queries_asked``).

An adaptation (``faithful`` is False): the paper's code, the number and schedule of its queries and
its coefficients were not found, and its simulated oracle, the value function of an agent trained
online, is not part of a bundle. Its labels stay with the rows of the data; here those asked last
are kept beside the data, ``kept`` of them, and w = ``asked_share`` says how much they count. Until
something was asked, w is 0, which is TD3+BC.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.common.ring import Ring
from trimtab.algorithms.offline.td3_bc import TD3BC
from trimtab.errors import TrimtabError
from trimtab.settings import Bounds, Count, Natural, Share, Size
from trimtab.types import Batch, Metrics


class OAP(TD3BC):
    """TD3+BC whose imitation follows the preferences of an oracle.

    Args:
        setup: needs ``base``, the oracle, and ``dataset``.
        queries: rows n that are asked about at a time; never more than a batch has.
        query_every: updates k from one time to the next.
        most_queries: rows that are asked about in all.
        kept: answers that are kept, the newest.
        asked_share: weight w of kept answers against the data.
        td3_bc: settings of TD3+BC.

    Raises:
        TrimtabError: if the base plans fewer actions than a decision here has.
    """

    needs = Needs({"base", "dataset"}, transitions_only=True)
    faithful = False
    unsaved = frozenset({"teacher"})  # it is frozen
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        queries: Annotated[int, Bounds(least=1, most_of="kept")] = 32,
        query_every: Count = 100,
        most_queries: Natural = 100_000,
        kept: Size = 10_000,
        asked_share: Share = 0.5,
        **td3_bc: Any,
    ) -> None:
        super().__init__(setup, **td3_bc)
        assert setup.base is not None
        spec = setup.spec
        if setup.base.spec.horizon < spec.horizon:
            raise TrimtabError(
                f"algorithm=oap: the base plans {setup.base.spec.horizon} action(s), a decision "
                f"here has {spec.horizon}; use act_steps={setup.base.spec.horizon}"
            )
        self.teacher = copy.deepcopy(setup.base).to(setup.device).requires_grad_(False).eval()
        self.queries, self.query_every = queries, query_every
        self.most_queries, self.asked_share = most_queries, asked_share
        chunk = (spec.horizon, spec.action_dim)
        self.answers = Ring(kept, obs=(spec.obs_dim,), preferred=chunk, valid=chunk[:1])
        self.answers.register_buffer("own", torch.zeros(()))  # share of its own, of the last ones
        self.answers.register_buffer("asked", torch.zeros(()))
        self.answers.to(setup.device)

    def policy_loss(self, data: Batch, value: Tensor, squashed: Tensor) -> Tensor:
        """Return the value's loss at its own scale, and the imitation of data and answers."""
        scale = self.alpha / value.abs().mean().detach()
        climb = -scale * value.mean()
        target = self.policy.normalizer.normalize_action(data.action)
        imitation = self.policy.masked_mean((squashed - target).square(), data.valid)
        if not self.answers.written:
            return climb + imitation
        obs, preferred, valid = self.answers.draw(len(data))
        own = torch.tanh(self.policy.network(obs)).unflatten(1, preferred.shape[1:])
        answered = self.policy.masked_mean((own - preferred).square(), valid.bool())
        return climb + (1 - self.asked_share) * imitation + self.asked_share * answered

    @property
    def asks(self) -> bool:
        """Whether the next update asks the oracle."""
        left = self.answers.written + self.queries <= self.most_queries
        return left and self.updates % self.query_every == 0

    @property
    def branch(self) -> tuple[bool, int] | None:
        """Whether the next update has a step of the actor, and of how many answers it draws."""
        return None if self.asks else (self.actor_due, self.answers.size)

    def update(self, data: Batch) -> Metrics:
        """Ask the oracle when it is time, and take one step of TD3+BC."""
        if self.asks:
            self.ask(data)
        return {
            **super().update(data),
            "queries_asked": self.answers.get_buffer("asked").clone(),
            "own_action_preferred": self.answers.get_buffer("own").clone(),
        }

    @torch.no_grad()
    def ask(self, data: Batch) -> None:
        """Keep the oracle's preferences in the first rows of a batch.

        Rows of a batch are drawn at random, so that these are, too. Actions of a chunk that its
        episode cut short count for neither side.
        """
        asked = slice(0, min(self.queries, len(data)))
        normalizer = self.policy.normalizer
        theirs = normalizer.normalize_action(data.action)[asked]
        own, valid = self.policy.squashed(data.obs)[asked], data.valid[asked]
        teacher = self.teacher
        plan = teacher.act(data.obs, deterministic=teacher.evaluate_deterministic)
        plan = plan[asked, : own.shape[1]]
        prefers_own = prefers_first(own, theirs, normalizer.normalize_action(plan), valid)
        preferred = torch.where(prefers_own[:, None, None], own, theirs)
        obs = normalizer.obs(data.obs)[asked]
        self.answers.keep(obs, preferred, valid)
        self.answers.get_buffer("asked").fill_(self.answers.written)
        self.answers.get_buffer("own").copy_(prefers_own.float().mean())


def prefers_first(first: Tensor, second: Tensor, best: Tensor, valid: Tensor) -> Tensor:
    """Return whether chunks ``[B, H, A]`` are nearer to the best than others are, ``[B]`` bool.

    Args:
        first: scaled actions.
        second: scaled actions; preferred where both are as near.
        best: what the oracle would do.
        valid: which actions of a chunk count, ``[B, H]``.
    """
    near, far = (((side - best).square().sum(2) * valid).sum(1) for side in (first, second))
    return near < far
