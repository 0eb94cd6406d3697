"""CFGRL: what guidance does to a velocity and to actions, labels, and losses by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.offline.cfgrl import CFGRL
from trimtab.observations import joined
from trimtab.policies.agent import Agent
from trimtab.policies.bundle.onnx_export import export_onnx
from trimtab.policies.kinds.guided_flow import NEGATIVE, NONE, POSITIVE, GuidedFlowPolicy
from trimtab.policies.registry import build_policy
from trimtab.types import Batch, PolicySpec, TrimtabError

SPEC = PolicySpec(3, 2, 2, (-1.0, -2.0), (1.0, 2.0))
SMALL: dict[str, Any] = {"hidden": (16, 16), "batch_size": 8, "sampling_steps": 3}


def policy(steps: int = 4) -> GuidedFlowPolicy:
    torch.manual_seed(0)
    spec = SPEC.with_input("guidance", 1.5)
    return GuidedFlowPolicy(spec, hidden=(16, 16), sampling_steps=steps)


def with_label(flow: GuidedFlowPolicy, obs: Tensor, noise: Tensor, label: int) -> Tensor:
    """Integrate the field of one label alone, step by step."""
    features = flow.normalizer.obs(obs)[:, :3]
    told = torch.cat([features, flow.told.weight[label].expand(len(obs), -1)], 1)
    x = noise
    for step in range(flow.sampler.steps):
        time = torch.full((len(obs),), step / flow.sampler.steps)
        x = x + flow.network(x, time, flow.network.obs_layer(told)) / flow.sampler.steps
    return flow.normalizer.raw_action(x)


@pytest.mark.parametrize(("weight", "label"), [(0.0, NONE), (1.0, POSITIVE)])
def test_without_guidance_it_is_the_clone_and_at_one_the_conditional_clone(
    weight: float, label: int
) -> None:
    flow, obs = policy(), torch.randn(5, 3)
    noise = flow.sample_noise(5)
    found = flow(joined(obs, guidance=torch.full((5, 1), weight)), noise)
    torch.testing.assert_close(found, with_label(flow, obs, noise, label), atol=2e-6, rtol=1e-5)
    other = with_label(flow, obs, noise, POSITIVE if label == NONE else NONE)
    assert (found - other).abs().max() > 1e-3


def test_velocity_is_linear_in_the_weight() -> None:
    flow, x = policy(), torch.randn(4, 2, 2)
    features, time = torch.randn(4, 3), torch.tensor([0.3])
    none = torch.full((4,), NONE)
    condition = torch.cat([flow.condition(features, none), flow.condition(features, none + 2)])

    def at(weight: float) -> Tensor:
        return flow.velocity(x, time, condition, torch.full((4,), weight))

    for weight in (-1.0, 0.5, 3.0, 10.0):
        torch.testing.assert_close(at(weight), at(0.0) + weight * (at(1.0) - at(0.0)))
    assert (at(1.0) - at(0.0)).abs().max() > 1e-3


def test_each_row_has_its_own_weight_and_one_step_is_linear() -> None:
    flow, obs = policy(steps=1), 0.1 * torch.randn(3, 3)
    noise = 0.01 * flow.sample_noise(1).expand(3, -1, -1)
    weights = torch.tensor([[0.0], [1.0], [0.25]])
    action = flow(joined(obs[:1].expand(3, -1), guidance=weights), noise)
    assert action.abs().max() < 1.0, "the limits would hide what is tested"
    torch.testing.assert_close(action[2], action[0] + 0.25 * (action[1] - action[0]))


def test_the_default_stands_where_nobody_gives_a_weight() -> None:
    flow, obs = policy(), torch.randn(5, 3)
    noise = flow.sample_noise(5)
    given = flow(joined(obs, guidance=torch.full((5, 1), 1.5)), noise)
    assert torch.equal(flow(obs, noise), given)
    again = build_policy(flow.config())
    again.load_state_dict(flow.state_dict())
    assert torch.equal(again(obs, noise), given)


def test_a_robot_sets_the_weight_of_one_graph() -> None:
    flow = policy()
    session = onnxruntime.InferenceSession(export_onnx(flow, {}))
    obs = np.random.default_rng(0).standard_normal((1, 3)).astype(np.float32)

    def decide(seen: Any, noise: Any) -> Any:
        return session.run(None, {**seen, "noise": noise})[0]

    for chosen, weight in (({}, 1.5), ({"guidance": 0.0}, 0.0), ({"guidance": 4.0}, 4.0)):
        agent = Agent(decide, 1, flow.inputs, act_steps=2, deterministic=True, inputs=chosen)
        agent.reset(seeds=[0])
        wanted = flow(
            joined(torch.from_numpy(obs), guidance=torch.tensor([[weight]])), torch.zeros(1, 2, 2)
        )
        found = torch.from_numpy(agent.act(obs))
        torch.testing.assert_close(found, wanted.detach(), atol=1e-5, rtol=1e-4)


@pytest.fixture
def method(setup_of: Callable[..., Setup]) -> CFGRL:
    torch.manual_seed(1)
    return CFGRL(setup_of({"dataset"}), **SMALL)


def test_labels_follow_the_advantage_and_some_are_left_out(method: CFGRL) -> None:
    advantage = torch.tensor([-1.0, -1e-6, 0.0, 2.0])
    method.unlabelled = 0.0
    assert method.labels(advantage).tolist() == [NEGATIVE, NEGATIVE, POSITIVE, POSITIVE]
    method.threshold = 1.0
    assert method.labels(advantage).tolist() == [NEGATIVE] * 3 + [POSITIVE]
    method.unlabelled = 0.1
    share = (method.labels(torch.full((20_000,), 5.0)) == NONE).float().mean()
    assert share == pytest.approx(0.1, abs=0.01)


def test_losses_by_hand(method: CFGRL, batch_of: Callable[..., Batch]) -> None:
    data = batch_of(method)
    for weight in method.critic_target.parameters():  # V follows the targets, not the critics
        weight.data += 0.1 * torch.randn_like(weight)
    before = copy.deepcopy(method)
    torch.manual_seed(3)
    found = method.update(data)
    torch.manual_seed(3)
    plan = before.policy.act(data.obs[~data.valid.all(1)])
    raw = data.action.clone()
    raw[~data.valid.all(1), 1] = plan[:, 1]
    normalizer = before.policy.normalizer
    action, obs = normalizer.normalize_action(raw), normalizer.obs(data.obs)[:, :5]
    next_obs = normalizer.obs(data.next_obs)[:, :5]
    q, value = before.critic(obs, action), before.value(obs)[:, 0]
    u = before.critic_target(obs, action).min(0).values - value
    value_loss = (torch.where(u < 0, 0.1, 0.9) * u**2).mean()
    backup = data.reward + data.discount * before.value(next_obs)[:, 0]
    critic_loss = ((q[0] - backup) ** 2).mean() + ((q[1] - backup) ** 2).mean()
    good = q.min(0).values - value >= 0
    dropped = torch.rand(16) < 0.1
    label = torch.where(dropped, 0, torch.where(good, 2, 1))
    target = normalizer.normalize_action(data.action)
    epsilon, time = torch.randn(16, 2, 2), torch.rand(16)
    noisy = (1 - time)[:, None, None] * epsilon + time[:, None, None] * target
    told = torch.cat([obs, before.policy.told.weight[label]], 1)
    velocity = before.policy.network(noisy, time, before.policy.network.obs_layer(told))
    error = (velocity - (target - epsilon)).square().mean(2)
    assert 0 < good.sum() < 16
    torch.testing.assert_close(found["value_loss"], value_loss.detach())
    torch.testing.assert_close(found["critic_loss"], critic_loss.detach())
    torch.testing.assert_close(found["policy_loss"], error[data.valid].mean().detach())
    torch.testing.assert_close(found["positive"], good.float().mean())


def test_guidance_leads_to_what_is_good() -> None:
    """Two actions are equally frequent, the upper one is good: its share grows with the weight."""
    torch.manual_seed(0)
    spec = PolicySpec(1, 1, 1, (-1.0,), (1.0,)).with_input("guidance", 1.0)
    flow = GuidedFlowPolicy(spec, hidden=(64, 64), sampling_steps=10, label_dim=8)
    optimizer = torch.optim.Adam(flow.parameters(), 3e-3)
    obs, valid = torch.zeros(256, 1), torch.ones(256, 1, dtype=torch.bool)
    nothing = torch.zeros(256)
    for _ in range(400):
        upper = torch.rand(256) < 0.5
        action = torch.where(upper, 0.5, -0.5)[:, None, None] + 0.1 * torch.randn(256, 1, 1)
        label = torch.where(torch.rand(256) < 0.3, NONE, torch.where(upper, POSITIVE, NEGATIVE))
        batch = Batch(obs, action, nothing, obs, nothing, valid)
        loss = flow.label_errors(batch, obs, label).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    noise = torch.randn(500, 1, 1)
    with torch.no_grad():
        share = [
            float((flow(joined(torch.zeros(500, 1), guidance=torch.full((500, 1), w)), noise) > 0)
                  .float().mean())
            for w in (0.0, 0.5, 1.0)
        ]  # fmt: skip
    assert share[0] == pytest.approx(0.5, abs=0.1)
    assert share[0] < share[1] < share[2] and share[2] > 0.95


def test_guidance_is_the_last_input() -> None:
    with pytest.raises(TrimtabError, match="last part"):
        GuidedFlowPolicy(SPEC.with_input("guidance", 1.0).with_input("x", 0.0))
