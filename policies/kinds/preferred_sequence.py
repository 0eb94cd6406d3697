"""A policy that reads its episode as a sequence and acts as is most preferred."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trimtab.policies.networks.sequences import SequencePolicy
from trimtab.settings import Size
from trimtab.types import PolicySpec

__all__ = ["PreferredSequencePolicy"]

_SPREAD = 2.0  # of a fresh embedding's numbers, as in the authors' code


class PreferredSequencePolicy(SequencePolicy):
    """A decision transformer that is asked for a kind of behaviour in place of a return.

    Kang et al., "Beyond Reward: Offline Preference-guided Policy Optimization" (arXiv 2305.16217).
    Behaviour is told apart by an embedding z; ``optimal`` is the one that preferences point to, and
    what acts is asked for it with each decision. What acts needs no rewards.

    Args:
        spec: shapes and limits, made by ``with_memory``. With another one nothing is remembered:
            each decision is read as the first of an episode.
        embedding: width of the tokens.
        layers: blocks of the transformer.
        heads: attentions side by side in each.
        most_steps: decisions of an episode that are told apart; later ones count as the last.
        latent: numbers of an embedding of behaviour.

    Raises:
        TrimtabError: if a size does not fit.
    """

    def __init__(
        self,
        spec: PolicySpec,
        *,
        embedding: Size = 128,
        layers: Size = 3,
        heads: Size = 1,
        most_steps: Size = 1000,
        latent: Size = 8,
    ) -> None:
        super().__init__(
            spec, latent, embedding=embedding, layers=layers, heads=heads, most_steps=most_steps
        )
        self.optimal = nn.Parameter(_SPREAD * torch.randn(latent))

    def asked(self, given: Mapping[str, Tensor], rows: int, length: int) -> Tensor:
        """Return the optimal embedding for each decision, ``[rows, length, Z]``."""
        return self.optimal.expand(rows, length, -1)
