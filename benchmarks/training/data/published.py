"""Whether a dataset is the published one of its recipe: to the bit, or within a tolerance.

Another kind of processor computes other last bits, and every contact and every expansive policy
enlarges them. So beside a content hash, which holds on one kind of processor, stand numbers of the
first episode, from the steps that last bits do not reach yet: ``datasets/beginnings.safetensors``,
written by ``scripts/catalogue.py``. Which steps those are is measured, by playing the episode again
with actions that are changed by one part in 2**23, the last bit of a float32. What follows them is
confirmed by its statistics: how much there is, the mean return, the share of successes.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

import trimtab
from trimtab.benchmarks.training.data.recording import Stage
from trimtab.datasets.catalog import made_datasets
from trimtab.datasets.episodes import Dataset, Episode
from trimtab.processor import processor_kind

__all__ = [
    "EQUAL",
    "Agreement",
    "beginning_of",
    "beginning_problem",
    "beginnings",
    "compare",
    "made_on_this_kind",
    "published_name",
    "statistics_of",
]

TOLERANCE = 1e-3
"""Difference from the published numbers, of (1 + their size), that still agrees."""
_STEADY = TOLERANCE / 100
"""Up to this difference under a last bit's change, a step is one that last bits do not reach."""
_KEPT = 12
"""Steps whose numbers are kept at most, evenly spread over the steady ones."""
_ERRORS = 4.0
"""Standard errors of a difference of means that still agree."""
_LAST_BIT = 2.0**-23

EQUAL = "equal to the published content to the bit"

Beginning = Mapping[str, NDArray[Any]]
"""``steps [k]``, ``observations [k, O]`` before and ``actions [k, A]``, ``rewards [k]`` at each of
them, and ``length []``: steps of the whole episode, 0 where last bits decide it."""


@dataclass(frozen=True)
class Agreement:
    """How a dataset stands to the published one: ``equal`` implies ``agrees``; ``text`` says it."""

    equal: bool
    agrees: bool
    text: str


@functools.cache
def beginnings() -> Mapping[str, Beginning]:
    """Return the published numbers of each recipe's first episode, by the recipe's name."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for root in trimtab.__path__:
        file = Path(root) / "datasets" / "beginnings.safetensors"
        if file.is_file():
            for key, array in load_file(file).items():
                name, _, what = key.partition("/")
                found.setdefault(name, {})[what] = array
            break
    return found


def beginning_of(recipe: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Play a recipe's first attempt, and return its numbers at the steps that are steady.

    Args:
        recipe: one with a controller.
    """
    with contextlib.closing(Stage(recipe)) as stage:
        first = stage.play(0)
        made = stage.factory
        steady = len(first)
        for seed in (1, 2):
            generator = np.random.default_rng(seed)
            stage.factory = functools.partial(_changed, made, generator)
            other = stage.play(0)
            steady = min(steady, _agreeing(first, other))
    return numbers_of(first, steady)


def _changed(
    make: Callable[..., Any], generator: np.random.Generator, *args: Any, **keywords: Any
) -> Any:
    """Return a controller whose actions are changed by about a last bit of float32."""
    controller = make(*args, **keywords)
    act = controller.act

    def changed(obs: NDArray[Any]) -> NDArray[Any]:
        action = np.asarray(act(obs), np.float64)
        return action * (1 + _LAST_BIT * generator.choice((-1.0, 1.0), action.shape))

    controller.act = changed
    return controller


def _agreeing(one: Episode, other: Episode) -> int:
    """Return the number of first steps in which two episodes differ by no more than a trace."""
    length = min(len(one), len(other))
    worst = np.zeros(length)
    for key in ("observations", "actions", "rewards"):
        worst = np.maximum(worst, _difference(getattr(one, key), getattr(other, key), length))
    return int(np.argmax(worst > _STEADY)) if (worst > _STEADY).any() else length


def _difference(a: NDArray[Any], b: NDArray[Any], length: int) -> NDArray[np.float64]:
    """Return the largest difference ``[length]`` of each row, of (1 + size)."""
    ours, theirs = (
        np.asarray(array[:length], np.float64).reshape(length, math.prod(array.shape[1:]))
        for array in (a, b)
    )
    return np.asarray((np.abs(ours - theirs) / (1 + np.abs(theirs))).max(1))


def numbers_of(episode: Episode, steady: int) -> dict[str, NDArray[Any]]:
    """Return an episode's numbers at some of its first ``steady`` steps, as a :data:`Beginning`."""
    steps = np.unique(np.linspace(0, max(steady, 1) - 1, _KEPT).astype(np.int64))
    return {
        "steps": steps,
        "observations": episode.observations[steps].astype(np.float32),
        "actions": episode.actions[steps].astype(np.float32),
        "rewards": episode.rewards[steps].astype(np.float32),
        "length": np.asarray(len(episode) if steady == len(episode) else 0, np.int64),
    }


