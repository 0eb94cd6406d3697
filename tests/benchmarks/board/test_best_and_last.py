"""First, best and last evaluations, against curves that are read off by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab.benchmarks.board import best_and_last
from trimtab.benchmarks.board.best_and_last import held_out_best
from trimtab.benchmarks.training.rows import EpisodeRow, episodes_table


def rows(seed: int, means: list[float], every: int = 100) -> list[EpisodeRow]:
    """Return two episodes an evaluation, one of each side of its mean."""
    return [
        EpisodeRow(
            env="gym/X-v0", algorithm="iql", seed=seed, env_steps=0, updates=every * (place + 1),
            eval_episode=episode, eval_seed=episode, return_=mean + 2 * episode - 1, length=5,
            config_hash="iql", policy=None, base=None, fingerprint="f", success=None,
        )
        for place, mean in enumerate(means)
        for episode in (0, 1)
    ]  # fmt: skip


def test_the_best_in_hindsight_and_by_the_other_seeds(tmp_path: Path) -> None:
    # The means over the seeds are 20, 60, 40. Without seed 0 the third is best, without seed 1 the
    # second, without seed 2 the second.
    curves = [[10.0, 90.0, 20.0], [20.0, 20.0, 90.0], [30.0, 70.0, 10.0]]
    table = episodes_table([row for seed, curve in enumerate(curves) for row in rows(seed, curve)])
    (found,) = best_and_last.build(table)
    assert (found.first.value, found.last.value) == pytest.approx((20.0, 40.0))
    assert (found.best, found.updates_at_best) == (pytest.approx(60.0), 200)
    assert found.held_out == pytest.approx((20 + 20 + 70) / 3)
    assert (found.seeds, found.updates) == (3, 300)
    paths = best_and_last.write(table, tmp_path)
    text = paths["best_and_last.md"].read_text()
    assert "| 60 | 200 | 37 | 40 [" in text
    assert paths["best_and_last.csv"].read_text().startswith("env,dataset,metric,label,seeds")


def test_a_choice_by_others_is_not_flattered_and_one_in_hindsight_is() -> None:
    """Evaluations that differ by luck alone: their mean is 0, and the best of them is above it."""
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(500, 3, 30))
    held_out = [held_out_best(means) or 0.0 for means in drawn]
    assert abs(np.mean(held_out)) < 4 * np.std(held_out) / np.sqrt(len(held_out))
    assert drawn.mean(1).max(1).mean() > 1.0


def test_of_one_seed_nothing_is_held_out() -> None:
    table = episodes_table(rows(0, [1.0, 3.0, 2.0]))
    (found,) = best_and_last.build(table)
    assert (found.best, found.updates_at_best, found.held_out) == (3.0, 200, None)
    assert "| 3 | 200 | – | 2 [" in best_and_last.to_markdown([found])


def test_only_what_all_seeds_have_is_compared() -> None:
    (found,) = best_and_last.build(
        episodes_table([*rows(0, [1.0, 2.0, 9.0]), *rows(1, [3.0, 4.0])])
    )
    assert (found.last.value, found.updates) == (3.0, 200)


def test_with_one_evaluation_nothing_is_written(tmp_path: Path) -> None:
    assert best_and_last.write(episodes_table(rows(0, [1.0])), tmp_path) == {}
    assert best_and_last.write(episodes_table([]), tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
