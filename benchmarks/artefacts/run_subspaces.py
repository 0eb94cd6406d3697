"""Gradient subspaces of a run: its method as the newest checkpoint has it, and what it acts on.

Nothing of the run's folder changes. On-policy pairs are those that the run would gather next if its
policy did not learn: its environments, random states and its half-filled rollout go on. Off-policy
pairs are drawn from its replay buffer, as those of its next updates would be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.common.returns import normalized
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.on_policy.ppo import PPO, Samples
from trimtab.benchmarks.artefacts.subspaces import Losses, Pairs, Subspaces, subspaces
from trimtab.benchmarks.training.checkpoint import load_checkpoint
from trimtab.benchmarks.training.collector import make_collector, make_training_envs
from trimtab.benchmarks.training.experience import (
    ReplayedExperience,
    RolloutExperience,
    make_experience,
)
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.folder import CHECKPOINT, is_run, read_provenance
from trimtab.benchmarks.training.locking import remedy
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.random_states import set_random_states
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings_of import words_of
from trimtab.benchmarks.training.torch_state import start_torch
from trimtab.errors import TrimtabError
from trimtab.types import Batch

__all__ = ["RunSubspaces", "subspaces_of_run"]


@dataclass(frozen=True)
class RunSubspaces:
    """What is measured of one run.

    Attributes:
        run: its folder.
        env_steps: environment steps that its newest checkpoint has come to.
        found: one for each loss and each kind of Hessian.
    """

    run: Path
    env_steps: int
    found: Sequence[Subspaces]


def subspaces_of_run(folder: Path, dimensions: Sequence[int], least: int) -> RunSubspaces:
    """Measure the gradient subspaces of a run of PPO or SAC.

    Args:
        folder: of the run, which may be finished or not.
        dimensions: numbers of eigenvectors.
        least: pairs of observation and action. On-policy, these are whole rollouts of at least so
            many; off-policy, whole batches, and as many rows as the replay buffer has are enough.

    Raises:
        TrimtabError: if it is no such run, has no checkpoint, or was made by another version.
    """
    if not is_run(folder):
        raise TrimtabError(f"subspace: run={folder}: is not the folder of a run; give one")
    state = load_checkpoint(folder / CHECKPOINT)
    if state is None:
        raise TrimtabError(f"subspace: {folder} has no checkpoint, where its critic would be")
    words, _ = words_of(folder)
    plan = checked_plan(compose_run(words))
    if plan.config_hash != read_provenance(folder)["config_hash"]:
        raise TrimtabError(
            f"subspace: {folder}: its settings ask for another run by now, as another version of "
            f"Trimtab made it; {remedy(folder)}"
        )
    measure = _measure_of(plan.algorithm)
    if plan.config["dataset"] is not None:
        raise TrimtabError(f"subspace: {folder} learned from a dataset; give a run from nothing")
    try:
        return RunSubspaces(
            folder, int(state["env_steps"]), measure(plan, state, dimensions, least)
        )
    except KeyError as error:
        raise TrimtabError(
            f"subspace: the checkpoint of {folder} lacks {error}: another version of Trimtab wrote "
            "it"
        ) from error


def _measure_of(algorithm: Algorithm) -> Any:
    """Return what measures a method: one that inherits all of how PPO or SAC learns and acts."""
    kind = type(algorithm)
    for parent, parts, measure in (
        (PPO, ("update", "improve", "learn", "samples", "explore"), _of_ppo),
        (SAC, ("update", "update_actor", "explore"), _of_sac),
    ):
        same = (getattr(kind, part) is getattr(parent, part, None) for part in parts)
        if issubclass(kind, parent) and all(same):
            return measure
    raise TrimtabError(
        f"subspace: a run of {kind.__name__} cannot be measured; give one of ppo or sac, or of a "
        "child that changes only a loss"
    )


def _of_ppo(plan: Plan, state: Any, dimensions: Sequence[int], least: int) -> list[Subspaces]:
    """Measure PPO on the rollouts that its run would gather next."""
    algorithm, config = plan.algorithm, plan.config
    assert isinstance(algorithm, PPO)
    foreign_code = start_torch(config["seed"], config["threads"])
    algorithm.load_state_dict(state["algorithm"])
    experience = make_experience(plan, None, config["online_steps"])
    assert isinstance(experience, RolloutExperience)
    experience.load_state_dict(state["experience"])
    gathered: list[Samples] = []
    envs = make_training_envs(plan, foreign_code)
    with closing(envs):
        collector = make_collector(
            envs, algorithm, experience.buffer, config["device"], foreign_code
        )
        collector.load_state_dict(state["collector"])
        set_random_states(config["device"], state)
        while sum(len(one) for one in gathered) < least:
            while not experience.buffer.full:
                collector.step(warmup=False)
            found = algorithm.samples(experience.buffer.take())
            gathered.append(found[torch.arange(len(found), device=found.obs.device)])
    parts = zip(*(vars(one).values() for one in gathered), strict=True)
    every = Samples(*(torch.cat(part) for part in parts))
    size = min(algorithm.pace.batch_size, len(every))
    rows = torch.randperm(len(every), device=every.obs.device).split(size)
    minibatches = [every[some] for some in rows if len(some) == size]

    def losses(part: Samples) -> dict[str, Tensor]:
        part = replace(part, advantage=normalized(part.advantage))
        mean = algorithm.actor.head(part.obs)
        log_prob = algorithm.actor.log_prob(mean, part.action)
        entropy = algorithm.entropy_weight * algorithm.actor.entropy()
        return {
            "policy loss": algorithm.policy_loss(part, mean, log_prob) - entropy,
            "value loss": algorithm.value_weight * algorithm.value_loss(part),
        }

    weights = {
        "policy loss": [*algorithm.actor.parameters()],
        "value loss": [*algorithm.critic.parameters()],
    }
    return subspaces(Losses(losses, weights), Pairs(every, gathered[0], minibatches), dimensions)


def _of_sac(plan: Plan, state: Any, dimensions: Sequence[int], least: int) -> list[Subspaces]:
    """Measure SAC on batches of its replay buffer."""
    algorithm, config = plan.algorithm, plan.config
    assert isinstance(algorithm, SAC)
    start_torch(config["seed"], config["threads"])
    algorithm.load_state_dict(state["algorithm"])
    experience = make_experience(plan, None, config["online_steps"])
    assert isinstance(experience, ReplayedExperience)
    experience.load_state_dict(state["experience"])
    set_random_states(config["device"], state)
    size = algorithm.pace.batch_size
    count = math.ceil(min(least, len(experience.buffer)) / size)  # more would only be repeated
    minibatches = [experience.source.sample(size) for _ in range(count)]
    every = experience.source.sample(size * len(minibatches))

    def losses(data: Batch) -> dict[str, Tensor]:
        action = algorithm.actor.normalizer.normalize_action(algorithm.continue_chunks(data))
        obs = algorithm.actor.normalizer.obs(data.obs)
        alpha = algorithm.temperature().detach()
        with torch.no_grad():
            backup = data.reward + data.discount * algorithm.next_value(data, alpha)
        return {
            "policy loss": algorithm.actor_loss(data.obs, obs, alpha)[0],
            "value loss": algorithm.critic_loss(algorithm.critic(obs, action), backup),
        }

    weights = {
        "policy loss": [*algorithm.actor.parameters()],
        "value loss": [*algorithm.critic.parameters()],
    }
    return subspaces(Losses(losses, weights), Pairs(every, minibatches[0], minibatches), dimensions)
