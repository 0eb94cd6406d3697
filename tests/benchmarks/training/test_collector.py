"""Gathering from environments that give tensors, and where a run's simulations are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from waiting import NoWaiting

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.benchmarks.training.checkpoint import Checkpoints, load_checkpoint
from trimtab.benchmarks.training.collector import Collector
from trimtab.benchmarks.training.device_collector import DeviceCollector
from trimtab.datasets.sources.device_replay import DeviceReplayBuffer
from trimtab.datasets.sources.device_rollout import DeviceRolloutBuffer
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.registry import own_vector
from trimtab.envs.vector import make_vec, simulator_device, why_on_processor
from trimtab.errors import TrimtabError
from trimtab.types import BatchSpec, PolicySpec

TASK = "playground/CartpoleSwingup"
COUNT, CHUNK, STEPS = 3, 2, 12


def learner(method: type[SAC] | type[PPO], history: int = 1) -> Algorithm:
    torch.manual_seed(0)
    spec = PolicySpec(5, CHUNK, 1, (-1.0,), (1.0,)).with_history(history)
    return method(Setup(spec, num_envs=COUNT), hidden=(8,))


def collector(
    method: type[SAC] | type[PPO], *, history: int = 1, tensors: bool, in_memory: bool = False
) -> Collector | DeviceCollector:
    """Return a collector whose environments give tensors, as they do on a GPU, or arrays.

    With tensors, a ring is on their device if it need not be in memory.
    """
    envs: Any = make_vec(TASK, COUNT, seed=4, act_steps=CHUNK, horizon=7)
    algorithm = learner(method, history)
    shape, aux = (CHUNK, 1), algorithm.aux_shapes
    seen = (history, 5) if history > 1 else (5,)
    if not algorithm.pace.rollout_steps:
        more: Any = {"num_envs": COUNT, "aux": aux, "batch_spec": BatchSpec(history=history)}
        ring = ReplayBuffer(100, 5, shape, **more)
        if not tensors:
            return Collector(envs, algorithm, ring, "cpu")
        there = DeviceReplayBuffer(100, 5, shape, device="cpu", **more)
        on_device = TorchVectorEnv(envs, "cpu")
        return DeviceCollector(on_device, algorithm, ring if in_memory else there)
    if tensors:
        rollout = DeviceRolloutBuffer(
            STEPS, COUNT, seen, shape, discount=0.99, device="cpu", aux=aux
        )
        return DeviceCollector(TorchVectorEnv(envs, "cpu"), algorithm, rollout)
    return Collector(envs, algorithm, RolloutBuffer(STEPS, COUNT, seen, shape, aux=aux), "cpu")


def stored(one: Collector | DeviceCollector) -> dict[str, Any]:
    """Return what a full buffer gives to a learner, by name."""
    if isinstance(one.buffer, ReplayBuffer | DeviceReplayBuffer):
        arrays = dict(one.buffer.state_dict()["arrays"])
        arrays.pop("age", None)  # the ring in memory knows it otherwise
        return arrays
    found = {**vars(one.buffer.take())}
    found |= found.pop("aux")
    return {name: value.double() for name, value in found.items()}


@pytest.mark.parametrize(
    ("method", "history", "in_memory"),
    [(SAC, 1, True), (SAC, 1, False), (SAC, 3, False), (PPO, 1, False), (PPO, 3, False)],
)
def test_tensors_are_stored_as_arrays_are(
    method: type[SAC] | type[PPO], history: int, in_memory: bool, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {"history": history, "in_memory": in_memory}
    plain, tensors = (collector(method, tensors=given, **kept) for given in (False, True))
    for one in (plain, tensors):
        torch.manual_seed(1)
        assert sum(one.step(warmup=False) for _ in range(STEPS // 2)) > 0
    drawn = torch.get_rng_state()
    Checkpoints(tmp_path).save(1, {"it": tensors.state_dict(), "rows": tensors.buffer.state_dict()})
    state: Any = load_checkpoint(tmp_path)
    again = collector(method, tensors=True, **kept)
    again.load_state_dict(state["it"])
    again.buffer.load_state_dict(state["rows"])
    for one in (plain, tensors, again):
        torch.set_rng_state(drawn)
        for _ in range(STEPS // 2):
            one.step(warmup=False)
    told = plain.episode_metrics()
    assert told["episodes"] > 4
    expected, found, resumed = map(stored, (plain, tensors, again))
    for one, values in ((tensors, found), (again, resumed)):
        assert one.episode_metrics() == pytest.approx({**told, "restarted": 0.0}, rel=1e-5)
        assert values.keys() == expected.keys()
        for name, value in values.items():
            np.testing.assert_allclose(value, expected[name], atol=2e-5, err_msg=name)
    for name, value in resumed.items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)


def test_a_rollout_reads_nothing_back_from_its_device() -> None:
    """Every step of a rollout, over the ends of episodes, and taking it."""
    one = collector(PPO, tensors=True)

    def gather() -> None:
        for _ in range(STEPS):
            one.step(warmup=False)
        assert isinstance(one.buffer, DeviceRolloutBuffer)
        one.algorithm.update(one.buffer.take())

    with NoWaiting():  # type: ignore[no-untyped-call]
        gather()
    assert one.episodes == COUNT * (STEPS // 4)


def test_a_ring_on_its_device_reads_nothing_back() -> None:
    """Every step, over the ends of episodes, and what is learned from it."""
    one = collector(SAC, history=3, tensors=True)
    with NoWaiting():  # type: ignore[no-untyped-call]
        for _ in range(STEPS):
            one.step(warmup=False)
            assert isinstance(one.buffer, DeviceReplayBuffer)
            one.algorithm.update(one.buffer.sample(16))
    assert one.episodes == COUNT * (STEPS // 4)


def test_what_starts_again_ends_an_episode_and_is_finite() -> None:
    """A simulation that is no longer finite: nothing follows its row, and a history begins anew."""
    one = collector(SAC, history=3, tensors=True)
    assert isinstance(one, DeviceCollector) and isinstance(one.buffer, DeviceReplayBuffer)
    one.step(warmup=True)
    data = one.envs._state.data
    broken = {**data, "qpos": data["qpos"].at[1].set(np.nan)}
    one.envs._state = one.envs._state.replace(data=broken)
    for _ in range(2):
        one.step(warmup=True)
    batch = one.buffer.batch(torch.arange(3 * COUNT))
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    for value in (batch.obs, batch.next_obs, batch.action, batch.reward):
        assert torch.isfinite(value).all()
    failed = COUNT + 1
    assert torch.nonzero(batch.discount == 0).flatten().tolist() == [failed]
    assert batch.reward[failed] == 0
    begun = batch.obs[failed + COUNT]
    assert torch.equal(begun, begun[:1].expand(3, -1))
    assert torch.equal(begun[-1], batch.next_obs[failed, -1])
    other = batch.obs[failed + COUNT + 1]
    assert not torch.equal(other[0], other[1]) and not torch.equal(other[1], other[2])


def test_simulations_are_where_a_run_is_if_they_can_be() -> None:
    own = own_vector(TASK)
    assert own is not None and own.devices == ("cpu", "cuda")
    assert simulator_device(TASK, "cpu") == "cpu"
    assert simulator_device(TASK, "cuda") == ("cuda" if own.has_device("cuda") else "cpu")
    assert simulator_device(TASK, "cuda:1") == "cpu"  # a GPU that the family has no name for
    assert own.has_device("cpu")
    for task in ("gym/Hopper-v5", "metaworld/push-v3"):  # a vector of its own, and none
        assert simulator_device(task, "cuda") == "cpu"


def test_a_run_on_a_gpu_says_why_its_simulations_are_not_there() -> None:
    own = own_vector(TASK)
    assert own is not None
    told = why_on_processor(TASK, "cuda")
    assert told is None if own.has_device("cuda") else "JAX sees none here" in str(told)
    assert "cpu, cuda, and not on cuda:1" in str(why_on_processor(TASK, "cuda:1"))
    assert why_on_processor(TASK, "cpu") is why_on_processor("gym/Hopper-v5", "cuda") is None


def test_a_run_goes_on_where_its_simulations_were() -> None:
    plain, tensors = (collector(SAC, tensors=given) for given in (False, True))
    for one, other in ((plain, tensors), (tensors, plain)):
        with pytest.raises(TrimtabError, match="was saved with simulations on a "):
            one.load_state_dict(other.state_dict())


def test_a_device_is_chosen_that_family_and_machine_have() -> None:
    """The choice alone: nothing is simulated."""
    own = own_vector(TASK)
    assert own is not None
    there, missing = (replace(own, has_device=lambda _, has=has: has) for has in (True, False))
    assert (there.device_for("cuda"), missing.device_for("cuda")) == ("cuda", "cpu")
    assert (there.device_for("xpu"), there.device_for("cpu")) == ("cpu", "cpu")


@pytest.mark.parametrize("tensors", [False, True])
def test_a_method_sees_rewards_and_ends_in_the_order_of_acting(
    tensors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = collector(SAC, tensors=tensors)
    seen: list[tuple[torch.Tensor, ...]] = []
    monkeypatch.setattr(one.algorithm, "on_transition", lambda *row: seen.append(row))
    for _ in range(6):
        one.step(warmup=True)
    rows = stored(one)
    rewards = torch.stack([reward for reward, _, _ in seen])
    assert rewards.dtype == torch.float32  # a device may have no other floats
    assert torch.equal(rewards, torch.as_tensor(rows["reward"][:6]))
    # 7 steps are 4 chunks of 2, the last one cut short.
    assert [bool(ended.all()) for _, _, ended in seen] == [False, False, False, True, False, False]
    assert not any(ended.any() for _, _, ended in seen[:3])
    assert not any(terminated.any() for _, terminated, _ in seen)  # a time limit is none
