"""The metadata of a dataset in Minari's layout: read, checked and taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.own import LAST_OBSERVED
from trimtab.errors import TrimtabError
from trimtab.files import read_json, sha256_json

__all__ = [
    "DATA_FILE", "DIGEST", "METADATA_FILE", "PREFIX", "action_limits", "algorithm_name",
    "env_of_spec", "env_spec", "last_observed", "observation_keys", "observation_widths",
    "read_metadata",
]  # fmt: skip

DATA_FILE = "main_data.hdf5"
METADATA_FILE = "metadata.json"
PREFIX = "trimtab_"
DIGEST = "trimtab_sha256"  # over all other keys with the prefix
_ADVICE = "make the dataset again or fetch a fresh copy"


def read_metadata(folder: str | Path) -> dict[str, Any]:
    """Return ``metadata.json`` of the dataset in ``folder``, with the required keys checked.

    Raises:
        TrimtabError: if it is missing, not JSON, of another data format, or was changed by hand.
    """
    path = Path(folder) / "data" / METADATA_FILE
    if not path.is_file():
        raise TrimtabError(
            f"dataset {folder}: there is no data/{METADATA_FILE} in it; give the folder of a "
            "dataset in the Minari layout"
        )
    try:
        metadata = read_json(path, "dataset")
    except (ValueError, RecursionError) as error:
        if isinstance(error, TrimtabError):
            raise
        raise TrimtabError(f"dataset {path}: not readable JSON ({error}); {_ADVICE}") from error
    if not isinstance(metadata, dict):
        raise TrimtabError(f"dataset {path}: not a JSON object; {_ADVICE}")
    types = {"dataset_id": str, "total_episodes": int, "total_steps": int, "data_format": str}
    for key, kind in types.items():
        if type(metadata.get(key)) is not kind:
            raise TrimtabError(f"dataset {path}: '{key}' is not of type {kind.__name__}; {_ADVICE}")
    if metadata["data_format"] != "hdf5":
        raise TrimtabError(
            f"dataset {path}: data_format '{metadata['data_format']}' is not read here; convert it "
            "to 'hdf5' with the minari package"
        )
    if metadata["total_episodes"] < 1:
        raise TrimtabError(f"dataset {path}: the dataset has no episodes; {_ADVICE}")
    own = {key: value for key, value in metadata.items() if key.startswith(PREFIX)}
    digest = own.pop(DIGEST, None)
    if (own or digest is not None) and sha256_json(own) != digest:
        raise TrimtabError(
            f"dataset {path}: its {PREFIX}* keys were changed after it was written; {_ADVICE}"
        )
    noted = metadata.get(PREFIX + LAST_OBSERVED, [])
    if not isinstance(noted, list) or len(noted) not in (0, metadata["total_episodes"]):
        raise TrimtabError(
            f"dataset {path}: '{PREFIX}{LAST_OBSERVED}' is not of as many episodes as there are; "
            f"{_ADVICE}"
        )
    return metadata


def last_observed(metadata: Mapping[str, Any], index: int) -> bool:
    """Return whether the last observation of an episode was recorded."""
    noted = metadata.get(PREFIX + LAST_OBSERVED)
    return not noted or bool(noted[index])


def _space(metadata: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a space's description, or an empty one where it is missing or not JSON."""
    try:
        space = json.loads(metadata.get(key) or "{}")
    except (TypeError, ValueError, RecursionError):
        return {}
    return space if isinstance(space, dict) else {}


def action_limits(
    metadata: Mapping[str, Any], data: Path
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and upper limits of ``action_space``; ``data`` is its folder.

    Raises:
        TrimtabError: if it is not a flat Box.
    """
    space = _space(metadata, "action_space")
    try:
        if space["type"] != "Box":
            raise ValueError(f"a {space['type']} space")
        low, high = (np.asarray(space[key], dtype=np.float64) for key in ("low", "high"))
        if low.ndim != 1 or high.shape != low.shape:
            raise ValueError(f"limits of shapes {low.shape} and {high.shape}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TrimtabError(
            f"dataset {data / METADATA_FILE}: 'action_space' is not a flat Box "
            f"({type(error).__name__}: {error}); only continuous actions are supported"
        ) from error
    return tuple(low.tolist()), tuple(high.tolist())


def observation_keys(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arrays' paths below ``observations`` in the space's order; none for a Box."""

    def paths(space: Any, prefix: str, depth: int) -> list[str]:
        if not isinstance(space, dict) or space.get("type") != "Dict" or depth > 4:
            return [prefix]
        parts = space.get("subspaces")
        items = parts.items() if isinstance(parts, dict) else ()
        return [p for key, sub in items for p in paths(sub, f"{prefix}/{key}", depth + 1)]

    found = paths(_space(metadata, "observation_space"), "", 0)
    return tuple(path.removeprefix("/") for path in found if path)


def observation_widths(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the length of each of :func:`observation_keys`; none where a space does not say it."""
    widths = {}
    for path in observation_keys(metadata):
        space: Any = _space(metadata, "observation_space")
        for key in path.split("/"):
            space = space["subspaces"][key]
        shape = space.get("shape") if isinstance(space, dict) else None
        if not isinstance(shape, list) or len(shape) != 1 or not isinstance(shape[0], int):
            return {}
        widths[path] = shape[0]
    return widths


def env_spec(dataset: Dataset) -> dict[str, str]:
    """Return Gymnasium's specification of the task that a dataset was recorded in, as metadata.

    It is that of ``envs/register.py``, with the dataset's options, so that Minari's
    ``recover_environment`` makes the task. A stranger's dataset has none.
    """
    if dataset.fingerprint is None or not {"/", ":"} & set(dataset.env):
        return {}
    spec: dict[str, Any] = {
        "id": f"trimtab/{dataset.env.replace('/', '.')}",
        "entry_point": "trimtab.envs.register:make_registered",
        "reward_threshold": None,
        "nondeterministic": False,
        "max_episode_steps": None,  # the task cuts its episodes itself
        "order_enforce": False,
        "disable_env_checker": True,
        "kwargs": {"task": dataset.env, **dataset.env_options},
        "additional_wrappers": [],
        "vector_entry_point": None,
    }
    return {"env_spec": json.dumps(spec)}


def algorithm_name(recipe: Mapping[str, Any]) -> str:
    """Return who acted in a dataset: its recipe's name, policies, controller or methods."""
    controller = recipe.get("controller")
    controller = controller if isinstance(controller, Mapping) else {}
    policies = controller.get("policies")
    runs = recipe.get("runs", recipe.get("run"))
    if recipe.get("name"):
        return str(recipe["name"])
    if isinstance(policies, list) and policies:
        return ", ".join(map(str, policies))
    if controller.get("_target_"):
        return str(controller["_target_"]).rpartition(".")[2]
    if isinstance(runs, list):
        words = [run.get("algorithm") if isinstance(run, Mapping) else run for run in runs]
        found = [str(word).removeprefix("algorithm=") for word in words if word]
        named = found if all(isinstance(run, Mapping) for run in runs) else found[:1]
        return ", ".join(dict.fromkeys(named)) or "unknown"
    parts = recipe.get("of")
    return ", ".join(map(str, parts)) if isinstance(parts, list) and parts else "unknown"


def env_of_spec(metadata: Mapping[str, Any]) -> str:
    """Return the environment's id from Gymnasium's specification, or ``unknown``."""
    name = _space(metadata, "env_spec").get("id")
    return name if isinstance(name, str) and name else "unknown"
