"""Held-out episodes: which they are, errors against a count by hand, and what is exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.benchmarks.training import held_out
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.held_out import HeldOut
from trimtab.benchmarks.training.run_judge import RunJudge
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.formats.minari.writer import save
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.types import PolicySpec, TrimtabError

outcome = load_module(Path(__file__).resolve().parent / "resumed.py").outcome


def episode(observations: Any, actions: Any) -> Episode:
    steps = len(actions)
    ends = np.arange(steps) == steps - 1
    return Episode(observations, actions, np.arange(steps), np.zeros(steps), ends)


def dataset_of(*episodes: Episode) -> Dataset:
    actions = episodes[0].actions.shape[1]
    return Dataset("own/x-v0", "unknown", {}, episodes, (-9.0,) * actions, (9.0,) * actions, 10.0)


def random_data(lengths: tuple[int, ...], seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return dataset_of(
        *(episode(rng.normal(size=(n + 1, 3)), rng.normal(size=(n, 2)) * [1, 3]) for n in lengths)
    )


@pytest.mark.parametrize(("window", "history"), [(1, 1), (3, 1), (4, 2)])
@pytest.mark.parametrize("kind", [GaussianPolicy, FlowPolicy])
def test_errors_are_those_of_a_count_step_by_step(window: int, history: int, kind: Any) -> None:
    training, judged = random_data((9, 4, 7), 1), random_data((5, 1, 6), 2)
    spec = PolicySpec(3 * history, window, 2, (-9.0, -9.0), (9.0, 9.0), history=history)
    torch.manual_seed(0)
    policy = kind(spec, hidden=[8])
    looked = HeldOut(training, judged, window=window, history=history, seed=7)
    before = torch.random.get_rng_state()
    found = looked.judge(policy, deterministic=False)
    assert torch.equal(before, torch.random.get_rng_state())

    deviation = np.concatenate([e.actions for e in training.episodes]).astype(float).std(0)
    noise = np.random.Generator(np.random.Philox(7)).standard_normal(
        (12, *policy.noise_shape), dtype=np.float32
    )
    row, scaled, raw = 0, [], []
    by_step: list[list[float]] = [[] for _ in range(window)]
    for one in judged.episodes:
        for step in range(len(one)):
            past = [max(step - window * back, 0) for back in range(history)][::-1]
            seen = one.observations[past] if history > 1 else one.observations[step]
            with torch.no_grad():
                chunk = policy(torch.tensor(seen)[None], torch.tensor(noise[row : row + 1]))[0]
            row += 1
            for ahead in range(min(window, len(one) - step)):
                difference = np.abs(chunk[ahead].numpy() - one.actions[step + ahead].astype(float))
                raw.append(difference)
                scaled.append((difference / deviation).mean())
                by_step[ahead].append(scaled[-1])
    assert looked.steps == row == 12
    assert found.error == pytest.approx(np.mean(scaled), rel=1e-5)
    assert found.by_dimension == pytest.approx(np.mean(raw, axis=0), rel=1e-5)
    assert found.by_step == pytest.approx([np.mean(x) for x in by_step], rel=1e-5)


def test_controls_are_what_a_hand_computes() -> None:
    training = dataset_of(episode([[0], [1], [2], [9]], [[0], [2], [4]]))  # mean 2
    judged = dataset_of(episode([[0.9], [2.2], [0]], [[1], [5]]))
    unit = np.std([0, 2, 4])
    controls = HeldOut(training, judged, window=2).controls
    # Nearest are the second step, with the chunk (2, 4), and the third, with (4, its last again).
    assert controls["nearest neighbour"].by_step == pytest.approx(
        ((1 + 1) / 2 / unit, 1 / unit), rel=1e-6
    )
    assert controls["previous action"].by_dimension == pytest.approx(((1 + 3 + 4) / 3,))
    assert controls["mean action"].error == pytest.approx((1 + 3 + 3) / 3 / unit)


def test_of_many_steps_some_at_even_distances_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "MOST_JUDGED", 5)
    monkeypatch.setattr(held_out, "MOST_NEIGHBOURS", 3)
    looked = HeldOut(random_data((30,)), random_data((4, 5), 3), window=2)
    assert looked.steps == 5
    assert looked._taken[:, 0].tolist() == pytest.approx(
        np.concatenate([e.actions for e in random_data((4, 5), 3).episodes])[::2].astype(float)
    )


def words(folder: Path, *more: str) -> list[str]:
    return [
        f"dataset={folder}", "algorithm=bc", "policy=gaussian", "policy.hidden=[64]",
        "algorithm.batch_size=16", "algorithm.learning_rate=0.01", "algorithm.ema_decay=0.5",
        "offline_steps=60", "eval_every=10", "checkpoint_every=10", "holdout=0.3",
        f"out={folder.parent / 'runs'}", *more,
    ]  # fmt: skip


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """Actions that nothing tells: what is learned of them only makes new ones worse."""
    save(random_data((12,) * 7), tmp_path / "noise")
    return tmp_path / "noise"


def test_the_split_is_by_episode_and_follows_from_the_seed(noise: Path) -> None:
    def numbers(seed: int) -> tuple[int, ...]:
        plan = checked_plan(compose_run(words(noise, f"seed={seed}")))
        split = plan.split
        assert split.training is not None and split.held_out is not None
        assert len(split.training) == 5 and plan.dataset is not None
        for held, number in zip(split.held_out.episodes, split.numbers, strict=True):
            np.testing.assert_array_equal(held.actions, plan.dataset.episodes[number].actions)
        return split.numbers

    drawn = [numbers(seed) for seed in range(4)]
    assert numbers(0) == drawn[0] and len(set(drawn)) > 1
    hashes = {checked_plan(compose_run(words(noise, f"seed={x}"))).config_hash for x in (0, 1)}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["holdout=0"], "holdout=0: must be above 0 and below 1"),
        (["holdout=.97"], "of the 7 episode.s. of dataset own/x-v0 none would be left"),
        (["stream_above=0"], "is streamed from disk and cannot be split"),
        (["stop_after=2", "eval_every=null"], "needs evaluations; set eval_every"),
        (["stop_after=2", "holdout=null"], "needs the held-out error; set holdout"),
        (["stop_after=0"], "stop_after=0: must be at least 1"),
    ],
)
def test_a_wrong_holdout_is_one_line(noise: Path, more: list[str], told: str) -> None:
    given = [word for word in words(noise) if word.split("=")[0] not in str(more)]
    with pytest.raises(TrimtabError, match=told):
        train(compose_run([*given, *more]))


def test_the_best_policy_is_exported_and_a_stopped_run_ends_in_the_same_bits(
    noise: Path, stopped_at: Callable[[int], Any]
) -> None:
    whole = train(compose_run(words(noise, "stop_after=2", "keep_policies=true")))
    found = whole.summary["held_out"]
    curve = {e["updates"]: e["held_out_error"] for e in whole.summary["evaluations"]}
    best = min(curve, key=lambda update: curve[update])
    assert found["ended_early"] and found["best_at"] == best < whole.summary["updates"] < 60
    assert "stopped_early" not in whole.summary  # that is of callbacks, and would go on
    assert train(compose_run(words(noise, "stop_after=2", "keep_policies=true"))).already_done
    # The last evaluation is that of the exported policy, the best one.
    assert found["error"] == curve[whole.summary["updates"]] == curve[best]
    kept = whole.folder / "policies" / str(best) / "model.safetensors"
    assert kept.read_bytes() == (whole.folder / "policy" / "model.safetensors").read_bytes()
    training = json.loads((whole.folder / "policy" / "config.json").read_text())["training"]
    assert training["best_of_held_out"] == best and training["held_out_error"] == found["error"]

    elsewhere = words(noise, "stop_after=2", "keep_policies=true")
    elsewhere[-3] = f"out={noise.parent / 'again'}"
    for position in (7, best + 5, whole.summary["updates"]):
        with stopped_at(position):
            train(compose_run(elsewhere))
    assert outcome(train(compose_run(elsewhere)).folder) == outcome(whole.folder)


def test_a_policy_that_rests_while_others_learn_does_not_end_a_run(noise: Path) -> None:
    config = compose_run(words(noise, "stop_after=2"))
    judge = RunJudge(checked_plan(config), policy := gaussian())
    for update in (1, 2, 3, 4):
        judge.judge(policy, update, lambda: None)
    assert not judge.exhausted
    for update in (5, 6):
        with torch.no_grad():
            next(policy.parameters()).add_(3.0)
        judge.judge(policy, update, lambda: None)
    assert judge.exhausted


def test_actions_that_are_not_finite_are_one_line() -> None:
    policy = gaussian()
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(TrimtabError, match="on held-out episodes are not finite"):
        HeldOut(random_data((4,)), random_data((4,)), window=1).judge(policy, deterministic=True)


def gaussian() -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(PolicySpec(3, 1, 2, (-9.0, -9.0), (9.0, 9.0)), hidden=[8])
