"""Record episodes of a seeded controller: the same seed gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.datasets.episodes import Episode
from trimtab.types import TrimtabError

_MOST_ATTEMPTS = 20
"""Episodes tried for each one that is kept, before the recipe is called hopeless."""


class Controller(Protocol):
    """A scripted behaviour, made anew for each episode."""

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return a raw action ``[A]`` for a raw observation ``[O]``."""
        ...


class ControllerFactory(Protocol):
    """Makes the controller of one episode; all its randomness comes from ``generator``."""

    def __call__(self, task: str, generator: np.random.Generator) -> Controller:
        """Return a controller for ``task`` (the part of the id after the family)."""
        ...


def record(
    env: gymnasium.Env[Any, Any],
    task: str,
    make_controller: ControllerFactory,
    *,
    episodes: int,
    seed: int,
    success_key: str | None,
    only_successful: bool,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Episode]:
    """Return ``episodes`` recorded episodes.

    Args:
        env: one environment whose ``reset(seed=...)`` decides the whole episode.
        task: the part of the id after the family.
        make_controller: makes the controller of each episode.
        episodes: number of episodes to keep.
        seed: seed of the recipe; attempt i uses ``SeedSequence([seed, i])``.
        success_key: key of ``info`` that tells success, or None.
        only_successful: drop episodes without success.
        progress: called with the share that is done.

    Raises:
        TrimtabError: if too few attempts succeed.
    """
    kept: list[Episode] = []
    for attempt in range(episodes * _MOST_ATTEMPTS):
        env_seed, controller_seed = (
            int(x) for x in np.random.SeedSequence([seed, attempt]).generate_state(2)
        )
        controller = make_controller(task, np.random.default_rng(controller_seed))
        episode = _record_one(env, controller, env_seed, success_key)
        if only_successful and not episode.success:
            continue
        kept.append(episode)
        progress(len(kept) / episodes)
        if len(kept) == episodes:
            return kept
    raise TrimtabError(
        f"recipe for {task}: only {len(kept)} of {episodes * _MOST_ATTEMPTS} attempts succeeded; "
        "lower its noise or set only_successful=false"
    )


def _record_one(
    env: gymnasium.Env[Any, Any], controller: Controller, seed: int, success_key: str | None
) -> Episode:
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    obs, _ = env.reset(seed=seed)
    observations, actions, rewards, successes = [obs], [], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = np.clip(controller.act(obs), space.low, space.high).astype(np.float32)
        obs, reward, terminated, truncated, info = env.step(action)
        observations.append(obs)
        actions.append(action)
        rewards.append(float(reward))
        successes.append(bool(info[success_key]) if success_key is not None else False)
    steps = len(actions)
    ends = np.arange(steps) == steps - 1
    return Episode(
        observations=np.stack(observations),
        actions=np.stack(actions),
        rewards=np.array(rewards, np.float32),
        terminations=ends & terminated,
        truncations=ends & truncated,
        infos={"success": np.array(successes)} if success_key is not None else {},
        seed=seed,
    )
