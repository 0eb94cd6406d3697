"""Learning curves of a leaderboard as one picture: a panel an environment, a line a method."""

from __future__ import annotations

import io
from pathlib import Path

from trimtab.benchmarks.board.model import Leaderboard
from trimtab.benchmarks.board.report.series import colours_of, curve_points, over_steps
from trimtab.benchmarks.board.wording import METRIC_NAMES
from trimtab.files import atomic_write_bytes

__all__ = ["draw"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8a8f98")
"""Colours that stay apart for every kind of colour vision (Okabe and Ito), and a grey."""
_DASHES = ("-", (0, (5, 2)), (0, (1, 1)))


def draw(board: Leaderboard, path: Path) -> None:
    """Draw every environment's curves, means over seeds with their 95 percent intervals.

    A method that takes no environment steps is a level line. A method that others are compared
    with is dashed.

    Args:
        board: the leaderboard.
        path: PNG to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    colours = colours_of(board)
    columns = min(len(board.tables), 3)
    rows = -(-len(board.tables) // columns)
    chart, axes = pyplot.subplots(
        rows, columns, figsize=(5.2 * columns, 3.6 * rows), layout="constrained", squeeze=False
    )
    for axis, table in zip(axes.flat, board.tables, strict=False):
        compared = {entry.baseline for entry in table.entries}
        for entry in table.entries:
            number = colours[entry.label]
            colour = _COLOURS[number % len(_COLOURS)]
            dash = _DASHES[(number // len(_COLOURS) + (entry.label in compared)) % len(_DASHES)]
            points = curve_points(table, entry)
            if not points:
                axis.axhline(entry.mean.value, color=colour, linestyle=dash, label=entry.label)
                continue
            at, mean, low, high = zip(*points, strict=True)
            axis.plot(at, mean, color=colour, linestyle=dash, label=entry.label, linewidth=1.8)
            axis.fill_between(at, low, high, color=colour, alpha=0.14, linewidth=0)
        axis.set_title(table.env, fontsize=11)
        axis.set_xlabel("environment steps" if over_steps(table) else "gradient updates")
        axis.set_ylabel(METRIC_NAMES[table.metric])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
        # Below the panel, where it hides no curve.
        axis.legend(
            frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3
        )
    for axis in list(axes.flat)[len(board.tables) :]:
        axis.remove()
    picture = io.BytesIO()
    chart.savefig(picture, dpi=130, metadata={"Software": None})
    pyplot.close(chart)
    atomic_write_bytes(path, picture.getvalue())
