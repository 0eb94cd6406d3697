"""Our updates against those of Stable-Baselines3: the same weights, batch and noise go into both.

Weights are compared in double precision: Adam divides a gradient by its own size, so that rounding
would decide the sign of a step wherever a gradient is nearly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.algorithms.peers.sb3_ppo import SB3PPO
from trimtab.policies.networks.critic import EnsembleCritic, EnsembleLinear
from trimtab.types import Batch, PolicySpec, Rollout

# Two actions of two dimensions to us are one action of four to Stable-Baselines3.
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
BATCH, GAMMA, TAU, HIDDEN = 64, 0.97, 0.05, [32, 32]
TOLERANCE = 1e-9
Pairs = Iterator[tuple[str, Tensor, Tensor]]


class Scripted(gymnasium.Env[Any, Any]):
    """Observations, rewards and both kinds of ends from a seed, whatever is done; it keeps them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        self.rows: list[tuple[Any, ...]] = []

    def draw(self) -> Any:
        self.obs = self.generator.normal(size=5).astype(np.float32)
        return self.obs

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        return self.draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, reward = self.obs, float(self.generator.normal())
        ended, late = self.generator.random(2) < 0.15
        self.rows.append((before, reward, self.draw(), ended, ended or late))
        return self.obs, reward, bool(ended), bool(late), {}


