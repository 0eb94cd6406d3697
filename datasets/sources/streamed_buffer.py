"""Batches of a dataset on disk, gathered from its mapped columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.episodes import COST, Episode
from trimtab.datasets.sources.dataset_rows import DatasetRows, no_costs
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.starts import Starts
from trimtab.datasets.sources.streaming import FLAGS, StoredEpisodes, StreamedDataset
from trimtab.types import BatchSpec

__all__ = ["StreamedBuffer"]

Progress = Callable[[float], None]


class _StoredRows:
    """The steps of mapped episodes as rows of one column; meets ``Storage``.

    Args:
        episodes: whose steps.
        returns: ``[T]`` Monte-Carlo return of each step.
        costs: ``[T]`` of each step; None: they have none.
    """

    def __init__(
        self,
        episodes: StoredEpisodes,
        returns: npt.NDArray[np.float32],
        costs: npt.NDArray[Any] | None = None,
    ) -> None:
        self._observations = episodes.columns["observations"]
        self._columns = {
            "action": episodes.columns["actions"][:, None],
            "reward": episodes.columns["rewards"],
            "flags": episodes.columns[FLAGS],
            "mc_return": returns,
        }
        self._last = np.cumsum(episodes.lengths) - 1  # the last step of each episode
        self._formed = {"obs": self._obs, "next_obs": self._next_obs, "taken": self._taken}
        obs = self._observations.shape[1:]
        self.rows, self.columns = len(returns), 1
        self.shapes: dict[str, tuple[int, ...]] = {
            "obs": obs,
            "action": self._columns["action"].shape[1:],
            "reward": (),
            "next_obs": obs,
            "flags": (),
            "taken": (),
            "mc_return": (),
        }
        if costs is not None:
            self._columns["cost"], self.shapes["cost"] = costs, ()

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that are taken from as they are."""
        return sum(column.nbytes for column in self._columns.values())

    def take(self, name: str, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return a value's numbers ``[*index.shape, ...]`` of the steps at the indices."""
        formed = self._formed.get(name)
        return self._columns[name].take(index, axis=0) if formed is None else formed(index)

    # An observation is on disk once, so a step's number is not the number of its observation.

    def _obs(self, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return self._observations.take(index + self._last.searchsorted(index), axis=0)

    def _next_obs(self, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return self._observations.take(index + self._last.searchsorted(index) + 1, axis=0)

    def _taken(self, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return np.ones(index.shape, dtype=np.uint16)


class StreamedBuffer(ReplayBuffer):
    """``ReplayBuffer.from_dataset`` of a dataset on disk: the same batches, the same state.

    Args:
        dataset: the data.
        window: as the parent's.
        discount: as the parent's.
        chunked: as the parent's.
        seed: as the parent's.
        device: as the parent's.
        weights: as ``from_dataset``'s.
        successors: as ``from_dataset``'s.
        parts: as ``from_dataset``'s.
        batch_spec: as the parent's.
        progress: called with the share of the Monte-Carlo returns that is computed, the first time.

    Raises:
        TrimtabError: as ``from_dataset``, or if the disk refuses.
    """

    def __init__(
        self,
        dataset: StreamedDataset,
        *,
        window: int = 1,
        discount: float = 0.99,
        chunked: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
        weights: npt.ArrayLike | None = None,
        successors: bool = True,
        parts: Mapping[str, tuple[int, ...]] | None = None,
        batch_spec: BatchSpec | None = None,
        progress: Progress = lambda share: None,
    ) -> None:
        self._episodes = dataset.stored
        whole = dataset.stored.last_observed | (not successors)
        costs = None
        if batch_spec is not None and batch_spec.cost:
            costs = dataset.stored.columns.get(f"infos/{COST}")
            if costs is None or costs.ndim != 1 or not np.isfinite(costs).all():
                raise no_costs(dataset)
        returns = dataset.returns(discount, window if chunked else 1, progress)
        super().__init__(
            dataset.num_steps,
            dataset.obs_dim,
            (1, dataset.action_dim),
            window=window,
            discount=discount,
            chunked=chunked,
            seed=seed,
            device=device,
            batch_spec=batch_spec or BatchSpec(),
            held=DatasetRows(
                _StoredRows(dataset.stored, returns, costs),
                Starts.of_episodes(dataset.stored.lengths, whole, weights, dataset.id),
                dataset.content_hash,
                parts,
            ),
        )

    def episodes(self) -> list[Episode]:
        """Return the dataset's episodes, as views of what is on disk."""
        return list(self._episodes)
