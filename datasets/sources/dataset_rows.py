"""A dataset's steps as the rows of a buffer, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import COST, Dataset
from trimtab.datasets.sources.observed import NEXT, OBS
from trimtab.datasets.sources.rows import RowArrays, Storage
from trimtab.datasets.sources.starts import Starts
from trimtab.datasets.sources.steps import step_flags, step_returns
from trimtab.errors import TrimtabError
from trimtab.observations import Part

__all__ = ["DatasetRows", "no_costs", "rows_in_memory"]


@dataclass(frozen=True)
class DatasetRows:
    """A dataset's steps as the rows of a buffer that is full and stays as it is.

    Attributes:
        storage: where they lie, in one column.
        starts: which of them are drawn.
        content_hash: the dataset's.
        parts: entries of the flat observation by the name of the part that batches have; None:
            they have it flat.
    """

    storage: Storage
    starts: Starts
    content_hash: str
    parts: Mapping[str, tuple[int, ...]] | None = None


def rows_in_memory(
    dataset: Dataset,
    discount: float,
    rows: int,
    *,
    weights: npt.ArrayLike | None,
    successors: bool,
    parts: Mapping[str, tuple[int, ...]] | None = None,
    costs: bool = False,
) -> DatasetRows:
    """Return a dataset's steps as rows, episodes one after another, and how they are drawn.

    Args:
        dataset: whose steps.
        discount: of ``mc_return``; see ``steps.step_returns``.
        rows: of ``mc_return``; see ``steps.step_returns``.
        weights: ``[E]`` with which each step of an episode is drawn; None: all alike.
        successors: a last step whose next observation was not recorded is never drawn.
        parts: see ``DatasetRows``.
        costs: rows have what each step cost.

    Raises:
        TrimtabError: if the dataset has no steps, none of them can be drawn, the weights do not
            fit, or costs are wanted and an episode has none.
    """
    if dataset.num_steps < 1:
        raise TrimtabError(f"dataset {dataset.id}: it has no steps; make it again")
    lengths = np.array([len(episode) for episode in dataset.episodes])
    whole = np.array([episode.last_observed for episode in dataset.episodes]) | (not successors)
    return DatasetRows(
        _filled(dataset, discount, rows, costs),
        Starts.of_episodes(lengths, whole, weights, dataset.id),
        dataset.content_hash,
        parts,
    )


def no_costs(dataset: Dataset) -> TrimtabError:
    """Return what is said of a dataset that has no costs where they are wanted."""
    return TrimtabError(
        f"dataset {dataset.id}: its episodes have no costs of finite numbers, one for each step, "
        f"as their info {COST!r}, which the method learns from; choose data of a task with costs, "
        "such as dataset=two_routes dataset.env_options.cost=upper env_options.cost=upper"
    )


def _filled(dataset: Dataset, discount: float, rows: int, costs: bool) -> RowArrays:
    obs, action = Part((dataset.obs_dim,)), Part((1, dataset.action_dim))
    values = {OBS: obs, NEXT + OBS: obs, "action": action, "reward": Part(())}
    if costs:
        values["cost"] = Part(())
    stored = RowArrays(dataset.num_steps, 1, values, returns=True)
    columns = {name: array[:, 0] for name, array in stored.arrays.items()}
    first = 0
    for episode in dataset.episodes:
        part = slice(first, first + len(episode))
        columns[OBS][part] = episode.observations[:-1]
        columns[NEXT + OBS][part] = episode.observations[1:]
        columns["action"][part, 0] = episode.actions
        columns["reward"][part] = episode.rewards
        if costs:
            paid = episode.infos.get(COST)
            if paid is None or paid.shape != (len(episode),) or not np.isfinite(paid).all():
                raise no_costs(dataset)
            columns["cost"][part] = paid
        columns["flags"][part] = step_flags(episode)
        columns["mc_return"][part] = step_returns(episode, discount, rows)
        first = part.stop
    return stored
