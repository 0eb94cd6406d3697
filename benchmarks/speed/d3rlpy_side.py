"""Updates of d3rlpy's learners, in an environment of its own: d3rlpy's pins do not fit ours.

It is run by path, with that environment's Python, and imports nothing of Trimtab's:

    python d3rlpy_side.py <class of d3rlpy.algos> <transitions> <width of a layer> <batch>

After ``ready`` it reads lines ``<updates> <torch threads>`` and answers each with ``done``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from typing import Any

import numpy as np

OBS_DIM, ACTION_DIM, EPISODE = 11, 3, 200


def dataset(library: Any, count: int) -> Any:
    """Return random transitions of whole episodes as d3rlpy's dataset."""
    rng = np.random.default_rng(0)
    return library.dataset.MDPDataset(
        rng.standard_normal((count, OBS_DIM), dtype=np.float32),
        np.clip(rng.standard_normal((count, ACTION_DIM), dtype=np.float32), -1, 1),
        rng.standard_normal((count, 1), dtype=np.float32),
        (np.arange(count) % EPISODE == EPISODE - 1).astype(np.float32),
    )


def learner(library: Any, name: str, data: Any, width: int, batch: int) -> Any:
    """Return a learner with two hidden layers everywhere and its own settings otherwise."""
    config = getattr(library.algos, f"{name}Config")
    encoder = library.models.encoders.VectorEncoderFactory([width, width])
    known = {key for key in config.__dataclass_fields__ if key.endswith("_encoder_factory")}
    made = config(batch_size=batch, **dict.fromkeys(known, encoder)).create(device="cpu")
    made.build_with_dataset(data)
    return made


def answer(word: str) -> None:
    """Say a word to the process that measures."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    """Set one learner up and update it as often as is asked for."""
    name, count, width, batch = sys.argv[1], *map(int, sys.argv[2:5])
    warnings.simplefilter("ignore")
    # What libraries print while they are imported is no answer.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        library = importlib.import_module("d3rlpy")
        torch = importlib.import_module("torch")
        data = dataset(library, count)
        made = learner(library, name, data, width, batch)
    answer("ready")
    for line in sys.stdin:
        updates, threads = map(int, line.split())
        torch.set_num_threads(threads)
        for _ in range(updates):
            made.update(data.sample_transition_batch(batch))
        answer("done")


if __name__ == "__main__":
    main()
