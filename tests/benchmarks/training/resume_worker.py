"""What a run does in a process of its own that is going to be killed; see ``test_resume.py``.

Processes come from a server that has imported everything and knows the tasks' physics, so that
each costs no start of its own.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import pandas  # noqa: F401  (pyarrow imports it when the first rows are written)
import stable_baselines3  # noqa: F401  (what its methods need is imported when they are made)

from trimtab.benchmarks.training import checkpoint, segments
from trimtab.benchmarks.training import run as loop
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

LOG_EVERY = 20
IMPORTED_BY = os.getpid()
for _id, _horizon in (("robotics/PointMaze-TwoRoutes-v0", 28), ("gym/Hopper-v5", 200)):
    get_spec(_id, horizon=_horizon)


def work(words: list[str], where: str, ready: float, hold: float, said: Connection) -> None:
    """Carry out a run; say ``"ready"`` and wait at a moment, and say at the end how it ended.

    Between ``ready`` and ``hold``, shares of the run, the parent kills at a moment of its own. At
    ``hold`` the run waits for it, so that a slow parent cannot come too late.
    """
    assert os.getpid() != IMPORTED_BY, "the server was to import this module"
    loop.LOG_EVERY = LOG_EVERY
    segments.SMALLEST, segments.FACTOR = 512, 2  # so that a short run has some
    signalled = False

    def wait(*_: object, **__: object) -> Any:
        said.send("ready")
        signal.pause()

    def progress(share: float, text: str) -> None:
        nonlocal signalled
        if share >= ready and not signalled:
            signalled = True
            said.send("ready")
        if share >= hold:
            signal.pause()

    if where == "writing a checkpoint":
        whole, written = checkpoint.sha256_file, []

        def counted(path: Any) -> str:
            written.append(path)
            return str(wait()) if len(written) == 3 else whole(path)

        checkpoint.sha256_file = counted
    if where == "behind a segment":
        write, segments_written = segments.atomic_write_bytes, []

        def followed(path: Any, data: bytes) -> None:
            write(path, data)
            segments_written.append(path)
            if len(segments_written) == 5:
                wait()

        segments.atomic_write_bytes = followed
    if where == "writing the bundle":
        loop.save_bundle = wait  # type: ignore[assignment]
    if where == "writing the result":
        loop.atomic_write_json = wait
    try:
        result = train(compose_run(words), progress)
    except TrimtabError as error:
        said.send(f"{type(error).__name__}: {error}")
        sys.exit(error.exit_code)
    said.send(f"already done: {result.already_done}")
