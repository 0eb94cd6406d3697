"""Conservative values: what is not in the data must not look better than what is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["conservative_gap"]


def conservative_gap(
    sampled: Tensor, taken: Tensor, least: Tensor | None = None, *, temperature: float = 1.0
) -> Tensor:
    """Return by how much sampled actions are valued above the data's own, ``[E, B]``.

    Kumar et al., "Conservative Q-Learning" (arXiv 2006.04779), equation 4, by samples: the soft
    maximum of n sampled actions and the data's own, less the value of the data's own:

        tau log (1 / (n + 1)) (sum_j exp(Q(s, a_j) / tau) + exp(Q(s, a) / tau)) - Q(s, a)

    With ``least``, sampled actions count for at least that much (Nakamoto et al., "Cal-QL", arXiv
    2303.05479, equation 5.1), so that values are not pressed below those of the data's behaviour.

    Args:
        sampled: values of sampled actions, ``[E, B, n]``.
        taken: values of the data's actions, ``[E, B]``.
        least: lower bound of sampled values, ``[B]``: returns of the data's behaviour.
        temperature: tau of the soft maximum.
    """
    if least is not None:
        sampled = torch.maximum(sampled, least[:, None])
    values = torch.cat([sampled, taken[..., None]], dim=-1)
    soft = temperature * torch.logsumexp(values / temperature, dim=-1)
    return soft - temperature * math.log(values.shape[-1]) - taken
