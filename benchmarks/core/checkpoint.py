"""Private state of a run on disk: safetensors for arrays, JSON for the rest, and no code.

A checkpoint is a folder that appears whole: it is written beside its place and renamed, the SHA-256
of its arrays and of everything else are in ``state.json``, and the one before it is removed only
afterwards.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray

from trimtab.files import atomic_directory, atomic_write_json, read_json, sha256_file, sha256_json
from trimtab.types import TrimtabError

logger = logging.getLogger(__name__)

_PREFIX = "step-"


def flatten(value: Any, arrays: dict[str, NDArray[Any]], path: str = "") -> Any:
    """Return ``value`` as JSON, its tensors and arrays moved to ``arrays`` under their path.

    Dictionaries keep the type of their keys (an optimiser's are integers).

    Raises:
        TypeError: if there is something in ``value`` that a checkpoint cannot hold.
    """
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
                raise TypeError(f"a checkpoint cannot hold the key {key!r} (at {path})")
        pairs = [[key, flatten(item, arrays, f"{path}/{key}")] for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        return {"list": [flatten(item, arrays, f"{path}/{i}") for i, item in enumerate(value)]}
    if isinstance(value, np.generic):
        return {"value": value.item()}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__} (at {path or 'its root'})")


def _keep(array: NDArray[Any], arrays: dict[str, NDArray[Any]], path: str) -> str:
    """Put ``array`` into ``arrays`` and return its name: its path, made unique."""
    # A key with a slash in it, or 1 beside "1", would otherwise take another array's place.
    name = path if path not in arrays else f"{path}#{len(arrays)}"
    arrays[name] = np.asarray(array, order="C")  # ascontiguousarray would give 0-d arrays an axis
    return name


def unflatten(tree: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return what :func:`flatten` took apart."""
    ((kind, content),) = tree.items()
    readers: dict[str, Callable[[], Any]] = {
        "tensor": lambda: torch.from_numpy(arrays[content].copy()),
        "bfloat16": lambda: torch.from_numpy(arrays[content].copy()).view(torch.bfloat16),
        "array": lambda: arrays[content].copy(),
        "dict": lambda: {key: unflatten(item, arrays) for key, item in content},
        "list": lambda: [unflatten(item, arrays) for item in content],
        "value": lambda: content,
    }
    return readers[kind]()


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Write ``state`` to ``folder/step-<step>`` and remove older checkpoints.

    Raises:
        TrimtabError: if the disk refuses; the older checkpoint is then still there.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tree = flatten(state, arrays)
    place = folder / f"{_PREFIX}{step:012d}"
    with atomic_directory(place) as beside:
        (beside / "arrays.safetensors").write_bytes(safetensors.numpy.save(arrays))
        digest = sha256_file(beside / "arrays.safetensors")
        document = {"sha256": digest, "tree_sha256": sha256_json(tree), "tree": tree}
        atomic_write_json(beside / "state.json", document)
    for old in _checkpoints(folder):
        if old != place:
            shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path) -> Any | None:
    """Return the newest state in ``folder``, or None where there is none.

    Raises:
        TrimtabError: if the checkpoint was changed or cut since it was written.
    """
    places = _checkpoints(folder)
    if not places:
        return None
    place = places[-1]
    advice = f"remove {folder} to start this run again"
    document = read_json(place / "state.json", "checkpoint")
    try:
        digests = sha256_file(place / "arrays.safetensors"), sha256_json(document["tree"])
        if digests != (document["sha256"], document["tree_sha256"]):
            raise TrimtabError(f"checkpoint: {place} was changed since it was written; {advice}")
        arrays = safetensors.numpy.load((place / "arrays.safetensors").read_bytes())
        return unflatten(document["tree"], arrays)
    except TrimtabError:
        raise
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise TrimtabError(f"checkpoint: {place} cannot be read ({error}); {advice}") from error


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*")) if folder.is_dir() else []
