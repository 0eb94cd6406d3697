"""The study of what a policy keeps of several ways: counts with known answers, and one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.benchmarks.training.shapes import spec_of
from trimtab.envs.registry import get_spec
from trimtab.policies.kinds.deterministic import DeterministicPolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy

FOUR = "robotics/PointMaze-FourGoals-v0"


@pytest.fixture
def modes(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with a few draws from two starts."""
    found = load_module(root / "benchmarks" / "results" / "from-nothing" / "modes.py")
    monkeypatch.setattr(found, "STARTS", 2)
    monkeypatch.setattr(found, "DRAWS", 4)
    return found


def test_the_entropy_of_counts(modes: Any) -> None:
    assert modes.entropy(np.array([25.0, 0.0, 0.0, 0.0])) == 0.0
    assert modes.entropy(np.zeros(4)) == 0.0
    assert modes.entropy(np.full(4, 1e6)) == pytest.approx(2.0, abs=1e-5)
    assert modes.entropy(np.full(2, 50.0)) == 1.0  # never more than there is
    # Over many draws the corrected mean is the true entropy; without it, it is too small by 0.05.
    generator = np.random.default_rng(0)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    drawn = [modes.entropy(one) for one in generator.multinomial(25, shares, 4000).astype(float)]
    assert np.mean(drawn) == pytest.approx(-(shares * np.log2(shares)).sum(), abs=0.03)


def test_ways_are_read_off_places(modes: Any) -> None:
    for way, end in enumerate(((1.6, 0.1), (0.2, 1.7), (-1.6, -0.3), (0.0, -1.7))):
        assert modes.goal_taken(np.array([[0.0, 0.0], end])) == way
    for way, side in ((0, 1.0), (1, -1.0)):
        path = np.array([(-2.5, 0.0), (-1.5, 3.0 * side), (0.2, 3.0 * side), (1.5, 0.2)])
        assert modes.route_taken(path) == way


def test_draws_from_one_start_differ_by_the_policys_noise_alone(modes: Any) -> None:
    torch.manual_seed(0)
    spec = spec_of(get_spec(FOUR), 1, "flat")
    policy = TanhGaussianPolicy(spec, hidden=(8,))
    _, places = modes.play(policy, FOUR, start=1)
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
    found = modes.measure(policy, FOUR)
    assert found == {"success": 1.0, "entropy": 0.0, "ways": 1.0, "closed": 0.0}


def test_wrong_words_are_one_line(modes: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert modes.main([]) == 2
    assert capsys.readouterr().err == "modes: give out=modes.csv and folders of runs\n"
