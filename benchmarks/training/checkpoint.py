"""Private state of a run on disk: safetensors for arrays, JSON for the rest, and no code.

A checkpoint is a folder that appears whole: it is written beside its place and renamed, the SHA-256
of its arrays and of everything else are in ``state.json``, and the one before it is removed only
afterwards. Rows of a ring (``RowLog``) are not written anew each time: those that keep their values
are in files beside the checkpoints, which ``state.json`` names with their SHA-256.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray

from trimtab.benchmarks.training.locking import remedy
from trimtab.benchmarks.training.segments import (
    SegmentFolder,
    describe,
    read_log,
    segments_of,
    spans_of,
)
from trimtab.errors import TrimtabError
from trimtab.files import (
    atomic_directory,
    atomic_write_text,
    read_json,
    reading,
    sha256_file,
    sha256_json,
    to_disk,
)
from trimtab.types import RowLog

__all__ = [
    "Checkpoints",
    "as_read_back",
    "glance",
    "load_checkpoint",
    "places_of",
]

logger = logging.getLogger(__name__)

_PREFIX = "step-"
_AGAIN = ".again"
"""Ends the name of a checkpoint of a step that has one already, until that is removed."""
_ROWS = "rows"
_HOLDS = "return tensors, arrays, numbers and text, nested in mappings and lists"


class Checkpoints:
    """The checkpoints of a run, for the one process that writes them.

    It knows which rows of a log are in files: those that it has written or loaded itself. So a run
    that goes on has to be loaded by what saves it.

    Args:
        folder: of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segments = SegmentFolder(folder / _ROWS)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write ``state`` to ``step-<step>``, and remove what only older checkpoints need.

        Raises:
            TrimtabError: if the disk refuses; the older checkpoint is then still there.
            TrimtabError: if there is something in ``state`` that a checkpoint cannot hold.
        """
        arrays: dict[str, NDArray[Any]] = {}
        logs: dict[str, RowLog] = {}
        tree = flatten(state, arrays, logs)
        place = self.folder / f"{_PREFIX}{step:012d}"
        if place.exists():
            place = place.with_name(place.name + _AGAIN)
        segments = self._segments.write(logs)
        try:
            _write(place, tree, arrays, {n: describe(log, segments[n]) for n, log in logs.items()})
        finally:  # also where it was interrupted as soon as it had been written
            if place.exists():
                self._segments.named = segments
            else:
                self._segments.take_back()
        self._keep_alone(place)

    def load(self) -> Any | None:
        """Return the newest state, or None where there is none; remove what it does not need.

        Raises:
            TrimtabError: if the checkpoint was changed or cut since it was written.
        """
        places = places_of(self.folder)
        if not places:
            return None
        state, logs = _read(places[-1])
        self._segments.named = {name: segments_of(log) for name, log in logs.items()}
        self._keep_alone(places[-1])
        return state

    def _keep_alone(self, place: Path) -> None:
        """Remove all that the checkpoint in ``place``, which is the newest, does not need."""
        _names_to_disk(self.folder)
        for old in places_of(self.folder):
            if old != place:
                shutil.rmtree(old, ignore_errors=True)
        if place.name.endswith(_AGAIN):
            place.rename(place.with_name(place.name.removesuffix(_AGAIN)))
        self._segments.remove_others()


def flatten(
    value: Any, arrays: dict[str, NDArray[Any]], logs: dict[str, RowLog], path: str = ""
) -> Any:
    """Return ``value`` as JSON, its tensors and arrays moved to ``arrays`` under their path.

    Dictionaries keep the type of their keys (an optimiser's are integers). A ``RowLog`` moves to
    ``logs``, and its rows that are in no segment to ``arrays``.

    Raises:
        TrimtabError: if there is something in ``value`` that a checkpoint cannot hold.
    """
    if isinstance(value, RowLog):
        name = _free(path, logs)
        logs[name] = value
        tail = value.part(spans_of(value)[1], value.written)
        return {"log": [name, {key: _keep(tail[key], arrays, f"{path}/{key}") for key in tail}]}
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.bfloat16:  # numpy has no such type: its bits are kept
            bits = value.detach().cpu().view(torch.int16).numpy()
            return {"bfloat16": _keep(bits, arrays, path)}
        return {"tensor": _keep(value.detach().cpu().numpy(), arrays, path)}
    if isinstance(value, np.ndarray):
        return {"array": _keep(value, arrays, path)}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, bool | int | float | str | None):
                raise TrimtabError(
                    f"a checkpoint cannot hold the key {key!r} (at {path}); {_HOLDS}"
                )
        pairs = [[key, flatten(item, arrays, logs, f"{path}/{key}")] for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        return {
            "list": [flatten(item, arrays, logs, f"{path}/{i}") for i, item in enumerate(value)]
        }
    if isinstance(value, np.generic):
        return {"value": value.item()}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TrimtabError(
        f"a checkpoint cannot hold a {type(value).__name__} (at {path or 'its root'}); {_HOLDS}"
    )


def as_read_back(state: Any) -> Any:
    """Return a state as a checkpoint that holds it would give it back; logs are not copied.

    Raises:
        TrimtabError: if there is something in ``state`` that a checkpoint cannot hold.
    """
    arrays: dict[str, NDArray[Any]] = {}
    logs: dict[str, RowLog] = {}
    return unflatten(flatten(state, arrays, logs), arrays, lambda name, tail: logs[name])


def _keep(array: NDArray[Any], arrays: dict[str, NDArray[Any]], path: str) -> str:
    """Put ``array`` into ``arrays`` and return its name: its path, made unique."""
    name = _free(path, arrays)
    arrays[name] = np.asarray(array, order="C")  # ascontiguousarray would give 0-d arrays an axis
    return name


def _free(path: str, taken: Mapping[str, Any]) -> str:
    """Return ``path``, or a name like it that is not taken."""
    # A key with a slash in it, or 1 beside "1", would otherwise take another array's place.
    return path if path not in taken else f"{path}#{len(taken)}"


def unflatten(
    tree: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    read: Callable[[str, Mapping[str, NDArray[Any]]], RowLog],
) -> Any:
    """Return what :func:`flatten` took apart.

    Args:
        tree: what it returned.
        arrays: what it moved there.
        read: returns the log of a name, given its rows that are in no segment.
    """
    ((kind, content),) = tree.items()
    readers: dict[str, Callable[[], Any]] = {
        "tensor": lambda: torch.from_numpy(arrays[content].copy()),
        "bfloat16": lambda: torch.from_numpy(arrays[content].copy()).view(torch.bfloat16),
        "array": lambda: arrays[content].copy(),
        "log": lambda: read(content[0], {key: arrays[at] for key, at in content[1].items()}),
        "dict": lambda: {key: unflatten(item, arrays, read) for key, item in content},
        "list": lambda: [unflatten(item, arrays, read) for item in content],
        "value": lambda: content,
    }
    return readers[kind]()


def _write(
    place: Path, tree: Any, arrays: Mapping[str, NDArray[Any]], logs: Mapping[str, Any]
) -> None:
    """Write a checkpoint whose segments are there already.

    Raises:
        TrimtabError: if the disk refuses.
    """
    _names_to_disk(place.parent / _ROWS)
    with atomic_directory(place) as beside:
        (beside / "arrays.safetensors").write_bytes(safetensors.numpy.save(dict(arrays)))
        digest = sha256_file(beside / "arrays.safetensors")
        content = {"tree": tree, "logs": logs}
        digests = {"sha256": digest, "tree_sha256": sha256_json(content)}
        # On one line: with indents it would be four times as large and take ten times as long.
        atomic_write_text(beside / "state.json", json.dumps(digests | content) + "\n")


def load_checkpoint(folder: Path) -> Any | None:
    """Return the newest state in ``folder``, or None where there is none; change nothing there.

    Raises:
        TrimtabError: if the checkpoint was changed or cut since it was written.
    """
    places = places_of(folder)
    return _read(places[-1])[0] if places else None


def _read(place: Path) -> tuple[Any, Mapping[str, Any]]:
    """Return the state in a checkpoint, and what it says of its logs.

    Raises:
        TrimtabError: if it, or a file that it names, was changed or cut since it was written.
    """
    advice = remedy(place.parent.parent)
    try:
        document = read_json(place / "state.json", "checkpoint")
        content = document["tree"]
        logs: Mapping[str, Any] = document.get("logs", {})
        if "logs" in document:  # earlier versions had none
            content = {"tree": document["tree"], "logs": logs}
        digests = sha256_file(place / "arrays.safetensors"), sha256_json(content)
        if digests != (document["sha256"], document["tree_sha256"]):
            raise TrimtabError(f"{place} was changed since it was written")
        arrays = safetensors.numpy.load((place / "arrays.safetensors").read_bytes())
        rows = place.parent / _ROWS

        def read(name: str, tail: Mapping[str, NDArray[Any]]) -> RowLog:
            return read_log(logs[name], tail, rows)

        return unflatten(document["tree"], arrays, read), logs
    except TrimtabError as error:
        raise TrimtabError(f"checkpoint: {_plainly(error)}; {advice}") from error
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise TrimtabError(f"checkpoint: {place} cannot be read ({error}); {advice}") from error


def glance(place: Path) -> dict[str, Any]:
    """Return the plain values of a checkpoint: counters and lists, and None in place of arrays.

    Sizes of files are looked at, and no array is read; :func:`load_checkpoint` compares hashes.

    Raises:
        TrimtabError: if the checkpoint was evidently not left whole.
    """
    document = read_json(place / "state.json", "checkpoint")
    try:
        _check_sizes(place, document)
        found = _plain(document["tree"])
    except TrimtabError:
        raise
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise TrimtabError(f"checkpoint: {place} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise TrimtabError(f"checkpoint: {place} holds no state of a run")
    return found


def _check_sizes(place: Path, document: Mapping[str, Any]) -> None:
    """Check that files of a checkpoint are there and as long as they say themselves.

    Raises:
        TrimtabError: naming the one that is not.
        OSError: if a file is missing.
    """
    arrays = place / "arrays.safetensors"
    with reading(arrays) as file:
        length = int.from_bytes(file.read(8), "little")
        size = arrays.stat().st_size
        header = json.loads(file.read(length)) if 0 < length < size else {}
    header.pop("__metadata__", None)
    ends = [entry["data_offsets"][1] for entry in header.values()]
    if size != 8 + length + max(ends, default=0):
        raise TrimtabError(f"checkpoint: {arrays} was cut")
    for log in document.get("logs", {}).values():
        for segment in segments_of(log):
            rows = place.parent / _ROWS / segment.file
            if rows.stat().st_size != segment.size:
                raise TrimtabError(f"checkpoint: {rows} was cut")


def _plain(tree: Mapping[str, Any]) -> Any:
    """Return the values of a state's tree, with None in place of its arrays and logs."""
    ((kind, content),) = tree.items()
    readers: dict[str, Callable[[], Any]] = {
        "dict": lambda: {key: _plain(item) for key, item in content},
        "list": lambda: [_plain(item) for item in content],
        "value": lambda: content,
    }
    return readers.get(kind, lambda: None)()


def _plainly(error: TrimtabError) -> str:
    """Return the words of an error, without the name that all of a checkpoint's errors have."""
    return str(error).removeprefix("checkpoint: ")


def _names_to_disk(folder: Path) -> None:
    """Have the names of a folder's files on the disk, where its file system does that."""
    with contextlib.suppress(OSError):
        to_disk(folder)


def places_of(folder: Path) -> list[Path]:
    """Return the checkpoints in ``folder`` that were written whole, the newest last."""
    return sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