def made(kind: Any, **keywords: Any) -> Any:
    """A model of theirs with a silent logger."""
    settings = {"gamma": GAMMA, "learning_rate": 3e-3, "policy_kwargs": {"net_arch": HIDDEN}}
    envs = keywords.pop("env", None) or Scripted()
    model = kind("MlpPolicy", envs, seed=0, device="cpu", **settings | keywords)
    model.set_logger(Logger(None, []))
    return model


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Turn a model of theirs to double precision."""

    def turn(model: Any) -> Any:
        model.policy.double()
        # Where observations would be made single again.
        monkeypatch.setattr(
            "stable_baselines3.common.policies.preprocess_obs", lambda obs, *a, **k: obs
        )
        return model

    return turn


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def layer_pairs(name: str, ours: nn.Module, theirs: list[Any]) -> Pairs:
    """Weights of linear layers; a list among theirs is of heads that we have as one layer."""
    for index, (mine, other) in enumerate(zip(linear_layers(ours), theirs, strict=True)):
        heads = other if isinstance(other, list) else [other]
        yield f"{name} {index} weight", mine.weight, torch.cat([head.weight for head in heads])
        yield f"{name} {index} bias", mine.bias, torch.cat([head.bias for head in heads])


def critic_pairs(name: str, ours: EnsembleCritic, theirs: Any) -> Pairs:
    members = [linear_layers(member) for member in theirs.q_networks]
    stacked = [layer for layer in ours.network if isinstance(layer, EnsembleLinear)]
    for index, ensemble in enumerate(stacked):
        weights = torch.stack([member[index].weight.T for member in members])
        yield f"{name} {index} weight", ensemble.weight, weights
        biases = torch.stack([member[index].bias[None] for member in members])
        yield f"{name} {index} bias", ensemble.bias, biases


def sac_pairs(ours: SAC, theirs: Any) -> Pairs:
    heads = [theirs.actor.mu, theirs.actor.log_std]
    body = linear_layers(theirs.actor.latent_pi)
    yield from layer_pairs("actor", ours.actor.network, [*body, heads])
    yield from critic_pairs("critic", ours.critic, theirs.critic)
    yield from critic_pairs("target", ours.target, theirs.critic_target)
    yield "temperature", ours.temperature.log, theirs.log_ent_coef[0]


def td3_pairs(ours: TD3, theirs: Any) -> Pairs:
    yield from layer_pairs("actor", ours.policy, linear_layers(theirs.actor.mu))
    targets = linear_layers(theirs.actor_target.mu)
    yield from layer_pairs("actor target", ours.policy_target, targets)
    yield from critic_pairs("critic", ours.critic, theirs.critic)
    yield from critic_pairs("critic target", ours.critic_target, theirs.critic_target)


def ppo_pairs(ours: PPO, theirs: Any) -> Pairs:
    policy = theirs.policy
    body = linear_layers(policy.mlp_extractor.policy_net)
    yield from layer_pairs("actor", ours.policy.network, [*body, policy.action_net])
    body = linear_layers(policy.mlp_extractor.value_net)
    yield from layer_pairs("critic", ours.critic, [*body, policy.value_net])
    yield "log std", ours.policy.log_std.flatten(), policy.log_std


@torch.no_grad()
def copy(pairs: Pairs) -> None:
    for _, mine, other in pairs:
        mine.copy_(other.reshape(mine.shape))


def check_equal(pairs: Pairs, when: str) -> None:
    for name, weight, other in pairs:
        assert (weight - other).abs().max() < TOLERANCE, f"{name} after {when}"


def transitions() -> tuple[ReplayBufferSamples, Batch]:
    """The same transitions for both: terminations are marked to them, and in our discount."""
    obs, next_obs = torch.randn(2, BATCH, 5).double()
    scaled, reward = 2 * torch.rand(BATCH, 4).double() - 1, torch.randn(BATCH).double()
    done = (torch.rand(BATCH) < 0.3).double()
    low, high = torch.tensor(SPEC.action_low), torch.tensor(SPEC.action_high)
    batch = Batch(
        obs=obs,
        action=low + (high - low) * (scaled.reshape(-1, 2, 2) + 1) / 2,
        reward=reward,
        next_obs=next_obs,
        discount=GAMMA * (1 - done),
        valid=torch.ones(BATCH, 2, dtype=torch.bool),
        whole=True,
    )
    return ReplayBufferSamples(obs, scaled, next_obs, done[:, None], reward[:, None]), batch


def widen(ours: Algorithm) -> None:
    """Turn a fresh method of ours to double precision."""
    for part in ours.state().values():
        if isinstance(part, Adam):
            part.first_moment = [moment.double() for moment in part.first_moment]
            part.second_moment = [moment.double() for moment in part.second_moment]
        else:
            assert isinstance(part, torch.nn.Module)
            part.double()


def test_sac_updates(doubled: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = doubled(made(stable_baselines3.SAC, tau=TAU, buffer_size=10))
    theirs.log_ent_coef.data = theirs.log_ent_coef.data.double()
    theirs.actor.action_dist.epsilon = 0.0  # they add 1e-6 inside a logarithm, against infinity
    torch.manual_seed(1)
    ours = SAC(Setup(SPEC), hidden=HIDDEN, learning_rate=3e-3, tau=TAU)
    widen(ours)
    copy(sac_pairs(ours, theirs))
    for step in range(3):
        stored, batch = transitions()
        # Their bounds of the log standard deviation are -20 and 2, ours -5 and 2: none is reached.
        with torch.no_grad():
            for obs in (batch.obs, batch.next_obs):
                log_std = ours.actor.network(obs).chunk(2, dim=-1)[1]
                assert log_std.min() > -5 and log_std.max() < 2
        actor_noise, next_noise = torch.randn(2, BATCH, 4).double()
        # Stable-Baselines3 samples the actor's action first, and we the next action.
        drawn = iter([actor_noise, next_noise])
        monkeypatch.setattr(
            torch.distributions.Normal,
            "rsample",
            lambda self, *shape, drawn=drawn: self.loc + self.scale * next(drawn),
        )
        monkeypatch.setattr(theirs.replay_buffer, "sample", lambda *a, stored=stored, **k: stored)
        theirs.train(gradient_steps=1, batch_size=BATCH)
        wanted = iter([next_noise.reshape(-1, 2, 2), actor_noise.reshape(-1, 2, 2)])
        monkeypatch.setattr(ours.actor, "sample_noise", lambda n, wanted=wanted: next(wanted))
        ours.update(batch)
        assert next(drawn, None) is None and next(wanted, None) is None
        check_equal(sac_pairs(ours, theirs), f"update {step + 1}")


def test_td3_updates(doubled: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = doubled(made(stable_baselines3.TD3, tau=TAU, buffer_size=10))
    torch.manual_seed(1)
    ours = TD3(Setup(SPEC), hidden=HIDDEN, learning_rate=3e-3, tau=TAU)
    widen(ours)
    copy(td3_pairs(ours, theirs))
    start = ours.policy.network[0].weight.detach().clone()
    for step in range(5):  # the actor and the targets move at the second and the fourth
        stored, batch = transitions()
        noise = 3 * torch.randn(BATCH, 4).double()  # much of it beyond the bound
        with monkeypatch.context() as patch:
            patch.setattr(
                torch.Tensor,
                "normal_",
                lambda self, mean, std, noise=noise: self.copy_(mean + std * noise),
            )
            patch.setattr(theirs.replay_buffer, "sample", lambda *a, stored=stored, **k: stored)
            theirs.train(gradient_steps=1, batch_size=BATCH)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda x, noise=noise: noise.reshape(x.shape))
            ours.update(batch)
        check_equal(td3_pairs(ours, theirs), f"update {step + 1}")
        assert torch.equal(start, ours.policy.network[0].weight) == (step == 0)


STEPS, ENVS = 40, 3


def collected() -> tuple[Any, Rollout]:
    """A rollout that Stable-Baselines3 gathered and the same as our harness would give it."""
    envs = [Scripted(seed) for seed in range(ENVS)]
    theirs = made(
        stable_baselines3.PPO,
        env=DummyVecEnv([lambda env=env: env for env in envs]),
        n_steps=STEPS,
        batch_size=STEPS,
        ent_coef=0.01,
        policy_kwargs={"net_arch": HIDDEN, "log_std_init": -0.3},
    )

    class Silent(BaseCallback):
        def _on_step(self) -> bool:
            return True

    _, callback = theirs._setup_learn(STEPS, Silent())
    theirs.set_logger(Logger(None, []))
    theirs.collect_rollouts(theirs.env, callback, theirs.rollout_buffer, STEPS)
    columns = zip(*(zip(*env.rows, strict=True) for env in envs), strict=True)
    obs, reward, next_obs, terminated, cut = (
        torch.from_numpy(np.stack([np.stack(c) for c in column], axis=1)) for column in columns
    )
    unclipped = torch.from_numpy(theirs.rollout_buffer.actions.copy()).reshape(STEPS, ENVS, 2, 2)
    assert unclipped.abs().max() > 1  # some were clipped before they were executed
    assert terminated.any() and (cut & ~terminated).any() and not cut.all()
    aux = {
        "unclipped": unclipped,
        "value": torch.from_numpy(theirs.rollout_buffer.values.copy()),
        "log_prob": torch.from_numpy(theirs.rollout_buffer.log_probs.copy()),
    }
    discount = GAMMA * (~terminated).float()
    rollout = Rollout(obs, unclipped.clamp(-1, 1), reward.float(), next_obs, discount, cut, aux)
    return theirs, rollout


def our_ppo(theirs: Any, **keywords: Any) -> PPO:
    """Ours with the same settings, and with their weights."""
    torch.manual_seed(1)
    ours = PPO(
        Setup(SPEC, num_envs=ENVS, discount=GAMMA),
        hidden=HIDDEN,
        normalize_observations=False,
        normalize_rewards=False,
        learning_rate=3e-3,
        rollout_steps=STEPS,
        entropy_weight=0.01,
        **keywords,
    )
    copy(ppo_pairs(ours, theirs))
    return ours


def test_ppo_advantages() -> None:
    theirs, rollout = collected()
    ours = our_ppo(theirs)
    buffer, samples = theirs.rollout_buffer, ours.samples(rollout)
    for name, mine, other in (
        ("advantage", samples.advantage, buffer.advantages),
        ("return", samples.target, buffer.returns),
        ("value", samples.value, buffer.values),
        ("log-density", samples.log_prob, buffer.log_probs),
    ):
        difference = mine.reshape(STEPS, ENVS) - torch.from_numpy(other)
        assert difference.abs().max() < 1e-5, name


def test_the_peers_rollout_buffer_is_what_stable_baselines3_would_have_gathered() -> None:
    theirs, rollout = collected()
    peer = SB3PPO(
        Setup(SPEC, num_envs=ENVS, discount=GAMMA), hidden=HIDDEN, activation="tanh",
        rollout_steps=STEPS,
    )  # fmt: skip
    peer.model.policy.load_state_dict(theirs.policy.state_dict())
    peer.fill(rollout)
    for name in ("observations", "actions", "rewards", "values", "log_probs", "advantages"):
        mine, other = (getattr(m.rollout_buffer, name) for m in (peer.model, theirs))
        np.testing.assert_allclose(mine, other, atol=1e-5, rtol=0, err_msg=name)
    ours, other = peer.model.rollout_buffer.episode_starts, theirs.rollout_buffer.episode_starts
    assert (ours[1:] == other[1:]).all()  # the first row's is read by nobody


@pytest.mark.parametrize(
    ("minibatch", "epochs"),
    [(STEPS * ENVS, 1), (STEPS, 1), (STEPS, 3)],
    ids=["one-step", "one-epoch", "three-epochs"],
)
def test_ppo_updates(
    doubled: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, minibatch: int, epochs: int
) -> None:
    theirs, rollout = collected()
    doubled(theirs)
    ours = our_ppo(theirs, batch_size=minibatch, epochs=epochs)
    widen(ours)
    copy(ppo_pairs(ours, theirs))
    theirs.batch_size, theirs.n_epochs = minibatch, epochs
    kept = ("aux", "cut", "cut_rows", "ended_rows")
    wide = {k: v.double() for k, v in vars(rollout).items() if k not in kept}
    aux = {k: v.double() for k, v in rollout.aux.items()}
    samples: Samples = ours.samples(Rollout(**wide, cut=rollout.cut, aux=aux))
    give(theirs.rollout_buffer, samples)

    # The minibatches of both are the same: their rows go environment by environment, ours in time.
    orders = [torch.randperm(STEPS * ENVS) for _ in range(epochs)]
    mine, other = iter(orders), iter(orders)

    def permutation(count: int) -> Any:
        order = next(other)
        return ((order % ENVS) * STEPS + order // ENVS).numpy()

    with monkeypatch.context() as patch:
        patch.setattr(np.random, "permutation", permutation)
        theirs.train()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randperm", lambda *a, **k: next(mine))
        ours.improve(samples)
    assert next(mine, None) is None and next(other, None) is None
    check_equal(ppo_pairs(ours, theirs), "the rollout")


def give(buffer: Any, samples: Samples) -> None:
    """Put samples into their buffer in double precision, all but actions, which it makes single."""
    names = SimpleNamespace(
        observations=samples.obs, actions=samples.action.flatten(1), values=samples.value,
        log_probs=samples.log_prob, advantages=samples.advantage, returns=samples.target,
    )  # fmt: skip
    assert torch.equal(names.actions, names.actions.float().double())
    for name, value in vars(names).items():
        setattr(buffer, name, value.reshape(STEPS, ENVS, *value.shape[1:]).numpy())
    assert buffer.full and not buffer.generator_ready
