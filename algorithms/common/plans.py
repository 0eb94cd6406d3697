"""Batches for policies that plan further than is executed."""

from __future__ import annotations

from dataclasses import replace

import torch

from trimtab.types import Batch

__all__ = ["padded"]


def padded(data: Batch, horizon: int) -> Batch:
    """Return a batch whose chunks are ``horizon`` long, for imitation by a policy of such plans.

    What lies beyond the executed actions is unknown. As at the end of a recorded episode, the last
    action stands there and is marked as not taken, so that no loss counts it.
    """
    missing = horizon - data.action.shape[1]
    if missing == 0:
        return data
    rest = data.action[:, -1:].expand(-1, missing, -1)
    untaken = torch.zeros_like(data.valid[:, -1:]).expand(-1, missing)
    return replace(
        data,
        action=torch.cat([data.action, rest], 1),
        valid=torch.cat([data.valid, untaken], 1),
        whole=False,
    )
