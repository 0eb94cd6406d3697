"""Decisions on a CUDA GPU, from an observation in numpy to an action in numpy, by rows of a batch.

A part of ``scripts/gpu.py``. The peer is the same policy on the processor, in one thread, so a row
tells from which batch on a GPU decides faster. Both are first given the same noise, and have to
return the same actions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import torch

from trimtab.benchmarks.speed.cases.latency import Act, actor, deciding, flow
from trimtab.benchmarks.speed.cases.shared import OBS_DIM
from trimtab.benchmarks.speed.measure import Pair, Stage
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy

CALLS = {1: 400, 64: 400, 1024: 100, 4096: 25}
"""Calls of a turn, by rows of a batch."""
POLICIES: Mapping[str, Callable[[], Policy]] = {"actor": actor, "flow": flow}
TOLERANCE = 1e-4
"""How far an action may be off, where actions are from -1 to 1."""


def make(name: str, device: str) -> Policy:
    """Return a policy with the same weights every time."""
    torch.manual_seed(0)
    return POLICIES[name]().eval().to(device)


def acting(name: str, device: str, stage: Stage) -> Act:
    """Return what makes a policy act on a device, to which observations are copied, and back."""
    policy = make(name, device)
    return lambda obs: policy.act(torch.from_numpy(obs).to(device)).cpu().numpy()


def check(name: str, rows: int, device: str) -> dict[str, float]:
    """Return how far a policy's actions on ``device`` are from the processor's.

    Raises:
        TrimtabError: if they are too far.
    """
    plain, tried = make(name, "cpu"), make(name, device)
    obs, noise = torch.randn(rows, OBS_DIM), plain.sample_noise(rows)
    with torch.no_grad():
        found = tried(obs.to(device), noise.to(device)).cpu()
        furthest = float((found - plain(obs, noise)).abs().max())
    if not furthest <= TOLERANCE:
        raise TrimtabError(f"{name}: actions differ by {furthest:.1e} from a processor's")
    return {"difference": furthest}


def parts() -> Iterator[tuple[Pair, Callable[[], Mapping[str, float]]]]:
    """Yield a row for each policy and number of rows, and its check."""
    for name in POLICIES:
        for rows, calls in CALLS.items():
            ours, peer = (
                deciding(functools.partial(acting, name, device), rows, calls)
                for device in ("cuda", "cpu")
            )
            pair = Pair(
                f"{name}_latency_{rows}", "gpu", "decisions/s", ours, peer,
                "the same on the processor",
            )  # fmt: skip
            yield pair, functools.partial(check, name, rows, "cuda")


ROWS = tuple(pair.name for pair, _ in parts())
"""The names of the rows, which need no JAX."""
