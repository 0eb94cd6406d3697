"""Chunks that were executed and the longer plans that they came from, where episodes cut them.

A policy plans H actions, of which a run executes the first ones; an episode may end before that.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.policies.base import Policy
from trimtab.types import Batch

__all__ = ["as_plans", "check_clonable", "continued"]


@torch.no_grad()
def continued(data: Batch, proposer: Policy) -> Tensor:
    """Return a batch's action chunks ``[B, H, A]``, continued by a proposal where they were cut.

    As ``Algorithm.continue_chunks``, for a critic that ranks proposals. One is drawn and not the
    best of several: all are ranked. On the CPU plans are made for the cut chunks alone, which are
    few. On a GPU they are made for all: the program would have to wait for the GPU to learn which
    chunks were cut.

    Args:
        data: with chunks of the executed length.
        proposer: whose plans the critic ranks; they may be longer.
    """
    if data.action.shape[1] == 1 or data.whole:
        return data.action
    if data.fixed or not data.valid.is_cpu:
        planned = proposer.act(data.obs)[:, : data.action.shape[1]]
        return torch.where(data.valid[..., None], data.action, planned)
    cut = (~data.valid.all(1)).nonzero().squeeze(1)
    if not len(cut):
        return data.action
    planned = proposer.act(tree_map(lambda part: part[cut], data.obs))[:, : data.action.shape[1]]
    kept = data.valid[cut][..., None]
    return data.action.index_put((cut,), torch.where(kept, data.action[cut], planned))


def as_plans(data: Batch, horizon: int) -> Batch:
    """Return a batch whose chunks have the length of a policy's plan, to be cloned.

    The last executed action stands after the chunk and is not ``valid``, as in a dataset's windows
    that reach beyond their episode.

    Args:
        data: with chunks of the executed length.
        horizon: H of the policy, at least as long.
    """
    missing = horizon - data.action.shape[1]
    if not missing:
        return data
    rest = data.action[:, -1:].expand(-1, missing, -1)
    valid = torch.cat([data.valid, data.valid.new_zeros(len(data), missing)], dim=1)
    return replace(data, action=torch.cat([data.action, rest], dim=1), valid=valid, whole=False)


def check_clonable(policy: Policy) -> None:
    """Check that a policy has an imitation loss.

    Raises:
        TrimtabError: if it has none.
    """
    if type(policy).bc_loss is Policy.bc_loss:
        raise TrimtabError(
            f"a {policy.kind} policy has no behaviour-cloning loss, which this method goes on "
            "with; give a base or policy that can be cloned, such as flow or diffusion"
        )
