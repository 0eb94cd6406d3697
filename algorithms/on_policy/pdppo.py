"""PPO with a second critic, of the state between a decision and what chance makes of it.

"A Reinforcement Learning Method for Environments with Stochastic Variables: Post-Decision Proximal
Policy Optimization with Dual Critic Networks" (arXiv 2504.05150), with the public code. A
transition is two steps: the action leads from s to the post-decision state x without chance, and
then chance leads from x to the next state. V(s) and V_x(x) are learned, and

- advantage:  A = R - min(V(s), V_x(x)),  R: discounted rewards to the end of rollout or episode
- value:      L_V = mean (min(V(s), V_x(x)) - R)^2, whose gradient goes to the smaller of the two
- policy:     PPO's

x is known to the task alone. It is the part ``post_decision`` of the *next* observation, so that it
comes with what follows a decision; the policy is shown it one decision later, when it says nothing
that the state does not. Without such a part (or with ``observations=flat``) a task counts as one
without chance: x is then the next observation.

With ``post_critic=false`` it is PPO. Two things are as in the paper, and nothing is done about
them. A baseline that depends on the action, as V_x does, biases the policy's gradient. And the
larger of the two values is not trained in a state, so that neither of them alone is its value: a V
that bootstraps the last decisions is too high.

An adaptation (``faithful`` is False). Deviations from the public code: R is PPO's, with rewards
divided by the running scale of returns (there: R standardised in each rollout), and with
``V`` of the last observation where time or the rollout ends (there: 0); one learning rate (there:
critics three times the actor's); the stored V_x is that of V_x (there, by mistake, of V); no
schedule of target networks, which there has no effect; actions are continuous.
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
        ppo: keywords of :class:`PPO`.
    """

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
        assert isinstance(self.critic, TwoValues)
        after = self.actor.normalizer.obs(data.next_obs).flatten(0, 1)
        post = after[:, self.columns]
        smaller = torch.minimum(found.value, self.critic.of_post(post).squeeze(-1))
        # R - min(V, V_x) is PPO's R - V, and what V is above V_x.
        advantage = found.advantage + (found.value - smaller)
        return PostSamples(**vars(found) | {"value": smaller, "advantage": advantage}, post=post)

    def value(self, part: Samples) -> Tensor:
        """Return the smaller of V and V_x of a minibatch ``[M]``."""
        value = super().value(part)
        if not isinstance(part, PostSamples):
            return value
        assert isinstance(self.critic, TwoValues)
        return torch.minimum(value, self.critic.of_post(part.post).squeeze(-1))


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
