"""Value functions against the solutions of linear equations, where they are of a held policy.

Methods whose values are others are named in ``chain.py``, with the reason; their own tests go
through their equations row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.algorithms.base import Algorithm
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.datasets.sources.mixture import Mixture
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.datasets.sources.rollout import RolloutBuffer
from trimtab.types import BatchSpec, Source

pytestmark = pytest.mark.slow

exact = load_module(Path(__file__).with_name("exact.py"))
chain = exact.chain
NAMES, EXACT, TOLERANCE = exact.NAMES, exact.EXACT, exact.TOLERANCE

Values = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]

SLOW = {"rebrac": 500, "edac": 500, "sac_n": 500, "ro2o": 500}  # their networks begin near 0
SLOW |= {"simba_v2": 750}  # a step turns weights of norm 1 by little
SLOW |= {"crossq": 600}  # a hundred updates change the running statistics by two thirds


def test_every_method_is_read_or_said_to_have_no_values() -> None:
    for name in NAMES:
        algorithm = chain.built(name, **EXACT)
        readers = (chain.critics_of(algorithm), chain.value_of(algorithm))
        assert (readers[0] is not None) == (name in exact.with_critics()), name
        assert (readers[1] is not None) == (name in exact.with_values()), name
        unread = name in chain.WITHOUT_CRITIC | chain.OF_THE_DATA
        assert (readers == (None, None)) == unread, name


def gathered(
    horizon: int, aux: bool, batch_spec: BatchSpec, generator: np.random.Generator
) -> ReplayBuffer:
    """Decisions by chance, as a run stores them, some of them cut by a time limit."""
    buffer = ReplayBuffer(
        300,
        chain.STATES,
        (horizon, 1),
        discount=chain.GAMMA,
        seed=1,
        aux={"latent": (horizon, 1), "moment": ()} if aux else None,
        batch_spec=batch_spec,
    )
    for _ in range(300):
        state, signs = int(generator.integers(chain.STATES)), generator.choice([-1, 1], horizon)
        reached, reward, steps = chain.play(state, signs.tolist())
        action = chain.PUSH * signs[None, :, None] + generator.normal(0, 0.02, (1, horizon, 1))
        ended = reached is None
        buffer.add(
            chain.seen([state]),
            action,
            [reward],
            chain.seen(
                [0 if reached is None else reached]
            ),  # after a termination it must not matter
            [ended],
            [not ended and generator.random() < 0.3],
            {"latent": action, "moment": np.zeros(1)} if aux else None,
            steps=[steps],
        )
    return buffer


def recorded(horizon: int, batch_spec: BatchSpec, generator: np.random.Generator) -> ReplayBuffer:
    """Episodes of single pushes by chance, as a dataset has them, read in windows.

    They terminate, or where a decision is a single push are also cut by a time limit.
    """
    episodes = []
    while len(episodes) < 60:
        state, states, signs, rewards = int(generator.integers(chain.STATES)), [], [], []
        limit = 4 if horizon == 1 and len(episodes) % 2 else 1000
        following: int | None = state
        while following is not None and len(signs) < limit:
            states.append(following)
            signs.append(int(generator.choice([-1, 1])))
            following, reward = chain.STEPS[states[-1], signs[-1]]
            rewards.append(reward)
        last = np.arange(len(signs)) == len(signs) - 1
        episodes.append(
            Episode(
                observations=chain.seen([*states, 0 if following is None else following]),
                actions=(chain.PUSH * np.array(signs, dtype=np.float32))[:, None],
                rewards=np.array(rewards, dtype=np.float32),
                terminations=last & (following is None),
                truncations=last & (following is not None),
                infos={"cost": np.zeros(len(signs), np.float32)},
            )
        )
    dataset = Dataset(
        id="test/chain-v0",
        env="test/chain",
        env_options={},
        episodes=tuple(episodes),
        action_low=(-1.0,),
        action_high=(1.0,),
        control_rate=10.0,
        recipe={},
        fingerprint=None,
    )
    return ReplayBuffer.from_dataset(
        dataset, window=horizon, discount=chain.GAMMA, chunked=True, seed=2, batch_spec=batch_spec
    )


def decisions(algorithm: Algorithm, length: int) -> Source:
    """Gathered and recorded decisions of ``length`` pushes, as a method wants them."""
    generator = np.random.default_rng(0)
    aux = bool(algorithm.aux_shapes)
    batch_spec = algorithm.batch_spec
    source = gathered(length, aux, batch_spec, generator)
    return source if aux else Mixture([recorded(length, batch_spec, generator), source], [1, 1])


def errors(read: Values, known: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """Return by how much the worst critic misses each known value."""
    found = {}
    for (state, *signs), value in known.items():
        action = chain.PUSH * torch.tensor(signs, dtype=torch.float32)[None, :, None]
        with torch.no_grad():
            values = torch.cat(
                [v.flatten() for v in read(torch.tensor(chain.seen([state])), action)]
            )
        found[state, *signs] = float((values - value).abs().max())
    return found


def told(algorithm: Algorithm, plan: tuple[int, ...], state: int, *signs: int) -> bool:
    """Whether what was gathered, recorded or planned has a decision in it."""
    steps = chain.play(state, signs)[2]
    return bool(algorithm.aux_shapes.keys() - {"moment"}) or signs[steps:] == plan[steps:]


def worst(
    algorithm: Algorithm,
    plan: tuple[int, ...],
    bound: float = 0.1,
    updates: int = 250,
    read: Values | None = None,
) -> float:
    """Learn the values of ``plan``, to less than ``bound``, and return the largest error.

    ``read`` reads the critics, by default all that the method has. Left out are decisions whose
    unexecuted rest is not the plan's: only a critic over latents, which are stored whole, is told
    of those.
    """
    known = chain.decision_values(plan, chain.entropy_bonus(algorithm, len(plan)))
    whole = {key: value for key, value in known.items() if told(algorithm, plan, *key)}
    assert max(whole.values()) - min(whole.values()) > 1.5
    read = read or chain.critics_of(algorithm)
    assert read is not None
    source, held = decisions(algorithm, len(plan)), chain.HeldPlan(algorithm, plan)

    def update() -> None:
        data = source.sample(64)
        algorithm.update(replace(data, cost=torch.zeros_like(data.reward)))  # nothing costs
        held.restore()

    return exact.settled(
        update, lambda: exact.largest(errors(read, whole).values()), bound, updates
    )


@pytest.mark.parametrize("name", exact.with_critics())
def test_critics_solve_the_chain(name: str) -> None:
    """Terminations, time limits, off-policy decisions and, where there is one, entropy."""
    torch.manual_seed(0)
    algorithm = chain.built(name, **{**EXACT, "backup_entropy": True})
    bound = TOLERANCE.get(name, 0.1)
    assert worst(algorithm, (-1,), bound, SLOW.get(name, 250)) < bound


@pytest.mark.parametrize("name", exact.with_critics())
def test_critics_solve_the_chain_of_chunks(name: str) -> None:
    """Two pushes a decision: summed rewards, one discount, and chunks that the end cuts short."""
    torch.manual_seed(0)
    bound = TOLERANCE.get(name, 0.1)
    assert worst(chain.built(name, 2, **EXACT), (-1, 1), bound, SLOW.get(name, 250)) < bound


def test_the_critic_of_actions_of_dsrl_na_solves_the_chain() -> None:
    """Its critic of latents copies this one, and has the wider bound."""
    torch.manual_seed(0)
    algorithm = chain.built("dsrl_na", **{**EXACT, "backup_entropy": True})
    normalizer = algorithm.actor.normalizer
    error = worst(
        algorithm, (-1,), read=lambda obs, act: [algorithm.action_critic(normalizer.obs(obs), act)]
    )
    assert error < 0.1


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_repeating_the_last_action_of_a_cut_chunk_would_not_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    algorithm = chain.built(name, 2, **EXACT)
    monkeypatch.setattr(algorithm, "continue_chunks", lambda data: data.action)
    assert worst(algorithm, (-1, 1)) > 0.5


ON_POLICY: dict[str, Any] = {
    "hidden": [32, 32],
    "learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "normalize_observations": False,
    "normalize_rewards": False,
    "rollout_steps": 16,
    "batch_size": 256,
    "epochs": 10,
    "decay_steps": None,
    "value_clip": None,
    "gae_decay": 1.0,
    "pretraining_updates": 0,
    "rollin_share": 0.0,
    "post_critic": False,  # beside a second critic, the first one alone is no value
    "value_hidden": [32],
    "value_rows": 4096,
    # Coins push, so how a method would act changes no value.
    "behaviour_epochs": 1,
    "sampling_steps": 4,
}


def wander(algorithm: Algorithm, buffer: RolloutBuffer, generator: np.random.Generator) -> None:
    """Fill a rollout with pushes by chance; an end starts afresh anywhere.

    A time limit starts afresh in the state whose value differs most from the reached one: a return
    that runs on across limits is far from the right one.
    """
    count = 16
    values = chain.coin_values()
    elsewhere = np.abs(values[:, None] - values).argmax(1)
    states = generator.integers(chain.STATES, size=count)
    while not buffer.full:
        obs = torch.tensor(chain.seen(states))
        action, aux = algorithm.explore(obs, warmup=False)
        outcomes = [chain.STEPS[int(state), int(generator.choice([-1, 1]))] for state in states]
        ended = np.array([reached is None for reached, _ in outcomes])
        following = np.array([0 if reached is None else reached for reached, _ in outcomes])
        limit = ~ended & (generator.random(count) < 0.4)
        reward = np.array([reward for _, reward in outcomes])
        buffer.add(
            chain.seen(states), action.numpy(), reward, chain.seen(following), ended, limit, aux
        )
        fresh = np.where(limit, elsewhere[following], generator.integers(chain.STATES, size=count))
        states = np.where(ended | limit, fresh, following)


@pytest.mark.parametrize("name", exact.with_values())
def test_value_functions_solve_the_chain(name: str) -> None:
    """With lambda 1 their targets are whole returns, bootstrapped at time limits alone."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    algorithm = chain.built(name, num_envs=16, **ON_POLICY)
    buffer = RolloutBuffer(
        algorithm.pace.rollout_steps,
        16,
        chain.STATES,
        (1, 1),
        discount=chain.GAMMA,
        aux=algorithm.aux_shapes,
    )
    known = torch.tensor(chain.coin_values(), dtype=torch.float32)
    assert float(known.max() - known.min()) > 0.4
    learned: list[torch.Tensor] = []

    def update() -> None:
        wander(algorithm, buffer, generator)
        algorithm.update(buffer.take())
        value = chain.value_of(algorithm)
        assert value is not None
        learned.append(value(torch.tensor(chain.seen(range(chain.STATES)))).detach())

    def error() -> float:
        # The mean over ten rollouts has little of each one's own chance left.
        return float((torch.stack(learned[-10:]).mean(0) - known).abs().max())

    assert exact.settled(update, error, 0.1, 40, every=10) < 0.1
