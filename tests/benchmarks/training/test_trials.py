"""A method whose run judges what it proposes: budget, seeds, the judge and resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from played import evaluate

from trimtab.algorithms.phases import Outcome
from trimtab.benchmarks.cli.screen import print_result
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check, train
from trimtab.benchmarks.training.trials import TrialJudge
from trimtab.policies.bundle.bundle import bundle_hash, load_bundle
from trimtab.types import TrimtabError

OPTIONS = {"horizon": 28, "reward": "native", "terminate_on_success": False}


@pytest.fixture
def words(tiny: Any, tmp_path: Path) -> list[str]:
    return [
        *tiny.task(tmp_path / "runs"), "algorithm=golden_ticket", f"base={tiny.base}",
        "algorithm.tickets=5", "algorithm.episodes=3", "online_steps=10000", "eval_every=150",
        "checkpoint_every=60",
    ]  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    kept = ("updates", "env_steps", "return", "success", "eval_seed", "length")
    table = read_episodes(folder / "episodes.parquet").to_pylist()
    return [{name: row[name] for name in kept} for row in table]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Spy:
    """Keeps what trials came to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seeds: list[int] = []
        self.outcomes: list[Outcome] = []
        self.latents: list[torch.Tensor] = []
        judge = TrialJudge.judge

        def spied(one: TrialJudge, trial: Any, stop: Any) -> tuple[Outcome, int]:
            outcome, steps = judge(one, trial, stop)
            self.seeds.append(one.first_seed + trial.first)
            self.outcomes.append(outcome)
            self.latents.append(trial.policy.latent.clone())
            return outcome, steps

        monkeypatch.setattr(TrialJudge, "judge", spied)


def test_a_search_is_what_trying_each_ticket_by_hand_is(
    words: list[str], tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    result = train(compose_run(words))
    assert len(spy.outcomes) == 5 and len(set(spy.seeds)) == 1
    searched = range(spy.seeds[0], spy.seeds[0] + 3)
    judged = {row["eval_seed"] for row in rows(result.folder)}
    assert judged == {1_000_000, 1_000_001} and not judged & set(searched)
    # By hand: the base with each latent, on the same seeds, by the public judge.
    policy: Any = load_bundle(result.folder / "policy").policy
    by_hand = []
    for latent, outcome in zip(spy.latents, spy.outcomes, strict=True):
        policy.latent.copy_(latent)
        scores = evaluate(
            policy, "robotics/PointMaze-TwoRoutes-v0", episodes=3, seed=spy.seeds[0],
            act_steps=4, options=OPTIONS,
        ).episodes  # fmt: skip
        assert outcome.returns.tolist() == pytest.approx([one.return_ for one in scores])
        assert outcome.success.tolist() == [float(bool(one.success)) for one in scores]
        assert outcome.steps.tolist() == [one.length for one in scores]
        by_hand.append(
            (np.mean([bool(one.success) for one in scores]), np.mean([o.return_ for o in scores]))
        )
    best = max(range(5), key=lambda i: tuple(map(float, by_hand[i])))
    policy = load_bundle(result.folder / "policy").policy
    assert torch.equal(policy.latent, spy.latents[best])


def test_steps_of_trials_are_the_runs_and_the_search_may_end_before_its_budget(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    result = train(compose_run(words))
    taken = [int(outcome.steps.sum()) for outcome in spy.outcomes]
    assert result.summary["env_steps"] == sum(taken) < 10_000
    assert result.summary["updates"] == 5 and result.summary["all_tried"] is True
    assert [line["env_steps"] for line in lines(result.folder)] == np.cumsum(taken).tolist() + [
        sum(taken)
    ]
    found = rows(result.folder)
    # Evaluations stand where 150 steps are crossed, and once at the end.
    total, due = 0, []
    for steps in taken[:-1]:
        total += steps
        if total // 150 > (total - steps) // 150:
            due.append(total)
    assert sorted({row["env_steps"] for row in found}) == [*due, sum(taken)]
    assert len(found) == 2 * (len(due) + 1)


def test_a_trial_that_might_not_end_in_time_does_not_begin(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spy = Spy(monkeypatch)
    # Three episodes of 28 steps: two trials fit into 250 steps if none ends early, a third may not.
    words = [word for word in words if not word.startswith("online_steps=")]
    result = train(compose_run([*words, "online_steps=250"]))
    taken = [int(outcome.steps.sum()) for outcome in spy.outcomes]
    assert result.summary["env_steps"] == sum(taken) <= 250
    assert 250 - sum(taken) < 3 * 28 and result.summary["all_tried"] is False
    print_result(str(result.folder), result.summary, already_done=False)
    assert "before all was tried; online_steps= gives it more" in capsys.readouterr().out
    best: Any = load_bundle(result.folder / "policy").policy
    assert any(torch.equal(best.latent, latent) for latent in spy.latents)


def test_the_second_stage_has_seeds_of_its_own(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    train(compose_run([*words, "algorithm.finalists=2", "algorithm.final_episodes=4"]))
    assert [len(one.steps) for one in spy.outcomes] == [3] * 5 + [4] * 2
    first = spy.seeds[0]
    assert spy.seeds == [first] * 5 + [first + 3] * 2


@pytest.mark.bits
def test_a_search_that_is_stopped_goes_on_to_the_same_bits(
    words: list[str], tmp_path: Path, stopped_at: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    words = [*words, "algorithm.finalists=2", "algorithm.final_episodes=2"]
    whole = train(compose_run(words))
    stopped = [word for word in words if not word.startswith("out=")]
    stopped.append(f"out={tmp_path / 'stopped'}")
    for moment in (90, 250, 440):
        with stopped_at(moment):
            train(compose_run(stopped))
        torch.manual_seed(moment)
    # Once more in the middle of a trial: its steps are taken again, and counted once.
    decisions = []

    def interrupted(run: Any) -> None:
        decisions.append(run)
        if len(decisions) == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Run, "_check_stop", interrupted)
        train(compose_run(stopped))
    again = train(compose_run(stopped))
    assert bundle_hash(again.folder / "policy") == bundle_hash(whole.folder / "policy")
    assert rows(again.folder) == rows(whole.folder)
    timeless = [
        [{name: value for name, value in line.items() if name != "seconds"} for line in lines(one)]
        for one in (whole.folder, again.folder)
    ]
    assert timeless[0] == timeless[1]


def test_seeds_of_another_run_are_others_and_always_apart(words: list[str]) -> None:
    firsts = set()
    for seed in range(5):
        for eval_seed in (0, 1_000_000, 2**32 - 20):
            config = compose_run([*words, f"seed={seed}", f"eval_seed={eval_seed}"])
            first = TrialJudge(checked_plan(config)).first_seed
            assert not set(range(first, first + 10_000)) & {eval_seed, eval_seed + 1}
            assert first + 10_000 < 2**32
            firsts.add(first)
    assert len(firsts) == 15


def test_a_budget_that_holds_no_trial_is_refused_in_one_line(
    words: list[str], tmp_path: Path
) -> None:
    words = [word for word in words if not word.startswith("online_steps=")]
    for steps, told in (
        (83, "online_steps=83: one trial of golden_ticket is 3 episodes of up to 28 steps; give"),
        (0, "online_steps=0: it searches by acting"),
    ):
        for carry_out in (train, check):
            with pytest.raises(TrimtabError, match=told) as error:
                carry_out(compose_run([*words, f"online_steps={steps}"]))
            assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()
