"""Contract tests of one task: what is wrong with it, each fault in one line.

The tests play the bare environment, so that several faults are found at once. What a fault means is
in ``docs/environments.md``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.envs.core.faults import OLD_RESET, faults_of_reset, faults_of_step, where_raised
from trimtab.envs.core.global_draws import GlobalDraws
from trimtab.envs.core.spaces import check_limit, faults_of_spaces, with_flat_spaces
from trimtab.envs.core.spec import FloatArray, RawEnv
from trimtab.envs.registry import declared, get_spec, make_raw
from trimtab.errors import TrimtabError
from trimtab.limits import inward

__all__ = ["REPEATED", "Episode", "episode_in_process", "faults_of", "is_unseeded", "play"]

STEPS = 2000
"""Environment steps of the longest episode that is played."""
SECONDS = 20.0
"""Seconds after which no further step is played."""
REPEATED = 20
"""Steps of an episode that is played again."""
_CHANGED = (
    "step() changes the array of the action that it is given, which is the policy's; work on a "
    "copy, action = np.array(action)"
)
_SEED, _OTHER_SEED = 11, 12
_SEEDED = f"reset(seed={_SEED}) "
"""How a line begins on an episode that its seed does not decide."""


@dataclass
class Episode:
    """What an environment did under seeded uniform actions, up to its first fault.

    Attributes:
        obs: observations [T + 1, O] float64; [0, 0] if there was none.
        rewards: [T].
        faults: lines, each without the task's id.
        steps: environment steps T that were played.
        terminated: whether the task itself ended the episode.
        truncated: whether the environment truncated it.
    """

    obs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    rewards: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    faults: list[str] = field(default_factory=list)
    steps: int = 0
    terminated: bool = False
    truncated: bool = False


def play(
    id: str,
    env: RawEnv,
    success_key: str | None,
    *,
    seed: int,
    steps: int,
    at_limits: bool = False,
) -> Episode:
    """Play up to ``steps`` of an episode, and look at all that the environment returns.

    Args:
        id: the task's.
        env: bare environment with flat spaces.
        success_key: key of info for success, or None.
        seed: of the episode, and of the actions.
        steps: environment steps at most.
        at_limits: whether the first action has all its lower limits, the second its upper ones.
    """
    found = Episode()
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Box)
    low, high = inward(space.low, space.high)
    touched = GlobalDraws()
    first = [low, high] if at_limits else []
    generator = np.random.default_rng(seed)
    until = time.monotonic() + SECONDS
    obs: list[Any] = []
    rewards: list[float] = []
    shape = env.observation_space.shape or ()
    with _raised_in(id, found, "reset()"):
        with touched.by("reset()"):
            result: Any = env.reset(seed=seed, options=None)
        found.faults += faults_of_reset(result, shape)
        if not found.faults:
            obs.append(np.array(result[0], np.float64))
    while obs and not found.faults and found.steps < steps and time.monotonic() < until:
        drawn: FloatArray = generator.uniform(low, high).astype(np.float32)
        where, action = "step()", drawn.clip(low, high)
        if found.steps < len(first):
            where, action = "step() at the limits of action_space", first[found.steps]
        with _raised_in(id, found, where):
            given = action.copy()
            with touched.by("step()"):
                result = env.step(given)
            if not np.array_equal(given, action):
                found.faults.append(_CHANGED)
            found.faults += faults_of_step(result, shape, success_key)
        if found.faults:
            break
        found.steps += 1
        obs.append(np.array(result[0], np.float64))
        rewards.append(float(result[1]))
        found.terminated, found.truncated = bool(result[2]), bool(result[3])
        if found.terminated or found.truncated:
            break
    found.faults += touched.faults
    if obs:
        found.obs = np.stack(obs)
    found.rewards = np.array(rewards)
    return found


@contextlib.contextmanager
def _raised_in(id: str, found: Episode, where: str) -> Iterator[None]:
    """Note what the block raises as a fault: it is a user's, and may hold any."""
    try:
        yield
    except TrimtabError as error:
        found.faults.append(str(error).removeprefix(f"{id}: "))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a simulator may call sys.exit, or have its own kind
        old = where == "reset()" and "unexpected keyword argument" in str(error)
        found.faults.append(OLD_RESET if old else f"{where} raises {where_raised(error)}")


