"""What other layouts have no key for, as one JSON text beside the data.

A layout's own readers pass the text over. Ours rebuild from it exactly what was saved, and check
it: the text carries its own digest and the content hash.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import Dataset
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json

__all__ = [
    "KINDS", "LAST_OBSERVED", "Own", "check_continuous", "check_no_end_inside",
    "check_no_picture", "check_replaceable", "column_of", "common_infos", "ends_of",
    "flag_ends", "flags_of", "is_picture", "missing_ends", "need", "no_reward", "parse",
    "text_of", "uneven_infos", "whole_numbers", "with_common_infos",
]  # fmt: skip

Own = dict[str, Any]
Infos = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape of a row of each info."""

LAST_OBSERVED = "last_observed"
"""Key of which episodes' last observations were recorded; it lacks where all of them were."""

KINDS = {"b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "floats"}
"""What NumPy's kinds of numbers are called in messages."""

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
        **ends_of(dataset),
        **further,
    }
    try:
        plain = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TrimtabError(
            f"dataset {dataset.id}: its recipe or options are not JSON ({error}); use plain values"
        ) from error
    return json.dumps({**plain, _DIGEST: sha256_json(plain)})


def ends_of(dataset: Dataset) -> dict[str, list[bool]]:
    """Return which episodes' last observations were recorded; nothing where all of them were."""
    observed = [episode.last_observed for episode in dataset.episodes]
    return {} if all(observed) else {LAST_OBSERVED: observed}


def missing_ends(dataset: Dataset) -> list[str]:
    """Return a line on the last observations that the dataset's own source did not record."""
    missing = sum(not episode.last_observed for episode in dataset.episodes)
    return [
        f"the last observation of {missing} of {len(dataset)} episodes was not recorded: their "
        "last steps serve cloning and no value"
    ] * (missing > 0)


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


def column_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one number a row, stored as ``[N, 1]``, as ``[N]``."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def whole_numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return one whole number a row, stored as ``[N, 1]`` or as floats, as ``[N]`` whole numbers.

    What is not one whole number a row stays as it is.
    """
    array = column_of(array)
    whole = array.dtype.kind == "f" and (np.abs(array) < 2**53).all()
    return array.astype(np.int64) if whole and (array == np.rint(array)).all() else array


def flags_of(array: npt.NDArray[Any], place: str) -> npt.NDArray[np.bool_]:
    """Return stored flags ``[N]`` as booleans.

    Raises:
        TrimtabError: if they are of another shape, or values other than 0 and 1.
    """
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise TrimtabError(f"{place}: not one flag of 0 or 1 a row; {_ADVICE}")
    return array.astype(np.bool_)


def check_no_end_inside(flags: npt.NDArray[Any], place: str) -> None:
    """Check that an episode's stored flags ``[T]`` of its end are set nowhere before its last step.

    Raises:
        TrimtabError: if one is; the message names the step.
    """
    inside = np.flatnonzero(flags[:-1])
    if len(inside):
        raise TrimtabError(
            f"{place}: set at step {inside[0]} of {len(flags)}, inside the episode; split it "
            "there if two recordings were joined, or clear the flag"
        )


def flag_ends(
    steps: int, *, terminated: bool
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the terminations and truncations of an episode that ends at its last step."""
    last = np.arange(steps) == steps - 1
    return last & terminated, last & (not terminated)


def check_continuous(actions: npt.NDArray[Any], place: str) -> None:
    """Check that the actions of a file are continuous.

    Args:
        actions: as they are stored.
        place: opens the message.

    Raises:
        TrimtabError: if they are discrete: whole numbers, or one number a row without a width.
    """
    if actions.dtype.kind != "f" or actions.ndim == 1:
        raise TrimtabError(
            f"{place}: discrete actions (type {actions.dtype}, shape {actions.shape}); only "
            "continuous ones are supported: floats of shape (N, A)"
        )


def check_no_picture(observations: npt.NDArray[Any], place: str) -> None:
    """Check that the observations of a file are no pictures.

    Raises:
        TrimtabError: if they are.
    """
    if is_picture(observations.ndim, floats=observations.dtype.kind == "f"):
        raise TrimtabError(
            f"{place}: pictures of shape {observations.shape[1:]}, which are not read as "
            "observations; give a dataset of states"
        )


def is_picture(dimensions: int, *, floats: bool) -> bool:
    """Tell pictures from points, by the dimensions of an array of rows.

    Only floats can be a table of coordinates.
    """
    return dimensions > 3 or (dimensions == 3 and not floats)
