"""The metadata of a dataset in Minari's layout: read, checked and taken apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.minari.spaces import Part, parts_of
from trimtab.datasets.formats.own import LAST_OBSERVED
from trimtab.errors import TrimtabError
from trimtab.files import read_json, sha256_json

__all__ = [
    "DATA_FILE", "DIGEST", "METADATA_FILE", "PREFIX", "action_limits", "algorithm_name",
    "env_of_spec", "env_spec", "last_observed", "observation_parts", "read_metadata",
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
            "dataset in the Minari layout, of Minari 0.5 or later"
        )
    metadata = read_json(path, "dataset")
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


def algorithm_name(recipe: Mapping[str, Any]) -> str:
    """Return what acted in a dataset: its recipe's name, policies, controller or methods."""
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


def action_limits(
    metadata: Mapping[str, Any], data: Path
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and upper limits of ``action_space``; ``data`` is its folder.

    Raises:
        TrimtabError: if it is missing or not a flat Box.
    """
    space = _space(metadata, "action_space")
    if not metadata.get("action_space"):
        raise TrimtabError(
            f"dataset {data / METADATA_FILE}: 'action_space' is missing; write the space of its "
            f"actions there as Minari does, or {_ADVICE}"
        )
    try:
        if space["type"] != "Box":
            raise ValueError(f"a {space['type']} space")
        if not str(space.get("dtype", "float32")).startswith("float"):
            raise ValueError(f"a Box of {space['dtype']}")
        low, high = (np.asarray(space[key], dtype=np.float64) for key in ("low", "high"))
        if low.ndim != 1 or high.shape != low.shape:
            raise ValueError(f"limits of shapes {low.shape} and {high.shape}")
        if space.get("shape", [len(low)]) != [len(low)]:
            raise ValueError(f"{len(low)} limits, but the shape is {space['shape']}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TrimtabError(
            f"dataset {data / METADATA_FILE}: 'action_space' is not a flat Box "
            f"({type(error).__name__}: {error}); only continuous actions are supported"
        ) from error
    return tuple(low.tolist()), tuple(high.tolist())


def observation_parts(metadata: Mapping[str, Any], where: str) -> list[Part] | None:
    """Return the arrays of an observation in the space's order; None where no space is noted.

    Raises:
        TrimtabError: if ``observation_space`` is not readable.
    """
    noted = metadata.get("observation_space")
    return parts_of(_space(metadata, "observation_space"), where) if noted else None


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


def env_of_spec(metadata: Mapping[str, Any]) -> str:
    """Return the environment's id from Gymnasium's specification, or ``unknown``."""
    name = _space(metadata, "env_spec").get("id")
    return name if isinstance(name, str) and name else "unknown"
