"""How well a policy repeats episodes that it has not learned from, beside what needs no learning.

Errors are absolute differences from the recorded actions, at every recorded step, over as many
actions of a chunk as are executed. By dimension they are in raw units. Over dimensions they are in
standard deviations of the actions that were learned from, so that no dimension counts more because
of its unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.streaming import StreamedDataset
from trimtab.errors import TrimtabError
from trimtab.observations import joined, tree_map
from trimtab.policies.base import Policy
from trimtab.types import BatchSpec

__all__ = ["Fit", "HeldOut", "Split", "split_of"]

Array = NDArray[Any]

MOST_JUDGED = 2_000
"""Steps of the held-out episodes that are judged; of more, so many at even distances."""
MOST_NEIGHBOURS = 50_000
"""Steps among which the nearest one is looked for; of more, so many at even distances."""
_ROWS = 1024  # decided at once
_SMALLEST_DEVIATION = 1e-6  # of a dimension that does not move, whose error is left in raw units


@dataclass(frozen=True)
class Fit:
    """Errors of actions against the recorded ones.

    Attributes:
        error: mean over steps, chunk and dimensions, in standard deviations.
        by_step: ``[H]`` the same for each step of the chunk; None for one that no episode reaches.
        by_dimension: ``[A]`` mean for each dimension, in raw units.
    """

    error: float
    by_step: tuple[float | None, ...]
    by_dimension: tuple[float, ...]

    @property
    def curves(self) -> dict[str, float]:
        """What a line of ``metrics.jsonl`` says of it."""
        steps = {f"held_out/step_{n}": x for n, x in enumerate(self.by_step, 1) if x is not None}
        sizes = {f"held_out/dimension_{n}": x for n, x in enumerate(self.by_dimension)}
        return {"held_out/error": self.error, **steps, **sizes}

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Split:
    """A run's dataset in two.

    Attributes:
        training: the episodes that are learned from; None without a dataset.
        held_out: those that are not; None where all are learned from.
        numbers: which ones are held out.
    """

    training: Dataset | None
    held_out: Dataset | None = None
    numbers: tuple[int, ...] = ()


def split_of(config: RunConfig, dataset: Dataset | None) -> Split:
    """Return the episodes to learn from, and those that ``holdout`` keeps back.

    The share is rounded, to at least one episode. Which ones follows from the run's seed.

    Args:
        config: settings of the run.
        dataset: all episodes, or None where there are none yet.

    Raises:
        TrimtabError: if the dataset is streamed, or none would be left to learn from.
    """
    share = config["holdout"]
    if dataset is None or share is None:
        return Split(dataset)
    if isinstance(dataset, StreamedDataset):
        raise TrimtabError(
            f"holdout={share:g}: dataset {dataset.id} is streamed from disk and cannot be split; "
            "raise stream_above, or leave holdout out"
        )
    count = len(dataset)
    held = max(1, round(share * count))
    if held >= count:
        raise TrimtabError(
            f"holdout={share:g}: of the {count} episode(s) of dataset {dataset.id} none would be "
            "left to learn from; give more episodes, or a smaller share"
        )
    seeds = np.random.SeedSequence([config["seed"], 5])
    drawn = np.random.default_rng(seeds).choice(count, held, replace=False)
    numbers = sorted(int(number) for number in drawn)
    rest = [number for number in range(count) if number not in set(numbers)]
    training, held_out = (
        dataclasses.replace(dataset, episodes=tuple(dataset.episodes[i] for i in chosen))
        for chosen in (rest, numbers)
    )
    return Split(training, held_out, tuple(numbers))


class HeldOut:
    """Compares a policy's actions with those of held-out episodes.

    Attributes:
        controls: errors of what needs no learning, by name. ``nearest neighbour`` does what was
            done after the step with the nearest observation of the part that is learned from, each
            entry in its standard deviations. ``previous action`` repeats the action before, in an
            episode's first step the mean. ``mean action`` always gives the mean.
        steps: how many steps are judged.

    Args:
        training: the episodes that are learned from.
        judged: the held-out ones.
        window: executed actions of a chunk.
        history: observations that the policy reads.
        parts: entries of an observation by name, where the policy reads parts; else None.
        seed: of the policy's noise.
    """

    def __init__(
        self,
        training: Dataset,
        judged: Dataset,
        *,
        window: int,
        history: int = 1,
        parts: Mapping[str, tuple[int, ...]] | None = None,
        seed: int = 0,
    ) -> None:
        self._seed = seed
        buffer = ReplayBuffer.from_dataset(
            judged, window=window, discount=1.0, chunked=True, successors=False, parts=parts,
            batch_spec=BatchSpec(history=history),
        )  # fmt: skip
        batch = buffer.whole()
        rows = _evenly(len(batch), MOST_JUDGED)
        self.steps = len(rows)
        self._obs = tree_map(lambda part: part[rows], batch.obs)
        self._taken = batch.action[rows].numpy().astype(np.float64)
        self._valid = batch.valid[rows].numpy()
        actions = np.concatenate([e.actions for e in training.episodes]).astype(np.float64)
        deviation = actions.std(0)
        self._unit = np.where(deviation > _SMALLEST_DEVIATION, deviation, 1.0)
        mean = actions.mean(0)
        before = [np.concatenate([mean[None], e.actions[:-1]]) for e in judged.episodes]
        seen = np.concatenate([e.observations[:-1] for e in judged.episodes])[rows]
        guesses = {
            "nearest neighbour": _nearest(training, seen, window),
            "previous action": np.concatenate(before)[rows, None],
            "mean action": mean,
        }
        self.controls = {name: self.fit(guess) for name, guess in guesses.items()}

    def judge(self, policy: Policy, *, deterministic: bool) -> Fit:
        """Return the errors of a policy.

        The noise of every step is always the same, and drawing it moves no other generator.

        Args:
            policy: whose actions are compared.
            deterministic: zero noise instead of sampled noise.

        Raises:
            TrimtabError: if an action is not finite.
        """
        noise = np.zeros((self.steps, *policy.noise_shape), np.float32)
        if not deterministic:
            stream = np.random.Generator(np.random.Philox(self._seed))
            noise = stream.standard_normal(noise.shape, dtype=np.float32)
        device = policy.normalizer.obs_shift.device
        inputs = policy.inputs.values({})
        decided = []
        for first in range(0, self.steps, _ROWS):
            some = slice(first, first + _ROWS)
            count = len(noise[some])
            obs = tree_map(lambda part, some=some: part[some].to(device), self._obs)
            if inputs:
                given = {
                    name: torch.as_tensor(value, device=device).expand(count, *value.shape)
                    for name, value in inputs.items()
                }
                obs = joined(obs, **given)
            with torch.no_grad():
                action = policy(obs, torch.as_tensor(noise[some], device=device))
            decided.append(action[:, : self._taken.shape[1]].cpu().numpy())
        found = np.concatenate(decided)
        if not np.isfinite(found).all():
            raise TrimtabError(
                "the policy's actions on held-out episodes are not finite; lower the learning rate "
                "or check the data"
            )
        return self.fit(found)

    def fit(self, actions: Array) -> Fit:
        """Return the errors of actions that can be broadcast to ``[steps, H, A]``, raw units."""
        raw = np.abs(actions - self._taken)
        scaled = (raw / self._unit).mean(-1)
        reached = self._valid.sum(0)
        by_step = (scaled * self._valid).sum(0) / np.maximum(reached, 1)
        return Fit(
            error=float(scaled[self._valid].mean()),
            by_step=tuple(float(x) if n else None for x, n in zip(by_step, reached, strict=True)),
            by_dimension=tuple(raw[self._valid].mean(0).tolist()),
        )


def _evenly(count: int, most: int) -> NDArray[np.int64]:
    """Return at most so many of ``count`` numbers, at even distances."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _nearest(training: Dataset, seen: Array, window: int) -> Array:
    """Return the chunk after the step with the nearest observation, ``[N, window, A]``.

    Where its episode ends sooner, its last action is repeated.
    """
    lengths = np.array([len(episode) for episode in training.episodes])
    last = np.repeat(np.cumsum(lengths) - 1, lengths)  # of each step's episode
    known = np.concatenate([e.observations[:-1] for e in training.episodes]).astype(np.float64)
    actions = np.concatenate([e.actions for e in training.episodes]).astype(np.float64)
    rows = _evenly(len(known), MOST_NEIGHBOURS)
    deviation = known.std(0)
    unit = np.where(deviation > _SMALLEST_DEVIATION, deviation, 1.0)
    from scipy.spatial import cKDTree  # it takes half a second to import, and few runs need it

    _, found = cKDTree(known[rows] / unit).query(seen / unit)
    first = rows[found]
    chunks: Array = actions[np.minimum(first[:, None] + np.arange(window), last[first][:, None])]
    return chunks
