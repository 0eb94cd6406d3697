"""Conservative values: what is not in the data must not look better than what is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["conservative_gap", "importance_gap"]


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


def importance_gap(
    sampled: Tensor,
    log_density: Tensor,
    taken: Tensor,
    least: Tensor | None = None,
    *,
    temperature: float = 1.0,
) -> Tensor:
    """Return by how much the soft maximum over all actions is above the data's own, ``[E, B]``.

    Kumar et al., "Conservative Q-Learning" (arXiv 2006.04779), equation 4 as in appendix F: the
    integral in log sum exp is estimated by n samples of known density, without the constant log n:

        tau log sum_j exp((Q(s, a_j) - log p(a_j)) / tau) - Q(s, a)

    With ``least``, sampled actions count for at least that much, before the density is taken off
    (Nakamoto et al., "Cal-QL", arXiv 2303.05479, equation 5.1).

    Args:
        sampled: values of sampled actions, ``[E, n, B]``.
        log_density: log p of each, ``[n, B]``.
        taken: values of the data's actions, ``[E, B]``.
        least: lower bounds of sampled values, ``[n, B]``; minus infinity: there is none.
        temperature: tau of the soft maximum.
    """
    if least is not None:
        sampled = torch.maximum(sampled, least)
    weighed = sampled - log_density
    return temperature * torch.logsumexp(weighed / temperature, dim=1) - taken
