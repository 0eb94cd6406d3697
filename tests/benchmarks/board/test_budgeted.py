"""What searches find among candidates: held against the definition, played out in a plain loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab.benchmarks.board import budgeted
from trimtab.benchmarks.board.budgeted import search
from trimtab.benchmarks.training.rows import EpisodeRow, episodes_table
from trimtab.types import TrimtabError

GOOD, FAIR, BAD = (np.full(20, value) for value in (10.0, 5.0, -3.0))


def by_hand(
    candidates: list[np.ndarray], episodes: int, trials: int, seed: int
) -> tuple[float, ...]:
    """Return the mean of what is found after each episode: the definition, one play at a time."""
    rng = np.random.default_rng(seed)
    width = max(one.max() for one in candidates) - min(one.min() for one in candidates)
    found = np.zeros((trials, episodes))
    for trial in range(trials):
        seen: list[list[float]] = [[] for _ in candidates]
        for n in range(episodes):
            fresh = [arm for arm, got in enumerate(seen) if not got]
            if fresh:
                arm = int(rng.choice(fresh))
            else:
                worth = [
                    float(np.mean(got)) + width * np.sqrt(2 * np.log(n) / len(got)) for got in seen
                ]
                arm = int(rng.choice(np.flatnonzero(np.array(worth) == max(worth))))
            seen[arm].append(float(rng.choice(candidates[arm])))
            looks = [float(np.mean(got)) if got else -np.inf for got in seen]
            taken = int(rng.choice(np.flatnonzero(np.array(looks) == max(looks))))
            found[trial, n] = candidates[taken].mean()
    return tuple(found.mean(axis=0))


def test_it_is_the_bandit_played_one_by_one() -> None:
    rng = np.random.default_rng(0)
    candidates = [rng.normal(mean, 2.0, 30) for mean in (0.0, 1.0, 2.0, -4.0)]
    found, known = search(candidates, policies=4, episodes=25, trials=4000, seed=1)
    expected = by_hand(candidates, 25, 400, seed=2)
    deviation = np.std([one.mean() for one in candidates])
    np.testing.assert_allclose(found.mean(axis=0), expected, atol=4 * deviation / np.sqrt(400))
    assert (known == max(one.mean() for one in candidates)).all()


def test_scores_that_do_not_vary_are_known_after_one_play_each() -> None:
    found, known = search([GOOD, FAIR, BAD], policies=3, episodes=9, trials=200)
    assert (found[:, 2:] == 10.0).all() and (known == 10.0).all()
    # After one play it is whichever was played, also where its mean is below 0.
    assert {*found[:, 0]} == {10.0, 5.0, -3.0}


def test_fewer_are_drawn_than_there_are() -> None:
    _, known = search([GOOD, FAIR, BAD], policies=2, episodes=1, trials=3000)
    assert known.mean() == pytest.approx((10 + 10 + 5) / 3, abs=0.15)
    one, _ = search([BAD], policies=8, episodes=3, trials=2)
    assert (one == -3.0).all()


def test_a_scale_of_scores_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    candidates = [rng.normal(mean, 1.0, 10) for mean in (0.0, 0.5, 1.0)]
    found, _ = search(candidates, trials=50, episodes=30)
    larger, _ = search([1024 * one for one in candidates], trials=50, episodes=30)
    np.testing.assert_allclose(larger, 1024 * found)


@pytest.mark.parametrize(
    ("candidates", "words", "told"),
    [
        ([], {}, "needs at least one score"),
        ([np.array([np.nan])], {}, "NaN or infinite"),
        ([GOOD], {"episodes": 0}, "episodes=0: must be at least 1"),
        ([GOOD], {"policies": 0}, "policies=0: must be at least 1"),
    ],
)
def test_what_cannot_be_searched(
    candidates: list[np.ndarray], words: dict[str, int], told: str
) -> None:
    with pytest.raises(TrimtabError, match=told):
        search(candidates, **words)


def test_all_settings_and_seeds_of_a_method_are_its_candidates(tmp_path: Path) -> None:
    """Only the last evaluation counts, and data of another kind is another row."""
    rows = [
        EpisodeRow(
            env="gym/X-v0", algorithm=method, seed=seed, env_steps=0, updates=updates,
            eval_episode=episode, eval_seed=episode, return_=value if updates == 2 else 99.0,
            length=5, config_hash=f"{method}{setting}{data}", policy=None, base=None,
            fingerprint="f", success=None, dataset=data,
        )
        for method, data, values in (
            ("iql", "medium", (1.0, 3.0)), ("iql", "expert", (7.0,)), ("cql", "medium", (2.0,)),
        )
        for setting, value in enumerate(values)
        for seed in (0, 1)
        for updates in (1, 2)
        for episode in range(3)
    ]  # fmt: skip
    table = episodes_table(rows)
    found = budgeted.build(table, budgets=(1, 20), trials=50)
    assert [(one.method, one.candidates, one.blind, one.known) for one in found] == [
        ("iql (expert)", 2, 7.0, 7.0), ("iql (medium)", 4, 2.0, 3.0), ("cql (medium)", 2, 2.0, 2.0)
    ]  # fmt: skip
    assert [choice.score.value for choice in found[1].choices][1] == 3.0
    paths = budgeted.write(table, tmp_path)
    assert "| iql (medium) | 4 | 2 |" in paths["budgeted.md"].read_text()
    assert len(paths["budgeted.csv"].read_text().splitlines()) == 1 + 3 * 7


def test_without_rows_it_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match=r"^budgeted scores: no episode rows; evaluate a run"):
        budgeted.write(episodes_table([]), tmp_path)
    assert list(tmp_path.iterdir()) == []
