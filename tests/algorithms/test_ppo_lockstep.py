"""Whole runs of our PPO on Hopper beside Stable-Baselines3's, step by step in double precision.

Both start from the same weights and are given the same action noise and the same minibatches. Ours
goes through our environments, collector and rollout buffer, theirs through Gymnasium's Hopper and
their own ``collect_rollouts``. What is not shared is compared: observations, ends of episodes,
actions, advantages, and all weights after each update.

Physics amplifies a last bit, and rounding to single precision would hand one over now and then: so
once both have agreed on an action, ours is executed on both sides.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.buffers import RolloutBuffer as TheirBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.benchmarks.training.collector import Collector
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.envs.engines.episodes import default_episode_seed
from trimtab.envs.vector import make_vec
from trimtab.types import PolicySpec, Rollout

ENVS, STEPS, ROLLOUTS, HORIZON, SEED = 8, 32, 6, 25, 3
MINIBATCH, EPOCHS = 64, 4
GAMMA = float(np.float32(0.99))  # our buffer keeps discounts in single precision
TOLERANCE = 1e-9


class Theirs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gymnasium's Hopper with the seeds that our episodes have, driven by recorded actions.

    Args:
        index: number of this environment.
        recorded: actions of ours still to be executed here.
    """

    def __init__(self, index: int, recorded: list[Any]) -> None:
        super().__init__(gymnasium.make("Hopper-v5", max_episode_steps=HORIZON))
        self.index, self.recorded, self.episode = index, recorded, 0
        self.ends: list[tuple[bool, bool]] = []

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=default_episode_seed(SEED, self.index, self.episode))
        self.episode += 1
        return obs.astype(np.float32), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ours = self.recorded.pop(0)
        assert np.abs(action - ours).max() < 1e-6, "the actions of the two are not the same"
        obs, reward, terminated, truncated, info = self.env.step(ours)
        self.ends.append((terminated, truncated))
        return obs.astype(np.float32), float(reward), terminated, truncated, info


class WideBuffer(TheirBuffer):
    """Their rollout buffer in double precision; it would round actions when they are drawn."""

    def reset(self) -> None:
        super().reset()
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, value.astype(np.float64))

    def _get_samples(self, batch_inds: Any, env: Any = None) -> RolloutBufferSamples:
        names = ("observations", "actions", "values", "log_probs", "advantages", "returns")
        columns = [torch.from_numpy(getattr(self, name)[batch_inds]) for name in names]
        return RolloutBufferSamples(*columns[:2], *(column.flatten() for column in columns[2:]))


