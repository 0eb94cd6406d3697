"""Time MJX environments on a CUDA GPU against Gymnasium's vector environment on the processor.

Run it as ``python scripts/gpu_mjx.py [rounds] [scale]``. Each task is first built and checked:
observations must be the simulator's own memory on the GPU, and a short trajectory must follow that
of a processor. Then 1,024 and 4,096 environments are timed in turns with Gymnasium's own vector
environment of a like task, as ``trimtab speed`` does it, and the rows are printed as JSON. Without
a GPU that both torch and JAX see, it says so in one line and exits with code 2.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch

from trimtab.benchmarks.speed.cases.environments import MANY, gymnasium_sync
from trimtab.benchmarks.speed.measure import (
    Pair,
    Side,
    Stage,
    Work,
    check_rounds,
    check_scale,
    measure,
)
from trimtab.envs.engines.mjx_vector import MjxVectorEnv
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.types import TrimtabError

PEERS = {"CheetahRun": "half_cheetah", "HopperHop": "hopper"}
"""The tasks, and Gymnasium's tasks of the same kind of robot: not the same models."""
COUNTS = (1024, 4096)
STEPS = 200
CHECKED, COMPARED, TOLERANCE = 16, 10, 1e-2
"""Environments and steps that are compared, and how far the middle one of them may be off."""


def make(task: str, count: int, device: str) -> TorchVectorEnv:
    """Return ``count`` environments whose simulations and tensors are on ``device``."""
    envs = MjxVectorEnv(f"playground/{task}", count, seed=0, device=device)
    return TorchVectorEnv(envs, device)


def check(task: str, device: str) -> float:
    """Return how far a trajectory on ``device`` is from the processor's, in the middle row.

    Raises:
        TrimtabError: if it is too far, or observations were copied on their way to torch.
    """
    tried, plain = make(task, CHECKED, device), make(task, CHECKED, "cpu")
    found, expected = tried.reset()[0], plain.reset()[0]
    generator = np.random.default_rng(0)
    for _ in range(COMPARED):
        chosen = generator.uniform(-1, 1, plain.action_space.shape).astype(np.float32)
        found, expected = (envs.step(torch.from_numpy(chosen))[0] for envs in (tried, plain))
    if found.data_ptr() != tried.observations.unsafe_buffer_pointer():
        raise TrimtabError(f"{task}: observations are copied on their way to torch")
    furthest = float((found.cpu() - expected).abs().amax(1).median())
    if not furthest <= TOLERANCE:
        raise TrimtabError(f"{task}: observations differ by {furthest:.1e} from a processor's")
    return furthest


def ours(task: str, count: int, first: dict[str, float]) -> Side:
    """Return the side of ``count`` environments; ``first`` receives the seconds of compiling."""

    def side(stage: Stage) -> Work:
        envs = make(task, count, "cuda")
        stage.exits.callback(envs.close)
        chosen = torch.rand(envs.action_space.shape, device="cuda") * 2 - 1
        started = time.perf_counter()
        envs.reset()
        envs.step(chosen)
        torch.cuda.synchronize()
        first.setdefault("seconds_until_the_first_step", time.perf_counter() - started)
        steps = stage.amount(STEPS)

        def work() -> float:
            for _ in range(steps):
                envs.step(chosen)
            torch.cuda.synchronize()
            return steps * count

        return work

    return side


def main(words: list[str]) -> None:
    """Check and time every task, and print the rows."""
    if not torch.cuda.is_available():
        raise TrimtabError("torch sees no CUDA GPU here; run it on a machine that has one")
    if len(words) > 2 or (words and not words[0].isdigit()):
        raise TrimtabError("usage: gpu_mjx.py [rounds] [scale]")
    rounds = check_rounds(int(words[0]) if words else 3)
    scale = check_scale(words[1] if len(words) > 1 else "1.0")
    rows: list[dict[str, Any]] = []
    for task, peer in PEERS.items():
        difference = check(task, "cuda")
        for count in COUNTS:
            first: dict[str, float] = {}
            pair = Pair(
                f"mjx_{peer}_{count}", "gpu", "steps/s", ours(task, count, first),
                gymnasium_sync(peer, MANY), f"Gymnasium, {MANY} on the processor",
            )  # fmt: skip
            row = measure(pair, rounds=rounds, scale=scale).to_json()
            rows.append({**row, **first, "difference": difference})
    answer = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except TrimtabError as error:
        sys.stderr.write(f"gpu_mjx: {error}\n")
        sys.exit(2)
