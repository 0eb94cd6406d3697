"""A warning that a robot sees, or plans, what the data of its policy does not have.

Three scores of a tick, each 1 at the edge of the reference episodes: how far an entry of the
observation lies outside its range; the distance to the k-th nearest stored observation (both in
standard deviations); and how far a new chunk is from the plan before it, over the ticks that they
share (after STAC of Sentinel, arXiv 2410.04640, with one sample in the place of many). A tick's
score is the largest of them. The threshold is calibrated by episodes, not by ticks (split conformal
prediction): of episodes like those of the calibration, at most a share ``delta`` is ever warned of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.agent import ArrayObs
from trimtab.policies.bundle.files import WARNING, Contract, read_safetensors
from trimtab.policies.bundle.onnx_policy import PolicyFiles

__all__ = ["Detector", "Unfamiliar", "detector_of", "episode_threshold"]

Values = NDArray[np.float64]

_MARGIN = 0.1  # of the range, on each side of the quantiles
_QUANTILES = (0.001, 0.999)
_STORED, _NEIGHBOURS = 2000, 5
_FAR = 1e6  # standard deviations; beyond, squares of float64 lose what they are to tell
_NUMBERS = ("distance", "chunk_distance", "threshold", "interval")
_TENSORS = ("low", "high", "mean", "deviation", "stored")


@dataclass(frozen=True)
class Unfamiliar:
    """What a robot is warned of at one tick.

    Attributes:
        score: above the threshold; 1 is the edge of the reference episodes.
        threshold: the calibrated one.
        by: ``range``, ``neighbours`` or ``chunks``: which score it is.
        entries: names of the observation's entries that lie outside their range, the farthest
            first.
    """

    score: float
    threshold: float
    by: str
    entries: tuple[str, ...]


def episode_threshold(highest: ArrayLike, delta: float) -> Any:
    """Return the threshold that a new episode exceeds with a probability of at most ``delta``.

    That is the ceil((M + 1)(1 - delta))-th smallest of M episodes' highest scores, if they and the
    new one are exchangeable (split conformal prediction).

    Args:
        highest: ``[..., M]``, the highest score of each held-out episode.
        delta: share of false alarms, above 0 and below 1.

    Returns:
        The thresholds ``[...]``.

    Raises:
        TrimtabError: if M episodes are too few for such a threshold.
    """
    if not 0 < delta < 1:
        raise TrimtabError(f"calibration: delta={delta}: give a share above 0 and below 1")
    values = np.sort(np.asarray(highest, np.float64), axis=-1)
    count = values.shape[-1]
    rank = math.ceil((count + 1) * (1 - delta) - 1e-9)
    if rank > count:
        raise TrimtabError(
            f"calibration: {count} episodes are too few for {100 * delta:g} percent of false "
            f"alarms; give at least {math.ceil(1 / delta - 1 - 1e-9)}"
        )
    return values[..., rank - 1]


@dataclass(frozen=True)
class Detector:
    """Scores what a policy sees and plans.

    Attributes:
        low: of each entry's range ``[O]``, raw units.
        high: likewise.
        mean: ``[O]``, raw units.
        deviation: ``[O]``, raw units, above 0.
        stored: observations of the reference episodes ``[N, O]``, standardised.
        names: of the entries.
        distance: to the k-th neighbour at the edge of the reference episodes.
        chunk_distance: between chunks, likewise; None: chunks are not compared.
        threshold: of the score.
        interval: ticks from one chunk to the next with which they are compared.
    """

    low: Values
    high: Values
    mean: Values
    deviation: Values
    stored: Values
    names: tuple[str, ...]
    distance: float = 1.0
    chunk_distance: float | None = None
    threshold: float = math.inf
    interval: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "_squares", np.square(self.stored).sum(1))

    @classmethod
    def fit(cls, episodes: Sequence[ArrayLike], names: Sequence[str]) -> Detector:
        """Return a detector without a threshold, of reference episodes ``[T, O]``, at least two."""
        parts = [np.asarray(episode, np.float64) for episode in episodes]
        rows = np.concatenate(parts)
        owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        low, high = np.quantile(rows, _QUANTILES, axis=0)
        tiny = 1e-3 * np.maximum(1.0, np.abs(rows.mean(0)))  # of entries that never change
        least = np.where(np.ptp(rows, axis=0) > 0, 1e-3 * tiny, tiny)  # what float32 can tell
        margin = np.where(high > low, np.maximum(_MARGIN * (high - low), least), tiny)
        deviation = np.maximum(rows.std(0), least)
        chosen = np.linspace(0, len(rows) - 1, min(_STORED, len(rows))).astype(int)
        # As a robot holds them: in float32.
        tensors = (low - margin, high + margin, rows.mean(0), deviation)
        low, high, mean, deviation = (one.astype(np.float32).astype(np.float64) for one in tensors)
        stored = ((rows[chosen] - mean) / deviation).astype(np.float32).astype(np.float64)
        found = cls(low, high, mean, deviation, stored, tuple(names))
        squares = np.square(stored).sum(1)
        apart = squares[:, None] - 2.0 * stored @ stored.T + squares
        # An episode's own observations are nearer than those of another one will be.
        apart[owner[chosen][:, None] == owner[chosen]] = np.inf
        nearest = np.sort(apart, axis=1)[:, _NEIGHBOURS - 1 : _NEIGHBOURS]
        known = np.sqrt(np.maximum(nearest[np.isfinite(nearest)], 0.0))
        if not known.size:
            raise TrimtabError("calibration: the reference episodes are too few or too short")
        return replace(found, distance=max(float(np.quantile(known, _QUANTILES[1])), 1e-6))

    def score(self, row: Values, chunk_distance: float | None = None) -> tuple[float, Unfamiliar]:
        """Return the score of a tick, and what a warning would say.

        Args:
            row: the observation ``[O]``, raw units, finite.
            chunk_distance: of the chunk that has come at this tick from the plan before it; None if
                none has.
        """
        centre, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        reach = np.abs(row - centre) / half
        standard = np.clip((row - self.mean) / self.deviation, -_FAR, _FAR)
        squares: Values = self._squares  # type: ignore[attr-defined]
        apart = squares - 2.0 * (self.stored @ standard) + standard @ standard
        near = math.sqrt(max(float(np.partition(apart, _NEIGHBOURS - 1)[_NEIGHBOURS - 1]), 0.0))
        scores = {"range": float(reach.max()), "neighbours": near / self.distance}
        if chunk_distance is not None and self.chunk_distance is not None:
            scores["chunks"] = chunk_distance / self.chunk_distance
        by = max(scores, key=scores.__getitem__)
        outside = [i for i in np.argsort(-reach, kind="stable") if reach[i] > 1]
        names = tuple(self.names[i] for i in outside)
        return scores[by], Unfamiliar(scores[by], self.threshold, by, names)

    def to_json(self) -> dict[str, Any]:
        """Return the contract's entry, without what the calibration adds."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return what the bundle's file of tensors holds."""
        return {name: getattr(self, name).astype(np.float32) for name in _TENSORS}


def observed_row(obs: ArrayObs, contract: Contract) -> Values:
    """Return an observation of one tick, ``[1, ...]`` or its parts, as numbers ``[O]``.

    Pictures are left out.
    """
    parts = obs if isinstance(obs, Mapping) else {FLAT: obs}
    chosen = [parts[name].ravel() for name in contract.numbers]
    row: Values = np.concatenate(chosen).astype(np.float64)
    return row


def detector_of(files: PolicyFiles, where: str) -> Detector | None:
    """Return the detector of a bundle, or None if it has none.

    Raises:
        TrimtabError: if it is malformed, or does not fit the contract.
    """
    stated, data = files.config.get("warning"), files.warning
    if stated is None and data is None:
        return None
    if not isinstance(stated, dict) or data is None:
        raise TrimtabError(f"{where}: {WARNING} and the entry 'warning' need one another")
    read = read_safetensors(data, where)
    tensors: dict[str, Any] = {name: one.astype(np.float64) for name, one in read.items()}
    numbers = {name: value for name in _NUMBERS if (value := stated.get(name)) is not None}
    names = files.contract.obs_names
    *rows, stored = (tensors.get(name, np.empty(0)) for name in _TENSORS)
    right = (
        set(tensors) == set(_TENSORS)
        and all(one.shape == (len(names),) for one in rows)
        and stored.shape == (max(len(stored), _NEIGHBOURS), len(names))
        and all(np.isfinite(one).all() for one in tensors.values())
        and bool((tensors["deviation"] > 0).all() and (tensors["low"] < tensors["high"]).all())
        and {"distance", "threshold", "interval"} <= numbers.keys()
        and all(type(x) in (int, float) and math.isfinite(x) and x > 0 for x in numbers.values())
        and type(numbers["interval"]) is int
    )
    if not right:
        raise TrimtabError(f"{where}: its warning is malformed; calibrate the bundle again")
    return Detector(**tensors, names=names, **numbers)