def faults_of(
    id: str, options: Mapping[str, Any], *, playing: bool = True
) -> tuple[list[str], Episode | None]:
    """Return what is wrong with a task, and the episode that was played in this process.

    Args:
        id: as :func:`trimtab.envs.registry.make` takes it.
        options: its options.
        playing: False to look only at what can be seen without a step.

    Returns:
        Lines without the task's id, and the first steps of an episode, which are to come out the
        same in any other process (:func:`episode_in_process`); None if the task cannot be played.

    Raises:
        TrimtabError: if there is no such task, or an option is wrong.
    """
    horizon, success_key = declared(id, options)
    lines: list[str] = []
    episode = None
    with contextlib.ExitStack() as closing, _told(id, lines):
        raw = closing.enter_context(contextlib.closing(make_raw(id, options)))
        with _told(id, lines):
            check_limit(id, raw, horizon)
        lines += faults_of_spaces(raw) if isinstance(raw, gymnasium.Env) else ()
        playable = not any("_space" in line for line in lines)
        if playable and not playing:
            episode = Episode()
        elif playable:
            touched = GlobalDraws()  # all is imported by now
            with touched.by("its constructor"):
                other = closing.enter_context(contextlib.closing(make_raw(id, options)))
            lines += touched.faults
            envs = with_flat_spaces(id, raw), with_flat_spaces(id, other)
            episode = _look_at(id, *envs, success_key, lines)
            if not lines:
                lines += _whole(id, envs[0], success_key, horizon, episode)
    if playing or episode is None:  # a step may be played for it
        with _told(id, lines):
            get_spec(id, **options)
    return list(dict.fromkeys(lines)), episode


def is_unseeded(lines: Sequence[str]) -> bool:
    """Return whether one of :func:`faults_of` says that a seed does not decide an episode."""
    return any(line.startswith(_SEEDED) for line in lines)


def _look_at(
    id: str, env: RawEnv, other: RawEnv, success_key: str | None, lines: list[str]
) -> Episode:
    """Play a task in two environments, and add what is wrong to ``lines``."""
    first = play(id, env, success_key, seed=_SEED, steps=REPEATED)
    lines += first.faults
    if not len(first.obs):
        return first
    remedy = (
        "take all that is random from self.np_random, which super().reset(seed=seed) seeds, and "
        "let reset() leave nothing of the episode before"
    )
    if not first.faults:
        lines += play(id, env, success_key, seed=_OTHER_SEED, steps=3, at_limits=True).faults
    for played, where in ((env, "a second time"), (other, "in a second copy of it")):
        again = play(id, played, success_key, seed=_SEED, steps=REPEATED)
        lines += again.faults
        apart = difference(first, again)
        if apart:
            lines.append(f"{_SEEDED}{where} gives {apart}: {remedy}")
            break
    return first


def _whole(
    id: str, env: RawEnv, success_key: str | None, horizon: int, first: Episode
) -> Iterator[str]:
    """Yield what a whole episode has wrong, as far as it is not in its ``first`` steps."""
    if not (first.terminated or first.truncated):
        yield from play(id, env, success_key, seed=_SEED, steps=min(horizon, STEPS)).faults


def difference(first: Episode, again: Episode) -> str:
    """Return in a few words how two episodes differ that should be one; nothing if they do not."""
    if first.faults or again.faults:  # told already, or cut short at another step
        length = min(len(first.obs), len(again.obs))
    else:
        length = max(len(first.obs), len(again.obs))
    for step in range(length):
        if step >= len(first.obs) or step >= len(again.obs):
            return f"an episode of another length ({len(again.obs) - 1} steps)"
        if not np.array_equal(first.obs[step], again.obs[step]):
            return f"another observation after {step} steps" if step else "another observation"
        if step and first.rewards[step - 1] != again.rewards[step - 1]:
            return f"another reward at step {step}"
    return ""


@contextlib.contextmanager
def _told(id: str, lines: list[str]) -> Iterator[None]:
    """Add the line of an error to ``lines``, without the id that it begins with."""
    try:
        yield
    except TrimtabError as error:
        lines.append(str(error).removeprefix(f"{id}: "))


def episode_in_process(id: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the first steps of the episode that :func:`faults_of` plays, from this process.

    Returns:
        The attributes of the episode as JSON values, and why there is none, or an empty text.
    """
    try:
        _, success_key = declared(id, options)
        with contextlib.closing(make_raw(id, options)) as raw:
            env = with_flat_spaces(id, raw)
            played = play(id, env, success_key, seed=_SEED, steps=REPEATED)
            told = {"obs": played.obs.tolist(), "rewards": played.rewards.tolist()}
            return vars(played) | told, ""
    except BaseException as error:  # whatever it is, the user is told in words
        line = str(error) if isinstance(error, TrimtabError) else where_raised(error)
        return {}, line.removeprefix(f"{id}: ")
