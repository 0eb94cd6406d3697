"""The study of what a policy keeps of several ways: counts with known answers, and one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.benchmarks.board.modes import CONTROL, read_modes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.shapes import spec_of
from trimtab.benchmarks.training.train import train
from trimtab.envs.families.robotics.mazes import TWO_ROUTES_MAP, with_walls
from trimtab.envs.families.robotics.nearer import Ways
from trimtab.envs.registry import get_spec, make
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy

FOUR = "robotics/PointMaze-FourGoals-v0"
TWO = "robotics/PointMaze-TwoRoutes-v0"


@pytest.fixture
def modes(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a few draws from two starts."""
    found = load_module(root / "benchmarks" / "results" / "from-nothing" / "modes.py")
    monkeypatch.setattr(found, "STARTS", 2)
    monkeypatch.setattr(found, "DRAWS", 4)
    return found


def test_ways_are_read_off_places(modes: Any) -> None:
    for way, end in enumerate(((1.6, 0.1), (0.2, 1.7), (-1.6, -0.3), (0.0, -1.7))):
        assert modes.goal_taken(np.array([[0.0, 0.0], end])) == way
    for way, side in ((0, 1.0), (1, -1.0)):
        path = np.array([(-2.5, 0.0), (-1.5, 3.0 * side), (0.2, 3.0 * side), (1.5, 0.2)])
        assert modes.route_taken(path) == way


def test_from_the_starts_of_the_study_both_routes_are_about_as_long(modes: Any) -> None:
    """By the lengths of ways through the maze with the one or the other corridor walled up."""
    modes.STARTS = 12
    walls = [with_walls(TWO_ROUTES_MAP, [(row, 3), (row, 4)]) for row in (7, 1)]
    ways, seeds = [Ways(cells) for cells in walls], modes.even_seeds(TWO, dense=True)
    env, uneven = make(TWO, dense=True), []
    for seed in range(min(seeds), max(seeds) + 1):
        obs = env.reset(seed=seed)[0]
        above, below = (way.to(obs[None, 4:6])(obs[:2]) for way in ways)
        if seed in seeds:
            assert abs(above - below) < 0.75, (obs, above, below)
        else:
            uneven.append(abs(above - below))
    assert len(seeds) == 12 and min(uneven) > 0.45 and max(uneven) > 2
    assert modes.even_seeds(FOUR) == [*range(modes.FIRST_SEED, modes.FIRST_SEED + 12)]


def test_draws_from_one_start_differ_by_the_policys_noise_alone(modes: Any) -> None:
    torch.manual_seed(0)
    spec = spec_of(get_spec(FOUR), 1, "flat")
    policy = TanhGaussianPolicy(spec, hidden=(8,))
    success, (places, others) = modes.play(policy, FOUR, [50_001, 50_002])
    assert success.shape == (2, 4) and len({tuple(one[0]) for one in others}) == 1
    assert tuple(places[0][0]) != tuple(others[0][0])
    assert len({tuple(one[0]) for one in places}) == 1
    assert len({tuple(one[3]) for one in places}) == len(places) == 4


def test_a_policy_that_goes_right_keeps_one_way_and_fails_where_it_is_closed(modes: Any) -> None:
    spec = spec_of(get_spec(FOUR), 1, "flat")
    policy = DeterministicPolicy(spec, hidden=(8,))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        last = [one for one in policy.parameters() if one.shape == (2,)][-1]
        last.copy_(torch.tensor([2.0, 0.0]))
    rows = modes.measure(policy, FOUR)
    assert rows == [
        {"start": start, "draws": 4, "ways": "4 0 0 0", "closed": 0} for start in range(2)
    ]
    # Where a goal was closed while it learned, no other room says what is lost by closing one.
    assert modes.measure(policy, FOUR, closed="up") == [{**row, "closed": None} for row in rows]


def test_a_run_is_measured_once(modes: Any, tmp_path: Path) -> None:
    words = [
        f"env={FOUR}", "algorithm=td3", "online_steps=20", "algorithm.warmup_steps=10",
        "eval_episodes=1", f"out={tmp_path}",
    ]  # fmt: skip
    # A run has its seed wherever its folder lies.
    folder = str(train(compose_run([*words, "seed=3"])).folder.rename(tmp_path / "elsewhere"))
    out = tmp_path / "modes.csv"
    assert modes.main([f"out={out}", folder]) == 0
    first = out.read_text(encoding="utf-8")
    (found,) = read_modes(out)
    assert found.env == FOUR and found.seed == 3 and len(found.entropy) == 2
    assert modes.main([f"out={out}", folder]) == 0 and out.read_text(encoding="utf-8") == first
    out.write_text("a,b\n1,2\n", encoding="utf-8")
    assert modes.main([f"out={out}", folder]) == 2


def test_pushes_at_random_are_the_control(modes: Any, tmp_path: Path) -> None:
    out = tmp_path / "modes.csv"
    assert modes.main([f"out={out}", "random"]) == 0
    first = out.read_text(encoding="utf-8")
    four, two = read_modes(out)
    assert (four.env, two.env) == (FOUR, TWO) and four.config_hash == two.config_hash == CONTROL
    assert modes.main([f"out={out}", "random"]) == 0 and out.read_text(encoding="utf-8") == first


def test_wrong_words_are_one_line(modes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert modes.main([]) == 2
    assert capsys.readouterr().err == "modes: give out=modes.csv and folders of runs\n"
