"""Every method's policy and values against the solution of a linear-quadratic task.

The task is ``s' = DRIFT s + GAIN u`` with the reward ``-(s^2 + COST u^2)``. It never ends.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loading import load_module

from trimtab.types import Batch

pytestmark = pytest.mark.slow

exact = load_module(Path(__file__).with_name("exact.py"))
chain = exact.chain

DRIFT, GAIN, COST = 0.9, 0.5, 0.3


def riccati() -> tuple[float, float]:
    """Return P and k of the optimal value -P s^2 and policy u = -k s, by iteration."""
    weight = 1.0
    for _ in range(1000):
        feedback = chain.GAMMA * weight * DRIFT * GAIN / (COST + chain.GAMMA * weight * GAIN**2)
        closed = DRIFT - GAIN * feedback
        weight = 1.0 + COST * feedback**2 + chain.GAMMA * weight * closed**2
    return weight, feedback


def quadratic(count: int, latents: bool, generator: torch.Generator) -> Batch:
    """Decisions by chance, that never end; the position is the observation's first entry."""
    position, push = (2 * torch.rand(count, 1, generator=generator) - 1 for _ in range(2))
    pad = torch.zeros(count, chain.STATES - 1)
    action = push[:, None]
    return Batch(
        obs=torch.cat([position, pad], 1),
        action=action,
        reward=-(position.square() + COST * push.square())[:, 0],
        next_obs=torch.cat([DRIFT * position + GAIN * push, pad], 1),
        discount=torch.full((count,), chain.GAMMA),
        valid=torch.ones(count, 1, dtype=torch.bool),
        aux={"latent": action, "moment": torch.zeros(count)} if latents else {},
        next_action=torch.zeros_like(action),
        mc_return=torch.zeros(count),
        cost=torch.zeros(count),
    )


HELD = (
    "sb3",
    "td3_bc",
    "guided_td3_bc",
    "oap",
    "mdpo",
    "best_of_n",
    "diffusion_ql",
    "qc",
    "awac",
    "ogsrl",
    "simba_v2",
)


SLOW = {"flash_sac": 800}  # by random stream its errors are 0.09 to 0.23 after 400 updates


@pytest.mark.parametrize("name", [n for n in exact.with_critics() if not n.startswith(HELD)])
def test_actor_and_critics_find_the_riccati_solution(name: str) -> None:
    """All but peers and those that are held to more: data, an old policy, or a base's samples.

    SimbaV2 needs more updates and other settings; its own tests hold it against this task.
    """
    torch.manual_seed(0)
    settings = {**exact.EXACT, "initial_temperature": 1e-3, "target_entropy": -4.0, "alpha": 0.0,
                "flow_steps": 4}  # fmt: skip
    algorithm = chain.built(name, **settings)
    generator = torch.Generator().manual_seed(1)
    weight, feedback = riccati()
    position = torch.linspace(-0.8, 0.8, 9)[:, None]
    obs = torch.cat([position, torch.zeros(9, chain.STATES - 1)], 1)
    push = position.flip(0)
    reached = DRIFT * position + GAIN * push
    known = -(position.square() + COST * push.square() + chain.GAMMA * weight * reached.square())
    read = chain.critics_of(algorithm)
    assert read is not None

    def error() -> float:
        with torch.no_grad():
            action = algorithm.policy.act(obs, deterministic=True)
            values = [value - known[:, 0] for value in read(obs, push[:, None])]
        missed = [action[:, 0] + feedback * position, *values]
        return exact.largest(float(each.abs().mean()) for each in missed)

    def update() -> None:
        algorithm.update(quadratic(128, bool(algorithm.aux_shapes), generator))

    bound = min(exact.TOLERANCE.get(name, 0.12), 0.17)  # values are smaller here than on the chain
    assert bound < feedback / 3 and bound < float(known.std()) / 2
    assert exact.settled(update, error, bound, SLOW.get(name, 400)) < bound


def optimal(count: int, latents: bool, generator: torch.Generator) -> Batch:
    """Decisions of the optimal policy with noise around it, as a dataset of it would have them."""
    weight, feedback = riccati()
    drawn = quadratic(count, latents, generator)
    position = drawn.obs[:, :1]
    noise = 0.3 * torch.randn(2, count, 1, generator=generator)
    push = (noise[0] - feedback * position).clamp(-1, 1)
    reached = DRIFT * position + GAIN * push
    reward = -(position.square() + COST * push.square())[:, 0]
    return replace(
        drawn,
        action=push[:, None],
        reward=reward,
        next_obs=torch.cat([reached, torch.zeros(count, chain.STATES - 1)], 1),
        next_action=(noise[1] - feedback * reached).clamp(-1, 1)[:, None],
        mc_return=reward - chain.GAMMA * weight * reached.square()[:, 0],
    )


OF_DATA = {"bc": 300, "td3_bc": 400, "guided_td3_bc": 400, "awac": 300, "iql": 300, "famo2o": 300,
           "cql": 300, "cal_ql": 300, "rebrac": 900, "cfgrl": 400, "cfpi": 400}  # fmt: skip
"""Updates, at most, of the methods that are held to data."""


@pytest.mark.parametrize("name", OF_DATA)
def test_methods_of_data_find_the_riccati_solution_in_data_of_it(name: str) -> None:
    """With their own penalties and weights, which the test above sets to nothing."""
    torch.manual_seed(0)
    rates = dict.fromkeys(("learning_rate", "actor_learning_rate", "critic_learning_rate"), 3e-3)
    algorithm = chain.built(name, hidden=[32, 32], tau=0.05, **rates)
    generator = torch.Generator().manual_seed(1)
    _, feedback = riccati()
    position = torch.linspace(-0.8, 0.8, 9)[:, None]
    obs = torch.cat([position, torch.zeros(9, chain.STATES - 1)], 1)

    def update() -> None:
        algorithm.update(optimal(128, bool(algorithm.aux_shapes), generator))

    def error() -> float:
        with torch.no_grad():
            action = algorithm.policy.act(obs, deterministic=True)
        return float((action[:, 0] + feedback * position).abs().mean())

    assert exact.settled(update, error, 0.2, OF_DATA[name]) < 0.2 < feedback / 4
