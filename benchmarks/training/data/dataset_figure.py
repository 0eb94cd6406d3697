"""One picture of a dataset: returns, lengths, actions and how the observations are spread."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes, check_own

__all__ = ["check_place", "draw", "plane"]

_MARK = "drawn by trimtab dataset"  # a comment in each picture, by which its file is known again

_BINS = 40
_MOST_ROWS = 200_000
_FILL, _LINE = "#0072b2", "#d55e00"  # apart for every kind of colour vision (Okabe and Ito)

Array = npt.NDArray[Any]


def check_place(path: Path) -> None:
    """Check that a picture can be written to ``path`` without replacing anything but another.

    Raises:
        TrimtabError: if it is no name of a PNG, or something else is there.
    """
    if path.suffix.lower() != ".png":
        raise TrimtabError(f"figure={path}: must be a file that ends in .png")
    check_own(path, _MARK, "figure")


def draw(dataset: Dataset, path: Path) -> None:
    """Draw four panels: returns, lengths, each action dimension, and the observations' coverage.

    Args:
        dataset: what is drawn.
        path: PNG to write.

    Raises:
        TrimtabError: if the file cannot be written, or is another's.
    """
    check_place(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(2, 2, figsize=(9.6, 7.2), layout="constrained")
    returns = np.array([episode.total_reward for episode in dataset.episodes])
    only = dataset.only_reward
    label = "return of an episode" + ("" if only is None else f" (every reward is {only:g})")
    _histogram(axes[0, 0], returns, label, "episodes")
    lengths = np.array([len(episode) for episode in dataset.episodes])
    _histogram(axes[0, 1], lengths, "length of an episode (steps)", "episodes")
    _actions(chart, axes[1, 0], dataset)
    points, labels = plane(thinned(dataset))
    grid = axes[1, 1].hexbin(*points.T, gridsize=_BINS, mincnt=1, bins="log", cmap="cividis")
    chart.colorbar(grid, ax=axes[1, 1], label="observations")
    axes[1, 1].set(xlabel=labels[0], ylabel=labels[1], title="coverage of the observations")
    chart.suptitle(
        f"{dataset.id}: {len(dataset)} episodes, {dataset.num_steps:,} steps of {dataset.env}"
    )
    image = io.BytesIO()
    about = {"Comment": _MARK}
    chart.savefig(image, format="png", dpi=130, facecolor="white", metadata=about)
    pyplot.close(chart)
    atomic_write_bytes(path, image.getvalue())


def thinned(dataset: Dataset) -> Array:
    """Return observations ``[N, O]`` of all episodes, evenly thinned out beyond 200,000."""
    step = -(-(dataset.num_steps + len(dataset)) // _MOST_ROWS)
    rows, first = [], 0
    for episode in dataset.episodes:
        rows.append(episode.observations[-first % step :: step])
        first += len(episode) + 1
    return np.concatenate(rows)


def plane(observations: Array) -> tuple[Array, tuple[str, str]]:
    """Return the observations ``[N, O]`` in two dimensions ``[N, 2]``, and the axes' names.

    Up to two dimensions are shown as they are; more are standardised and projected on their first
    two principal components. Rows are thinned out evenly beyond 200,000.
    """
    rows = observations.astype(np.float64)
    if rows.shape[1] <= 2:
        second = rows[:, 1] if rows.shape[1] == 2 else np.zeros(len(rows))
        return np.stack([rows[:, 0], second], axis=1), ("observation 0", "observation 1")
    deviation = rows.std(0)
    standard = (rows - rows.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    values, vectors = np.linalg.eigh(standard.T @ standard / len(standard))
    chosen = vectors[:, [-1, -2]]
    chosen *= np.where(chosen.sum(0) < 0, -1.0, 1.0)  # a sign that does not depend on the library
    shares = values[[-1, -2]] / max(values.sum(), 1e-12)
    names = [f"principal component {i + 1} ({s:.0%})" for i, s in enumerate(shares)]
    return standard @ chosen, (names[0], names[1])


def _histogram(axis: Any, values: Array, label: str, count: str) -> None:
    low, high = float(values.min()), float(values.max())
    whole = bool((values == np.round(values)).all()) and high - low < _BINS
    edges = np.arange(low, high + 2) - 0.5 if whole else np.linspace(low, high, _BINS + 1)
    axis.hist(values, bins=edges if high > low else 1, color=_FILL)
    mean = float(values.mean())
    axis.axvline(mean, color=_LINE, linewidth=1.2)
    axis.set(xlabel=label, ylabel=count, title=f"mean {mean:.4g} (line)")


def _actions(chart: Any, axis: Any, dataset: Dataset) -> None:
    """Show a column of bins for each action dimension, in shares of its range."""
    shares = np.stack(
        [_shares(dataset, dimension) for dimension in range(dataset.action_dim)], axis=1
    )
    extent = (-0.5, dataset.action_dim - 0.5, 0.0, 1.0)
    image = axis.imshow(
        shares, origin="lower", aspect="auto", extent=extent, cmap="cividis", vmin=0
    )
    chart.colorbar(image, ax=axis, label="share of the steps")
    axis.set_xticks(range(dataset.action_dim)[:: -(-dataset.action_dim // 12)])
    axis.set(xlabel="action dimension", ylabel="low to high limit", title="actions")


def _shares(dataset: Dataset, dimension: int) -> Array:
    """Return which share of the steps is in each bin of an action dimension's range."""
    actions = np.concatenate([e.actions[:, dimension] for e in dataset.episodes]).astype(np.float64)
    low, high = dataset.action_low[dimension], dataset.action_high[dimension]
    low = low if np.isfinite(low) else actions.min()
    high = high if np.isfinite(high) else actions.max()
    places = np.clip((actions - low) / (high - low if high > low else 1.0), 0, 1)
    shares: Array = np.histogram(places, _BINS, (0, 1))[0] / len(actions)
    return shares
