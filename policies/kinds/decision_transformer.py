"""A policy that reads its episode as a sequence and acts for the return that it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from trimtab.observations import FLAT
from trimtab.policies.base import Policy
from trimtab.policies.features import features
from trimtab.policies.networks.transformer import Transformer
from trimtab.types import Obs, PolicySpec, TrimtabError

__all__ = ["RETURN", "Context", "DecisionTransformerPolicy", "with_context"]

RETURN = "return_to_go"
"""Name of the input that its user asks for a return with."""

_OBSERVATIONS, _ACTIONS, _STEP = "past_observations", "past_actions", "step"


def with_context(spec: PolicySpec, length: int, target: float) -> PolicySpec:
    """Return the spec of a policy that reads ``length`` decisions, the one of now included.

    Args:
        spec: of the task.
        length: decisions K.
        target: the return that it is asked for, unless its user asks for another.

    Raises:
        TrimtabError: if fewer than two decisions are read, or the spec has a history of its own.
    """
    if length < 2:
        raise TrimtabError(f"algorithm.context={length}: must be at least 2")
    if spec.history > 1:
        raise TrimtabError(
            f"history={spec.history}: a decision transformer remembers its own decisions; leave it "
            "out, and set algorithm.context"
        )
    past, chunk = length - 1, (spec.horizon, spec.action_dim)
    observed = sum(part.size for part in spec.observed.values())
    return (
        spec.with_input(_OBSERVATIONS, 0.0, (past, observed), "observations")
        .with_input(_ACTIONS, 0.0, (past, *chunk), "actions")
        .with_input(RETURN, target, (length,), "returns")
        .with_input(_STEP, 0.0, (1,), "steps")
    )


@dataclass(frozen=True)
class Context:
    """What a decision transformer reads of B stretches of K decisions, in the network's units.

    What is there of a stretch stands at its end.

    Attributes:
        obs: ``[B, K, O]``.
        action: ``[B, K, H * A]``; those that are still to be decided have no effect.
        return_to_go: ``[B, K]``.
        step: ``[B, K]`` int64: decisions of the episode before each.
        there: ``[B, K]`` bool: which decisions are no padding.
    """

    obs: Tensor
    action: Tensor
    return_to_go: Tensor
    step: Tensor
    there: Tensor


class DecisionTransformerPolicy(Policy):
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
        return_scale: what returns are divided by.
        most_steps: decisions of an episode that are told apart; later ones count as the last.

    Raises:
        TrimtabError: if a size does not fit.
    """

    built_by_method = True
    evaluate_deterministic = True

    def __init__(
        self,
        spec: PolicySpec,
        *,
        embedding: int = 128,
        layers: int = 3,
        heads: int = 1,
        return_scale: float = 1000.0,
        most_steps: int = 1000,
    ) -> None:
        if (
            min(embedding, layers, heads, most_steps) < 1
            or embedding % heads
            or not return_scale > 0
        ):
            raise TrimtabError(
                f"decision_transformer policy: embedding={embedding}, layers={layers}, "
                f"heads={heads}, return_scale={return_scale}, most_steps={most_steps}: must be "
                "above 0, and embedding a multiple of heads"
            )
        super().__init__(
            spec, (0,),
            embedding=embedding, layers=layers, heads=heads, return_scale=return_scale,
            most_steps=most_steps,
        )  # fmt: skip
        self.remembers = RETURN in spec.layout
        parts = spec.observed
        self.obs_size = sum(part.size for part in parts.values())
        self.observed = replace(
            spec, obs_dim=self.obs_size, parts={} if list(parts) == [FLAT] else parts
        )
        self.return_scale, self.most_steps = return_scale, most_steps
        size = spec.horizon * spec.action_dim
        self.embed_return = nn.Linear(1, embedding)
        self.embed_obs = nn.Linear(self.obs_size, embedding)
        self.embed_action = nn.Linear(size, embedding)
        self.embed_step = nn.Embedding(most_steps, embedding)
        self.norm = nn.LayerNorm(embedding)
        self.transformer = Transformer(embedding, layers, heads)
        self.predict = nn.Linear(embedding, size)

    def normalized(self, obs: Tensor) -> Tensor:
        """Return observations ``[..., O]`` of the environment in the network's units."""
        shift, scale = self.normalizer.obs_shift, self.normalizer.obs_scale
        return (obs - shift[: self.obs_size]) / scale[: self.obs_size]

    def vector(self, obs: Obs) -> Tensor:
        """Return what the environment gives ``[..., O]``, in the network's units."""
        return self.normalized(features(obs, self.observed))

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
                self.embed_return(context.return_to_go[..., None]) + when,
                self.embed_obs(context.obs) + when,
                self.embed_action(context.action) + when,
            ],
            dim=2,
        )  # R_1, s_1, a_1, R_2, s_2, ...
        there = context.there[..., None].expand(-1, -1, 3).reshape(rows, 3 * count)
        read = self.norm(tokens.reshape(rows, 3 * count, -1))
        found = self.transformer(read, there, dropout).reshape(rows, count, 3, -1)
        return torch.tanh(self.predict(found[:, :, 1]))

    def context(self, obs: Obs) -> Context:
        """Return what is remembered of an episode, and what is observed now, for B rows."""
        if not self.remembers:
            seen = self.vector(obs)[:, None]
            nothing = torch.zeros_like(seen[:, :, 0])
            return Context(
                obs=seen,
                action=nothing[..., None].expand(-1, -1, self.embed_action.in_features),
                return_to_go=nothing,
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
            return_to_go=column[RETURN] / self.return_scale,
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
