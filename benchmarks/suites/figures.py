"""Figures that a suite draws of itself: a maze from above, with what policies do in it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trimtab.benchmarks.suites.run_suite import SuiteRuns
from trimtab.benchmarks.training.base import load_base
from trimtab.envs.families.robotics.mazes import CELL_SIZE, MazeMap, cell_to_xy, maze_map
from trimtab.envs.families.robotics.two_doors import TWO_DOORS, map_by_lamp
from trimtab.envs.vector import make_vec
from trimtab.files import atomic_write_bytes
from trimtab.policies.base import Policy

SUCCESS, FAILURE, WALL, SHUT, GOAL = "#0072b2", "#d55e00", "#8a8f98", "#2b2b2b", "#009e73"
"""Colours that stay apart for every kind of colour vision (Okabe and Ito)."""

Array = npt.NDArray[Any]


def draw(figure: Mapping[str, Any], outcome: SuiteRuns, path: Path) -> None:
    """Draw a suite's figure: one maze a panel, with the trajectories of one run's policy.

    Of a maze with a lamp there are two rows of panels: episodes are told apart by what it says.

    Args:
        figure: ``seed``, ``episodes``, ``eval_seed``, ``open`` (the maze before anything was shut)
            and ``panels``, each with a ``title``, the ``run`` whose policy acts and the ``env``.
        outcome: the suite's runs.
        path: PNG to write.

    Raises:
        TrimtabError: if a policy cannot be opened or the file not be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    torch.set_num_threads(1)
    panels = figure["panels"]
    rows = [_maps(panel["env"], figure["open"]) for panel in panels]
    tall = max(len(maps) for maps in rows)
    size = (3.15 * len(panels), 0.75 + 3.15 * tall)
    chart, axes = pyplot.subplots(
        tall, len(panels), figsize=size, layout="constrained", squeeze=False
    )
    for column, (panel, maps) in enumerate(zip(panels, rows, strict=True)):
        policy = load_base(str(outcome.folder(panel["run"], figure["seed"]))).policy
        paths, success, lamp = trajectories(
            policy, panel["env"], episodes=figure["episodes"], seed=figure["eval_seed"]
        )
        for axis in axes[len(maps) :, column]:
            axis.set_axis_off()
        for axis, (said, cells, before) in zip(axes[:, column], maps, strict=False):
            _walls(axis, cells, before)
            shown = np.full(len(success), True) if said is None else lamp == said
            for number in np.flatnonzero(shown):
                line, colour = paths[number], SUCCESS if success[number] else FAILURE
                axis.plot(*line.T, color=colour, linewidth=1.0, alpha=0.75, solid_capstyle="round")
                axis.plot(*line[0], "o", color="black", markersize=2.2, zorder=4)
            told = "" if said is None else f", lamp {said:+d}"
            count = f"{success[shown].sum()} of {shown.sum()} reach the goal{told}"
            title = f"{panel['title']}\n" if axis is axes[0, column] else ""
            axis.set_title(f"{title}{count}", fontsize=9.5)
    handles = [
        matplotlib.lines.Line2D([], [], color=SUCCESS, label="reaches the goal"),
        matplotlib.lines.Line2D([], [], color=FAILURE, label="does not"),
        matplotlib.patches.Patch(color=GOAL, alpha=0.35, label="goal"),
        matplotlib.patches.Patch(color=SHUT, label="door that is closed"),
    ]
    chart.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    image = io.BytesIO()
    chart.savefig(image, format="png", dpi=160, facecolor="white")
    pyplot.close(chart)
    atomic_write_bytes(path, image.getvalue())


def _maps(env: str, before: str) -> list[tuple[int | None, MazeMap, MazeMap]]:
    """Return what stands one below the other: the lamp, a maze, and the maze before a door shut."""

    def cells(task: str, lamp: int | None) -> MazeMap:
        if lamp is not None and task.removeprefix("robotics/") in TWO_DOORS:
            return map_by_lamp(task, lamp)
        return maze_map(task)

    lamps = (1, -1) if env.removeprefix("robotics/") in TWO_DOORS else (None,)
    return [(lamp, cells(env, lamp), cells(before, lamp)) for lamp in lamps]


def trajectories(
    policy: Policy, env: str, *, episodes: int, seed: int
) -> tuple[list[Array], npt.NDArray[np.bool_], Array]:
    """Return the positions ``[T+1, 2]`` (m) of each episode, and whether it reached the goal.

    Returned besides is the last entry of each episode's first observation: the lamp, where there
    is one. The policy acts as it is judged, its noise drawn from the episodes' seed.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    envs = make_vec(env, episodes, seed=seed, episode_seed=lambda index, episode: seed + index)
    obs, _ = envs.reset()
    lines: list[list[Array]] = [[row[:2].copy()] for row in obs]
    last = obs[:, -1].copy()
    success = np.zeros(episodes, dtype=bool)
    chunk: Array = np.zeros((episodes, 0, 1), dtype=np.float32)
    step = 0
    while envs.active.any():
        if step == chunk.shape[1]:
            noise = generator.standard_normal((episodes, *policy.noise_shape), dtype=np.float32)
            if policy.evaluate_deterministic:
                noise[:] = 0
            with torch.no_grad():
                chunk = policy(torch.from_numpy(obs), torch.from_numpy(noise)).numpy()
            step = 0
        obs, _, terminated, truncated, info = envs.step(chunk[:, step : step + 1])
        step += 1
        ended = terminated | truncated
        for i in np.flatnonzero(envs.active):
            lines[i].append((info["final_obs"] if ended[i] else obs)[i, :2].copy())
        success |= info["success"] & envs.active
        envs.active[ended] = False
    envs.close()
    return [np.stack(line) for line in lines], success, last


def _walls(axis: Any, cells: MazeMap, before: MazeMap) -> None:
    """Draw a maze's walls, those that ``before`` did not have darker, and its goal."""
    from matplotlib.patches import Circle, Rectangle

    half = CELL_SIZE / 2
    for row, line in enumerate(cells):
        for column, cell in enumerate(line):
            x, y = cell_to_xy(cells, row, column)
            if cell == 1:
                colour = WALL if before[row][column] == 1 else SHUT
                axis.add_patch(
                    Rectangle((x - half, y - half), CELL_SIZE, CELL_SIZE, color=colour, linewidth=0)
                )
            elif isinstance(cell, str) and cell == "g":
                axis.add_patch(Circle((x, y), 0.45, color=GOAL, alpha=0.35, linewidth=0))
    width, height = len(cells[0]) * half, len(cells) * half
    axis.set(xlim=(-width, width), ylim=(-height, height), aspect="equal", xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)