def beginning_problem(name: str, episode: Episode) -> str | None:
    """Return how a recipe's first episode differs from the published one; None where it agrees.

    Args:
        name: of the recipe; one without published numbers has nothing to differ from.
        episode: its first.
    """
    known = beginnings().get(name)
    if known is None:
        return None
    steps = known["steps"]
    if len(episode) <= steps[-1]:
        return f"its first episode ends after {len(episode)} steps, before step {steps[-1] + 1}"
    for key in ("observations", "actions", "rewards"):
        ours, theirs = getattr(episode, key)[steps], known[key]
        if ours.shape != theirs.shape:
            return f"its {key} have shape {ours.shape[1:]}, not {theirs.shape[1:]}"
        worst = _difference(ours, theirs, len(steps))
        if not (worst <= TOLERANCE).all():
            at = int(np.argmax(~(worst <= TOLERANCE)))
            return f"the {key} at step {steps[at]} of its first episode differ by {worst[at]:.2g}"
    if known["length"] and len(episode) != known["length"]:
        return f"its first episode has {len(episode)} steps, not {known['length']}"
    return None


def published_name(identity: str) -> str | None:
    """Return the recipe whose published dataset has these digits; None if none has."""
    names = (name for name, row in made_datasets().items() if row.get("identity") == identity)
    return next(names, None)


def made_on_this_kind(name: str) -> bool:
    """Return whether a recipe's content hashes were made on this machine's kind of processor."""
    return made_datasets()[name].get("processor") == processor_kind()


def statistics_of(dataset: Dataset) -> dict[str, float | None]:
    """Return the mean return over episodes, its standard error, and the share of successes."""
    returns = np.array([episode.total_reward for episode in dataset.episodes])
    successes = [episode.success for episode in dataset.episodes]
    known = [value for value in successes if value is not None]
    error = returns.std(ddof=1) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
    return {
        "return": round(float(returns.mean()), 6),
        "return_error": round(float(error), 6),
        "success_rate": round(float(np.mean(known)), 6) if known else None,
    }


def compare(name: str, dataset: Dataset) -> Agreement:
    """Return how a recipe's dataset stands to the published one.

    Equal is: the same content hash. It agrees if its first episode does
    (:func:`beginning_problem`), if it has as many episodes as were published (where the recipe
    counts steps: at least as many steps), and if mean return and share of successes are within
    four standard errors of a difference.
    """
    row = made_datasets()[name]
    if dataset.content_hash == row["content_hash"]:
        return Agreement(True, True, EQUAL)
    if name not in beginnings():
        return Agreement(
            False, False, "other content than published; no numbers to hold it against"
        )
    problem = beginning_problem(name, dataset.episodes[0]) or _other_statistics(row, dataset)
    if problem:
        return Agreement(False, False, f"differs from what is published: {problem}")
    why = "" if not made_on_this_kind(name) else "; yet this kind of processor made other bits"
    text = f"agrees with what is published within {TOLERANCE:g}, not to the bit{why}"
    return Agreement(False, True, text)


def _other_statistics(row: Mapping[str, Any], dataset: Dataset) -> str | None:
    """Return what of a dataset's statistics is not as published; None if all is."""
    wanted = dataset.recipe.get("steps")
    if wanted is not None and not wanted <= dataset.num_steps:
        return f"it has {dataset.num_steps} steps, fewer than {wanted}"
    if wanted is None and "of" not in dataset.recipe and len(dataset) != row["episodes"]:
        return f"it has {len(dataset)} episodes, not {row['episodes']}"
    ours = statistics_of(dataset)
    checks = []
    if row.get("return") is not None:
        checks.append(("return", math.hypot(row["return_error"], ours["return_error"] or 0.0)))
    if row.get("success_rate") is not None and ours["success_rate"] is not None:
        # Of n flips at rate p: p (1 - p) / n, and never less than one flip would move it.
        spread = row["success_rate"] * (1 - row["success_rate"]) + 1 / row["episodes"]
        checks.append(("success_rate", math.sqrt(2 * spread / row["episodes"])))
    for key, error in checks:
        apart = abs((ours[key] or 0.0) - row[key])
        if not apart <= _ERRORS * error + TOLERANCE * (1 + abs(row[key])):
            what, within = key.replace("_", " "), f"{_ERRORS * error:.2g}"
            return f"its {what} is {ours[key]:.6g}, not {row[key]:.6g} within {within}"
    return None