class Silent(BaseCallback):
    """Their learner wants a callback."""

    def _on_step(self) -> bool:
        return True


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def pairs(ours: PPO, theirs: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Every weight of ours beside theirs."""
    policy = theirs.policy
    actor = [*linear_layers(policy.mlp_extractor.policy_net), policy.action_net]
    critic = [*linear_layers(policy.mlp_extractor.value_net), policy.value_net]
    for name, network, other in (
        ("actor", ours.policy.network, actor),
        ("critic", ours.critic, critic),
    ):
        for number, (mine, layer) in enumerate(zip(linear_layers(network), other, strict=True)):
            yield f"{name} {number} weight", mine.weight, layer.weight
            yield f"{name} {number} bias", mine.bias, layer.bias
    yield "log std", ours.policy.log_std.flatten(), policy.log_std


def made_ours(**settings: Any) -> PPO:
    """Our PPO with Stable-Baselines3's default settings but for the sizes, in double precision."""
    spec = PolicySpec(11, 1, 3, (-1.0,) * 3, (1.0,) * 3)
    torch.manual_seed(1)
    ours = PPO(
        Setup(spec, num_envs=ENVS, discount=GAMMA),
        normalize_observations=False,
        normalize_rewards=False,
        rollout_steps=STEPS,
        batch_size=MINIBATCH,
        epochs=EPOCHS,
        **settings,
    )
    ours.policy.double()
    ours.critic.double()
    for moments in (ours.optimizer.first_moment, ours.optimizer.second_moment):
        moments[:] = [moment.double() for moment in moments]
    return ours


def made_theirs(envs: Any) -> Any:
    """Stable-Baselines3's PPO, in double precision."""
    theirs = stable_baselines3.PPO(
        "MlpPolicy", envs, gamma=GAMMA, n_steps=STEPS, batch_size=MINIBATCH, n_epochs=EPOCHS,
        seed=0, device="cpu", rollout_buffer_class=WideBuffer,
    )  # fmt: skip
    theirs.policy.double()
    # Made anew, because its moments are of the weights' type.
    theirs.policy.optimizer = type(theirs.policy.optimizer)(
        theirs.policy.parameters(), **theirs.policy.optimizer.defaults
    )
    return theirs


class Lockstep:
    """The two learners, each with its own environments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ours: PPO) -> None:
        monkeypatch.setattr(
            "stable_baselines3.common.policies.preprocess_obs", lambda obs, *a, **k: obs.double()
        )
        self.patch, self.ours = monkeypatch, ours
        self.actions: list[list[Any]] = [[] for _ in range(ENVS)]
        self.envs = [Theirs(index, self.actions[index]) for index in range(ENVS)]
        vector = DummyVecEnv([lambda env=env: env for env in self.envs])
        vector.buf_rews = vector.buf_rews.astype(np.float64)
        self.theirs = made_theirs(vector)
        with torch.no_grad():
            for _, mine, other in pairs(ours, self.theirs):
                mine.copy_(other)
        _, self.callback = self.theirs._setup_learn(STEPS * ENVS * ROLLOUTS, Silent())
        self.theirs.set_logger(Logger(None, []))
        self.buffer = RolloutBuffer(STEPS, ENVS, 11, (1, 3), discount=GAMMA, aux=ours.aux_shapes)
        arrays = self.buffer._arrays
        for name in [n for n, array in arrays.items() if array.dtype == np.float32]:
            arrays[name] = arrays[name].astype(np.float64)
        options = {"horizon": HORIZON}
        hopper = make_vec("gym/Hopper-v5", ENVS, seed=SEED, act_steps=1, **options)
        self.collector = Collector(hopper, ours, self.buffer, "cpu")
        self.collector.obs = self.collector.obs.astype(np.float64)
        self.noise = torch.Generator().manual_seed(5)

    def gather(self) -> Rollout:
        """Fill both buffers with one rollout; return ours."""
        noise = torch.randn(STEPS, ENVS, 1, 3, generator=self.noise, dtype=torch.float64)
        mine, other = iter(noise), iter(noise.flatten(2))
        with self.patch.context() as patch:
            patch.setattr(self.ours.policy, "sample_noise", lambda count: next(mine))
            for _ in range(STEPS):
                self.collector.step(warmup=False)
                self.collector.obs = self.collector.obs.astype(np.float64)
            patch.setattr(
                torch.distributions.Normal,
                "rsample",
                lambda normal, *shape: normal.loc + normal.scale * next(other),
            )
            data = self.buffer.take()
            data = dataclasses.replace(data, discount=data.discount.double())
            for index, recorded in enumerate(self.actions):
                recorded += list(data.action[:, index, 0].numpy().astype(np.float32))
            self.theirs.collect_rollouts(
                self.theirs.env, self.callback, self.theirs.rollout_buffer, STEPS
            )
        assert next(mine, None) is None and next(other, None) is None
        return data

    def learn(self, data: Rollout, orders: list[Tensor]) -> None:
        """Update both from their own buffers with the same minibatches."""
        mine, other = iter(orders), iter(orders)

        def permutation(count: int) -> Any:
            order = next(other)  # their rows go environment by environment, ours in time
            return ((order % ENVS) * STEPS + order // ENVS).numpy()

        with self.patch.context() as patch:
            patch.setattr(np.random, "permutation", permutation)
            self.theirs.train()
        with self.patch.context() as patch:
            patch.setattr(torch, "randperm", lambda *a, **k: next(mine))
            self.ours.update(data)
        assert next(mine, None) is None and next(other, None) is None

    def difference(self) -> float:
        """Return by how much any weight differs."""
        return max(
            float((mine - other).detach().abs().max())
            for _, mine, other in pairs(self.ours, self.theirs)
        )


@pytest.fixture
def lockstep(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lockstep]:
    return lambda **settings: Lockstep(monkeypatch, made_ours(**settings))


def orders(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randperm(STEPS * ENVS, generator=generator) for _ in range(EPOCHS)]


def test_whole_runs_on_hopper_are_stable_baselines3s(lockstep: Callable[..., Lockstep]) -> None:
    both = lockstep()
    start = copy.deepcopy(both.ours.policy.state_dict())
    for number in range(ROLLOUTS):
        data = both.gather()
        theirs, samples = both.theirs.rollout_buffer, both.ours.samples(data)
        for name, mine, other in (
            ("observation", data.obs, theirs.observations),
            ("action", data.aux["unclipped"][:, :, 0], theirs.actions),
            ("value", samples.value, theirs.values),
            ("log-density", samples.log_prob, theirs.log_probs),
            ("advantage", samples.advantage, theirs.advantages),
            ("return", samples.target, theirs.returns),
        ):
            gap = mine.reshape(other.shape) - torch.from_numpy(other)
            assert gap.abs().max() < TOLERANCE, f"{name} of rollout {number + 1}"
        both.learn(data, orders(number))
        assert both.difference() < TOLERANCE, f"weights after rollout {number + 1}"
    ends = np.array([env.ends for env in both.envs])
    assert ends[..., 0].sum() > 10, "no episode failed"
    assert ends[..., 1].sum() > 10, "no episode ran out of time"
    moved = max((both.ours.policy.state_dict()[k] - v).abs().max() for k, v in start.items())
    assert moved > 1e-2


@pytest.mark.parametrize(
    "settings",
    [
        {"value_weight": 0.25},
        {"max_gradient_norm": 0.45},
        {"gae_decay": 0.94},
        {"value_clip": 0.2},
        {"entropy_weight": 1e-3},
        {"clip": 0.1},
        {"decay_steps": STEPS * ENVS * ROLLOUTS},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_any_other_setting_would_show(
    lockstep: Callable[..., Lockstep], settings: dict[str, Any]
) -> None:
    both = lockstep(**settings)
    first = both.gather()
    both.learn(first, orders(0))
    if "decay_steps" in settings:  # the first update has the whole rate
        assert both.difference() < TOLERANCE
        both.learn(first, orders(1))
    assert both.difference() > 1e3 * TOLERANCE


def test_what_surrounds_the_update_is_the_same(lockstep: Callable[..., Lockstep]) -> None:
    both = lockstep()
    # Fresh networks: orthogonal with the same gains, biases 0, the same width.
    ours, theirs = made_ours(), both.theirs
    theirs.policy.mlp_extractor.float()
    policy = theirs.policy
    actor = [*linear_layers(policy.mlp_extractor.policy_net), policy.action_net]
    critic = [*linear_layers(policy.mlp_extractor.value_net), policy.value_net]
    for network, others, last in ((ours.policy.network, actor, 0.01), (ours.critic, critic, 1.0)):
        for number, (mine, other) in enumerate(zip(linear_layers(network), others, strict=True)):
            gain = last if number == len(others) - 1 else math.sqrt(2)
            for layer in (mine, other):
                weight = layer.weight.detach().double()
                weight = weight if weight.shape[0] <= weight.shape[1] else weight.T
                square = gain**2 * torch.eye(len(weight), dtype=torch.float64)
                torch.testing.assert_close(weight @ weight.T, square, rtol=1e-5, atol=1e-5)
                assert not layer.bias.any()
    assert torch.equal(ours.policy.log_std.flatten(), policy.log_std)
    # Adam's settings, and a learning rate that stays.
    group = policy.optimizer.param_groups[0]
    adam: Adam = ours.optimizer
    assert (adam.learning_rate, adam.betas, adam.epsilon) == (
        group["lr"],
        group["betas"],
        group["eps"],
    )
    assert ours.schedule_rate() == theirs.lr_schedule(1.0) == theirs.lr_schedule(0.0)
    # Both are judged at the mean, clipped to the limits.
    obs = 5 * torch.randn(64, 11, dtype=torch.float64)
    judged = theirs.policy.double().get_distribution(obs).mode().clamp(-1, 1)
    with torch.no_grad():
        action = both.ours.policy.act(obs, deterministic=True)
    torch.testing.assert_close(action[:, 0], judged, rtol=0, atol=1e-12)
