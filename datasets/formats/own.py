"""What other layouts have no key for, as one JSON text beside the data, and datasets made of it.

A layout's own readers pass the text over. Ours rebuild from it exactly what was saved, and check
it: the text carries its own digest and the content hash.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset, Episode, validate
from trimtab.datasets.formats.registry import Hints
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json

__all__ = [
    "Own", "apply_hints", "assemble", "check_replaceable", "common_infos", "flag_ends",
    "flags_of", "need", "no_reward", "parse",
    "rows_of", "text_of", "uneven_infos", "with_common_infos",
]  # fmt: skip

logger = logging.getLogger(__name__)

Own = dict[str, Any]
Infos = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of a row of each info."""

_DIGEST = "sha256"
_ADVICE = "make the dataset again or fetch a fresh copy"


def text_of(dataset: Dataset, **further: Any) -> str:
    """Return the JSON text to store beside ``dataset``; ``further`` are the layout's own values.

    Raises:
        TrimtabError: if the recipe or the options are not JSON.
    """
    values = {
        "id": dataset.id,
        "env": dataset.env,
        "env_options": dict(dataset.env_options),
        "action_low": [x if np.isfinite(x) else None for x in dataset.action_low],
        "action_high": [x if np.isfinite(x) else None for x in dataset.action_high],
        "control_rate": dataset.control_rate,
        "recipe": dict(dataset.recipe),
        "fingerprint": dataset.fingerprint,
        "seeds": [episode.seed for episode in dataset.episodes],
        "content_hash": dataset.content_hash,
        **further,
    }
    try:
        plain = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TrimtabError(
            f"dataset {dataset.id}: its recipe or options are not JSON ({error}); use plain values"
        ) from error
    return json.dumps({**plain, _DIGEST: sha256_json(plain)})


def parse(text: str | bytes, where: str) -> Own:
    """Return what ``text_of`` stored.

    Raises:
        TrimtabError: if it is not JSON or was changed.
    """
    try:
        values = json.loads(text)
        digest = values.pop(_DIGEST)
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError) as error:
        raise TrimtabError(f"{where}: what Trimtab noted is not readable; {_ADVICE}") from error
    if sha256_json(values) != digest:
        raise TrimtabError(f"{where}: what Trimtab noted was changed; {_ADVICE}")
    own: Own = values
    return own


def common_infos(dataset: Dataset) -> tuple[Infos, list[str]]:
    """Return the infos that every episode has alike, and the names of the others.

    A layout that lays all episodes end to end can hold the first only.
    """
    first = {
        name: (array.dtype.str, array.shape[1:])
        for name, array in dataset.episodes[0].infos.items()
    }
    names = {name for episode in dataset.episodes for name in episode.infos}
    common = {
        name: kind
        for name, kind in first.items()
        if all(
            name in e.infos and (e.infos[name].dtype.str, e.infos[name].shape[1:]) == kind
            for e in dataset.episodes
        )
    }
    return common, sorted(names - common.keys())


def uneven_infos(dataset: Dataset) -> list[str]:
    """Return a line for each info that a layout without episodes of their own cannot hold."""
    return [
        f"info '{name}' is not in every episode with one type and shape: it is left out"
        for name in common_infos(dataset)[1]
    ]


def with_common_infos(dataset: Dataset) -> Dataset:
    """Return ``dataset`` without the infos of :func:`uneven_infos`."""
    common, other = common_infos(dataset)
    if not other:
        return dataset
    episodes = [
        dataclasses.replace(e, infos={name: e.infos[name] for name in common})
        for e in dataset.episodes
    ]
    return dataclasses.replace(dataset, episodes=tuple(episodes))


