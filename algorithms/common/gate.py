"""AM-Q: whether a candidate is better than the accepted policy, by learned models and values.

Lei et al., "Uni-O4: Unifying Online and Offline Deep Reinforcement Learning with Multi-Step
On-Policy Optimization" (arXiv 2311.03351), equation 15: the mean of Q over what a policy meets when
it starts at the data's observations and a learned model says what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trimtab.algorithms.common.schedules import UpdateCount
from trimtab.policies.networks.dynamics import DynamicsEnsemble
from trimtab.settings import Size

__all__ = ["Gate"]


class Gate(nn.Module):
    """Models of what comes next, and the score to beat, of one candidate or of each of several.

    Attributes:
        best: the score to beat, a scalar or ``[N]``.
        accepted: how many candidates were accepted, as ``best``.
        updates: updates of the candidate so far.
        count: the same, as a tensor.

    Args:
        obs_dim: length of a normalised observation.
        action_size: length of a flattened action chunk.
        decisions: decisions from each observation on.
        hidden: widths of the models' hidden layers.
        members: number of models.
        candidates: number N of candidates that are scored side by side; None: one, whose scores
            are scalars.
    """

    best: Tensor
    accepted: Tensor

    def __init__(
        self,
        obs_dim: int,
        action_size: int,
        *,
        decisions: int,
        hidden: Sequence[Size] = (200, 200),
        members: Size = 5,
        candidates: Size | None = None,
    ) -> None:
        super().__init__()
        self.decisions, self.updates = decisions, 0
        self.count = UpdateCount()
        self.dynamics = DynamicsEnsemble(obs_dim, action_size, hidden=hidden, members=members)
        shape = () if candidates is None else (candidates,)
        self.register_buffer("best", torch.zeros(shape))
        self.register_buffer("accepted", torch.zeros(shape))

    @torch.no_grad()
    def score(
        self,
        obs: Tensor,
        act: Callable[[Tensor], Tensor],
        value: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return the mean of all decisions' least values in the models, as ``best``.

        A row counts in each decision by the chance that its episode still goes on.

        Args:
            obs: normalised observations to start from, ``[B, O]``; a rest that the members cannot
                share evenly is left out. Several candidates start from the same ones.
            act: what the policy executes, from ``[B, O]`` to ``[B, H, A]``; of N candidates, from
                their own rows one candidate after another, ``[N B, O]``.
            value: of observations and what is executed, ``[E, B]``.
        """
        members = self.dynamics.members
        obs = obs.repeat(members, 1) if len(obs) < members else obs
        obs = obs[: len(obs) // members * members]
        obs = obs.repeat(self.best.numel(), 1) if self.best.ndim else obs
        own = (*self.best.shape, -1)  # each candidate's rows
        total, weight = torch.zeros_like(self.best), torch.zeros_like(self.best)
        for seen, action, alive in self.dynamics.rollout(obs, act, self.decisions):
            total += (alive * value(seen, action).amin(0)).reshape(own).sum(-1)
            weight += alive.reshape(own).sum(-1)
        return total / weight

    def increase(self) -> None:
        """Count an update of the candidate."""
        self.updates += 1
        self.count.increase()

    def branch(self, every: int) -> tuple[bool, bool]:
        """Return whether the candidate's next update is its first, and whether it is scored then.

        Args:
            every: updates for each score.
        """
        return self.updates == 0, (self.updates + 1) % every == 0

    @torch.no_grad()
    def set_baseline(self, score: Tensor) -> None:
        """Take the score of the accepted policy as the one to beat."""
        self.best.copy_(score)

    @torch.no_grad()
    def accept_if_better(self, score: Tensor, accepted: nn.Module, candidate: nn.Module) -> None:
        """Copy ``candidate`` to ``accepted`` if its score is above the one to beat.

        Of several candidates, each is a row of the weights.
        """
        better = score > self.best
        for mine, theirs in zip(accepted.parameters(), candidate.parameters(), strict=True):
            rows = better.reshape(*better.shape, *(1,) * (mine.ndim - better.ndim))
            mine.copy_(torch.where(rows, theirs, mine))
        self.best.copy_(torch.where(better, score, self.best))
        self.accepted += better

    def get_extra_state(self) -> int:
        """Return the number of updates, for checkpoints."""
        return self.updates

    def set_extra_state(self, state: int) -> None:
        """Restore the number of updates."""
        self.updates = int(state)
