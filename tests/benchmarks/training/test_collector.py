"""Gathering from environments that give tensors, and where a run's simulations are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.benchmarks.training.checkpoint import Checkpoints, load_checkpoint
from trimtab.benchmarks.training.collector import Collector
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.registry import own_vector
from trimtab.envs.vector import make_vec, simulator_device
from trimtab.types import PolicySpec

TASK = "playground/CartpoleSwingup"
COUNT, CHUNK, STEPS = 3, 2, 12


def learner(method: type[SAC] | type[PPO]) -> Algorithm:
    torch.manual_seed(0)
    spec = PolicySpec(5, CHUNK, 1, (-1.0,), (1.0,))
    return method(Setup(spec, num_envs=COUNT), hidden=(8,))


def collector(method: type[SAC] | type[PPO], *, tensors: bool) -> Collector:
    """Return a collector whose environments give tensors, as they do on a GPU, or arrays."""
    envs: Any = make_vec(TASK, COUNT, seed=4, act_steps=CHUNK, horizon=7)
    algorithm = learner(method)
    shape, aux = (CHUNK, 1), algorithm.aux_shapes
    buffer = (
        RolloutBuffer(STEPS, COUNT, 5, shape, aux=aux)
        if algorithm.pace.rollout_steps
        else ReplayBuffer(100, 5, shape, num_envs=COUNT, aux=aux)
    )
    return Collector(TorchVectorEnv(envs, "cpu") if tensors else envs, algorithm, buffer, "cpu")


def arrays(one: Collector) -> dict[str, np.ndarray]:
    return dict(one.buffer.state_dict()["arrays"])


@pytest.mark.bits
@pytest.mark.parametrize("method", [SAC, PPO])
def test_tensors_are_stored_as_arrays_are(method: type[SAC] | type[PPO], tmp_path: Path) -> None:
    plain, tensors = (collector(method, tensors=given) for given in (False, True))
    assert isinstance(tensors.obs, torch.Tensor)
    for one in (plain, tensors):
        torch.manual_seed(1)
        assert sum(one.step(warmup=False) for _ in range(STEPS // 2)) > 0
    drawn = torch.get_rng_state()
    Checkpoints(tmp_path).save(1, {"it": tensors.state_dict()})
    state: Any = load_checkpoint(tmp_path)
    again = collector(method, tensors=True)
    again.load_state_dict(state["it"])
    again.buffer.load_state_dict(tensors.buffer.state_dict())
    for one in (plain, tensors, again):
        torch.set_rng_state(drawn)
        for _ in range(STEPS // 2):
            one.step(warmup=False)
    expected = arrays(plain)
    assert plain.episodes > 4
    for one in (tensors, again):
        assert (one.episodes, one.last_return) == (plain.episodes, plain.last_return)
        assert arrays(one).keys() == expected.keys()
        for name, found in arrays(one).items():
            np.testing.assert_array_equal(found, expected[name])


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
