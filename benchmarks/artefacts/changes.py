"""What other settings of acting change: a policy beside the one that a run trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from trimtab.benchmarks.training.evaluate import Scores
from trimtab.benchmarks.training.judging import BundleJudge, task_of
from trimtab.benchmarks.training.without_task import has_task
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.bundle.adjusting import adjusted_policy
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.bundle.golden import golden_rows
from trimtab.types import Obs

__all__ = ["Change", "measure_change", "policy_settings"]


@dataclass(frozen=True)
class Change:
    """How a policy with other settings differs from the run's own.

    Attributes:
        settings: ``{"from": …, "to": …}`` by setting.
        mean: mean absolute difference of an action's entries, as a share of their range.
        largest: the largest difference, likewise.
        rows: number of observations that both were given.
        visited: whether these are observations of played episodes, which the own policy visited;
            else they are drawn from the range of the data.
        same_noise: whether both were given the same noise; else zero noise, as theirs differs in
            shape.
        scores: of the own policy and of the changed one on the same episodes, if they were played.
    """

    settings: Mapping[str, Any]
    mean: float
    largest: float
    rows: int
    visited: bool
    same_noise: bool
    scores: tuple[Scores, Scores] | None


def policy_settings(words: list[str]) -> dict[str, Any]:
    """Return the settings that words such as ``policy.sampling_steps=2`` give.

    Raises:
        TrimtabError: if a word has no value, or one that is no YAML.
    """
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value or not key.removeprefix("policy."):
            raise TrimtabError(f"{word}: write policy.<setting>=<value>")
    try:
        found = OmegaConf.to_container(
            OmegaConf.from_dotlist([word.removeprefix("policy.") for word in words]), resolve=True
        )
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise TrimtabError(f"{' '.join(words)}: {str(error).splitlines()[0]}") from error
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def measure_change(
    bundle: Bundle, settings: Mapping[str, Any], *, episodes: int = 0, seed: int = 0
) -> Change:
    """Return what other settings of acting change.

    Args:
        bundle: the run's own policy.
        settings: as for :func:`trimtab.policies.bundle.adjusting.adjusted`.
        episodes: of the task to play with both policies; 0 for none, so that no task is needed.
        seed: that of the first one.

    Raises:
        TrimtabError: if a setting does not fit, the task cannot be made, or there is none.
    """
    policy, changed = adjusted_policy(bundle, settings)
    if episodes and not has_task(bundle.config["env"]["id"]):
        raise TrimtabError(
            f"episodes={episodes}: {bundle.folder} was trained from data alone, without a task to "
            "play; leave it out, and the actions are compared on observations of the data's range"
        )
    if not episodes:
        golden = golden_rows(bundle.policy)
        parts = {name: golden[name] for name in bundle.policy.spec.layout}
        obs: Obs = parts if bundle.policy.spec.parts else next(iter(parts.values()))
        differences = [_difference(bundle.policy, policy, obs, golden["noise"])]
        scores = None
    else:
        differences = []
        own = bundle.policy.register_forward_hook(
            lambda module, given, action: differences.append(
                _difference(module, policy, given[0], given[1], action)
            )
        )
        try:
            first = _judge(bundle, episodes, seed)
        finally:
            own.remove()
        scores = first, _judge(Bundle(policy, bundle.config, bundle.folder), episodes, seed)
    every = torch.cat(differences)
    return Change(
        settings=changed, mean=float(every.mean()), largest=float(every.max()), rows=len(every),
        visited=bool(episodes), same_noise=policy.noise_shape == bundle.policy.noise_shape,
        scores=scores,
    )  # fmt: skip


def _judge(bundle: Bundle, episodes: int, seed: int) -> Scores:
    judge = BundleJudge(bundle, *task_of(bundle, None, None))
    return judge.judge(
        episodes=episodes, seed=seed, deterministic=bool(bundle.config["evaluate_deterministic"])
    )


@torch.no_grad()
def _difference(
    own: Policy, other: Policy, obs: Obs, noise: Tensor, action: Tensor | None = None
) -> Tensor:
    """Return absolute differences ``[B, H, A]`` of actions, as shares of the actions' ranges.

    An input that is given has for each policy its own default, where these differ.
    """
    other_obs, other_noise = obs, noise
    if own.noise_shape != other.noise_shape:
        action = None
        noise = torch.zeros(len(noise), *own.noise_shape)
        other_noise = torch.zeros(len(noise), *other.noise_shape)
    mine, theirs = own.spec.parts, other.spec.parts
    if moved := [name for name in mine if mine[name].given != theirs[name].given]:
        assert isinstance(obs, Mapping)
        action = None
        obs, other_obs = (
            {
                **obs,
                **{name: torch.full_like(obs[name], parts[name].given or 0.0) for name in moved},
            }
            for parts in (mine, theirs)
        )
    before = own.forward(obs, noise) if action is None else action
    difference: Tensor = (other.forward(other_obs, other_noise) - before).abs()
    span = np.subtract(own.spec.action_high, own.spec.action_low)
    return difference / torch.as_tensor(span, dtype=difference.dtype)
