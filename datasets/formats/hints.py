"""What a user may say of a file, and what a reader is called with."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypedDict, Unpack

from trimtab.datasets.episodes import Dataset
from trimtab.errors import TrimtabError

__all__ = ["Hints", "Load", "wanted_keys"]


class Hints(TypedDict, total=False):
    """What a user may say of a file that does not say it itself.

    Attributes:
        env: id of the environment.
        id: id of the dataset, ``namespace/name-v0``.
        mask: name of a part, such as ``train``; only its episodes are kept.
        horizon: length of an episode that the clock ended, where the file does not mark it.
        control_rate: actions a second, where the file contradicts itself or does not say it.
        keys: names of observation keys after commas; these alone are concatenated, in this order.
        task: id of the task that a run wants it for, where a file serves several.
        frames: cameras after commas, or ``all``, whose frames are decoded; otherwise none are.
    """

    env: str
    id: str
    mask: str
    horizon: int
    control_rate: float
    keys: str
    task: str
    frames: str


class Load(Protocol):
    """Reads a file or folder; every fault of it is one line (TrimtabError)."""

    def __call__(self, path: str | Path, **hints: Unpack[Hints]) -> Dataset:
        """Return the dataset in ``path``, checked."""
        ...


def wanted_keys(hints: Hints, where: str) -> list[str]:
    """Return the names that the hint ``keys`` has, in its order.

    Raises:
        TrimtabError: if it has one of them twice.
    """
    keys = [key.strip() for key in hints.get("keys", "").split(",") if key.strip()]
    for key in keys:
        if keys.count(key) > 1:
            raise TrimtabError(f"{where}: keys= has '{key}' twice; name each key once")
    return keys
