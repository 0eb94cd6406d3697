"""What eats a run's budget, or cuts its search, is said when the run starts and in tables."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.algorithms.phases import Feed, Phase, Trial, Trials
from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.board.sources import collect
from trimtab.benchmarks.training.folder import read_result
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.spending import planned
from trimtab.benchmarks.training.train import train


def lines_of(*phases: Phase, warmup_steps: int = 0) -> list[str]:
    """Return what is said of a method with these phases, whose episodes have up to 100 steps."""
    method: Any = SimpleNamespace(pace=SimpleNamespace(warmup_steps=warmup_steps))
    judge: Any = SimpleNamespace(most_steps=lambda trial: trial.episodes * 100)
    return planned(phases, method, judge)


def learning(name: str, length: int, unit: Any) -> Phase:
    return Phase(name, length, unit, Feed.EXPERIENCE, lambda data: {})


@pytest.mark.parametrize(
    ("phases", "warmup_steps", "said"),
    [
        ([learning("online", 5000, "steps")], 4000, ["warm-up takes 4,000 of 5,000 steps"]),
        ([learning("online", 4000, "steps")], 1000, ["warm-up takes 1,000 of 4,000 steps"]),
        ([learning("online", 5000, "steps")], 1000, []),
        ([learning("offline", 5000, "updates")], 4000, []),
        (
            [Phase("look", 30, "steps", Feed.EXPERIENCE, None), learning("online", 70, "steps")],
            0,
            ["warm-up takes 30 of 100 steps"],
        ),
        (
            [learning("critic", 80, "updates"), learning("actor", 20, "updates")],
            0,
            ["the phase critic takes 80 of 100 updates"],
        ),
        ([learning("critic", 50, "updates"), learning("actor", 50, "updates")], 0, []),
        ([learning("critic", 80, "updates"), learning("online", 20, "steps")], 0, []),
    ],
)
def test_what_takes_much_of_a_budget_is_said(
    phases: list[Phase], warmup_steps: int, said: list[str]
) -> None:
    found = lines_of(*phases, warmup_steps=warmup_steps)
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))


@pytest.mark.parametrize(
    ("steps", "episodes", "said"),
    [
        (1000, (2,) * 25, "1,000 steps surely hold 5 of 25 trials; all of them take up to 5,000"),
        (1000, (2, 2, 8), "1,000 steps surely hold 2 of 3 trials; all of them take up to 1,200"),
        (1000, (2,) * 5, None),
        (1000, (), None),  # how many there will be is not known
    ],
)
def test_a_search_that_its_steps_may_not_hold_is_said(
    steps: int, episodes: tuple[int, ...], said: str | None
) -> None:
    policy: Any = None
    feed = Trials(lambda: Trial(policy, 2), episodes)
    found = lines_of(Phase("search", steps, "steps", feed, lambda outcome: {}))
    assert found == ([] if said is None else [said])


@pytest.mark.parametrize(
    ("method", "changes", "planned_line", "told"),
    [
        (
            "dsrl_sac",
            ["algorithm.warmup_steps=240"],
            "dsrl_sac: warm-up takes 240 of 320 steps, and nothing is learned in it",
            "warm-up takes 240 of 320 steps, and nothing is learned in it",
        ),
        (
            "golden_ticket",
            [
                "online_steps=320",
                "algorithm.tickets=9",
                "algorithm.finalists=1",
                "algorithm.final_episodes=4",
            ],
            "golden_ticket: 320 steps surely hold 5 of 10 trials; all of them take up to 616",
            r"the steps were spent after \d of 10 trials, before all was tried",
        ),
    ],
)
def test_a_run_says_it_at_its_start_and_its_table_too(
    method: str, changes: list[str], planned_line: str, told: str,
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    given = {word.partition("=")[0]: word for word in [*tiny.online(tmp_path, method), *changes]}
    result = train(compose_run([*given.values()]))
    assert planned_line in caplog.messages
    (line,) = read_result(result.folder)["spending"]
    assert re.match(told, line)
    table, sources = collect(tmp_path)
    board = build(table, sources=sources)
    assert f"{result.summary['env']}: {method}: {line}." in board.notes
