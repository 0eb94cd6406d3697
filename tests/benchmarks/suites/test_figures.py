"""The figure of mazes: a panel a run, and a row for what a lamp says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from trimtab.benchmarks.suites.figures import draw, trajectories
from trimtab.benchmarks.suites.run_suite import SuiteRuns
from trimtab.envs.families.robotics.mazes import TWO_ROUTES_MAP
from trimtab.envs.families.robotics.two_doors import DOORS, map_by_lamp
from trimtab.envs.registry import get_spec
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.types import PolicySpec

CLOSED, OPEN = "robotics/PointMaze-TwoDoors-v0", "robotics/PointMaze-TwoDoors-Open-v0"
BEFORE = "robotics/PointMaze-TwoRoutes-v0"


def driving_right(env: str) -> GaussianPolicy:
    """A policy that pushes the ball to the right, wherever it is."""
    spec = get_spec(env)
    policy = GaussianPolicy(PolicySpec(spec.obs_dim, 2, 2, (-1.0, -1.0), (1.0, 1.0)), hidden=(4,))
    for weight in policy.parameters():
        weight.data.zero_()
    list(policy.parameters())[-1].data[::2] = 1.0
    return policy.eval()


def test_the_lamp_says_which_door_is_closed() -> None:
    assert map_by_lamp(OPEN, 1) == map_by_lamp(OPEN, -1) == TWO_ROUTES_MAP
    for lamp, (row, column) in DOORS.items():
        cells = map_by_lamp(CLOSED, lamp)
        changed = [
            (i, j) for i, line in enumerate(cells) for j, cell in enumerate(line)
            if cell != TWO_ROUTES_MAP[i][j]
        ]  # fmt: skip
        assert changed == [(row, column)] and cells[row][column] == 1


def test_paths_start_at_the_episodes_starts_and_end_where_the_ball_is_held() -> None:
    paths, success, lamp = trajectories(driving_right(CLOSED), CLOSED, episodes=6, seed=3)
    assert {*lamp} == {1.0, -1.0} and not success.any()
    starts = np.stack([path[0] for path in paths])
    assert (starts[:, 0] < -2).all() and np.ptp(starts[:, 1]) > 0.5
    assert all(path[-1, 0] > path[0, 0] + 1 for path in paths)


@pytest.mark.parametrize(("envs", "rows"), [([OPEN, CLOSED], 2), ([BEFORE], 1)])
def test_a_maze_with_a_lamp_is_drawn_once_for_each_thing_that_it_says(
    envs: list[str], rows: int, tmp_path: Path
) -> None:
    contract = {"env": envs[0], "control_rate": 25.0, "act_steps": 2}
    save_bundle(driving_right(envs[0]), tmp_path / "bundle", contract=contract, onnx=False)
    panels = [{"title": f"panel {env}", "run": "mine", "env": env} for env in envs]
    figure = {"seed": 0, "episodes": 4, "eval_seed": 500, "open": envs[0], "panels": panels}
    draw(figure, SuiteRuns({("mine", 0): tmp_path / "bundle"}), tmp_path / "figure.png")
    height, width, _ = image.imread(tmp_path / "figure.png").shape
    assert height / width == pytest.approx((0.75 + 3.15 * rows) / (3.15 * len(envs)), rel=0.02)
