"""A check: one value of ours that a peer has to give too, and the row that comes of it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Check", "Peer", "Settings", "compared", "write_arrays", "write_settings"]

Settings = Mapping[str, str]
"""Words of the command line, such as the folder of CORL's checkout."""


@dataclass(frozen=True)
class Check:
    """What is compared with a peer.

    Attributes:
        part: part of the question, a folder's name.
        name: name of the value in the peer's answer.
        what: what is compared, in plain words.
        ours: our value: numbers, a text, or several arrays by their names in the peer's answer.
        tolerance: how far a number may be from the peer's, at most; 0 means equal.
        deviation: words of the method's docstring that say why it is further from the peer's, or
            nothing. The check then holds if it is.
    """

    part: str
    name: str
    what: str
    ours: NDArray[Any] | str | Mapping[str, NDArray[Any]]
    tolerance: float = 0.0
    deviation: str = ""


class Peer(ABC):
    """A project that Trimtab is compared with.

    Attributes:
        name: name of the project.
        package: its package, whose version the rows carry.
        requirements: what is installed in its environment, with dependencies.
        bare: what is installed without them, because it asks for another torch.
        side: file of ``benchmarks/results/peers/peer_sides`` that runs there.
        here: whether it answers in the environment of Trimtab, which its answer needs.
        needs: word of the command line without which it cannot be compared, or nothing.
    """

    name: str
    package: str
    requirements: tuple[str, ...]
    bare: tuple[str, ...] = ()
    side: str
    here: bool = False
    needs: str = ""

    @abstractmethod
    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Write the question into ``folder``, a folder a part, and return what is compared."""

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return the version that was compared; ``versions`` are those in its environment."""
        return versions[self.package]


def compared(check: Check, answers: Mapping[str, Any], error: str) -> dict[str, Any]:
    """Return the row of a check.

    Args:
        check: ours.
        answers: the peer's values of this part of the question, by name.
        error: the error that the peer met in this part, or nothing.
    """
    row: dict[str, Any] = {
        "part": check.part, "check": check.name, "what": check.what, "numbers": 0,
        "ours": None, "theirs": None, "difference": None, "tolerance": check.tolerance,
        "holds": False, "deviation": check.deviation, "note": "",
    }  # fmt: skip
    if isinstance(check.ours, str):
        theirs = answers.get(check.name)
        row |= {"ours": check.ours, "theirs": theirs, "holds": check.ours == theirs}
        return row | {"note": "" if check.name in answers else error or _NOTHING}
    named = check.ours if isinstance(check.ours, Mapping) else {check.name: check.ours}
    ours = {name: np.squeeze(np.asarray(array, np.float64)) for name, array in named.items()}
    row |= {"numbers": sum(array.size for array in ours.values()), "ours": _mean(ours)}
    if not ours.keys() <= answers.keys():
        return row | {"note": error or _NOTHING}
    theirs = {name: np.squeeze(np.asarray(answers[name], np.float64)) for name in ours}
    for name, array in ours.items():
        if array.shape != theirs[name].shape:
            return row | {"note": f"{name}: shapes {array.shape} and {theirs[name].shape}"}
    difference = max(float(np.abs(array - theirs[name]).max()) for name, array in ours.items())
    if not np.isfinite(difference):
        return row | {"note": "not finite"}
    row |= {"theirs": _mean(theirs), "difference": difference}
    return row | {"holds": (difference <= check.tolerance) is not bool(check.deviation)}


_NOTHING = "the peer gave no such value"


def _mean(arrays: Mapping[str, NDArray[Any]]) -> float:
    """Return the mean of all numbers together: what stands for them in a row."""
    return float(np.concatenate([array.ravel() for array in arrays.values()]).mean())


def write_arrays(part: Path, arrays: Mapping[str, Any]) -> None:
    """Write the arrays of a question."""
    part.mkdir(parents=True, exist_ok=True)
    np.savez(part / "in.npz", **{name: np.asarray(array) for name, array in arrays.items()})


def write_settings(part: Path, settings: Any) -> None:
    """Write the settings of a question."""
    part.mkdir(parents=True, exist_ok=True)
    (part / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
