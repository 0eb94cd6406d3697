"""Stable-Baselines3's own learners inside our harness."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch

from trimtab.algorithms.base import Setup
from trimtab.algorithms.peers.sb3 import Peer
from trimtab.algorithms.peers.sb3_ppo import SB3PPO
from trimtab.algorithms.peers.sb3_sac import SB3SAC
from trimtab.algorithms.peers.sb3_td3 import SB3TD3
from trimtab.policies.base import Policy
from trimtab.types import PolicySpec, TrimtabError

SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
SMALL: dict[type[Peer], dict[str, Any]] = {
    SB3PPO: {"rollout_steps": 8, "batch_size": 8, "epochs": 2},
    SB3SAC: {},
    SB3TD3: {},
}
DataOf = Callable[..., Any]


@pytest.fixture(params=SMALL, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    def build() -> Any:
        torch.manual_seed(0)
        kind = request.param
        return kind(Setup(SPEC, num_envs=3), hidden=(16, 16), **SMALL[kind])

    return build


def test_what_is_judged_acts_as_theirs_does(make: Callable[[], Any], data_of: DataOf) -> None:
    peer = make()
    before: Policy = copy.deepcopy(peer.policy)
    for seed in range(3):
        peer.update(data_of(peer, seed=seed))
    obs = torch.randn(50, 5)
    theirs = torch.from_numpy(peer.model.predict(obs.numpy(), deterministic=True)[0])
    action = peer.policy.act(obs, deterministic=True)
    expected = peer.judged.normalizer.raw_action(theirs.reshape(-1, 2, 2))
    torch.testing.assert_close(action, expected, atol=1e-6, rtol=1e-5)
    assert not torch.equal(action, before.act(obs, deterministic=True))


def test_is_theirs_with_their_default_settings(make: Callable[[], Any]) -> None:
    kind = type(make())
    torch.manual_seed(0)
    peer = kind(Setup(SPEC))
    assert type(peer.model).__module__.startswith(stable_baselines3.__name__)

    class Nothing(gymnasium.Env[Any, Any]):
        observation_space = peer.model.observation_space
        action_space = peer.model.action_space

    keywords = {} if kind is SB3PPO else {"buffer_size": 10}
    default = type(peer.model)("MlpPolicy", Nothing(), device="cpu", **keywords)
    given = {"buffer_size", "ent_coef"}  # "auto" is "auto_1.0"
    for name, theirs in vars(default).items():
        if isinstance(theirs, int | float | str) and name[0] != "_" and name not in given:
            assert getattr(peer.model, name) == theirs, name
    assert peer.pace.batch_size == default.batch_size
    shapes = [(n, p.shape) for n, p in default.policy.named_parameters()]
    assert [(n, p.shape) for n, p in peer.model.policy.named_parameters()] == shapes


def test_a_seed_is_torchs_and_global_states_are_left_alone(
    make: Callable[[], Any], data_of: DataOf
) -> None:
    numpy_before = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    first, second = make(), make()
    for name, weight in first.model.policy.state_dict().items():
        assert torch.equal(weight, second.model.policy.state_dict()[name]), name
    torch.manual_seed(5)
    data = data_of(first)
    state = torch.get_rng_state()
    assert first.policy is first.judged  # copying weights draws nothing
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    first.update(data)
    torch.manual_seed(6)
    second.update(data)
    for name, weight in first.model.policy.state_dict().items():
        assert torch.equal(weight, second.model.policy.state_dict()[name]), name
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]


def test_td3_goes_on_in_the_rhythm_of_its_actor(data_of: DataOf) -> None:
    setup = Setup(SPEC)
    first, second = (SB3TD3(setup, hidden=(16,), actor_every=3) for _ in range(2))
    first.update(data_of(first, seed=0))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in (1, 2, 3):
        for peer in (first, second):
            torch.manual_seed(step)
            peer.update(data_of(peer, seed=step))
        for name, weight in first.model.policy.state_dict().items():
            assert torch.equal(weight, second.model.policy.state_dict()[name]), (name, step)
        assert first.last_metrics == second.last_metrics
        assert (first.last_metrics["actor_loss"] != 0) == (step >= 2)


def test_discount_of_the_batch_is_what_bootstraps(data_of: DataOf) -> None:
    torch.manual_seed(0)
    peer = SB3TD3(Setup(SPEC, discount=0.5), hidden=(16,), target_noise=0.0)
    batch = data_of(peer)
    assert set(batch.discount.tolist()) == {0.0, np.float32(0.99)}
    batch = replace(batch, valid=torch.ones_like(batch.valid))  # every chunk was whole
    scaled = peer.judged.normalizer.normalize_action(batch.action).flatten(1)
    with torch.no_grad():
        following = peer.model.actor_target(batch.next_obs)
        value = torch.cat(peer.model.critic_target(batch.next_obs, following), 1).amin(1)
        target = batch.reward + batch.discount * value
        values = torch.cat(peer.model.critic(batch.obs, scaled), 1)
        expected = (values - target[:, None]).square().mean(0).sum()
    assert peer.update(batch)["critic_loss"] == pytest.approx(expected.item(), rel=1e-4)


def test_without_the_library_one_line_says_what_to_install(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(make())
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(TrimtabError, match=r"pip install 'trimtab\[sb3\]'"):
        kind(Setup(SPEC))


def test_listing_the_methods_does_not_need_the_library() -> None:
    names = ", ".join(kind.__module__ for kind in SMALL)
    code = f"import sys, {names}; print('stable_baselines3' in sys.modules)"
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("False", "")
