"""A policy that reads its episode as a sequence and acts for the return that it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trimtab.policies.networks.sequences import SequencePolicy, with_memory
from trimtab.settings import Positive, Size
from trimtab.types import PolicySpec

__all__ = ["RETURN", "DecisionTransformerPolicy", "with_context"]

RETURN = "return_to_go"
"""Name of the input that its user asks for a return with."""


def with_context(spec: PolicySpec, length: int, target: float) -> PolicySpec:
    """Return the spec of a policy that reads ``length`` decisions, the one of now included.

    Args:
        spec: of the task.
        length: decisions K.
        target: the return that it is asked for, unless its user asks for another.

    Raises:
        TrimtabError: if fewer than two decisions are read, or the spec has a history of its own.
    """
    return with_memory(spec, length).with_input(RETURN, target, (length,), "returns")


class DecisionTransformerPolicy(SequencePolicy):
    """Return to go, observation and action of the last decisions are tokens; the next action comes.

    Chen et al., "Decision Transformer: Reinforcement Learning via Sequence Modeling" (arXiv
    2106.01345). What acts remembers the decisions of its episode, and takes each reward off the
    return that is asked for. A robot asks by ``runner.reset(return_to_go=3600)`` and tells rewards
    by ``runner.step(obs, reward)``; where it tells none, the return to go does not fall.

    Args:
        spec: shapes and limits, made by :func:`with_context`. With another one nothing is
            remembered: each decision is read as the first of an episode, of which 0 is asked.
        embedding: width of the tokens.
        layers: blocks of the transformer.
        heads: attentions side by side in each.
        most_steps: decisions of an episode that are told apart; later ones count as the last.
        return_scale: what returns are divided by.

    Raises:
        TrimtabError: if a size does not fit.
    """

    asked_layer = "embed_return"

    def __init__(
        self,
        spec: PolicySpec,
        *,
        embedding: Size = 128,
        layers: Size = 3,
        heads: Size = 1,
        most_steps: Size = 1000,
        return_scale: Positive = 1000.0,
    ) -> None:
        super().__init__(
            spec, 1, embedding=embedding, layers=layers, heads=heads, most_steps=most_steps
        )
        self.return_scale = return_scale

    def asked(self, given: Mapping[str, Tensor], rows: int, length: int) -> Tensor:
        """Return the return to go of each decision in units of its scale, ``[rows, length, 1]``."""
        if RETURN not in given:
            return torch.zeros(rows, length, 1, device=self.normalizer.obs_shift.device)
        return given[RETURN][..., None] / self.return_scale
