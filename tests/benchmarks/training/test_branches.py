"""Rollouts that begin from states that are restored: what a policy is shown, and resuming."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.finetuning.polychromic import Polychromic
from trimtab.benchmarks.training import fits
from trimtab.benchmarks.training.collector import Collector
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.vector import make_vec
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import PolicySpec, Tensor, TrimtabError

COUNT, STEPS = 6, 7


def collector(roots: int = 2, task: str = "gym/Hopper-v5") -> Collector:
    """Return what gathers rollouts of two groups, each an environment with two vines."""
    envs = make_vec(task, COUNT, seed=4)
    (size,), (_, width) = envs.single_observation_space.shape, envs.single_action_space.shape
    torch.manual_seed(0)
    spec = PolicySpec(size, 1, width, (-1.0,) * width, (1.0,) * width)
    base = FlowPolicy(spec, hidden=(8,), sampling_steps=2)
    method = Polychromic(
        Setup(spec, base=base, num_envs=COUNT), hidden=(8,), rollout_steps=STEPS, batch_size=8,
        epochs=1, roots=roots,
    )  # fmt: skip
    buffer = RolloutBuffer(STEPS, COUNT, size, (1, width), aux=method.aux_shapes)
    return Collector(envs, method, buffer, "cpu")


def rollout(one: Collector) -> tuple[Tensor, Tensor]:
    """Gather a rollout and learn from it; return its observations, and those that follow."""
    assert isinstance(one.buffer, RolloutBuffer)
    while not one.buffer.full:
        one.step(warmup=False)
    data = one.buffer.take()
    one.algorithm.update(data)
    assert isinstance(data.obs, Tensor) and isinstance(data.next_obs, Tensor)
    return data.obs, data.next_obs


def test_vines_begin_in_states_of_an_episode_that_goes_on() -> None:
    one = collector(task="gym/HalfCheetah-v5")
    seen, last = rollout(one)
    places = set()
    for _ in range(3):
        obs, following = rollout(one)
        for leader in (0, 3):
            # The leader goes on as if nothing were; its vines begin in one of its states.
            assert torch.equal(obs[0, leader], last[-1, leader])
            assert torch.equal(obs[0, leader + 1], obs[0, leader + 2])
            states = torch.cat([seen[:, leader], obs[:1, leader]])
            (place,) = (states == obs[0, leader + 1]).all(-1).nonzero().flatten().tolist()
            places.add(place / len(states))
            assert not torch.equal(obs[1, leader + 1], obs[1, leader + 2])  # each by its own noise
        seen, last = torch.cat([seen, obs]), following
    assert one.episodes == 0  # so that all that was seen are states of running episodes
    assert min(places) < 0.5 < max(places)


def test_without_vines_nothing_is_restored() -> None:
    one = collector(roots=COUNT)
    _, last = rollout(one)
    obs, _ = rollout(one)
    assert torch.equal(obs[0], last[-1])
    assert isinstance(one.state_dict()["envs"]["branched"], np.ndarray)
    assert not one.state_dict()["envs"]["branched"].any()


@pytest.mark.parametrize("more", [0, 2])
def test_it_resumes_with_the_same_bits(more: int) -> None:
    """At a rollout's beginning, before the states are restored, and in its middle."""
    one = collector()
    rollout(one)
    rollout(one)
    for _ in range(more):
        one.step(warmup=False)
    assert isinstance(one.buffer, RolloutBuffer)
    parts: Any = (one.algorithm, one, one.buffer)
    saved, drawn = [copy.deepcopy(part.state_dict()) for part in parts], torch.get_rng_state()
    assert saved[1]["envs"]["branched"].any()
    expected = [rollout(one) for _ in range(2)]
    again = collector()
    other: Any = (again.algorithm, again, again.buffer)
    for part, state in zip(other, saved, strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(drawn)
    for pair in expected:
        for found, wanted in zip(rollout(again), pair, strict=True):
            assert torch.equal(found, wanted)
    torch.testing.assert_close(
        again.algorithm.state_dict(), one.algorithm.state_dict(), rtol=0, atol=0
    )


def test_where_no_state_is_restored_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["env=robotics/PointMaze-TwoRoutes-v0", "algorithm=polychromic", "policy=flow"]
    words += ["dataset=two_routes"]
    plan = fits.checked_plan(compose_run([*words, "history=2"]))
    with pytest.raises(TrimtabError, match="reads 2 observations; start from a policy with"):
        fits.check_method(plan)
    monkeypatch.setattr(fits, "simulator_device", lambda id, device, **options: "cuda")
    plan = fits.checked_plan(compose_run(words))
    with pytest.raises(TrimtabError, match="polychromic restores states .* set device=cpu"):
        fits.check_method(plan)
