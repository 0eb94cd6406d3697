"""SAC Flow: its losses with the path's density, against a loop, and a task that it solves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loading import load_module

from trimtab.algorithms.base import Setup
from trimtab.algorithms.off_policy.sac_flow import SACFlow
from trimtab.types import Batch, PolicySpec, TrimtabError

small = load_module(Path(__file__).with_name("small.py"))
BatchOf = Callable[..., Batch]


def sac_flow(setup: Setup, **settings: Any) -> SACFlow:
    torch.manual_seed(0)
    widths: dict[str, Any] = {"hidden": (32, 32), "flow_hidden": (32,), "log_std_hidden": (32,)}
    return SACFlow(setup, **{**widths, **settings})


def test_its_losses_are_sacs_with_the_density_of_the_path(
    setup_of: Callable[..., Setup], batch_of: BatchOf
) -> None:
    algorithm = sac_flow(setup_of(set()), learning_rate=0.0, initial_temperature=0.3)
    data = batch_of(algorithm)
    before, rows = copy.deepcopy(algorithm), len(data.reward)
    torch.manual_seed(5)
    algorithm.continue_chunks(data)
    later, now = (algorithm.actor.sample_noise(rows) for _ in range(2))
    torch.manual_seed(5)
    metrics = algorithm.update(data)
    actor = before.actor
    action, density = actor.sample_with_log_prob(data.next_obs, later)
    value = before.target(actor.normalizer.obs(data.next_obs), action).amin(0)
    y = data.reward + data.discount * (value - 0.3 * density)
    torch.manual_seed(5)
    own = actor.normalizer.normalize_action(before.continue_chunks(data))
    read = actor.normalizer.obs(data.obs)
    errors = [(q - y).square().mean() for q in before.critic(read, own)]
    torch.testing.assert_close(metrics["critic_loss"], (sum(errors) / 2).detach())
    action, density = actor.sample_with_log_prob(data.obs, now)
    loss = (0.3 * density - before.critic(read, action).amin(0)).mean()
    torch.testing.assert_close(metrics["actor_loss"], loss.detach())
    torch.testing.assert_close(metrics["entropy"], -density.mean().detach())
    # The slope of log alpha's loss is the entropy, less a target of 0.
    (moment,) = algorithm.temperature_optimizer.first_moment
    torch.testing.assert_close(moment, 0.1 * metrics["entropy"])


def test_it_warms_up_with_uniform_actions() -> None:
    algorithm = sac_flow(Setup(small.RUN))
    actions, stored = algorithm.explore(torch.zeros(4000, 3), warmup=True)
    assert actions.shape == (4000, 2, 2) and not stored
    third = (actions / small.SIZE).abs().flatten(0, 1) < 1 / 3
    assert (third.float().mean(0) - 1 / 3).abs().max() < 0.03


def test_it_learns_which_action_each_state_asks_for() -> None:
    spec = PolicySpec(2, 1, 2, (-1.0, -2.0), (1.0, 2.0))
    algorithm = sac_flow(Setup(spec), learning_rate=3e-3)
    for _ in range(300):
        obs = 2 * torch.rand(128, 2) - 1
        action = small.SIZE * (2 * torch.rand(128, 1, 2) - 1)
        reward = -4 * (action[:, 0] - 0.8 * obs).square().sum(1)
        algorithm.update(small.bandit(obs, action, reward))
    obs = 2 * torch.rand(300, 2) - 1
    action = algorithm.policy.act(obs, deterministic=True)[:, 0]
    assert (action - 0.8 * obs).abs().mean() < 0.12


def test_settings_without_effect_are_refused() -> None:
    for wrong in ({"actor_layer_norm": True}, {"entropy_per_dimension": -0.5}):
        with pytest.raises(TrimtabError, match="has no effect"):
            SACFlow(Setup(small.RUN), **wrong)
