"""PPO with a second critic, of the state between a decision and what chance makes of it.

"A Reinforcement Learning Method for Environments with Stochastic Variables: Post-Decision Proximal
Policy Optimization with Dual Critic Networks" (arXiv 2504.05150), with the public code
(leokan92/pdppo, ``code/Lake application/agents/``, whose first version differs from the newest). A
transition is two steps: the action leads from s to the post-decision state x without chance, and
then chance leads from x to the next state. V(s) and V_x(x) are learned, and

- advantage:  A = max(R - V(s), R - V_x(x)),  R: discounted rewards to the end of rollout or episode
- value:      L_V = mean (V(s) - R)^2 + mean (V_x(x) - R)^2, each by the weights of its own critic
- policy:     PPO's

x is known to the task alone. It is the part ``post_decision`` of the *next* observation, so that it
comes with what follows a decision; the policy is shown it one decision later, when it says nothing
that the state does not. Without such a part (or with ``observations=flat``) a task counts as one
without chance: x is then the next observation. Of a chunk, x is what its last action led to, so
that the chance between its actions is in x.

With ``post_critic=false`` it is PPO. As in the paper, nothing is done about a baseline that depends
on the action, as V_x does: it biases the policy's gradient. Where V_x is the smaller one, it has
taken from A what the action alone earned or lost.

An adaptation (``faithful`` is False). Deviations from the public code: a task here has one reward,
so both values are of the same R (in the newest version V_x is of the rewards of post-decision
states alone, and V of the rest; in the first version both are of one R, as here, but one loss
trains the smaller of them); R is PPO's, with rewards divided by the running scale of returns, and
with ``V`` of the last observation where time or the rollout ends (there: 0); one learning rate and
one bound on all gradients (there: critics two or three times the actor's); each rollout is learned
from once (in the newest version a few older ones are kept); actions are continuous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.policies.features import column_of
from trimtab.policies.networks.mlp import Activation
from trimtab.types import PolicySpec, Rollout

POST_DECISION = "post_decision"
"""Name of the part of the next observation that is the post-decision state."""


@dataclass(frozen=True)
class PostSamples(Samples):
    """Decisions with their post-decision states."""

    post: Tensor  # [M, P] normalised


class PDPPO(PPO):
    """PPO whose baseline is the smaller of a state's value and its post-decision state's.

    Args:
        setup: shapes, limits, number of environments and discount.
        post_critic: whether there is V_x; without it, this is PPO.
        ppo: keywords of :class:`PPO`; ``value_clip`` bounds V alone.
    """

    # 2: each critic learns from every state, as in the paper; in 1, the smaller one alone did.
    revision = 2
    faithful = False
    capturable = True

    def __init__(self, setup: Setup, *, post_critic: bool = True, **ppo: Any) -> None:
        self.post_critic, self.columns = post_critic, post_columns(setup.spec)
        super().__init__(setup, **ppo)

    def make_critic(self, obs_dim: int, hidden: Sequence[int], activation: Activation) -> nn.Module:
        """Return V, and V_x beside it."""
        of_state = super().make_critic(obs_dim, hidden, activation)
        if not self.post_critic:
            return of_state
        size = len(range(obs_dim)[self.columns])
        return TwoValues(of_state, super().make_critic(size, hidden, activation))

    @torch.no_grad()
    def samples(self, data: Rollout) -> Samples:
        """Return the rollout's decisions; the baseline is the smaller value."""
        found = super().samples(data)
        if not self.post_critic:
            return found
        after = self.actor.normalizer.obs(data.next_obs).flatten(0, 1)
        post = after[:, self.columns]
        # The larger one of R - V and R - V_x is PPO's R - V, and what V is above V_x.
        above = (found.value - self.post_value(post)).clamp(min=0)
        return PostSamples(**vars(found) | {"advantage": found.advantage + above}, post=post)

    def value_loss(self, part: Samples) -> Tensor:
        """Return PPO's loss of V, and the squared error of V_x beside it."""
        loss = super().value_loss(part)
        if isinstance(part, PostSamples):
            loss = loss + (self.post_value(part.post) - part.target).square().mean()
        return loss

    def post_value(self, post: Tensor) -> Tensor:
        """Return V_x ``[M]`` of normalised post-decision states ``[M, P]``."""
        assert isinstance(self.critic, TwoValues)
        value: Tensor = self.critic.of_post(post).squeeze(-1)
        return value


class TwoValues(nn.Module):
    """V of states, which it returns when it is called, and V_x of post-decision states."""

    def __init__(self, of_state: nn.Module, of_post: nn.Module) -> None:
        super().__init__()
        self.of_state, self.of_post = of_state, of_post

    def forward(self, obs: Tensor) -> Tensor:
        """Return V ``[..., 1]`` of normalised observations ``[..., O]``."""
        value: Tensor = self.of_state(obs)
        return value


def post_columns(spec: PolicySpec) -> slice:
    """Return where the post-decision state is in a normalised observation; all, if it has none."""
    first = 0
    for name, part in spec.layout.items():
        width = column_of(part, spec)
        if name == POST_DECISION:
            return slice(first, first + width)
        first += width
    return slice(None)
