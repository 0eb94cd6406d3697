"""Runs whose environments step in another process while the learner updates (``overlap=true``)."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from loading import load_module

from trimtab.algorithms.off_policy.sac import SAC
from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.experience import batch_spec_of
from trimtab.benchmarks.training.fits import check_method, checked_plan
from trimtab.benchmarks.training.random_states import set_random_states
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings_of import identity_words
from trimtab.benchmarks.training.train import train
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.envs.engines.process_vector import ProcessVectorEnv
from trimtab.envs.vector import make_vec
from trimtab.errors import Stopped, TrimtabError


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Each test ends all processes that it began; others may be of tests before it."""
    before = {*psutil.Process().children()}
    yield
    assert {*psutil.Process().children()} <= before


outcome = load_module(Path(__file__).resolve().parent / "resumed.py").outcome


def words_of(tiny: Any, out: Path, *more: str) -> list[str]:
    words = [*tiny.online(out, "sac"), "overlap=true", "algorithm.updates_per_decision=0.75", *more]
    return list({word.partition("=")[0]: word for word in words}.values())  # each given once


def in_another_order(words: list[str]) -> dict[str, Any]:
    """Return a learner's state after a loop that is written out here, with environments here."""
    plan = checked_plan(compose_run(words))
    config, initial = plan.config, plan.initial_state
    learner, count = initial.algorithm, config["num_envs"]
    set_random_states("cpu", initial.random)
    envs = make_vec(plan.env.id, count, seed=0, act_steps=4, **plan.env.options)
    spec = batch_spec_of(learner)
    buffer = ReplayBuffer(
        400, plan.env.obs_dim, (4, plan.env.action_dim), num_envs=count, discount=0.99,
        chunked=True, seed=0, batch_spec=spec,
    )  # fmt: skip
    obs, _ = envs.reset()
    steps, owed, made = 0, 0.0, 0

    def pay() -> None:
        nonlocal owed, made
        while owed >= 1:
            owed -= 1
            made += 1
            learner.update(buffer.sample(learner.pace.batch_size))

    while steps < config["online_steps"]:
        warmup = steps < learner.pace.warmup_steps
        with torch.no_grad():
            chunk = learner.explore(torch.as_tensor(obs), warmup=warmup)[0].numpy()
        pay()  # what the decision before made due, without the outcome of this one
        following, reward, terminated, truncated, infos = envs.step(chunk)
        ended = (terminated | truncated)[:, None]
        after = np.where(ended, infos["final_obs"], following)
        buffer.add(obs, chunk, reward, after, terminated, truncated, {}, infos["steps"])
        obs, steps = following, steps + int(infos["steps"].sum())
        if steps >= learner.pace.warmup_steps:
            owed += 0.75 * count
    pay()
    return {**learner.state_dict(), "made": made}


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value)
    elif isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


def left_alone(tiny: Any, folder: Path, *more: str) -> Any:
    """Return a run that nothing happened to; a copy is kept of what a crash would have left."""
    out = folder / "whole"
    shares: list[float] = []

    def copy(share: float, text: str) -> None:
        shares.append(share)
        if share >= 0.35 and len(shares) > 1 and not (folder / "crashed").exists():
            shutil.copytree(out, folder / "crashed")

    return train(compose_run(words_of(tiny, out, *more)), copy)


