"""Updates of methods that improve a generative policy, and decisions that choose among its samples.

All start from the policies of the latency rows, which plan eight actions in five steps of sampling;
four of the actions are executed. No peer that installs beside the lock has these methods, so the
rows stand alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.finetuning.dppo import DPPO
from trimtab.algorithms.finetuning.ogpo import OGPO
from trimtab.algorithms.steering.dsrl_na import DSRLNA
from trimtab.benchmarks.speed.cases.latency import deciding, diffusion, flow, on_onnx, on_torch
from trimtab.benchmarks.speed.cases.shared import HIDDEN, OBS_DIM, hopper
from trimtab.benchmarks.speed.cases.updates import ours
from trimtab.benchmarks.speed.measure import BEST_OF_BOTH, Pair, Side, Stage, Work, repeated
from trimtab.policies.base import Policy
from trimtab.policies.kinds.best_of import BestOfPolicy
from trimtab.types import Rollout

ACT_STEPS = 4
UPDATES = 20
ENVS, STEPS, PAIRS_OF_BATCH = 8, 64, 500
"""A rollout of 512 decisions for DPPO, and the pairs (decision, denoising step) of a minibatch."""
CANDIDATES = 32
CALLS = {1: 400, 64: 20}
"""Calls of a turn, by rows of a batch, each of which has ``CANDIDATES`` samples."""


def improving(base: Policy, num_envs: int = 1) -> Setup:
    """Return what a method is made with that starts from ``base``."""
    return Setup(spec=hopper(ACT_STEPS), base=base, num_envs=num_envs)


def rollout(algorithm: DPPO, steps: int) -> Rollout:
    """Return decisions that a method takes at random observations, without an episode's end."""
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(steps, ENVS, OBS_DIM, generator=generator)
    actions: list[torch.Tensor] = []
    aux: list[Mapping[str, torch.Tensor]] = []
    for row in obs:
        action, kept = algorithm.explore(row, warmup=False)
        actions.append(action)
        aux.append(kept)
    return Rollout(
        obs=obs,
        action=torch.stack(actions),
        reward=torch.randn(steps, ENVS, generator=generator),
        next_obs=torch.cat([obs[1:], obs[:1]]),
        discount=torch.full((steps, ENVS), 0.99),
        cut=torch.zeros(steps, ENVS, dtype=torch.bool),
        aux={name: torch.stack([kept[name] for kept in aux]) for name in aux[0]},
    )


def dppo(stage: Stage) -> Work:
    """Set DPPO up with one rollout, from which it learns again and again."""
    steps = stage.amount(STEPS, least=2)
    algorithm = DPPO(
        improving(diffusion(), ENVS), rollout_steps=steps, batch_size=PAIRS_OF_BATCH, epochs=5
    )
    data = rollout(algorithm, steps)
    return repeated(lambda: algorithm.update(data), stage.amount(2))


def off_policy(make: Callable[[], Algorithm]) -> Side:
    """Return the side of a method that learns from stored decisions of several actions."""
    return ours(make, chunk=ACT_STEPS, updates=UPDATES)


def ogpo() -> Algorithm:
    """Return OGPO as its paper has it without the clone, for which returns would be needed."""
    return OGPO(improving(flow()), clone_weight=0.0, hidden=HIDDEN)


def dsrl_na() -> Algorithm:
    """Return DSRL-NA with a flow as its base."""
    return DSRLNA(improving(flow()), hidden=HIDDEN)


def best_of() -> Policy:
    """Return a policy that plays the best of a flow's samples."""
    return BestOfPolicy(flow(), candidates=CANDIDATES, hidden=HIDDEN, act_steps=ACT_STEPS)


def pair(name: str, unit: str, side: Side) -> Pair:
    """Return a row without a peer."""
    return Pair(name, "improvement", unit, side, threads=BEST_OF_BOTH)


PAIRS = [
    pair("dppo_update", "updates/s", dppo),
    pair("ogpo_update", "updates/s", off_policy(ogpo)),
    pair("dsrl_na_update", "updates/s", off_policy(dsrl_na)),
    *(
        pair(
            f"best_of_{CANDIDATES}{form}_{rows}",
            "decisions/s",
            deciding(make(best_of), rows, CALLS[rows]),
        )
        for rows in (1, 64)
        for form, make in (("", on_torch), ("_onnx", on_onnx))
    ),
]
