"""MJX environments on a CUDA GPU against Gymnasium's vector environment on the processor.

A part of ``scripts/gpu.py``. Each task is first built and checked: observations must be the
simulator's own memory on the GPU, and a short trajectory must follow that of a processor (compared
only with 1,024 environments). Then 1,024 and 4,096 environments take turns with Gymnasium's own
vector environment of a like task, which simulates another length of time in a step; the rows have
both. Ours repeat one action, and in three rounds of ``scale=1`` no episode ends; Gymnasium's get
new actions, and its Hopper falls often.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from trimtab.benchmarks.speed.cases.environments import MANY, TASKS, gymnasium_sync
from trimtab.benchmarks.speed.measure import Pair, Side, Stage, Work, repeated
from trimtab.envs.engines.mjx_vector import MjxVectorEnv
from trimtab.envs.engines.torch_vector import TorchVectorEnv
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError

PEERS = {"CheetahRun": "half_cheetah", "HopperHop": "hopper"}
"""The tasks, and Gymnasium's tasks of the same kind of robot: not the same models."""
COUNTS = (1024, 4096)
STEPS = 200
COMPARED, TOLERANCE = 10, 1e-2
"""Steps that are compared, and how far the middle one of the environments may be off."""


def make(task: str, count: int, device: str) -> TorchVectorEnv:
    """Return ``count`` environments whose simulations and tensors are on ``device``."""
    envs = MjxVectorEnv(f"playground/{task}", count, seed=0, device=device)
    return TorchVectorEnv(envs, device)


def no_action(envs: TorchVectorEnv) -> Tensor:
    """Return actions of zero for all environments, on the GPU."""
    shape = envs.action_space.shape
    assert shape is not None
    return torch.zeros(shape, device="cuda")


def check(task: str, device: str) -> float:
    """Return how far a trajectory on ``device`` is from the processor's, in the middle row.

    Raises:
        TrimtabError: if it is too far, or observations were copied on their way to torch.
    """
    tried, plain = make(task, COUNTS[0], device), make(task, COUNTS[0], "cpu")
    found, expected = tried.reset()[0], plain.reset()[0]
    generator = np.random.default_rng(0)
    for _ in range(COMPARED):
        chosen = generator.uniform(-1, 1, plain.action_space.shape).astype(np.float32)
        found = tried.step(torch.from_numpy(chosen).to(device))[0]
        expected = plain.step(torch.from_numpy(chosen))[0]
    if found.data_ptr() != tried.observations.unsafe_buffer_pointer():
        raise TrimtabError(f"{task}: observations are copied on their way to torch")
    furthest = float((found.cpu() - expected).abs().amax(1).median())
    if not furthest <= TOLERANCE:
        raise TrimtabError(f"{task}: observations differ by {furthest:.1e} from a processor's")
    return furthest


def ours(task: str, count: int) -> Side:
    """Return the side of ``count`` environments."""

    def side(stage: Stage) -> Work:
        envs = make(task, count, "cuda")
        stage.exits.callback(envs.close)
        chosen = 2 * torch.rand_like(no_action(envs)) - 1
        envs.reset()
        synchronize = torch.cuda.synchronize
        return repeated(lambda: envs.step(chosen), stage.amount(STEPS), count, synchronize)

    return side


def checked(task: str, count: int) -> dict[str, float]:
    """Compile a task's programs for ``count`` environments, and check those of the first number."""
    started = time.perf_counter()
    envs = make(task, count, "cuda")
    envs.reset()
    envs.step(no_action(envs))
    torch.cuda.synchronize()
    found = {"seconds_until_the_first_step": time.perf_counter() - started, **simulated(task)}
    return {**found, "difference": check(task, "cuda")} if count == COUNTS[0] else found


def simulated(task: str) -> dict[str, float]:
    """Return the simulated seconds of a step: of ours, and of the peer's."""
    own, peer = get_spec(f"playground/{task}"), get_spec(f"gym/{TASKS[PEERS[task]]}")
    return {
        "simulated_seconds_a_step": 1 / own.control_rate,
        "simulated_seconds_a_step_of_the_peer": 1 / peer.control_rate,
    }


def parts() -> Iterator[tuple[Pair, Callable[[], Mapping[str, float]]]]:
    """Yield each task and number of environments as a row, and its check."""
    for count in COUNTS:
        for task, peer in PEERS.items():
            pair = Pair(
                f"mjx_{peer}_{count}", "gpu", "steps/s", ours(task, count),
                gymnasium_sync(peer, MANY), f"Gymnasium, {MANY} on the processor",
            )  # fmt: skip
            yield pair, functools.partial(checked, task, count)
