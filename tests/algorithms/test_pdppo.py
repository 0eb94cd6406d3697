"""PDPPO: PPO where its second critic says nothing, its equations by row, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.on_policy.pdppo import PDPPO, PostSamples, TwoValues, post_columns
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.benchmarks.contracts.made_up import NUM_ENVS, SPEC, data_for, make_setup
from trimtab.observations import Part
from trimtab.types import PolicySpec, Rollout

SMALL: dict[str, Any] = {"hidden": (16, 16), "rollout_steps": 16, "batch_size": 12, "epochs": 2}
PARTS = {"observation": Part((3,)), "post_decision": Part((2,))}
IN_PARTS = replace(SPEC, parts=PARTS)
"""The made-up task, the last two of whose five observations are its post-decision state."""


def in_parts(data: Rollout) -> Rollout:
    """Return a rollout whose observations are named parts."""

    def parts(obs: Any) -> Any:
        return {"observation": obs[..., :3], "post_decision": obs[..., 3:]}

    return replace(data, obs=parts(data.obs), next_obs=parts(data.next_obs))


def made(kind: type[PPO], **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(make_setup(set(), spec=IN_PARTS), **{**SMALL, **settings})


def taught(method: PPO) -> PPO:
    """Return the method after updates on two rollouts."""
    for seed in range(2):
        torch.manual_seed(7 + seed)
        method.update(in_parts(data_for(method, seed)))
    return method


@pytest.mark.parametrize("value_clip", [None, 0.1])
def test_without_its_second_critic_it_is_ppo_to_the_last_bit(value_clip: float | None) -> None:
    settings: dict[str, Any] = {"value_clip": value_clip, "entropy_weight": 0.01}
    ours = taught(made(PDPPO, post_critic=False, **settings)).state_dict()
    theirs = taught(made(PPO, **settings)).state_dict()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_where_the_second_critic_is_above_the_first_it_is_ppo_to_the_last_bit() -> None:
    # Without a bound on the gradient's norm: zeros in a sum may move the last bit of a norm.
    ours, theirs = (made(kind, max_gradient_norm=1e9) for kind in (PDPPO, PPO))
    ours.actor.load_state_dict(theirs.actor.state_dict())
    ours.critic.of_state.load_state_dict(theirs.critic.state_dict())
    with torch.no_grad():
        ours.critic.of_post[-1].bias.fill_(1e4)
    for method in (ours, theirs):
        taught(method)
    assert not torch.equal(ours.actor.network[0].weight, made(PPO).actor.network[0].weight)
    for one, other in (
        (ours.actor.state_dict(), theirs.actor.state_dict()),
        (ours.critic.of_state.state_dict(), theirs.critic.state_dict()),
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@torch.no_grad()
def mlp_value(network: Any, x: torch.Tensor) -> float:
    for layer in network:
        x = torch.tanh(x) if isinstance(layer, nn.Tanh) else layer.weight @ x + layer.bias
    return float(x)


def test_advantages_and_losses_are_those_of_a_loop_by_row() -> None:
    method = made(PDPPO, gae_decay=1.0, normalize_rewards=False, normalize_observations=False)
    data = in_parts(data_for(method, 3))
    found = method.samples(data)
    assert isinstance(found, PostSamples) and isinstance(method.critic, TwoValues)
    steps, discount = SMALL["rollout_steps"], 0.99

    def whole(obs: Any, step: int, env: int) -> torch.Tensor:
        return torch.cat([obs["observation"][step, env], obs["post_decision"][step, env]])

    errors, both = [], set()
    for env in range(NUM_ENVS):
        for step in range(steps):
            # Discounted rewards up to an end, and V of the last observation but after a failure.
            total, weight = 0.0, 1.0
            for later in range(step, steps):
                total += weight * float(data.reward[later, env])
                weight *= discount
                if data.cut[later, env] or later == steps - 1:
                    if float(data.discount[later, env]) > 0:
                        last = whole(data.next_obs, later, env)
                        total += weight * mlp_value(method.critic.of_state, last)
                    break
            value = mlp_value(method.critic.of_state, whole(data.obs, step, env))
            post = mlp_value(method.critic.of_post, data.next_obs["post_decision"][step, env])
            row = step * NUM_ENVS + env
            assert float(found.target[row]) == pytest.approx(total, abs=1e-4)
            larger = max(total - value, total - post)
            assert float(found.advantage[row]) == pytest.approx(larger, abs=1e-4)
            errors.append((value - total) ** 2 + (post - total) ** 2)
            both.add(value < post)
    assert both == {True, False}
    loss = method.value_loss(found)
    assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-4)
    rows = torch.arange(5)
    assert torch.equal(found[rows].post, found.post[:5])


def test_each_critic_learns_from_every_row_as_if_it_were_alone() -> None:
    method = made(PDPPO, normalize_rewards=False, normalize_observations=False)
    found = method.samples(in_parts(data_for(method, 3)))
    smaller = found.value < method.post_value(found.post)
    assert {*smaller[:8].tolist()} == {True, False}
    for row in range(8):
        part = found[torch.tensor([row])]
        method.critic.zero_grad()
        method.value_loss(part).backward()
        for critic, seen in (
            (method.critic.of_state, part.obs),
            (method.critic.of_post, part.post),
        ):
            error = (critic(seen).squeeze(-1) - part.target).square().mean()
            alone = torch.autograd.grad(error, [*critic.parameters()])
            assert max(float(one.abs().max()) for one in alone) > 0
            for weight, slope in zip(critic.parameters(), alone, strict=True):
                torch.testing.assert_close(weight.grad, slope)


def test_the_second_critic_reads_the_post_decision_state_alone() -> None:
    assert post_columns(IN_PARTS) == slice(3, 5)
    assert post_columns(SPEC) == slice(None)  # a task without chance: the next observation
    first = replace(SPEC, parts={"post_decision": Part((2,)), "observation": Part((3,))})
    assert post_columns(first) == slice(0, 2)
    past = IN_PARTS.with_history(3)
    assert post_columns(past) == slice(9, 15)
    method = made(PDPPO, normalize_observations=False)
    data = in_parts(data_for(method, 1))
    known = method.samples(data).post
    assert torch.equal(known, data.next_obs["post_decision"].flatten(0, 1))
    other = replace(data, obs={name: 2 * part for name, part in data.obs.items()})
    assert torch.equal(method.samples(other).post, known)


def test_it_learns_to_undo_what_it_sees() -> None:
    """One decision an episode: x = s + a, then chance adds to x, and what is left costs its square.

    The best action is -s. The second critic learns what is left of x, and not of chance.
    """
    torch.manual_seed(4)
    parts = {"observation": Part((1,)), "post_decision": Part((1,))}
    spec = PolicySpec(2, 1, 1, (-3.0,), (3.0,), parts=parts)
    settings = SMALL | {"rollout_steps": 64, "batch_size": 64, "epochs": 8}
    method = PDPPO(
        Setup(spec=spec, num_envs=NUM_ENVS), learning_rate=3e-3, gae_decay=1.0, **settings
    )
    ends = torch.ones(64, NUM_ENVS, dtype=torch.bool)

    def rollout() -> Rollout:
        state = 2 * torch.rand(64, NUM_ENVS, 1) - 1
        obs = {"observation": state, "post_decision": torch.zeros_like(state)}
        flat = {name: part.flatten(0, 1) for name, part in obs.items()}
        action, aux = method.explore(flat, warmup=False)
        post = state + action.view_as(state)
        after = post + 0.3 * torch.randn_like(post)
        reward = -after.square().squeeze(-1)
        return Rollout(
            obs=obs,
            action=action.view(64, NUM_ENVS, 1, 1),
            reward=reward,
            next_obs={"observation": after, "post_decision": post},
            discount=torch.zeros(64, NUM_ENVS),
            cut=ends,
            aux={name: one.view(64, NUM_ENVS, 1, 1) for name, one in aux.items()},
        )

    before = rollout().reward.mean()
    for _ in range(40):
        method.update(rollout())
    after = rollout()
    assert before < -0.8 and after.reward.mean() > -0.4  # -0.09 for the best action, and chance
    state = after.obs["observation"].flatten(0, 1)  # type: ignore[call-overload, index]
    given = {"observation": state, "post_decision": torch.zeros_like(state)}
    chosen = method.policy(given, torch.zeros(len(state), 1, 1)).flatten(1)
    assert (chosen + state).abs().mean() < 0.2
