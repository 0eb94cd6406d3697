"""What a reader finds in a file, and the dataset in memory that is made of it.

A reader that does not need a whole file at once gives its episodes as a sequence that builds them
when they are asked for; ``streaming.py`` brings them to disk without holding more than one.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from trimtab.datasets.episodes import (
    ContentHash,
    Dataset,
    Episode,
    EpisodesOnAccess,
    check_episode,
    check_limits,
    validate,
)
from trimtab.datasets.formats.findings import Finding, note, noted
from trimtab.datasets.formats.hints import Hints, Load
from trimtab.datasets.formats.own import LAST_OBSERVED, Own
from trimtab.datasets.precision import Rounding, losses
from trimtab.errors import TrimtabError

__all__ = [
    "Contents", "LazyEpisodes", "Open", "Summary", "action_limits", "apply_hints", "assemble",
    "chosen", "contents_of", "loads", "scanned", "tell_findings", "with_ends", "with_losses",
]  # fmt: skip

logger = logging.getLogger(__name__)

Limits = tuple[tuple[float, ...], tuple[float, ...]]
_ADVICE = "make the dataset again or fetch a fresh copy"
_MOST_TOLD = 5


class LazyEpisodes(EpisodesOnAccess):
    """Episodes that a function builds.

    Args:
        count: how many there are.
        build: returns the episode of a number.
    """

    def __init__(self, count: int, build: Callable[[int], Episode]) -> None:
        self._count, self._build = count, build

    def __len__(self) -> int:
        return self._count

    def episode(self, number: int) -> Episode:
        """Build an episode."""
        return self._build(number)


@dataclass(frozen=True)
class Contents:
    """A file's episodes, not yet checked, and what it says of them.

    Attributes:
        path: named in errors.
        episodes: the data; reading them in order is cheapest.
        fields: of the ``Dataset``, all but its episodes and action limits.
        limits: of the actions, or None where the file names none.
        check: raises TrimtabError where the number of steps and the content hash are not what the
            file notes; None where it notes neither.
    """

    path: Path
    episodes: Sequence[Episode]
    fields: Mapping[str, Any]
    limits: Limits | None = None
    check: Callable[[int, str], None] | None = None


Open = Callable[..., Contents]
"""Takes a path and hints as ``Load`` does, and leaves reading the episodes for later."""


def contents_of(
    path: Path,
    episodes: Sequence[Episode],
    own: Own | None,
    *,
    left_out: Sequence[str] = (),
    env: str = "unknown",
    recipe: Mapping[str, Any] | None = None,
    control_rate: float | None = None,
    hints: Hints | None = None,
    findings: Sequence[Finding] = (),
) -> Contents:
    """Return what was found in ``path``.

    Args:
        path: the file, named in errors; a stranger's id is formed of its name.
        episodes: what it holds.
        own: what Trimtab noted, or None in a stranger's file.
        left_out: names of what is in the file and was not read.
        env: environment, where a stranger's file names it.
        recipe: where a stranger's data came from.
        control_rate: actions a second, where a stranger's file says it.
        hints: what the user says, where the format takes ``keys``, ``horizon`` or
            ``control_rate``.
        findings: what was found in a stranger's file that does not hinder reading it.

    Raises:
        TrimtabError: if a hint says how a stranger's file is read, and this is one of ours.
    """
    before = (own["recipe"] if own is not None else recipe or {}).get("left_out", [])
    unread = {"left_out": sorted({*before, *left_out})} if left_out else {}
    if own is None:
        fields = {
            "id": f"imported/{re.sub(r'[^-_0-9A-Za-z]+', '-', path.stem) or 'data'}-v0",
            "env": env,
            "env_options": {},
            "control_rate": (hints or {}).get("control_rate", control_rate),
            "recipe": {**(recipe or {}), **unread, **note(findings)},
        }
        return Contents(path, episodes, fields)
    for name in ("keys", "horizon", "control_rate"):
        if name in (hints or {}):
            raise TrimtabError(
                f"dataset {path}: {name}= says how others' data is read, and Trimtab wrote this; "
                "leave it out"
            )
    names = ("id", "env", "env_options", "control_rate", "recipe", "fingerprint")
    low = tuple(-np.inf if x is None else x for x in own["action_low"])
    high = tuple(np.inf if x is None else x for x in own["action_high"])
    check = partial(_check_noted, f"dataset {path}", own["content_hash"])
    fields = {name: own[name] for name in names} | {"recipe": {**own["recipe"], **unread}}
    if LAST_OBSERVED in own:
        episodes = with_ends(episodes, own[LAST_OBSERVED], f"dataset {path}")
    return Contents(path, episodes, fields, (low, high), check)


def with_ends(
    episodes: Sequence[Episode], observed: Sequence[bool], where: str
) -> Sequence[Episode]:
    """Return episodes that know whether their last observations were recorded.

    Args:
        episodes: as they are stored.
        observed: ``[E]`` whether each one's was.
        where: opens the message.

    Raises:
        TrimtabError: if it is no list of booleans, or the two differ in length.
    """
    flags = observed if isinstance(observed, list | tuple) else None
    if flags is None or not all(isinstance(flag, bool) for flag in flags):
        raise TrimtabError(f"{where}: '{LAST_OBSERVED}' is no list of true and false; {_ADVICE}")
    if len(observed) != len(episodes):
        raise TrimtabError(
            f"{where}: '{LAST_OBSERVED}' is of {len(observed)} episodes, there are "
            f"{len(episodes)}; {_ADVICE}"
        )

    def build(number: int) -> Episode:
        return dataclasses.replace(episodes[number], last_observed=bool(observed[number]))

    return LazyEpisodes(len(episodes), build)


def _check_noted(where: str, noted: str, steps: int, content_hash: str) -> None:
    if content_hash != noted:
        raise TrimtabError(
            f"{where}: the content differs from what Trimtab saved; {_ADVICE}, or remove what "
            "Trimtab noted in it if it was meant to change"
        )


def action_limits(episodes: Iterable[Episode]) -> Limits:
    """Return limits for actions whose file names none: -1 and 1, or what was seen beyond them."""
    low: Any = -1.0
    high: Any = 1.0
    shape: tuple[int, ...] | None = None
    for episode in episodes:
        actions = episode.actions
        shape = actions.shape[1:] if shape is None else shape
        if actions.ndim != 2 or actions.shape[1:] != shape or not len(actions):
            return (), ()  # what checks the episodes says it better
        low, high = np.minimum(actions.min(0), low), np.maximum(actions.max(0), high)
    return (tuple(low.tolist()), tuple(high.tolist())) if shape is not None else ((), ())


def assemble(contents: Contents, hints: Hints) -> Dataset:
    """Return the checked dataset in memory.

    Args:
        contents: of a file.
        hints: what the user says; it overrides the file.

    Raises:
        TrimtabError: if the content is not valid or not the one that was saved.
    """
    where = f"dataset {contents.path}"
    # By their iterator: a tuple would first take room for as many as a damaged file claims to have.
    episodes = tuple(iter(contents.episodes))
    if not episodes:
        raise TrimtabError(f"{where}: it has no whole episode; {_ADVICE}")
    low, high = contents.limits or action_limits(episodes)
    dataset = Dataset(episodes=episodes, action_low=low, action_high=high, **contents.fields)
    validate(dataset, where)
    recipe = with_losses(dataset.recipe, (episode.roundings for episode in episodes))
    tell_findings(recipe, where)
    dataset = dataclasses.replace(dataset, recipe=recipe)
    if contents.check is not None:
        contents.check(dataset.num_steps, dataset.content_hash)
    return apply_hints(dataset, hints, where)


def with_losses(
    recipe: Mapping[str, Any], roundings: Iterable[Mapping[str, Rounding]]
) -> Mapping[str, Any]:
    """Return a recipe that also tells what float32 rounded away of the episodes."""
    lost = [Finding("warning", "lost-precision", where, what) for where, what in losses(roundings)]
    return {**recipe, **note([*noted(recipe), *lost])}


def tell_findings(recipe: Mapping[str, Any], where: str) -> None:
    """Log a line for each of the first findings that a reader noted in a recipe."""
    found = noted(recipe)
    for one in found[:_MOST_TOLD]:
        logger.warning("%s: %s: %s", where, one.where, one.message)
    if len(found) > _MOST_TOLD:
        more = len(found) - _MOST_TOLD
        logger.warning("%s: %d more of these; trimtab dataset check shows them", where, more)


@dataclass(frozen=True)
class Summary:
    """What a file holds, in few words.

    Attributes:
        id: of the dataset.
        env: id of its environment.
        episodes: how many there are.
        steps: of all episodes together.
        content_hash: as ``Dataset.content_hash``.
    """

    id: str
    env: str
    episodes: int
    steps: int
    content_hash: str


def scanned(contents: Contents) -> Summary:
    """Check all episodes as :func:`assemble` does, one in memory at a time.

    Raises:
        TrimtabError: if the content is not valid or not the one that was saved.
    """
    where, fields = f"dataset {contents.path}", contents.fields
    low, high = contents.limits or action_limits(contents.episodes)
    digest = ContentHash(fields["id"], fields["env"], fields["env_options"], low, high)
    dims: tuple[int, int] | None = None
    count = steps = 0
    for episode in contents.episodes:
        dims = check_episode(episode, f"{where}: episode {count}, key", dims)
        digest.add(episode)
        count, steps = count + 1, steps + len(episode)
    if dims is None:
        raise TrimtabError(f"{where}: it has no whole episode; {_ADVICE}")
    check_limits(low, high, dims[1], where)
    if contents.check is not None:
        contents.check(steps, digest.hexdigest())
    return Summary(fields["id"], fields["env"], count, steps, digest.hexdigest())


def loads(open: Open) -> Load:
    """Return what reads a whole file of which ``open`` returns the contents."""

    def load(path: str | Path, **hints: Unpack[Hints]) -> Dataset:
        return assemble(open(path, **hints), hints)

    load.__doc__ = open.__doc__
    return load


def apply_hints(dataset: Dataset, hints: Hints, where: str) -> Dataset:
    """Return ``dataset`` with what the user says of it.

    Raises:
        TrimtabError: if it has no such mask.
    """
    env, id = hints.get("env", dataset.env), hints.get("id", dataset.id)
    if env != dataset.env or id != dataset.id:
        dataset = dataclasses.replace(dataset, env=env, id=id)
    numbers, recipe = chosen(dataset.recipe, len(dataset), hints, where)
    if numbers is None:
        return dataset
    episodes = tuple(dataset.episodes[index] for index in numbers)
    return dataclasses.replace(dataset, episodes=episodes, recipe=recipe)


def chosen(
    recipe: Mapping[str, Any], count: int, hints: Hints, where: str
) -> tuple[list[int] | None, Mapping[str, Any]]:
    """Return the episodes of the mask that ``hints`` name, None for all, and the recipe then.

    Raises:
        TrimtabError: if there is no such mask of ``count`` episodes.
    """
    if "mask" not in hints:
        return None, recipe
    masks = recipe.get("masks")
    masks = masks if isinstance(masks, Mapping) else {}
    numbers = masks.get(hints["mask"])
    if (
        not isinstance(numbers, list)
        or not numbers
        or any(type(x) is not int or not 0 <= x < count for x in numbers)
    ):
        there = f"there are {', '.join(map(str, masks))}" if masks else "it has none"
        raise TrimtabError(f"{where}: no mask '{hints['mask']}' of its episodes; {there}")
    return numbers, {key: value for key, value in recipe.items() if key != "masks"}
