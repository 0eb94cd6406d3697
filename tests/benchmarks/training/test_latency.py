"""Evaluation with late answers: without a delay it is the plain one, and it follows from seeds."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray

import trimtab
from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training.evaluate import EpisodeScore, Evaluator
from trimtab.benchmarks.training.judging import BundleJudge
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError
from trimtab.policies.agent import RESTART, PolicyInputs
from trimtab.policies.bundle.bundle import load_bundle, save_bundle
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.kinds.real_time_iteration import RealTimeIterationPolicy
from trimtab.policies.robot.delayed import Latency, Timing
from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.types import PolicySpec

HOPPER = "gym/Hopper-v5"
HORIZON, ACT_STEPS, PERIOD = 6, 4, 0.008
Array = NDArray[np.float32]


class Rowwise:
    """A policy that computes each row alone, and another action for each entry of its chunk."""

    def __init__(self) -> None:
        spec = get_spec(HOPPER)
        generator = np.random.default_rng(3)
        self.weight = 0.3 * generator.standard_normal((spec.obs_dim, HORIZON, spec.action_dim))

    def __call__(self, obs: Array, noise: Array) -> Array:
        rows = [
            np.tanh(np.tensordot(row, self.weight, 1) + 0.5 * extra.sum())
            for row, extra in zip(obs.astype(float), noise, strict=True)
        ]
        return np.array(rows, np.float32)


def judged(
    timing: Timing | None, episodes: int = 6, seed: int = 40
) -> tuple[list[EpisodeScore], dict[int, Array]]:
    """Return the scores, and all actions of each episode that were played."""
    evaluator = Evaluator(
        HOPPER, episodes=episodes, seed=seed, act_steps=ACT_STEPS if timing is None else 1,
        options={"horizon": 60},
    )  # fmt: skip
    played: dict[int, list[Array]] = {}
    try:
        scores = evaluator.judge(
            Rowwise(), PolicyInputs((2,)), deterministic=False, timing=timing,
            watch=lambda episode, chunk: played.setdefault(episode, []).append(chunk.copy()),
        )  # fmt: skip
    finally:
        evaluator.close()
    found = {
        score.eval_episode: np.concatenate(played[score.eval_episode])[: score.length]
        for score in scores.episodes
    }
    return list(scores.episodes), found


def timing(latency: Latency) -> Timing:
    return Timing(lambda: RecedingHorizon(ACT_STEPS), latency, HORIZON, ACT_STEPS, PERIOD)


@pytest.mark.bits
def test_no_delay_gives_the_bits_of_the_plain_evaluation() -> None:
    plain, actions = judged(None, episodes=20)
    timed, same = judged(timing(Latency()), episodes=20)
    assert len({score.length for score in plain}) > 3
    for one, other in zip(plain, timed, strict=True):
        assert np.array_equal(actions[one.eval_episode], same[other.eval_episode])
        assert (one.eval_seed, one.length, one.success) == (
            other.eval_seed, other.length, other.success,
        )  # fmt: skip
        # Rewards are summed a tick at a time, and not a chunk at a time: the last bits may differ.
        assert one.return_ == pytest.approx(other.return_, rel=1e-12)


@pytest.mark.bits
def test_equal_seeds_give_equal_episodes_in_any_company() -> None:
    slow = timing(Latency(2.5 * PERIOD, jitter=0.8, drop=0.2))
    first, actions = judged(slow)
    again, same = judged(slow)
    assert [one.return_ for one in first] == [one.return_ for one in again]
    assert all(np.array_equal(actions[i], same[i]) for i in actions)
    for i in range(6):
        (alone,), own = judged(slow, episodes=1, seed=40 + i)
        assert (alone.return_, alone.length) == (first[i].return_, first[i].length)
        assert np.array_equal(own[0], actions[i])
    _, prompt = judged(timing(Latency()))
    assert not all(np.array_equal(actions[i], prompt[i]) for i in actions)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"horizon": 60}
    spec = get_spec(HOPPER, **options)
    torch.manual_seed(0)
    policy = FlowPolicy(
        PolicySpec(spec.obs_dim, 4, spec.action_dim, spec.action_low, spec.action_high),
        hidden=[16], sampling_steps=2,
    )  # fmt: skip
    contract = {
        "env": HOPPER, "env_options": options, "fingerprint": spec.fingerprint,
        "control_rate": spec.control_rate, "act_steps": 2,
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("latency")
    plain = save_bundle(policy, folder / "plain", contract=contract, onnx=False)
    with pytest.raises(SystemExit) as ended:
        main(["export", f"run={plain}", f"out={folder / 'bundle'}", "chunking=rtc"])
    assert ended.value.code == 0
    return folder / "bundle"


def test_the_command_tells_the_delay_and_repeats_its_rows(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(*words: str, place: Path = bundle) -> tuple[Any, dict[str, Any], str]:
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", f"policy={place}", "episodes=4", "format=json", *words])
        shown = capsys.readouterr()
        return ended.value.code, json.loads(shown.out or "{}"), shown.err

    late = ["delay_ms=20", "jitter=0.5", "drop=0.1", "mode=blended"]
    code, first, _ = answer(*late, f"out={tmp_path / 'rows'}")
    assert code == 0 and answer(*late)[1] == first
    # The usual interval is told as a number, and is the same policy as that number.
    assert answer(*late, "interval=2")[1] == first and first["interval"] == 2
    told = {name: first[name] for name in ("mode", "delay_ms", "jitter", "drop")}
    assert told == {"mode": "blended", "delay_ms": 20, "jitter": 0.5, "drop": 0.1}
    rows = read_episodes(tmp_path / "rows" / "episodes.parquet")
    assert rows["delay_ms"].to_pylist() == [20.0] * 4
    assert all("delay_ms=20" in name for name in rows["policy"].to_pylist())
    assert rows["hash_version"].to_pylist() == [None] * 4
    plain, timed = answer()[1], answer("mode=receding")[1]
    assert "delay_ms" not in plain
    for one, other in zip(plain["episodes"], timed["episodes"], strict=True):
        assert one["length"] == other["length"]
        assert one["return"] == pytest.approx(other["return"], rel=1e-6)
    assert first["return"] != plain["return"]
    # The bundle that reads its plan is the one that does not, unless a mode tells it of the plan.
    assert answer(place=bundle.parent / "plain")[1]["episodes"] == plain["episodes"]
    code, drawn, _ = answer("delay_ms=8", "mode=rtc")
    assert code == 0 and drawn == answer("delay_ms=8", "mode=rtc")[1]
    assert drawn["interval"] == 2
    assert answer("delay_ms=8", "mode=receding")[1]["episodes"] != drawn["episodes"]
    strong = answer("delay_ms=8", "mode=rtc", "inputs={guidance_limit: 10}")[1]
    assert strong["inputs"] == {"guidance_limit": 10} and strong["episodes"] != drawn["episodes"]
    onnx = answer("delay_ms=8", "mode=rtc", "backend=onnx")[1]
    assert onnx["return"] == pytest.approx(drawn["return"], rel=0.05)
    code, _, err = answer("mode=rti")
    assert code == 2 and "chunking=rti" in err
    code, _, err = answer("delay_ms=20", "interval=9")
    assert code == 2 and "a chunk has 4 actions" in err
    assert answer("drop=1")[0] == 2 and "drop=1" in answer("drop=1")[2]
    assert answer("jitter=1")[0] == 2
    usual = answer("delay_ms=20", "jitter=0", "drop=0")[1]
    assert usual["episodes"] == answer("delay_ms=20")[1]["episodes"]
    with pytest.raises(SystemExit):
        main(["evaluate", f"policy={bundle}", "episodes=2", "delay_ms=20"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "mode=receding, interval=2," in shown and "delay_ms=20 " in shown


def test_the_delay_of_this_machine(bundle: Path) -> None:
    judge = BundleJudge(load_bundle(bundle), HOPPER, {"horizon": 60})
    timed = judge.timed(delay_ms="measured")
    assert timed["measured"] and 0 < timed["delay_ms"] < 1000
    scores = judge.judge(episodes=2, seed=0, deterministic=True, timing=judge.timing(**timed))
    rows = judge.rows(scores, deterministic=True, timed=timed)
    assert all("measured=True" in row.policy for row in rows)
    with pytest.raises(TrimtabError, match="backend=onyx: .*onnx"):
        judge.timed("onyx", delay_ms="measured")
    for wrong in ("soon", "-5", "nan", True):
        with pytest.raises(TrimtabError, match=f"delay_ms={wrong}: give a number from 0"):
            judge.timed(delay_ms=wrong)


def test_a_decision_is_measured_as_its_mode_asks_for_it(tmp_path: Path) -> None:
    """Two of four sampling steps are left where there is a plan, and all where there is none."""
    spec = get_spec(HOPPER)
    shape = PolicySpec(spec.obs_dim, 4, spec.action_dim, spec.action_low, spec.action_high)
    policy = RealTimeIterationPolicy(FlowPolicy(shape, hidden=[16], sampling_steps=4))
    contract = {"env": HOPPER, "control_rate": spec.control_rate, "act_steps": ACT_STEPS}
    made = save_bundle(policy, tmp_path / "rti", contract=contract, onnx=False)
    judge = BundleJudge(load_bundle(made), HOPPER, {})
    for mode, restart in (("rti", 1.0), ("receding", 0.0)):
        obs, _ = judge.usual_decision(mode)
        assert obs[RESTART].tolist() == [[restart]]
        assert judge.timed(mode=mode, delay_ms="measured")["delay_ms"] > 0


def test_python_has_the_words_of_the_command(bundle: Path) -> None:
    late: dict[str, Any] = {"delay_ms": 20, "jitter": 0.5, "drop": 0.1, "mode": "blended"}
    scores = trimtab.evaluate(bundle, episodes=4, **late)
    assert scores.mean_return != trimtab.evaluate(bundle, episodes=4).mean_return
    with pytest.raises(TrimtabError, match="did you mean blended"):
        trimtab.evaluate(bundle, mode="blend")


def test_an_evaluation_leaves_no_simulator_behind(bundle: Path) -> None:
    judge = BundleJudge(load_bundle(bundle), HOPPER, {"horizon": 60})

    def simulators() -> int:
        return sum(issubclass(type(one), MujocoEnv) for one in gc.get_objects())

    gc.collect()
    before = simulators()
    gc.disable()  # so that it comes by no chance
    try:
        judge.judge(episodes=2, seed=0, deterministic=True)
        assert simulators() == before
    finally:
        gc.enable()
