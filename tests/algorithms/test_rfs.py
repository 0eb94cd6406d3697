"""Noise and correction by one actor: what it plays, that PPO learns from it, that it gains."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.algorithms.steering.rfs import RFS
from trimtab.policies.base import Policy
from trimtab.policies.kinds.diffusion import DiffusionPolicy
from trimtab.policies.kinds.edited_latent import EditedLatentPolicy, modulation_spec
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import PolicySpec, Rollout, TrimtabError

RUN = PolicySpec(3, 2, 2, (-2.0, -1.0), (2.0, 1.0))
PLAN = PolicySpec(3, 3, 2, (-2.0, -1.0), (2.0, 1.0))


class Fork(Policy):
    """Goes one way or the other, as the sign of its latent says, whatever it sees."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return raw actions near half of the limits, seldom between."""
        return self.normalizer.raw_action(0.5 * torch.tanh(6 * noise))


def made(base: Policy | None = None, spec: PolicySpec = RUN, **keywords: Any) -> RFS:
    torch.manual_seed(0)
    base = base or FlowPolicy(PLAN, hidden=(12, 12), sampling_steps=2)
    settings = {"hidden": (16, 16), "rollout_steps": 8, "batch_size": 16, **keywords}
    return RFS(Setup(spec, base=base, num_envs=4), **settings)


@pytest.mark.parametrize("magnitude", [0.5, 1.5])
def test_plays_the_base_at_the_latent_plus_the_correction(magnitude: float) -> None:
    algorithm = made(magnitude=magnitude, scale=0.4, edit_log_std=1.0)
    obs = torch.randn(30, 3)
    action, stored = algorithm.explore(obs, warmup=False)
    unclipped, policy = stored["unclipped"], algorithm.policy
    assert unclipped.shape == (30, 1, 3 * 2 + 2 * 2) and action.shape == (30, 2, 2)
    with torch.no_grad():
        for row in range(30):
            latent = (unclipped[row, 0, :6] * magnitude).clamp(-magnitude, magnitude).view(3, 2)
            edit = unclipped[row, 0, 6:].clamp(-1, 1).view(2, 2)
            plan = policy.base(obs[row][None], latent[None])[0]
            for step in range(2):
                for dim, limit in enumerate(RUN.action_high):
                    wanted = plan[step, dim] + 0.4 * limit * edit[step, dim]  # unfitted: limits
                    assert action[row, step, dim].item() == pytest.approx(
                        float(wanted.clamp(-limit, limit)), abs=1e-5
                    )
            whole = policy.decoded(
                obs[row][None], torch.cat([latent.flatten(), edit.flatten()])[None, None]
            )
            assert torch.allclose(whole[0, :2], action[row], atol=1e-5)
            assert torch.allclose(whole[0, 2:], plan[2:], atol=1e-5)


def test_starts_as_the_base_with_small_corrections() -> None:
    algorithm = made(magnitude=1.5, edit_log_std=-2.0)
    _, stored = algorithm.explore(torch.zeros(4000, 3), warmup=False)
    unclipped = stored["unclipped"][:, 0]
    latent, edit = 1.5 * unclipped[:, :6], unclipped[:, 6:]
    assert abs(float(latent.std()) - 1.0) < 0.02 and abs(float(latent.mean())) < 0.05
    assert abs(float(edit.std()) - 0.1353) < 0.005  # e to the -2


def rollout(algorithm: RFS, seed: int = 3) -> Rollout:
    generator = torch.Generator().manual_seed(seed)
    steps, rows = algorithm.pace.rollout_steps, 4
    obs = torch.randn(steps, rows, 3, generator=generator)
    shape = algorithm.aux_shapes["unclipped"]
    return Rollout(
        obs=obs,
        action=torch.zeros(steps, rows, 2, 2),
        reward=torch.randn(steps, rows, generator=generator),
        next_obs=obs.roll(-1, 0),
        discount=torch.full((steps, rows), 0.9),
        cut=torch.rand(steps, rows, generator=generator) < 0.2,
        aux={"unclipped": torch.randn(steps, rows, *shape, generator=generator)},
    )


def test_learns_as_ppo_does_whose_action_is_the_modulation() -> None:
    """PPO on the modulated task, made by itself, takes the same steps to the last bit."""
    algorithm = made(epochs=3)
    spec = modulation_spec(algorithm.policy.base, 2, 1.5)
    peer = PPO(Setup(spec, num_envs=4), hidden=(16, 16), rollout_steps=8, batch_size=16, epochs=3)
    peer.actor.load_state_dict(algorithm.actor.state_dict())
    peer.critic.load_state_dict(algorithm.critic.state_dict())
    base = copy.deepcopy(algorithm.policy.base.state_dict())
    for step in range(2):
        data = rollout(algorithm, seed=step)
        torch.manual_seed(step)
        ours = algorithm.update(data)
        torch.manual_seed(step)
        theirs = peer.update(data)
        assert ours == theirs
    for name, value in peer.policy.state_dict().items():
        assert torch.equal(algorithm.policy.actor.state_dict()[name], value), name
    for name, value in algorithm.policy.base.state_dict().items():
        assert torch.equal(value, base[name]), name


def test_learns_where_to_go_and_how_far() -> None:
    spec = PolicySpec(1, 1, 1, (-1.0,), (1.0,))
    algorithm = made(
        Fork(spec), spec, scale=0.3, rollout_steps=64, batch_size=128, learning_rate=3e-3
    )
    torch.manual_seed(1)

    def reward(obs: Tensor, action: Tensor) -> Tensor:
        return action[:, 0, 0] * obs[:, 0].sign()

    for _ in range(30):
        obs = torch.randn(64, 4, 1)
        action, stored = algorithm.explore(obs.flatten(0, 1), warmup=False)
        algorithm.update(
            Rollout(
                obs=obs,
                action=action.unflatten(0, (64, 4)),
                reward=reward(obs.flatten(0, 1), action).view(64, 4),
                next_obs=obs,
                discount=torch.zeros(64, 4),
                cut=torch.ones(64, 4, dtype=torch.bool),
                aux={"unclipped": stored["unclipped"].unflatten(0, (64, 4))},
            )
        )
    obs = torch.randn(2000, 1)
    action = algorithm.policy.act(obs, deterministic=True)
    # The base alone is worth 0; the latent alone at most 0.5; both together 0.8.
    assert float(reward(obs, action).mean()) > 0.65


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TrimtabError, match="not one latent"):
        made(DiffusionPolicy(PLAN, hidden=(8,), sampler="ddpm"))
    with pytest.raises(TrimtabError, match="act_steps=4"):
        made(spec=PolicySpec(3, 4, 2, RUN.action_low, RUN.action_high))
    for wrong in ({"magnitude": 0.0}, {"scale": 0.0}, {"edit_log_std": 3.0}):
        with pytest.raises(TrimtabError):
            made(**wrong)
    policy = made().policy
    with pytest.raises(TrimtabError, match="no latent"):
        EditedLatentPolicy(policy.actor, policy.base, scale=0.1, act_steps=1)
