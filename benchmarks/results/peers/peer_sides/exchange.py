"""What the scripts of this folder share: how a question is read and how its answer is written.

A script of this folder runs in the environment of a peer, without Trimtab. It is given a folder in
which every part of the question is a folder of its own with plain files, answers part by part, and
writes beside them ``theirs.npz`` (arrays) and ``theirs.json`` (texts, or the error that it met).
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
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


def definitions_of(
    path: Path, wanted: Sequence[str], modules: Mapping[str, Any]
) -> SimpleNamespace:
    """Return some of the functions and classes of a file that cannot be imported as a whole.

    Args:
        path: the file.
        wanted: their names.
        modules: what they use of all that the file imports, by name.

    Raises:
        ValueError: if one of them is not in the file.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [node for node in tree.body if getattr(node, "name", "") in wanted]
    if lacking := set(wanted) - {getattr(node, "name", "") for node in kept}:
        raise ValueError(f"{path.name} does not define {', '.join(sorted(lacking))}")
    future = ast.parse("from __future__ import annotations").body  # so that no type is looked up
    names: dict[str, Any] = dict(modules)
    exec(compile(ast.Module([*future, *kept], []), str(path), "exec"), names)
    return SimpleNamespace(**{name: names[name] for name in wanted})


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put ``value`` in the place of an attribute for a while: how noise is given to a peer."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