@pytest.fixture(scope="module")
def overlapped(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that nothing happened to."""
    return left_alone(tiny, tmp_path_factory.mktemp("overlapped"))


@pytest.mark.bits
def test_actions_are_one_decisions_updates_behind_and_none_is_lost(
    tiny: Any, overlapped: Any, tmp_path: Path
) -> None:
    result = overlapped
    state: Any = load_checkpoint(result.folder / "checkpoint")
    expected = in_another_order(words_of(tiny, tmp_path))
    assert result.summary["updates"] == expected.pop("made") > 40
    assert_equal(state["algorithm"], expected)
    plain = train(compose_run([*words_of(tiny, tmp_path / "plain"), "overlap=false"]))
    assert plain.summary["updates"] == result.summary["updates"]
    assert plain.summary["env_steps"] == result.summary["env_steps"]
    # Before the end, one decision's updates are owed.
    behind = [run.summary["evaluations"][0]["updates"] for run in (plain, result)]
    assert 1 <= behind[0] - behind[1] <= 2


@pytest.mark.bits
def test_a_run_says_what_it_is(tiny: Any, overlapped: Any, tmp_path: Path) -> None:
    assert overlapped.summary["overlap"] is True
    rows = read_episodes(overlapped.folder / "episodes.parquet").to_pylist()
    assert all(dict(row["metrics"])["overlap"] == 1.0 for row in rows)
    identity = json.loads((overlapped.folder / "provenance.json").read_text())["identity"]
    assert identity["collection"] == {"overlap": True}
    assert identity_words(identity)["overlap"] is True
    plain = words_of(tiny, tmp_path / "a")
    plan = checked_plan(compose_run([*plain, "overlap=false"]))
    assert "collection" not in plan.identity and plan.config_hash != overlapped.folder.parts[-2]
    without = [word for word in plain if not word.startswith("overlap")]
    assert checked_plan(compose_run(without)).config_hash == plan.config_hash


@pytest.mark.bits
@pytest.mark.parametrize("more", [[], ["observations=dict", "history=2"]])
def test_goes_on_from_a_crash_and_from_a_signal_to_the_same_bits(
    more: list[str], tiny: Any, overlapped: Any, tmp_path: Path
) -> None:
    """That two runs are the same is seen here, too."""
    whole = left_alone(tiny, tmp_path, *more) if more else overlapped
    again = tmp_path / "again"
    shutil.copytree(whole.folder.parents[5] / "crashed", again)
    config = compose_run(words_of(tiny, again, *more))

    def signal_once(share: float, text: str) -> None:
        if 0.77 <= share < 0.82:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="its state is saved, run the same command to resume") as told:
        train(config, signal_once)
    assert "\n" not in str(told.value)
    (folder,) = (path.parent for path in again.rglob("provenance.json"))
    state: Any = load_checkpoint(folder / "checkpoint")
    assert state["experience"]["credit"] >= 1  # updates are owed
    assert state["collector"]["envs"]["chunks"].max() > 0  # in the middle of an episode
    assert outcome(train(config).folder) == outcome(whole.folder)


def test_updates_are_made_while_the_environments_step(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    began, finished, update = (
        ProcessVectorEnv.begin_step, ProcessVectorEnv.finish_step, SAC.update
    )  # fmt: skip
    for owner, name, whole in (
        (ProcessVectorEnv, "begin_step", began),
        (ProcessVectorEnv, "finish_step", finished),
        (SAC, "update", update),
    ):

        def noted(*given: Any, name: str = name, whole: Any = whole) -> Any:
            events.append(name)
            return whole(*given)

        monkeypatch.setattr(owner, name, noted)
    train(compose_run(words_of(tiny, tmp_path, "algorithm.updates_per_decision=1")))
    between = [one for one in zip(events, events[1:], strict=False) if one[0] != one[1]]
    assert between.count(("begin_step", "update")) > 20
    # Only the updates of the last decision have no step beside them.
    assert between.count(("finish_step", "update")) == 1 and events[-1] == "update"


def test_an_error_of_the_simulator_is_one_line_that_says_where(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = ProcessVectorEnv.begin_step

    def killed_at_last(envs: ProcessVectorEnv, actions: Any) -> None:
        killed_at_last.count += 1  # type: ignore[attr-defined]
        if killed_at_last.count == 30:  # type: ignore[attr-defined]
            envs._child.process.kill()
            envs._child.process.wait()
        begun(envs, actions)

    killed_at_last.count = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(ProcessVectorEnv, "begin_step", killed_at_last)
    with pytest.raises(TrimtabError) as error:
        train(compose_run(words_of(tiny, tmp_path)))
    line = str(error.value)
    assert ": at update " in line and "ended (killed by signal 9)" in line and "\n" not in line
    assert "the last good state is in" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["algorithm=ppo"], "overlap=true: ppo learns from rollouts, only when one is whole"),
        (
            ["algorithm=sac", "algorithm.updates_per_decision=0"],
            "overlap=true: sac makes no updates while it gathers",
        ),
        (
            ["algorithm=iql", "dataset=hopper_random", "offline_steps=10", "online_steps=0"],
            "overlap=true: iql gathers nothing in this run",
        ),
    ],
)
def test_is_refused_where_it_makes_no_sense(words: list[str], told: str) -> None:
    config = compose_run(["env=gym/Hopper-v5", "online_steps=50000", *words, "overlap=true"])
    with pytest.raises(TrimtabError, match=f"^{told}; leave it out$"):
        check_method(checked_plan(config))


def test_is_refused_beside_simulations_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["env=gym/Hopper-v5", "algorithm=sac", "online_steps=50000", "overlap=true"]
    monkeypatch.setattr(
        "trimtab.benchmarks.training.fits.simulator_device", lambda *_, **__: "cuda"
    )
    with pytest.raises(TrimtabError, match="overlap=true: gym/Hopper-v5 is simulated on .*leave"):
        check_method(checked_plan(compose_run(words)))
