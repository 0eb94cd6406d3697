"""Draw which chunk a robot plays at which tick: ``python timing.py`` writes ``timing.png``.

The plan is the runtime's own (:class:`trimtab.policies.robot.timeline.Timeline`): a chunk has eight
actions, is asked for every fourth tick, and its answer comes two ticks later. Tick 9 is lost.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import Patch, Rectangle

from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.policies.robot.timeline import Timeline

HORIZON, INTERVAL, DELAY, TICKS, LOST = 8, 4, 2, 16, 9
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d")


def simulate() -> tuple[list[int], dict[int, int]]:
    """Return the ticks of the observations of all chunks, and which chunk each tick plays."""
    timeline = Timeline(RecedingHorizon(INTERVAL), HORIZON)
    asked: list[int] = []
    played: dict[int, int] = {}
    for tick in range(TICKS):
        if tick == LOST:
            continue
        timeline.advance(tick)
        if timeline.due:
            asked.append(tick)
            timeline.ask()
        late = (
            DELAY if len(asked) > 1 else 0
        )  # the robot stood still until its first plan was there
        if timeline.waiting and tick >= asked[-1] + late:
            timeline.answer(np.full((HORIZON, 1), len(asked) - 1, np.float32))
        action = timeline.planned()
        if action is not None:
            played[tick] = int(action[0])
    return asked, played


def draw(asked: list[int], played: dict[int, int], out: Path) -> None:
    """Draw a row a chunk, and below them what the robot plays."""
    figure, axes = plt.subplots(figsize=(9, 3.4), constrained_layout=True)
    rows = len(asked)
    for row, start in enumerate(asked):
        height = rows - row
        axes.plot([start], [height + 0.32], marker="v", color=COLOURS[row], markersize=6)
        for entry in range(HORIZON):
            tick = start + entry
            mine = played.get(tick) == row
            axes.add_patch(
                Rectangle(
                    (tick - 0.45, height - 0.25), 0.9, 0.5,
                    facecolor=COLOURS[row] if mine else "white", edgecolor=COLOURS[row],
                    hatch="" if mine or tick >= start + DELAY or row == 0 else "////",
                )
            )  # fmt: skip
            axes.text(
                tick, height, str(entry), ha="center", va="center", fontsize=8,
                color="white" if mine else "black",
            )  # fmt: skip
    for tick in range(TICKS):
        row = played.get(tick, -1)
        colour = "white" if row < 0 else COLOURS[row]
        axes.add_patch(
            Rectangle((tick - 0.45, -0.25), 0.9, 0.5, facecolor=colour, edgecolor="black")
        )
        text = "lost" if row < 0 else str(tick - asked[row])
        axes.text(
            tick,
            0,
            text,
            ha="center",
            va="center",
            fontsize=8,
            color="black" if row < 0 else "white",
        )
    axes.text(asked[0], rows + 0.42, "observation", fontsize=8, ha="center")
    axes.set_xlim(-0.8, asked[-1] + HORIZON - 0.2)
    axes.set_ylim(-0.6, rows + 0.75)
    axes.set_yticks(
        [*range(rows + 1)], ["the robot plays", *(f"chunk {rows - i}" for i in range(1, rows + 1))]
    )
    axes.set_xticks(range(asked[-1] + HORIZON))
    axes.set_xlabel("control tick")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.legend(
        handles=[
            Patch(facecolor="grey", label="played"),
            Patch(facecolor="white", edgecolor="grey", hatch="////", label="past when it came"),
            Patch(facecolor="white", edgecolor="grey", label="replaced by a newer chunk"),
        ],
        loc="upper right", fontsize=8, frameon=False,
    )  # fmt: skip
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    mpl.use("Agg")
    draw(*simulate(), Path(__file__).parent / "timing.png")
