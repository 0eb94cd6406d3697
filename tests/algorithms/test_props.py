"""PROPS: its parent, its objective by hand, what it keeps, and the sampling error it lowers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.returns import ReturnScale
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.algorithms.on_policy.props import PROPS, join, keep
from trimtab.algorithms.phases import Budget
from trimtab.benchmarks.contracts.base import difference
from trimtab.types import PolicySpec, Rollout, TrimtabError

SetupOf = Callable[..., Setup]
DataOf = Callable[..., Any]
SMALL: dict[str, Any] = {"hidden": (16, 16), "rollout_steps": 8, "batch_size": 8, "epochs": 2}


@pytest.mark.bits
def test_with_one_batch_of_one_rollout_it_is_ppo(setup_of: SetupOf, data_of: DataOf) -> None:
    found = []
    for kind, own in ((PPO, {}), (PROPS, {"kept_batches": 1, "target_every": 1})):
        torch.manual_seed(0)
        learner: Any = kind(setup_of(set()), **SMALL, **own, decay_steps=500)
        parts: dict[str, Any] = {}
        for step in range(4):
            action, aux = learner.explore(torch.ones(3, 5), warmup=False)
            data = data_of(learner, seed=step)
            aux = {"unclipped": data.aux["unclipped"] + aux["unclipped"]}
            metrics = learner.update(replace(data, aux=aux))
            metrics = {name: metrics[name] for name in ("policy_loss", "value_loss", "kl")}
            parts[str(step)] = {"metrics": metrics, "action": action}
        for name in ("policy", "critic", "optimizer"):
            parts[name] = getattr(learner, name).state_dict()
        scale = learner.return_scale if kind is PROPS else learner.reward_scale
        parts |= {"scale": scale.state_dict(), "random": torch.get_rng_state()}
        found.append(parts)
    assert difference(*found) is None


def test_rollouts_that_follow_one_another_are_one(setup_of: SetupOf, data_of: DataOf) -> None:
    torch.manual_seed(0)
    long = PPO(setup_of(set()), **SMALL | {"rollout_steps": 16}, normalize_rewards=False)
    data: Rollout = data_of(long, seed=2)
    assert data.cut[:8].any() and data.cut[8:].any()

    def half(rows: slice) -> Rollout:
        parts = {name: value[rows] for name, value in vars(data).items() if name in TENSORS}
        return Rollout(**parts, aux={"unclipped": data.aux["unclipped"][rows]})

    # A buffer is written over; what is kept is not.
    first, second = half(slice(0, 8)), half(slice(8, 16))
    kept = [keep(replace(first, reward=(moving := first.reward.clone()))), keep(second)]
    moving.zero_()
    found, wanted = long.samples(join(kept)), long.samples(data)
    assert difference(vars(found), vars(wanted)) is None
    assert torch.equal(join(kept).cuts, data.cuts)


TENSORS = ("obs", "action", "reward", "next_obs", "discount", "cut")


def test_rewards_are_counted_once_and_batches_are_forgotten(
    setup_of: SetupOf, data_of: DataOf
) -> None:
    torch.manual_seed(0)
    setup = setup_of(set())
    learner = PROPS(setup, **SMALL, target_every=2, kept_batches=2, behaviour_epochs=1)
    scale = ReturnScale(setup.num_envs, setup.discount)
    assert learner.return_scale is not None
    before = copy.deepcopy(learner.policy.state_dict())
    for step in range(7):
        data = data_of(learner, seed=step)
        scale(data.reward, data.cut)
        learner.update(data)
        assert difference(learner.return_scale.state_dict(), scale.state_dict()) is None
        # The policy learns after each second rollout.
        after = copy.deepcopy(learner.policy.state_dict())
        same = torch.equal(before["network.0.weight"], after["network.0.weight"])
        assert same == (step % 2 == 0)
        before = after
    kept = [data_of(learner, seed=step).reward for step in range(3, 7)]
    assert all(
        torch.equal(one.reward, other) for one, other in zip(learner.kept, kept, strict=True)
    )


def test_the_behaviours_steps_by_hand(setup_of: SetupOf, data_of: DataOf) -> None:
    torch.manual_seed(0)
    learner = PROPS(
        setup_of(set()),
        **SMALL,
        behaviour_learning_rate=3e-3,
        behaviour_clip=0.1,
        kl_weight=0.4,
        kl_limit=0.01,
    )
    learner.update(data_of(learner, seed=1))
    policy = learner.policy
    part = learner.taken(join(learner.kept))
    hand = copy.deepcopy(policy)
    adam = torch.optim.Adam(hand.parameters(), 3e-3, eps=1e-5)
    learner.behaviour.load_state_dict(policy.state_dict())
    fresh = Adam(learner.behaviour.parameters()).state_dict()
    learner.behaviour_optimizer.load_state_dict(fresh)
    learner.behaviour_optimizer.change_rate(3e-3)
    moved = []
    for _ in range(40):
        losses, ratios = [], []
        for row in range(len(part.obs)):
            mean = hand.head(part.obs[row][None])[0]
            mine = Normal(mean, hand.log_std.exp())
            policys = Normal(part.mean[row], policy.log_std.detach().exp())
            log_ratio = (mine.log_prob(part.action[row]) - policys.log_prob(part.action[row])).sum()
            ratio = log_ratio.exp()
            least = torch.clamp(ratio, 0.9, 1.1)
            losses.append(torch.max(ratio, least) + 0.4 * kl_divergence(mine, policys).mean())
            ratios.append((ratio - 1 - log_ratio).detach())
        loss = torch.stack(losses).mean()
        divergence = float(torch.stack(ratios).mean())
        metrics = learner.learn_behaviour(part)
        assert float(metrics["behaviour_kl"]) == pytest.approx(divergence, rel=1e-2, abs=1e-6)
        moved.append(float(metrics["moving"]))
        if divergence > 0.01:
            break
        assert float(metrics["behaviour_loss"]) == pytest.approx(float(loss.detach()), rel=1e-4)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 0.5)
        adam.step()
    assert len(moved) > 3 and moved == [1.0] * (len(moved) - 1) + [0.0]  # the limit was met
    for one, other in zip(learner.behaviour.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    # Beyond its limit it stays, whatever comes.
    still = copy.deepcopy(learner.behaviour.state_dict())
    for _ in range(3):
        assert learner.learn_behaviour(part)["moving"] == 0
    assert difference(still, learner.behaviour.state_dict()) is None


def test_a_run_of_less_than_a_batch_would_not_learn(setup_of: SetupOf) -> None:
    learner = PROPS(setup_of(set()), **SMALL, target_every=3)  # 3 environments, 2 actions
    (phase,) = learner.phases(Budget(0, 144))
    assert phase.length == 144
    with pytest.raises(TrimtabError, match="online_steps=143: .* after every 144 steps"):
        learner.phases(Budget(0, 143))


ONE_STATE = Setup(PolicySpec(1, 1, 2, (-5.0,) * 2, (5.0,) * 2), num_envs=8)


def sampling_error(action: Tensor, policy: Any) -> float:
    """KL of the likeliest Gaussian of actions ``[M, 1, 2]`` from the policy, in one state."""
    mean = policy.head(torch.zeros(1, 1))[0, 0].detach()
    likeliest = Normal(action[:, 0].mean(0), action[:, 0].std(0, correction=0))
    return float(kl_divergence(likeliest, Normal(mean, policy.log_std[0].detach().exp())).sum())


def gathered(epochs: int, seed: int) -> tuple[float, float]:
    """Sampling error of what is kept after some rollouts in one state, and the divergence."""
    torch.manual_seed(seed)
    learner = PROPS(
        ONE_STATE,
        hidden=(8,),
        learning_rate=0.0,
        rollout_steps=8,
        target_every=1,
        kept_batches=4,
        behaviour_epochs=epochs,
        behaviour_minibatches=1,
        behaviour_learning_rate=1e-2,
        kl_weight=0.1,
        kl_limit=0.1,
        normalize_observations=False,
    )
    obs = torch.zeros(8, 8, 1)
    for _ in range(5):
        rows = [learner.explore(obs[0], warmup=False) for _ in range(8)]
        nothing = torch.zeros(8, 8)
        learner.update(
            Rollout(
                obs=obs,
                action=torch.stack([action for action, _ in rows]),
                reward=nothing,
                next_obs=obs,
                discount=nothing + 0.99,
                cut=nothing > 0,
                aux={"unclipped": torch.stack([aux["unclipped"] for _, aux in rows])},
            )
        )
    kept = torch.cat([one.aux["unclipped"].flatten(0, 1) for one in learner.kept])
    mean, other = learner.behaviour.head(obs[0, :1]), learner.policy.head(obs[0, :1])
    moved = float((mean - other).detach().abs().max())
    return sampling_error(kept, learner.policy), moved


@pytest.mark.slow
def test_the_sampling_error_is_lower_than_that_of_on_policy_draws() -> None:
    """What is kept together: 256 actions of two dimensions, over 24 seeds.

    For draws of the policy itself the error's mean is the number of fitted parameters over twice
    that of draws (Wilks), 4 / 512; PROPS has to lower it well beyond chance.
    """
    own = torch.tensor([gathered(0, seed) for seed in range(24)])
    robust = torch.tensor([gathered(12, seed) for seed in range(24)])
    assert own[:, 1].max() == 0 and robust[:, 1].min() > 0
    assert float(own[:, 0].mean()) == pytest.approx(4 / 512, rel=0.4)
    assert robust[:, 0].mean() < 0.8 * own[:, 0].mean()
