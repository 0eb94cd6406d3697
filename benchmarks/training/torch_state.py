"""What of torch belongs to the whole process and decides a run's numbers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from trimtab.benchmarks.core.allocator import keep_freed_memory
from trimtab.errors import TrimtabError
from trimtab.policies.defaults import torch_defaults
from trimtab.types import Tensor

__all__ = ["ForeignCode", "foreign_seed", "matmul_precision", "start_torch", "usual_torch"]

_NAMES = (
    "default type", "default device", "number of threads", "determinism (debug mode)",
    "recording of gradients", "precision of matrix products",
)  # fmt: skip


def _settings() -> tuple[Any, ...]:
    """Return what torch is set to now, in the order of ``_NAMES``, in two microseconds."""
    made = torch.empty(0)
    return (
        made.dtype,
        made.device,
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.is_grad_enabled(),
        torch.get_float32_matmul_precision(),
    )


def start_torch(seed: int, threads: int) -> ForeignCode:
    """Seed torch's and numpy's global generators for a run; return the block around foreign code.

    Nothing of a run draws from numpy's, but simulators do.

    Args:
        seed: of the run.
        threads: number of threads that torch uses.

    Raises:
        TrimtabError: if torch is not set to what a run needs.
    """
    keep_freed_memory()
    foreign_code = ForeignCode(seed, threads)
    foreign_code.check()
    torch.manual_seed(seed)
    np.random.seed(seed)
    return foreign_code


def foreign_seed(seed: int) -> int:
    """Return the seed of what foreign code draws from global generators in a run with ``seed``."""
    return int(np.random.SeedSequence([seed, 5]).generate_state(1)[0])


class ForeignCode:
    """A block around each call of foreign code: of a task, or of a callback.

    What the block draws from torch's global generators is apart from what a learner draws: in the
    block, they go on where the block before it has left them; after it, they are where they were
    before it. So code that seeds them, or draws from them, moves no number of a run. It must not
    change what torch is set to.

    A generator of the run's own would not do, because torch's dropout and most plug-ins draw from
    the global ones. The block has another seed than the learner: with the same seed, an
    environment's noise would equal the learner's.

    Args:
        seed: of the run; the first block's draws follow from it.
        threads: number of threads that torch uses.
    """

    def __init__(self, seed: int, threads: int) -> None:
        self._seed = foreign_seed(seed)
        self._theirs: list[Tensor] = []
        self._ours: list[tuple[torch.Generator, Tensor]] = []
        _, _, _, mode, _, precision = _settings()
        self._settled = (torch.float32, torch.device("cpu"), threads, mode, True, precision)

    def __enter__(self) -> None:
        generators = (torch.default_generator, *torch.cuda.default_generators)
        self._ours = [(generator, generator.get_state()) for generator in generators]
        if len(self._theirs) == len(self._ours):
            for generator, state in zip(generators, self._theirs, strict=True):
                generator.set_state(state)
        else:  # the first block, or the first one since there is a GPU
            for generator in generators:
                generator.manual_seed(self._seed)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._theirs = [generator.get_state() for generator, _ in self._ours]
        for generator, state in self._ours:
            generator.set_state(state)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Check that torch is set to what a run needs.

        Raises:
            TrimtabError: if something has changed it, saying from what to what.
        """
        found = _settings()
        if found == self._settled:
            return
        changes = [
            f"torch's {name} from {before} to {now}"
            for name, before, now in zip(_NAMES, self._settled, found, strict=True)
            if before != now
        ]
        raise TrimtabError(
            "the task, a callback or another library in this process has changed "
            f"{', and '.join(changes)}, which would change the run's numbers; let it put back what "
            "it changes"
        )


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Compute matrix products of 32 bits with ``precision``, one of torch's own three words."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


_turn = threading.RLock()


@contextlib.contextmanager
def usual_torch() -> Iterator[None]:
    """Let a run train in somebody's program, and put back the caller's settings afterwards.

    The default type and device, the recording of gradients, autocast and the precision of matrix
    products are those of a new process. Determinism stays as the caller has set it; how many
    threads compute, and how precisely updates do, the run's settings say.

    One thread at a time is in such a block, because most of these settings, and the generators
    that a run draws from, are the whole process's.
    """
    with _turn:
        _, device, threads, mode, _, precision = _settings()
        torch.set_default_device(None)
        torch.set_float32_matmul_precision("highest")
        was_set = torch.empty(0).device != device  # and is no ``with torch.device(…)`` around this
        try:
            with torch_defaults():
                yield
        finally:
            torch.set_default_device(device if was_set else None)
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(mode)
            torch.set_float32_matmul_precision(precision)
