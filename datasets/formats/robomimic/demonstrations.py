"""Demonstrations of robomimic's layout as episodes; what their file says twice is compared."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Episode
from trimtab.datasets.formats.contents import LazyEpisodes
from trimtab.datasets.formats.own import (
    KINDS,
    check_continuous,
    check_no_end_inside,
    column_of,
    flag_ends,
    flags_of,
    need,
    no_reward,
)
from trimtab.datasets.formats.robomimic.tasks import Parts
from trimtab.errors import TrimtabError

__all__ = [
    "STATES", "Arrays", "check_not_raw", "check_total", "parts_of", "stranger_episodes", "vectors",
]  # fmt: skip

logger = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]

STATES = "states"
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6  # one value in single and in double precision
_ADVICE = "make the dataset again or fetch a fresh copy"


def vectors(demo: Arrays, group: str, keys: Sequence[str], place: str) -> npt.NDArray[Any] | None:
    """Return what lies below ``group``: ``keys`` in their order, or all in that of their names.

    Raises:
        TrimtabError: if a key is missing, or the parts are no rows of as many steps.
    """
    prefix = f"{group}/"
    there = sorted(name.removeprefix(prefix) for name in demo if name.startswith(prefix))
    lacking = [key for key in keys if key not in there]
    if there and lacking:
        raise TrimtabError(
            f"{place}: there is no key '{prefix}{lacking[0]}'; there are {', '.join(there)}"
        )
    arrays = [demo[prefix + key] for key in (keys if there and keys else there)]
    parts = [array[:, None] if array.ndim == 1 else array for array in arrays]
    if any(part.ndim != 2 or len(part) != len(parts[0]) for part in parts):
        raise TrimtabError(f"{place}, key '{group}': parts of shapes {[p.shape for p in parts]}")
    return np.concatenate(parts, axis=1) if parts else None


def parts_of(demo: Arrays, keys: Sequence[str]) -> Parts:
    """Return the names and lengths of the parts that an observation is put together of."""
    return [(name, width) for name, (width, _) in _described(demo, "obs", keys).items()]


def _described(demo: Arrays, group: str, keys: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return the length and the kind of number of each part below ``group``."""
    prefix = f"{group}/"
    there = {n.removeprefix(prefix): a for n, a in demo.items() if n.startswith(prefix)}
    return {
        key: (there[key].shape[1] if there[key].ndim > 1 else 1, KINDS[there[key].dtype.kind])
        for key in keys or sorted(there)
        if key in there
    }


def stranger_episodes(
    demos: Sequence[Arrays],
    names: Sequence[str],
    samples: Sequence[float | None],
    keys: Sequence[str],
    where: str,
) -> LazyEpisodes:
    """Return demonstrations that others wrote as episodes.

    Args:
        demos: arrays of each one, by their paths in its group.
        names: of their groups.
        samples: ``num_samples`` of each one, None where it is not stated.
        keys: of observations, or none for all of them.
        where: opens the messages.

    Raises:
        TrimtabError: if they do not have the same observations, or there are none. What one
            demonstration says twice is compared when its episode is built.
    """
    _check_alike(demos, names, keys, where)
    _check_in_all(demos, names, where)
    columns = ("rewards", "dones")
    demos = [{n: column_of(a) if n in columns else a for n, a in demo.items()} for demo in demos]
    seen = [demo["rewards"] for demo in demos if "rewards" in demo]
    sparse = all(bool(np.isin(rewards, (0, 1)).all()) for rewards in seen)
    if not all(any(key.startswith("next_obs/") for key in demo) for demo in demos):
        logger.warning("%s: no next_obs: last observations are not known", where)
    if not seen:
        logger.warning("%s: missing rewards are zero", where)

    def build(index: int) -> Episode:
        demo, place = demos[index], f"{where}: {names[index]}"
        observations = vectors(demo, "obs", keys, place)
        need(demo, ("actions",), place)
        check_continuous(demo["actions"], f"{place}, key 'actions'")
        if observations is None or not len(observations):
            raise TrimtabError(
                f"{place}: it has no vectors in 'obs', and pictures are not read; {_ADVICE}"
            )
        steps = len(observations)
        _check_lengths(demo, steps, samples[index], place)
        final = observations[-1:]
        following = vectors(demo, "next_obs", keys, place)
        if following is not None:
            _check_following(demo, keys, place)
            final = following[-1:]
        rewards = demo.get("rewards", no_reward(steps))
        dones = flags_of(demo.get("dones", np.zeros(steps)), f"{place}, key 'dones'")
        rewarded = sparse and dones.shape == rewards.shape == (steps,)
        if rewarded:  # a success inside is done in robomimic's modes 0 and 2
            check_no_end_inside(dones & (rewards != 1), f"{place}, key 'dones' without a reward")
        terminated = bool(rewarded and dones[-1] and rewards[-1] == 1)
        infos = {STATES: demo[STATES]} if STATES in demo else {}
        with np.errstate(over="ignore"):  # infinity is refused afterwards
            return Episode(
                np.concatenate([observations, final]), demo["actions"], rewards,
                *flag_ends(steps, terminated=terminated), infos,
                last_observed=terminated or following is not None,
            )  # fmt: skip

    return LazyEpisodes(len(demos), build)


