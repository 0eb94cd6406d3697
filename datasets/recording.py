"""Record episodes of a seeded controller: the same seed gives the same bytes.

Attempt i of a recipe is decided by ``SeedSequence([seed, i])`` alone, so that attempts may be
played in any order and in any process, and more episodes begin with those that fewer would be.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.datasets.episodes import COST, Dataset, Episode
from trimtab.errors import TrimtabError

__all__ = [
    "Controller",
    "ControllerFactory",
    "HopelessError",
    "Wanted",
    "Watcher",
    "attempts_of",
    "play",
    "record",
    "select",
]

_MOST_ATTEMPTS = 20
"""Episodes tried for each one that is kept, before the recipe is called hopeless."""
_PATIENCE = 10
"""Episodes that are tried for more of, while none has been kept yet."""


class HopelessError(TrimtabError):
    """A recipe's attempts succeed too rarely; recorded on, they would not come out better."""


class Controller(Protocol):
    """A scripted behaviour, made anew for each episode.

    One of this package has the class attributes ``name`` and ``revision``, by which the datasets
    that it records are known; ``revision`` is raised when it acts otherwise than before.
    """

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return a raw action ``[A]`` for a raw observation ``[O]``."""
        ...


@runtime_checkable
class Watcher(Controller, Protocol):
    """A controller that needs more than is observed, such as where a goal is."""

    def watch(self, env: gymnasium.Env[Any, Any]) -> None:
        """Take the environment, once, after its reset: to look at, never to move."""
        ...


class ControllerFactory(Protocol):
    """Makes the controller of one episode; all its randomness comes from ``generator``."""

    def __call__(self, task: str, generator: np.random.Generator) -> Controller:
        """Return a controller for ``task`` (the part of the id after the family)."""
        ...


@dataclass(frozen=True)
class Wanted:
    """How much a recipe records.

    Attributes:
        episodes: number of episodes to keep, or None.
        steps: steps to keep at least, in whole episodes, or None; one of the two is given.
        only_successful: drop episodes without success.
    """

    episodes: int | None = None
    steps: int | None = None
    only_successful: bool = False

    def share(self, episodes: int, steps: int) -> float:
        """Return how much of what is wanted so many episodes and steps are; 1.0 is all."""
        if self.episodes is not None:
            return episodes / self.episodes
        assert self.steps is not None
        return min(steps / self.steps, 1.0)


def play(
    env: gymnasium.Env[Any, Any],
    task: str,
    make_controller: ControllerFactory,
    *,
    seed: int,
    attempt: int,
    success_key: str | None,
) -> Episode:
    """Return the episode of one attempt.

    Args:
        env: one environment whose ``reset(seed=...)`` decides the whole episode.
        task: the part of the id after the family.
        make_controller: makes the controller of the episode.
        seed: seed of the recipe.
        attempt: number of the attempt.
        success_key: key of ``info`` that tells success, or None.
    """
    env_seed, controller_seed = _seeds(seed, attempt)
    controller = make_controller(task, np.random.default_rng(controller_seed))
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    obs, _ = env.reset(seed=env_seed)
    if isinstance(controller, Watcher):
        controller.watch(env)
    observations, actions, rewards, successes = [obs], [], [], []
    costly, costs = bool(getattr(env, "costly", False)), []
    terminated = truncated = False
    while not (terminated or truncated):
        action = np.clip(controller.act(obs), space.low, space.high).astype(np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        observations.append(obs)
        actions.append(action)
        rewards.append(float(reward))
        successes.append(bool(info[success_key]) if success_key is not None else False)
        if costly:
            costs.append(float(info[COST]))
    ends = np.arange(len(actions)) == len(actions) - 1
    return Episode(
        observations=np.stack(observations),
        actions=np.stack(actions),
        rewards=np.array(rewards, np.float32),
        terminations=ends & terminated,
        truncations=ends & truncated,
        infos={
            **({"success": np.array(successes)} if success_key is not None else {}),
            **({COST: np.array(costs, np.float32)} if costly else {}),
        },
        seed=env_seed,
    )


def _seeds(seed: int, attempt: int) -> tuple[int, int]:
    """Return the seeds of an attempt's environment and of its controller."""
    env_seed, controller_seed = np.random.SeedSequence([seed, attempt]).generate_state(2)
    return int(env_seed), int(controller_seed)


def attempts_of(dataset: Dataset) -> int | None:
    """Return how many attempts a recipe that keeps successes alone has taken for a dataset.

    It follows from the seed of the last episode that was kept. None for other data.
    """
    recipe, last = dataset.recipe, dataset.episodes[-1].seed
    seed, whole = recipe.get("seed"), recipe.get("episodes") in (None, len(dataset))
    if recipe.get("only_successful") is not True or last is None or not whole:
        return None
    if type(seed) is not int or seed < 0:
        return None
    for attempt in range(_MOST_ATTEMPTS * (len(dataset) + _PATIENCE)):
        if _seeds(seed, attempt)[0] == last:
            return attempt + 1
    return None


def select(
    attempts: Iterable[Episode],
    wanted: Wanted,
    task: str,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Episode]:
    """Return the first of the attempts' episodes that are as many as wanted.

    Args:
        attempts: episodes by number of attempt; no more are taken than needed.
        wanted: how much to keep.
        task: what errors call the recipe.
        progress: called with the share that is done.

    Raises:
        HopelessError: if too few attempts succeed.
    """
    kept: list[Episode] = []
    steps = 0
    for tried, episode in enumerate(attempts, start=1):
        if not wanted.only_successful or episode.success:
            kept.append(episode)
            steps += len(episode)
            share = wanted.share(len(kept), steps)
            progress(share)
            if share >= 1.0:
                return kept
        if tried == _MOST_ATTEMPTS * (wanted.episodes or len(kept) + _PATIENCE):
            break
    raise HopelessError(
        f"recipe for {task}: only {len(kept)} of {tried} attempts succeeded; "
        "lower its noise or set only_successful=false"
    )


def record(
    env: gymnasium.Env[Any, Any],
    task: str,
    make_controller: ControllerFactory,
    wanted: Wanted,
    *,
    seed: int,
    success_key: str | None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Episode]:
    """Return as many recorded episodes as wanted; see :func:`play` and :func:`select`.

    Raises:
        HopelessError: if too few attempts succeed.
    """
    attempts = (
        play(env, task, make_controller, seed=seed, attempt=attempt, success_key=success_key)
        for attempt in itertools.count()
    )
    return select(attempts, wanted, task, progress)
