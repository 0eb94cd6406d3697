"""The judge on a device against the one judge: the same episodes, noise, histories and rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from waiting import NoWaiting

from trimtab.benchmarks.training import device_evaluate
from trimtab.benchmarks.training.device_evaluate import DeviceEvaluator, reads_observations_alone
from trimtab.benchmarks.training.evaluate import Evaluator
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.vector import make_vec
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.types import PolicySpec

pytestmark = pytest.mark.slow

TASK, EPISODES, HORIZON, CHUNK = "playground/CartpoleSwingup", 3, 21, 2
HOW: dict[str, Any] = {
    "episodes": EPISODES, "seed": 7, "act_steps": CHUNK, "options": {"horizon": HORIZON},
}  # fmt: skip


def drawn_policy(history: int = 1) -> DiffusionPolicy:
    torch.manual_seed(0)
    spec = PolicySpec(5, 4, 1, (-1.0,), (1.0,)).with_history(history)
    return DiffusionPolicy(spec, hidden=(16,), sampling_steps=2)


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> DeviceEvaluator:
    """The judge as on a GPU, on a processor."""

    def make(id: str, count: int, *, device: str, observations: str, **more: Any) -> Any:
        return TorchVectorEnv(make_vec(id, count, **more), device)

    monkeypatch.setattr(device_evaluate, "make_vec", make)
    return DeviceEvaluator(TASK, device="cpu", **HOW)


@pytest.mark.parametrize(("history", "deterministic"), [(1, False), (1, True), (3, False)])
def test_its_rows_are_those_of_the_one_judge(
    judge: DeviceEvaluator, history: int, deterministic: bool
) -> None:
    """Its program is another one, so returns agree to the accuracy of float32 only."""
    policy = drawn_policy(history)
    one_judge = Evaluator(TASK, **HOW)
    expected = one_judge.judge_policy(policy, deterministic=deterministic).episodes
    other_noise = one_judge.judge_policy(policy, deterministic=not deterministic).episodes
    asked: list[None] = []
    found = [
        judge.judge_policy(policy, deterministic=deterministic, check=lambda: asked.append(None))
        for _ in range(2)
    ]
    assert len(asked) == 2 * -(-HORIZON // CHUNK)
    for one, again, other in zip(found[0].episodes, found[1].episodes, expected, strict=True):
        assert one.return_ == again.return_ and one.seconds > 0
        assert one.return_ == pytest.approx(other.return_, rel=2e-5)
        for name in ("eval_episode", "eval_seed", "success", "length", "metrics"):
            assert getattr(one, name) == getattr(other, name)
        assert type(one.length) is int and one.length == HORIZON
    returns = [one.return_ for one in (*expected, *other_noise)]
    assert np.diff(np.sort(returns)).min() > 1e-4 * max(returns)  # so that they tell them apart


def test_noise_is_that_of_each_episode(judge: DeviceEvaluator) -> None:
    policy = drawn_policy()
    noise = judge._noise(policy, deterministic=False)
    for episode in range(EPISODES):
        stream = np.random.Generator(np.random.Philox(7 + episode))
        for now in noise[:, episode]:
            wanted = stream.standard_normal((1, *policy.noise_shape), np.float32)[0]
            np.testing.assert_array_equal(now, wanted)


def test_nothing_is_read_back_before_the_end(judge: DeviceEvaluator) -> None:
    with NoWaiting():  # type: ignore[no-untyped-call]
        judge.judge_policy(drawn_policy(), deterministic=False)


def test_an_episode_that_is_no_longer_finite_ends(judge: DeviceEvaluator) -> None:
    policy, asked = drawn_policy(), 0
    whole = judge.judge_policy(policy, deterministic=False).episodes

    def fail() -> None:
        nonlocal asked
        asked += 1
        if asked == 4:
            state = judge.envs._state
            qpos = state.data["qpos"].at[1].set(np.nan)
            judge.envs._state = state.replace(data={**state.data, "qpos": qpos})

    found = judge.judge_policy(policy, deterministic=False, check=fail).episodes
    assert [one.length for one in found] == [HORIZON, 4 * CHUNK, HORIZON]
    assert [a.return_ == b.return_ for a, b in zip(found, whole, strict=True)] == [
        True,
        False,
        True,
    ]
    assert np.isfinite(found[1].return_)


def test_a_policy_with_inputs_of_its_own_is_judged_elsewhere() -> None:
    spec = PolicySpec(5, 4, 1, (-1.0,), (1.0,))
    assert reads_observations_alone(DiffusionPolicy(spec, hidden=(16,)).inputs)
    wanting = spec.with_input("wish", 1.0)
    assert not reads_observations_alone(DiffusionPolicy(wanting, hidden=(16,)).inputs)