def _action_limits(
    episodes: Sequence[Episode],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return limits for actions whose file names none: -1 and 1, or what was seen beyond them."""
    shape = episodes[0].actions.shape[1:]
    if any(e.actions.ndim != 2 or e.actions.shape[1:] != shape or not len(e) for e in episodes):
        return (), ()  # validate says it better
    low = np.minimum(np.min([e.actions.min(0) for e in episodes], axis=0), -1.0)
    high = np.maximum(np.max([e.actions.max(0) for e in episodes], axis=0), 1.0)
    return tuple(low.tolist()), tuple(high.tolist())


def assemble(
    path: Path,
    episodes: Sequence[Episode],
    own: Own | None,
    hints: Hints,
    *,
    env: str = "unknown",
    recipe: Mapping[str, Any] | None = None,
    control_rate: float | None = None,
) -> Dataset:
    """Return the checked dataset of a file's episodes.

    Args:
        path: the file, named in errors; a stranger's id is formed of its name.
        episodes: what was read.
        own: what Trimtab noted, or None in a stranger's file.
        hints: what the user says; it overrides the file.
        env: environment, where a stranger's file names it.
        recipe: where a stranger's data came from.
        control_rate: actions a second, where a stranger's file says it.

    Raises:
        TrimtabError: if the content is not valid or not the one that was saved.
    """
    where = f"dataset {path}"
    if not episodes:
        raise TrimtabError(f"{where}: it has no whole episode; {_ADVICE}")
    if own is None:
        low, high = _action_limits(episodes)
        dataset = Dataset(
            id=f"imported/{re.sub(r'[^-_0-9A-Za-z]+', '-', path.stem) or 'data'}-v0",
            env=env,
            env_options={},
            episodes=tuple(episodes),
            action_low=low,
            action_high=high,
            control_rate=control_rate,
            recipe=recipe or {},
        )
        validate(dataset, where)
        return apply_hints(dataset, hints, where)
    dataset = Dataset(
        id=own["id"],
        env=own["env"],
        env_options=own["env_options"],
        episodes=tuple(episodes),
        action_low=tuple(-np.inf if x is None else x for x in own["action_low"]),
        action_high=tuple(np.inf if x is None else x for x in own["action_high"]),
        control_rate=own["control_rate"],
        recipe=own["recipe"],
        fingerprint=own["fingerprint"],
    )
    validate(dataset, where)
    if dataset.content_hash != own["content_hash"]:
        raise TrimtabError(
            f"{where}: the content differs from what Trimtab saved; {_ADVICE}, or remove what "
            "Trimtab noted in it if it was meant to change"
        )
    return apply_hints(dataset, hints, where)


def apply_hints(dataset: Dataset, hints: Hints, where: str) -> Dataset:
    """Return ``dataset`` with what the user says of it.

    Raises:
        TrimtabError: if it has no such mask.
    """
    env, id = hints.get("env", dataset.env), hints.get("id", dataset.id)
    if env != dataset.env or id != dataset.id:
        dataset = dataclasses.replace(dataset, env=env, id=id)
    if "mask" not in hints:
        return dataset
    masks = dataset.recipe.get("masks")
    masks = masks if isinstance(masks, Mapping) else {}
    chosen = masks.get(hints["mask"])
    if (
        not isinstance(chosen, list)
        or not chosen
        or any(type(x) is not int or not 0 <= x < len(dataset) for x in chosen)
    ):
        there = f"there are {', '.join(map(str, masks))}" if masks else "it has none"
        raise TrimtabError(f"{where}: no mask '{hints['mask']}' of its episodes; {there}")
    return dataclasses.replace(
        dataset,
        episodes=tuple(dataset.episodes[index] for index in chosen),
        recipe={key: value for key, value in dataset.recipe.items() if key != "masks"},
    )


def check_replaceable(path: Path, ours: bool) -> None:
    """Refuse to write over what Trimtab did not write: it would be lost.

    Raises:
        TrimtabError: if something is in ``path`` and ``ours`` is false.
    """
    if path.exists() and not ours:
        raise TrimtabError(
            f"cannot write {path}: something that Trimtab did not write is in its place; choose "
            "another name"
        )


def need(arrays: Mapping[str, Any], names: Iterable[str], place: str) -> None:
    """Check that every one of ``names`` was read.

    Raises:
        TrimtabError: if one is missing.
    """
    for name in names:
        if name not in arrays:
            raise TrimtabError(f"{place}, key '{name}': missing; {_ADVICE}")


def no_reward(steps: int) -> npt.NDArray[np.float32]:
    """Return the rewards of an episode whose file has none: zeros."""
    return np.zeros(steps, np.float32)


def flags_of(array: npt.NDArray[Any], place: str) -> npt.NDArray[np.bool_]:
    """Return stored flags ``[N]`` as booleans.

    Raises:
        TrimtabError: if they are of another shape, or values other than 0 and 1.
    """
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise TrimtabError(f"{place}: not one flag of 0 or 1 a row; {_ADVICE}")
    return array.astype(np.bool_)


def flag_ends(
    steps: int, *, terminated: bool
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the terminations and truncations of an episode that ends at its last step."""
    last = np.arange(steps) == steps - 1
    return last & terminated, last & (not terminated)


def rows_of(dataset: Dataset, name: str) -> npt.NDArray[Any]:
    """Return one key's arrays, of T rows each, laid end to end."""
    return np.concatenate([episode.arrays()[name] for episode in dataset.episodes])
