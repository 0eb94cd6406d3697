"""The numbers of a switch from data to interaction, against curves that are counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.benchmarks.board import switch
from trimtab.benchmarks.board.switch import steps_to_recover
from trimtab.benchmarks.training.rows import EpisodeRow, episodes_table


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5, 6, 7], 0),  # never below
        ([3, 4, 5], 300),
        ([3, 6, 4, 5], 400),  # below once more after it was back
        ([3, 6, 4], None),
    ],
)
def test_steps_to_recover(scores: list[float], expected: int | None) -> None:
    curve = [(100 * (place + 1), score) for place, score in enumerate(scores)]
    assert steps_to_recover(curve, 5) == expected


def rows(method: str, seed: int, points: list[tuple[int, int, float]]) -> list[EpisodeRow]:
    """Return two episodes an evaluation, one of each side of its mean."""
    return [
        EpisodeRow(
            env="gym/X-v0", algorithm=method, seed=seed, env_steps=steps, updates=updates,
            eval_episode=episode, eval_seed=episode, return_=mean + 2 * episode - 1, length=5,
            config_hash=method, policy=None, base=None, fingerprint="f", success=None,
        )
        for steps, updates, mean in points
        for episode in (0, 1)
    ]  # fmt: skip


def test_drop_recovery_and_area_of_two_seeds(tmp_path: Path) -> None:
    table = episodes_table(
        [
            *rows("iql", 0, [(0, 50, 0.0), (0, 100, 10.0), (100, 200, 4.0), (200, 300, 12.0)]),
            *rows("iql", 1, [(0, 100, 10.0), (100, 200, 6.0), (200, 300, 8.0)]),
            *rows("bc", 0, [(0, 100, 10.0)]),  # it stays offline
            *rows("sac", 0, [(100, 100, 1.0), (200, 200, 2.0)]),  # it starts from nothing
        ]
    )
    (found,) = switch.build(table)
    assert (found.label, found.seeds, found.at_switch.value) == ("iql", 2, 10.0)
    assert found.drop == pytest.approx(-5.0)  # -6 and -4
    assert (found.recovered, found.lost) == (200.0, 1)
    assert found.final.value == pytest.approx(10.0)
    first, second = (10 + 4) / 4 + (4 + 12) / 4, (10 + 6) / 4 + (6 + 8) / 4
    assert found.area == pytest.approx((first + second) / 2)
    paths = switch.write(table, tmp_path)
    assert "| iql | 10" in paths["switch.md"].read_text()
    assert "| 200; never: 1 of 2 |" in paths["switch.md"].read_text()
    assert paths["switch.csv"].read_text().startswith("env,metric,label,seeds,drop,recovered,lost")


def test_without_a_switch_nothing_is_written(tmp_path: Path) -> None:
    assert switch.write(episodes_table(rows("bc", 0, [(0, 100, 1.0)])), tmp_path) == {}
    assert switch.write(episodes_table([]), tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