def _check_alike(
    demos: Sequence[Arrays], names: Sequence[str], keys: Sequence[str], where: str
) -> None:
    """Check that all demonstrations have observations of the same names, lengths and kinds."""
    described = [_described(demo, "obs", keys) for demo in demos]
    for name, parts in zip(names, described, strict=True):
        if parts != described[0]:
            place = next(k for k in [*described[0], *parts] if parts.get(k) != described[0].get(k))
            one, other = (_text(found.get(place)) for found in (described[0], parts))
            raise TrimtabError(
                f"{where}: {name}, key 'obs/{place}': {other}, but {one} in {names[0]}; keep "
                "demonstrations with the same observations, or name common ones with keys="
            )


def _check_in_all(demos: Sequence[Arrays], names: Sequence[str], where: str) -> None:
    """Check that rewards and ends are in all demonstrations or in none: zeros would be made up."""
    for key in ("rewards", "dones"):
        having = [name for name, demo in zip(names, demos, strict=True) if key in demo]
        lacking = [name for name in names if name not in having]
        if having and lacking:
            raise TrimtabError(
                f"{where}: {lacking[0]}, key '{key}': missing, but {having[0]} has it; store it in "
                "all demonstrations, or in none"
            )


def _text(part: tuple[int, str] | None) -> str:
    return "missing" if part is None else f"{part[0]} {part[1]}"


def _check_lengths(demo: Arrays, steps: int, samples: float | None, place: str) -> None:
    rows = {name: demo[name] for name in ("actions", "rewards", "dones", STATES) if name in demo}
    stated: dict[str, float] = {name: _rows(array) for name, array in rows.items()}
    stated |= {"num_samples": samples} if samples is not None else {}
    for name, count in stated.items():
        if count != steps:
            raise TrimtabError(
                f"{place}, key '{name}': of {count:g} steps, the observations of {steps}; {_ADVICE}"
            )


def _rows(array: npt.NDArray[Any]) -> int:
    return len(array) if array.ndim else 0


def _check_following(demo: Arrays, keys: Sequence[str], place: str) -> None:
    """Check that ``next_obs`` has the parts of ``obs``, a row later."""
    parts, later = (_described(demo, group, keys) for group in ("obs", "next_obs"))
    if parts != later:
        key = next(k for k in [*parts, *later] if parts.get(k) != later.get(k))
        raise TrimtabError(
            f"{place}, key 'next_obs/{key}': {_text(later.get(key))}, but {_text(parts.get(key))} "
            f"in 'obs'; {_ADVICE}"
        )
    for key in parts:
        now, then = demo[f"obs/{key}"], demo[f"next_obs/{key}"]
        if now.shape != then.shape:
            raise TrimtabError(
                f"{place}, key 'next_obs/{key}': shape {then.shape}, but {now.shape} in 'obs'; "
                f"{_ADVICE}"
            )
        near = np.isclose(now[1:], then[:-1], _RELATIVE, _ABSOLUTE, equal_nan=True)
        same = near.reshape(len(near), now[0].size).all(axis=1)
        if not same.all():
            raise TrimtabError(
                f"{place}, key 'next_obs/{key}': row {int(np.argmin(same))} is not the next row of "
                f"'obs/{key}'; {_ADVICE}"
            )


def check_total(demos: Sequence[Arrays], total: float | None, where: str) -> None:
    """Check the number of steps that a file states for all demonstrations.

    Raises:
        TrimtabError: if it is another one.
    """
    steps = sum(_rows(demo["actions"]) for demo in demos if "actions" in demo)
    seen = sum(
        next((len(a) for n, a in d.items() if n.startswith("obs/") and a.ndim), 0) for d in demos
    )
    # Where the rows of actions and observations differ, the demonstration itself is named later.
    if total not in (None, steps, seen):
        raise TrimtabError(
            f"{where}, attribute 'total' of 'data': {total:g} steps, but the {len(demos)} "
            f"demonstrations have {steps}; correct it if some were removed, or fetch a fresh copy"
        )


def check_not_raw(demos: Sequence[Arrays], where: str) -> None:
    """Check that there is something to observe.

    Raises:
        TrimtabError: if the demonstrations are those of robosuite, with nothing but states.
    """
    names = {name.partition("/")[0] for demo in demos for name in demo}
    if STATES in names and "obs" not in names:
        raise TrimtabError(
            f"{where}: raw demonstrations of robosuite, which have states and no observations; run "
            "robomimic's conversion/convert_robosuite.py and dataset_states_to_obs.py on it"
        )
