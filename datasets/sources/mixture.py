"""A source that draws fixed shares of every batch from other sources (RLPD-style mixing)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.types import Batch, Sequences, Source

__all__ = ["Mixture"]


class Mixture:
    """Concatenates batches of several sources in fixed proportions; meets ``Source``.

    Half from offline data and half from the online buffer, ``Mixture([data, replay], [1, 1])``, is
    the symmetric sampling of RLPD (Ball et al., 2023).

    Args:
        sources: where to draw from; their windows and spaces have to be the same.
        weights: share of each source, not negative, of any positive sum.

    Raises:
        TrimtabError: if the two differ in length, are empty, or the weights are not usable.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[float]) -> None:
        self.sources = tuple(sources)
        self.weights = tuple(float(weight) for weight in weights)
        if not self.sources or len(self.sources) != len(self.weights):
            raise TrimtabError(
                f"mixture: {len(self.sources)} sources and {len(self.weights)} weights; "
                "give one weight for each source"
            )
        total = sum(self.weights)
        if not math.isfinite(total) or min(self.weights) < 0 or total <= 0:
            raise TrimtabError(
                f"mixture: weights {self.weights} need to be at least 0 with a positive sum"
            )

    def shares(self, batch_size: int) -> tuple[int, ...]:
        """Return how many rows each source gives: largest remainders, ties to the first source."""
        total = sum(self.weights)
        exact = [batch_size * weight / total for weight in self.weights]
        counts = [math.floor(value) for value in exact]
        order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
        for index in order[: batch_size - sum(counts)]:
            counts[index] += 1
        return tuple(counts)

    def sample(self, batch_size: int) -> Batch:
        """Return the sources' rows one source after another.

        Optional fields and ``aux`` names that some source lacks are left out.

        Raises:
            TrimtabError: if ``batch_size`` is not positive or the sources' shapes differ.
        """
        if batch_size < 1:
            raise TrimtabError(f"mixture: cannot draw {batch_size} transitions")
        counts = self.shares(batch_size)
        pairs = zip(self.sources, counts, strict=True)
        parts = [source.sample(count) for source, count in pairs if count > 0]
        if len(parts) == 1:
            return parts[0]

        common = [name for name in parts[0].aux if all(name in part.aux for part in parts)]
        return Batch(
            obs=_joined(parts, "obs"),
            action=_joined(parts, "action"),
            reward=_joined(parts, "reward"),
            next_obs=_joined(parts, "next_obs"),
            discount=_joined(parts, "discount"),
            valid=_joined(parts, "valid"),
            whole=all(part.whole for part in parts),
            next_action=_joined_if_all(parts, "next_action"),
            mc_return=_joined_if_all(parts, "mc_return"),
            goal=_joined_if_all(parts, "goal"),
            cost=_joined_if_all(parts, "cost"),
            goal_steps=_joined_if_all(parts, "goal_steps"),
            sequence=_joined_sequences([part.sequence for part in parts]),
            aux={name: torch.cat([part.aux[name] for part in parts]) for name in common},
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the sources, by their position."""
        return {
            str(index): source.state_dict()
            for index, source in enumerate(self.sources)
            if hasattr(source, "state_dict")
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sources.

        Raises:
            TrimtabError: if the state is of a mixture of other sources.
        """
        stateful = {str(i): s for i, s in enumerate(self.sources) if hasattr(s, "load_state_dict")}
        if set(state) != set(stateful):
            raise TrimtabError(
                f"mixture: the saved state has sources {sorted(state)}, here are "
                f"{sorted(stateful)}; resume with the settings of the saved run"
            )
        for index, source in stateful.items():
            source.load_state_dict(state[index])


def _joined(parts: Sequence[Any], name: str) -> Any:
    """Return the rows that all have of a field, which may be an observation with parts."""
    values = [getattr(part, name) for part in parts]
    try:
        kinds = {tuple(sorted(v)) if isinstance(v, Mapping) else None for v in values}
        if len(kinds) > 1:
            raise RuntimeError("different parts")
        return tree_map(lambda *tensors: torch.cat(tensors), *values)
    except RuntimeError as error:
        shapes = [tree_map(lambda tensor: tuple(tensor.shape), value) for value in values]
        raise TrimtabError(
            f"mixture: '{name}' has shapes {shapes}; give every source the same spaces and window"
        ) from error


def _joined_if_all(parts: Sequence[Any], name: str) -> Any:
    return None if any(getattr(part, name) is None for part in parts) else _joined(parts, name)


def _joined_sequences(found: Sequence[Sequences | None]) -> Sequences | None:
    parts = [sequence for sequence in found if sequence is not None]
    if len(parts) < len(found):
        return None
    return Sequences(
        obs=_joined(parts, "obs"),
        action=_joined(parts, "action"),
        reward=_joined(parts, "reward"),
        valid=_joined(parts, "valid"),
        step=_joined(parts, "step"),
        mc_return=_joined_if_all(parts, "mc_return"),
    )
