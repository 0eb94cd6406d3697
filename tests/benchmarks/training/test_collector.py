"""Gathering from environments that give tensors, and where a run's simulations are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.benchmarks.contracts.recorded_graph import reads_back
from trimtab.benchmarks.training import collector as collecting
from trimtab.benchmarks.training import experience
from trimtab.benchmarks.training.callbacks import Callback, RunProgress
from trimtab.benchmarks.training.checkpoint import Checkpoints, load_checkpoint
from trimtab.benchmarks.training.collector import Collector
from trimtab.benchmarks.training.device_collector import DeviceCollector
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.sources.device_rollout import DeviceRolloutBuffer
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.registry import own_vector
from trimtab.envs.vector import make_vec, simulator_device
from trimtab.types import PolicySpec

TASK = "playground/CartpoleSwingup"
COUNT, CHUNK, STEPS = 3, 2, 12


class NoWaiting(TorchDispatchMode):
    """Forbids what a GPU would have to be waited for."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator."""
        assert not reads_back(func, args), func
        return func(*args, **(kwargs or {}))


def learner(method: type[SAC] | type[PPO], history: int = 1) -> Algorithm:
    torch.manual_seed(0)
    spec = PolicySpec(5, CHUNK, 1, (-1.0,), (1.0,)).with_history(history)
    return method(Setup(spec, num_envs=COUNT), hidden=(8,))


def collector(
    method: type[SAC] | type[PPO], *, history: int = 1, tensors: bool
) -> Collector | DeviceCollector:
    """Return a collector whose environments give tensors, as they do on a GPU, or arrays."""
    envs: Any = make_vec(TASK, COUNT, seed=4, act_steps=CHUNK, horizon=7)
    algorithm = learner(method, history)
    shape, aux = (CHUNK, 1), algorithm.aux_shapes
    seen = (history, 5) if history > 1 else (5,)
    if not algorithm.pace.rollout_steps:
        ring = ReplayBuffer(100, 5, shape, num_envs=COUNT, aux=aux)
        if tensors:
            return DeviceCollector(TorchVectorEnv(envs, "cpu"), algorithm, ring)
        return Collector(envs, algorithm, ring, "cpu")
    if tensors:
        rollout = DeviceRolloutBuffer(
            STEPS, COUNT, seen, shape, discount=0.99, device="cpu", aux=aux
        )
        return DeviceCollector(TorchVectorEnv(envs, "cpu"), algorithm, rollout)
    return Collector(envs, algorithm, RolloutBuffer(STEPS, COUNT, seen, shape, aux=aux), "cpu")


def stored(one: Collector | DeviceCollector) -> dict[str, Any]:
    """Return what a full buffer gives to a learner, by name."""
    if isinstance(one.buffer, ReplayBuffer):
        return dict(one.buffer.state_dict()["arrays"])
    found = {**vars(one.buffer.take())}
    found |= found.pop("aux")
    return {name: value.double() for name, value in found.items()}


@pytest.mark.parametrize(("method", "history"), [(SAC, 1), (PPO, 1), (PPO, 3)])
def test_tensors_are_stored_as_arrays_are(
    method: type[SAC] | type[PPO], history: int, tmp_path: Path
) -> None:
    plain, tensors = (collector(method, history=history, tensors=given) for given in (False, True))
    for one in (plain, tensors):
        torch.manual_seed(1)
        assert sum(one.step(warmup=False) for _ in range(STEPS // 2)) > 0
    drawn = torch.get_rng_state()
    Checkpoints(tmp_path).save(1, {"it": tensors.state_dict(), "rows": tensors.buffer.state_dict()})
    state: Any = load_checkpoint(tmp_path)
    again = collector(method, history=history, tensors=True)
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


def test_a_whole_run_on_its_device_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run as on a GPU, on torch's device ``cpu:0``, whose tensors stay there."""

    def make(id: str, count: int, *, device: str, observations: str, **more: Any) -> Any:
        return TorchVectorEnv(make_vec(id, count, **more), device)

    monkeypatch.setattr(collecting, "make_vec", make)
    for module in (collecting, experience):
        monkeypatch.setattr(module, "simulator_device", lambda *_, **__: "cpu:0")
    words = [
        f"env={TASK}", "env_options.horizon=20", "algorithm=ppo", "num_envs=3", "eval_episodes=2",
        "algorithm.rollout_steps=8", "algorithm.batch_size=8", "algorithm.epochs=2",
        "online_steps=144", "checkpoint_every=72", "history=2",
    ]  # fmt: skip
    whole = train(compose_run([*words, f"out={tmp_path / 'whole'}"]))
    with pytest.raises(KeyboardInterrupt):
        train(compose_run([*words, f"out={tmp_path / 'ended'}"]), callbacks=[End()])
    ended = train(compose_run([*words, f"out={tmp_path / 'ended'}"]))
    weights = [(one.folder / "policy" / "model.safetensors").read_bytes() for one in (whole, ended)]
    assert weights[0] == weights[1]
    last = json.loads((ended.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["episodes"], last["restarted"]) == (6, 0)


class End(Callback):
    """Ends a run without a word to it."""

    def on_step(self, now: RunProgress) -> None:
        """End it behind its first checkpoint."""
        if now.position >= 100:
            raise KeyboardInterrupt


def test_simulations_are_where_a_run_is_if_they_can_be() -> None:
    own = own_vector(TASK)
    assert own is not None and own.devices == ("cpu", "cuda")
    assert simulator_device(TASK, "cpu") == "cpu"
    assert simulator_device(TASK, "cuda") == ("cuda" if own.has_device("cuda") else "cpu")
    assert simulator_device(TASK, "cuda:1") == "cpu"  # a GPU that the family has no name for
    assert own.has_device("cpu")
    for task in ("gym/Hopper-v5", "metaworld/push-v3"):  # a vector of its own, and none
        assert simulator_device(task, "cuda") == "cpu"


def test_a_device_is_chosen_that_family_and_machine_have() -> None:
    """The choice alone: nothing is simulated."""
    own = own_vector(TASK)
    assert own is not None
    there, missing = (replace(own, has_device=lambda _, has=has: has) for has in (True, False))
    assert (there.device_for("cuda"), missing.device_for("cuda")) == ("cuda", "cpu")
    assert (there.device_for("xpu"), there.device_for("cpu")) == ("cpu", "cpu")
