"""Episodes drawn by what they returned, so that a few good ones are not drowned by many bad ones.

Every step of episode i is drawn with a chance in proportion to ``exp(score_i / temperature)``: the
trajectory weighting of Hong et al., "Harnessing Mixed Offline Reinforcement Learning Datasets via
Trajectory Weighting" (2023, arXiv 2306.13085). It changes what is sampled and no learner.
The weights are a setting of the run, because the settings of a dataset define what is recorded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset
from trimtab.errors import TrimtabError

__all__ = ["SCORES", "WeightedEpisodes", "advantage_scores", "episode_weights", "return_scores"]

_RIDGE = 1.0  # of the baseline, in units of the spread of the first observations


def return_scores(dataset: Dataset) -> npt.NDArray[np.float64]:
    """Return each episode's undiscounted return ``[E]``, scaled to [0, 1] over the dataset.

    Where all returns are the same the scores are 0.
    """
    return _scaled(_returns(dataset))


def advantage_scores(dataset: Dataset) -> npt.NDArray[np.float64]:
    """Return by how much each return ``[E]`` exceeds what its start promises, scaled to [0, 1].

    The promise is a linear regression of returns on standardised first observations, as in the
    authors' code, here with a ridge penalty of 1: plain least squares explains everything where
    episodes are few.
    """
    returns = _returns(dataset)
    first = np.array([episode.observations[0] for episode in dataset.episodes], dtype=np.float64)
    spread = first.std(axis=0)
    inputs = (first - first.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    matrix = inputs.T @ inputs + _RIDGE * np.eye(inputs.shape[1])
    centred = returns - returns.mean()
    return _scaled(centred - inputs @ np.linalg.solve(matrix, inputs.T @ centred))


def _returns(dataset: Dataset) -> npt.NDArray[np.float64]:
    return np.array([episode.total_reward for episode in dataset.episodes])


def _scaled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    spread = float(np.ptp(values))
    return np.asarray((values - values.min()) / (spread if spread > 0 else 1.0))


SCORES: Mapping[str, Callable[[Dataset], npt.NDArray[np.float64]]] = {
    "return": return_scores,
    "advantage": advantage_scores,
}
"""What an episode can be weighted by, by name: RW and AW of the paper."""


def episode_weights(dataset: Dataset, by: str, temperature: float) -> npt.NDArray[np.float64]:
    """Return the weight ``[E]`` of each step of an episode; the greatest is 1.

    Args:
        dataset: whose episodes.
        by: a name of ``SCORES``.
        temperature: difference of scores, which lie in [0, 1], that makes a step e times as
            likely (the paper's code: 0.1); infinity weighs all steps alike.

    Raises:
        TrimtabError: if ``by`` is unknown or ``temperature`` is not positive.
    """
    if by not in SCORES:
        raise TrimtabError(f"weighting '{by}' is unknown; there are: {', '.join(SCORES)}")
    if not temperature > 0:
        raise TrimtabError(f"weighting temperature {temperature}: must be greater than 0")
    scores = SCORES[by](dataset)
    return np.asarray(np.exp((scores - scores.max()) / temperature))


class WeightedEpisodes:
    """Draws steps of episodes that lie one after another, with a weight for each episode.

    Args:
        lengths: steps T of each episode.
        weights: weight of each step of an episode, at least 0, in any unit.

    Raises:
        TrimtabError: if the two differ in length, or no step has a positive, finite weight.
    """

    def __init__(self, lengths: Sequence[int] | npt.ArrayLike, weights: npt.ArrayLike) -> None:
        self._lengths = np.asarray(lengths, dtype=np.int64)
        values = np.asarray(weights, dtype=np.float64)
        if values.shape != self._lengths.shape or values.ndim != 1:
            raise TrimtabError(
                f"weighting: {values.size} weights for {self._lengths.size} episodes; give one each"
            )
        mass = np.cumsum(self._lengths * values)
        if (values < 0).any() or not mass.size or not 0 < mass[-1] < math.inf:
            raise TrimtabError("weighting: weights must be at least 0, with a positive, finite sum")
        self._first = np.cumsum(self._lengths) - self._lengths
        self._mass = mass / mass[-1]
        self.digest = hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Return the numbers ``[count]`` of drawn steps, counted over all episodes."""
        episode = np.searchsorted(self._mass, generator.random(count), side="right")
        drawn = self._first[episode] + generator.integers(self._lengths[episode])
        return np.asarray(drawn, dtype=np.int64)
