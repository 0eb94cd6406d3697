"""Policies that read their episode as a sequence: observations, actions, and what is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.base import Policy
from trimtab.policies.features import features
from trimtab.policies.networks.transformer import Transformer
from trimtab.types import Obs, PolicySpec, Sequences

__all__ = ["Context", "SequencePolicy", "with_memory"]

_OBSERVATIONS, _ACTIONS, _STEP = "past_observations", "past_actions", "step"


def with_memory(spec: PolicySpec, length: int) -> PolicySpec:
    """Return the spec of a policy that reads ``length`` decisions, the one of now included.

    Raises:
        TrimtabError: if fewer than two decisions are read, or the spec has a history of its own.
    """
    if length < 2:
        raise TrimtabError(f"algorithm.context={length}: must be at least 2")
    if spec.history > 1:
        raise TrimtabError(
            f"history={spec.history}: a policy that reads sequences remembers its own decisions; "
            "leave it out, and set algorithm.context"
        )
    past, chunk = length - 1, (spec.horizon, spec.action_dim)
    observed = sum(part.size for part in spec.observed.values())
    return (
        spec.with_input(_OBSERVATIONS, 0.0, (past, observed), "observations")
        .with_input(_ACTIONS, 0.0, (past, *chunk), "actions")
        .with_input(_STEP, 0.0, (1,), "steps")
    )


@dataclass(frozen=True)
class Context:
    """What is read of B stretches of K decisions, in the network's units.

    What is there of a stretch stands at its end.

    Attributes:
        obs: ``[B, K, O]``.
        action: ``[B, K, H * A]``; those that are still to be decided have no effect.
        asked: what is asked for with each decision, ``[B, K, D]``.
        step: ``[B, K]`` int64: decisions of the episode before each.
        there: ``[B, K]`` bool: which decisions are no padding.
    """

    obs: Tensor
    action: Tensor
    asked: Tensor
    step: Tensor
    there: Tensor


class SequencePolicy(Policy):
    """A causal transformer over tokens of what is asked for, of observations and of actions.

    The tokens of a decision are linear maps of the three, plus a vector that is learned for the
    decision's place in the episode (Chen et al., "Decision Transformer", arXiv 2106.01345).

    Args:
        spec: shapes and limits, made by :func:`with_memory`. With another one nothing is
            remembered: each decision is read as the first of an episode.
        asked: numbers D of what is asked for.
        embedding: width of the tokens.
        layers: blocks of the transformer.
        heads: attentions side by side in each.
        most_steps: decisions of an episode that are told apart; later ones count as the last.

    Raises:
        TrimtabError: if a size does not fit.
    """

    built_by_method = True
    evaluate_deterministic = True
    asked_layer: ClassVar[str] = "embed_asked"
    """What the weights that read what is asked for are called in a bundle."""

    def __init__(
        self,
        spec: PolicySpec,
        asked: int,
        *,
        embedding: int,
        layers: int,
        heads: int,
        most_steps: int,
    ) -> None:
        if embedding % heads:
            raise TrimtabError(f"policy.embedding={embedding}: must be a multiple of heads={heads}")
        super().__init__(spec, (0,))
        self.remembers = _STEP in spec.layout
        parts = spec.observed
        self.obs_size = sum(part.size for part in parts.values())
        self.observed = replace(
            spec, obs_dim=self.obs_size, parts={} if list(parts) == [FLAT] else parts
        )
        self.most_steps = most_steps
        size = spec.horizon * spec.action_dim
        self.add_module(self.asked_layer, nn.Linear(asked, embedding))
        self.embed_obs = nn.Linear(self.obs_size, embedding)
        self.embed_action = nn.Linear(size, embedding)
        self.embed_step = nn.Embedding(most_steps, embedding)
        self.norm = nn.LayerNorm(embedding)
        self.transformer = Transformer(embedding, layers, heads)
        self.predict = nn.Linear(embedding, size)

    @abstractmethod
    def asked(self, given: Mapping[str, Tensor], rows: int, length: int) -> Tensor:
        """Return what is asked for with each decision, ``[rows, length, D]``.

        Args:
            given: the policy's inputs by name, ``[rows, size]``; empty where nothing is remembered.
            rows: B.
            length: K.
        """

    def normalized(self, obs: Tensor) -> Tensor:
        """Return observations ``[..., O]`` of the environment in the network's units."""
        shift, scale = self.normalizer.obs_shift, self.normalizer.obs_scale
        return (obs - shift[: self.obs_size]) / scale[: self.obs_size]

    def vector(self, obs: Obs) -> Tensor:
        """Return what the environment gives ``[..., O]``, in the network's units."""
        return self.normalized(features(obs, self.observed))

    def read(self, data: Sequences, asked: Tensor) -> Context:
        """Return stretches of the data with their padding at the front.

        Args:
            data: B stretches of L decisions.
            asked: what is asked for with each decision, ``[B, L, D]``.
        """
        size, length = data.valid.shape
        places = torch.arange(length, device=data.valid.device)
        from_start = places - (length - data.valid.sum(1, keepdim=True))  # [B, L]
        order = from_start.clamp_min(0)[..., None]

        def moved(rows: Tensor) -> Tensor:
            return rows.gather(1, order.expand(-1, -1, rows.shape[-1]))

        return Context(
            obs=moved(self.vector(data.obs)),
            action=moved(self.normalizer.normalize_action(data.action).flatten(2)),
            asked=moved(asked),
            step=data.step[:, None] + from_start,
            there=from_start >= 0,
        )

    def actions(self, context: Context, dropout: float = 0.0) -> Tensor:
        """Return the action after each observation, in [-1, 1], ``[B, K, H * A]``.

        Args:
            context: what is read.
            dropout: share of the entries that are left out.
        """
        rows, count = context.there.shape
        when = self.embed_step(context.step.clamp(0, self.most_steps - 1))
        tokens = torch.stack(
            [
                self.get_submodule(self.asked_layer)(context.asked) + when,
                self.embed_obs(context.obs) + when,
                self.embed_action(context.action) + when,
            ],
            dim=2,
        )  # R_1, s_1, a_1, R_2, s_2, ...
        there = context.there[..., None].expand(-1, -1, 3).reshape(rows, 3 * count)
        read = self.norm(tokens.reshape(rows, 3 * count, -1))
        found = self.transformer(read, there, dropout).reshape(rows, count, 3, -1)
        return torch.tanh(self.predict(found[:, :, 1]))

    def imitation_errors(self, context: Context, dropout: float = 0.0) -> Tensor:
        """Return the squared error of each decision's action, 0 where none is, ``[B, K]``."""
        error = (self.actions(context, dropout) - context.action).square().mean(-1)
        return torch.where(context.there, error, 0.0)

    def context(self, obs: Obs) -> Context:
        """Return what is remembered of an episode, and what is observed now, for B rows."""
        if not self.remembers:
            seen = self.vector(obs)[:, None]
            nothing = torch.zeros_like(seen[:, :, 0])
            return Context(
                obs=seen,
                action=nothing[..., None].expand(-1, -1, self.embed_action.in_features),
                asked=self.asked({}, seen.shape[0], 1),
                step=nothing.long(),
                there=nothing == 0,
            )
        column, parts = {}, features(obs, self.spec)
        for name, part in self.spec.layout.items():
            column[name], parts = parts[:, : part.size], parts[:, part.size :]
        now = torch.cat([column[name] for name in self.spec.observed], dim=1)
        rows, past = now.shape[0], self.spec.layout[_ACTIONS].shape[0]
        seen = torch.cat([column[_OBSERVATIONS].reshape(rows, past, -1), now[:, None]], dim=1)
        done = column[_ACTIONS].reshape(rows, past, *self._chunk)
        action = self.normalizer.normalize_action(done).reshape(rows, past, -1)
        places = torch.arange(past + 1, device=now.device)
        step = column[_STEP].round().long() + places - past
        return Context(
            obs=self.normalized(seen),
            action=torch.cat([action, torch.zeros_like(action[:, :1])], dim=1),
            asked=self.asked(column, rows, past + 1),
            step=step,
            there=step >= 0,
        )

    @property
    def _chunk(self) -> tuple[int, int]:
        return self.spec.horizon, self.spec.action_dim

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``; ``noise`` ``[B, 0]`` is empty."""
        action = self.actions(self.context(obs))[:, -1].reshape(-1, *self._chunk)
        # The empty noise is added up so that an exported graph still has it as an input.
        return self.normalizer.raw_action(action + noise.sum())
