"""Normalised scores, against numbers that are worked out by hand from D4RL's own references."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from trimtab.benchmarks.board import normalised, published
from trimtab.benchmarks.training.rows import EpisodeRow, episodes_table
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


def test_one_setting_and_published_settings_are_two_tables(tmp_path: Path) -> None:
    def of(digest: str, mean: float, env: str = "gym/Hopper-v5") -> list[EpisodeRow]:
        return [dataclasses.replace(row, config_hash=digest) for row in rows(env, 0, [(9, mean)])]

    table = episodes_table(
        [
            *of("one", 100.0),
            *of("tuned", 300.0),
            *of("plain", 200.0),
            *of("two", 50.0, "gym/Walker2d-v5"),
        ]
    )
    names = {"one": "rebrac", "tuned": "rebrac~published", "plain": "bc", "two": "rebrac"}

    def labels(found: list[normalised.Normalised]) -> set[tuple[str, str]]:
        return {(one.env.removeprefix("gym/"), one.label) for one in found}

    walker = {("Walker2d-v5", "rebrac")}
    best = {("Hopper-v5", "rebrac~published"), ("Hopper-v5", "bc")}
    assert labels(published.build(table, names)) == best | walker
    tables = normalised.write(table, tmp_path, names) | published.write(table, tmp_path, names)
    assert "~published" not in tables["normalised.md"].read_text()
    assert "| rebrac | 100 [" in tables["normalised.md"].read_text()
    assert "| rebrac~published | 300 [" in tables["published.md"].read_text()
    assert "| rebrac | 100 [" not in tables["published.md"].read_text()
    del names["tuned"]  # nobody set anything for a dataset: no second table
    assert published.write(table.slice(0, 2), tmp_path / "none", names) == {}


def test_nothing_is_written_where_no_task_has_references(tmp_path: Path) -> None:
    assert normalised.write(episodes_table(rows("gym/Swimmer-v5", 0, [(5, 1.0)])), tmp_path) == {}
    assert not list(tmp_path.iterdir())
