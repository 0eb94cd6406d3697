"""What the scripts of this folder share: how a question is read and how its answer is written.

A script of this folder runs in the environment of a peer, without Trimtab. It is given a folder in
which every part of the question is a folder of its own with plain files, answers part by part, and
writes beside them ``theirs.npz`` (arrays) and ``theirs.json`` (texts, or the error that it met).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Answers = Mapping[str, Any]
"""Arrays and texts by the name of the check."""


def answer_all(folder: Path, answer: Callable[[Path], Answers], package: str) -> None:
    """Answer every part in ``folder``; an error of the peer is an answer too."""
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        arrays: dict[str, Any] = {}
        texts: dict[str, str] = {}
        error = ""
        try:
            for name, value in answer(part).items():
                if isinstance(value, str):
                    texts[name] = value
                else:
                    arrays[name] = np.asarray(value)
        except Exception as caught:  # whatever a peer cannot do is a row of the table
            error = f"{type(caught).__name__}: {' '.join(str(caught).split())[:200]}"
        np.savez(part / "theirs.npz", **arrays)
        (part / "theirs.json").write_text(json.dumps({"texts": texts, "error": error}))
    versions = {"python": platform.python_version()}
    for name in (package, "numpy", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    (folder / "versions.json").write_text(json.dumps(versions))


def main(answer: Callable[[Path], Answers], package: str) -> None:
    """Answer the question in the folder that the command line names."""
    answer_all(Path(sys.argv[1]), answer, package)


def arrays_of(path: Path) -> dict[str, Any]:
    """Return the arrays of an npz file."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def settings_of(part: Path) -> Any:
    """Return the settings of a part, JSON values."""
    return json.loads((part / "settings.json").read_text(encoding="utf-8"))


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put ``value`` in the place of an attribute for a while: how noise is given to a peer."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
