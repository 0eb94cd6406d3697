"""robomimic's SequenceDataset opens files that Trimtab wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import exchange
import h5py
import numpy as np
from robomimic.utils import obs_utils
from robomimic.utils.dataset import SequenceDataset


def answer(part: Path) -> exchange.Answers:
    """Return every array of the file in ``part`` as robomimic hands it out, and its environment."""
    path = part / "dataset.hdf5"
    keys = exchange.settings_of(part)["keys"]
    obs_utils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": keys}})
    dataset = SequenceDataset(
        hdf5_path=str(path),
        obs_keys=tuple(keys),
        dataset_keys=("actions", "rewards", "dones"),
        load_next_obs=True,
    )
    items = [dataset[index] for index in range(len(dataset))]
    answers: dict[str, Any] = {
        name: np.concatenate([item[name] for item in items])
        for name in ("actions", "rewards", "dones")
    }
    for side, name in (("obs", "observations"), ("next_obs", "next observations")):
        parts = [np.concatenate([item[side][key] for item in items]) for key in keys]
        answers[name] = np.concatenate(parts, axis=1)
    answers["demonstrations"] = len(dataset.demos)
    answers["keys"] = " ".join(sorted(keys_of_first_demonstration(path)))
    with h5py.File(path, "r") as file:
        # What robomimic's get_env_metadata_from_dataset reads.
        env_args = json.loads(file["data"].attrs["env_args"])
    answers["environment"] = f"{env_args['env_name']} of type {env_args['type']}"
    return answers


def keys_of_first_demonstration(path: Path) -> list[str]:
    """Return the observation keys; robomimic's own reader of them takes the first group too."""
    with h5py.File(path, "r") as file:
        demonstration = list(file["data"].keys())[0]
        return list(file[f"data/{demonstration}/obs"])


if __name__ == "__main__":
    exchange.main(answer, "robomimic")
