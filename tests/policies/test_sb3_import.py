"""Models that Stable-Baselines3 saved, read without unpickling, and kinds that are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from loading import load_module
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from trimtab.policies.bundle.bundle import load_bundle, save_bundle
from trimtab.policies.imports.actors import Unsaid
from trimtab.policies.imports.sb3 import actor_from_sb3, policy_from_sb3
from trimtab.policies.opening import load_policy
from trimtab.types import PolicySpec, TrimtabError

models = load_module(Path(__file__).with_name("sb3_models.py"))
CASES, KINDS, SPEC, Walk = models.CASES, models.KINDS, models.SPEC, models.Walk
OFF_POLICY, small, trained = models.OFF_POLICY, models.small, models.trained
Saved = models.Saved
saved = models.saved  # a fixture


class Discrete(Walk):
    action_space = gymnasium.spaces.Discrete(3)


class Goals(Walk):
    observation_space = gymnasium.spaces.Dict({"a": Walk.observation_space})

    def reset(self, **keywords: Any) -> Any:
        return {"a": super().reset(**keywords)[0]}, {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return {"a": obs}, *rest


def observations(count: int = 200) -> Any:
    return 3 * np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32)


@pytest.mark.bits
@pytest.mark.parametrize("example", CASES)
def test_acts_as_theirs_does(saved: Saved, example: str) -> None:
    model, path = saved(example)
    policy, obs = policy_from_sb3(path, SPEC), observations()
    theirs, _ = model.predict(obs, deterministic=True)
    ours = policy.act(torch.from_numpy(obs), deterministic=True)[:, 0].numpy()
    assert policy.evaluate_deterministic
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)
    assert np.ptp(ours, axis=0).min() > 1e-3  # it is not the same action everywhere


@pytest.mark.bits
@pytest.mark.parametrize(
    "example", [example for example in CASES if example.startswith(("ppo", "a2c", "sac"))]
)
def test_stochastic_actions_with_the_same_noise(
    saved: Saved, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = saved(example)
    policy, obs = policy_from_sb3(path, SPEC), observations()
    noise = torch.randn(len(obs), 2)
    monkeypatch.setattr(
        torch.distributions.Normal, "rsample", lambda self, *a: self.loc + self.scale * noise
    )
    theirs, _ = model.predict(obs, deterministic=False)
    with torch.no_grad():
        ours = policy(torch.from_numpy(obs), noise[:, None])[:, 0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.bits
@pytest.mark.parametrize("example", KINDS)
def test_goes_into_a_bundle_and_out_again(saved: Saved, example: str, tmp_path: Path) -> None:
    model, path = saved(example)
    policy, obs = policy_from_sb3(path, SPEC), observations(20)
    assert policy.kind == KINDS[example]
    contract = {"env": "gym/Hopper-v5", "control_rate": None, "act_steps": 1}
    folder = save_bundle(policy, tmp_path / "bundle", contract=contract)
    theirs, _ = model.predict(obs, deterministic=True)
    again = load_bundle(folder).policy.act(torch.from_numpy(obs), deterministic=True)
    np.testing.assert_allclose(again[:, 0].numpy(), theirs, atol=1e-5)
    runner = load_policy(folder)
    np.testing.assert_allclose(runner.step(obs[0]), theirs[0], atol=1e-5)


def test_leaves_the_random_state_alone(saved: Saved) -> None:
    path = saved("ppo")[1]
    state = torch.get_rng_state()
    policy_from_sb3(path, SPEC)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (PolicySpec(5, 1, 2, SPEC.action_low, SPEC.action_high), r"\(4, 2\) against \(5, 2\)"),
        (PolicySpec(4, 1, 3, (-1.0,) * 3, (1.0,) * 3), r"\(4, 2\) against \(4, 3\)"),
        (PolicySpec(4, 1, 2, (-1.0, -1.0), (1.0, 2.0)), "its actions have low"),
    ],
)
@pytest.mark.parametrize("example", KINDS)
def test_another_task_is_refused(saved: Saved, example: str, spec: PolicySpec, words: str) -> None:
    with pytest.raises(TrimtabError, match=words) as error:
        policy_from_sb3(saved(example)[1], spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: trained(stable_baselines3.PPO, n_steps=16, batch_size=8, use_sde=True), "gSDE"),
        (lambda: trained(stable_baselines3.SAC, **OFF_POLICY, use_sde=True), "gSDE"),
        (
            lambda: trained(stable_baselines3.PPO, Discrete(), n_steps=16, batch_size=8),
            "action_spa",
        ),
        (lambda: trained(stable_baselines3.DQN, Discrete(), learning_starts=5), "space is"),
        (
            lambda: trained(
                stable_baselines3.SAC, Goals(), policy="MultiInputPolicy", **OFF_POLICY
            ),
            "observation_space",
        ),
        (
            lambda: trained(
                stable_baselines3.PPO, n_steps=16, batch_size=8, **small(activation_fn=nn.Mish)
            ),
            "activation .*Mish",
        ),
    ],
    ids=["ppo_sde", "sac_sde", "ppo_discrete", "dqn", "multi_input", "mish"],
)
def test_other_kinds_are_refused_in_one_line(
    make: Callable[[], Any], words: str, tmp_path: Path
) -> None:
    make().save(tmp_path / "model")
    with pytest.raises(TrimtabError, match=words) as error:
        policy_from_sb3(tmp_path / "model.zip", SPEC)
    assert "\n" not in str(error.value)


def test_normalised_observations_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, saved: Saved
) -> None:
    env = VecNormalize(DummyVecEnv([Walk]))
    trained(stable_baselines3.PPO, env, n_steps=16, batch_size=8).save(tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        for example in CASES:
            policy_from_sb3(saved(example)[1], SPEC)
        assert not caplog.records
        policy_from_sb3(tmp_path / "model.zip", SPEC)
    assert "VecNormalize" in caplog.text


def test_statistics_in_a_contract_stand_for_those_of_vec_normalize(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([Walk]))
    model = trained(stable_baselines3.PPO, env, n_steps=16, batch_size=8)
    model.save(tmp_path / "model")
    np.savez(tmp_path / "kept.npz", mean=env.obs_rms.mean, variance=env.obs_rms.var)
    unsaid = Unsaid(statistics=str(tmp_path / "kept.npz"))
    policy, obs = actor_from_sb3(tmp_path / "model.zip", unsaid).policy(SPEC), observations()
    theirs, _ = model.predict(env.normalize_obs(obs), deterministic=True)
    ours = policy.act(torch.from_numpy(obs), deterministic=True)[:, 0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_contract_that_contradicts_the_files_activation_is_refused(saved: Saved) -> None:
    path = saved("ppo_relu")[1]
    assert actor_from_sb3(path, Unsaid("relu")).activation == "relu"
    with pytest.raises(TrimtabError, match="says activation relu, and the contract elu"):
        actor_from_sb3(path, Unsaid("elu"))
