"""Normalised scores, against numbers that are worked out by hand from D4RL's own references."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.benchmarks.board import normalised
from trimtab.benchmarks.runs.rows import EpisodeRow, episodes_table
from trimtab.envs.registry import list_tasks


def rows(env: str, seed: int, points: list[tuple[int, float]]) -> list[EpisodeRow]:
    """Return two episodes an evaluation, one of each side of its mean."""
    return [
        EpisodeRow(
            env=env, algorithm="bc", seed=seed, env_steps=0, updates=updates,
            eval_episode=episode, eval_seed=episode, return_=mean + 2 * episode - 1, length=5,
            config_hash="bc", policy=None, base=None, fingerprint="f", success=None,
        )
        for updates, mean in points
        for episode in (0, 1)
    ]  # fmt: skip


def test_the_last_and_the_best_by_each_pair_of_references(tmp_path: Path) -> None:
    half = (3234.3 - 20.272305) / 2  # half of the way for D4RL
    table = episodes_table(
        [
            *rows("gym/Hopper-v5", 0, [(50, 2000.0), (100, half + 100)]),
            *rows("gym/Hopper-v5", 1, [(50, 100.0), (100, half - 100)]),
            *rows("gym/Swimmer-v5", 0, [(50, 10.0)]),  # it has no references
            *rows("mine/Unknown-v0", 0, [(50, 10.0)]),
        ]
    )
    found = {one.references: one for one in normalised.build(table)}
    assert set(found) == set(list_tasks()["gym/Hopper-v5"].score_references)
    theirs, ours = found["d4rl-v2"], found["trimtab-v0"]
    assert theirs.seeds == 2
    assert theirs.last.value == pytest.approx(50.0)
    assert theirs.last.low < 50.0 < theirs.last.high
    scale = 3234.3 + 20.272305
    assert theirs.best == pytest.approx(100 * ((2000 + half - 100) / 2 + 20.272305) / scale)
    low, high = list_tasks()["gym/Hopper-v5"].score_references["trimtab-v0"]
    assert ours.last.value == pytest.approx(100 * (half - low) / (high - low))
    paths = normalised.write(table, tmp_path)
    text = paths["normalised.md"].read_text()
    assert "| bc | 1,607 [" in text
    assert "trimtab-v0, last [95%]" in text
    assert "Swimmer" not in text
    assert paths["normalised.csv"].read_text().startswith("env,dataset,label,references,minimum")


def test_nothing_is_written_where_no_task_has_references(tmp_path: Path) -> None:
    assert normalised.write(episodes_table(rows("gym/Swimmer-v5", 0, [(5, 1.0)])), tmp_path) == {}
    assert not list(tmp_path.iterdir())
