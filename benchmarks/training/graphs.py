"""Updates as graphs of kernels: captured once, and launched as one.

On a GPU the small networks of robot control wait for the launches of their kernels. Where an update
reads nothing back, its kernels are the same every time, so they can be captured in a CUDA graph and
replayed. What such an update reads has to lie at the same addresses: its batch is copied into fixed
tensors, and what changes along a run (a learning rate, an expectile) is computed from a tensor that
counts. An update that does something else now and then, such as a delayed actor, has one graph for
each of its courses (``Algorithm.branch``).
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.phases import Outcome, Phase
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.types import Batch, Metrics, Rollout

__all__ = [
    "CapturedUpdate", "Graph", "is_capturable", "map_tensors", "replay_minibatches",
    "replay_updates",
]  # fmt: skip

logger = logging.getLogger(__name__)

WARMUP = 3
"""Updates of a branch before it is captured: libraries choose and allocate in the first ones."""

MOST = 32
"""Branches that are kept captured."""

Value = TypeVar("Value")


def replay_updates(phases: Sequence[Phase], algorithm: Algorithm, device: str) -> tuple[Phase, ...]:
    """Let a method replay its updates as CUDA graphs; return its phases with these updates.

    Of an update on a rollout, the steps on minibatches are replayed
    (``Algorithm.minibatch_updates``). A method that is not :func:`is_capturable` stays as it is.

    Args:
        phases: of the method.
        algorithm: the method.
        device: the GPU, which becomes the one that this process uses.
    """
    if not is_capturable(algorithm):
        logger.info(
            "%s is not capturable, or has a policy whose actions come from outside: its updates "
            "run kernel by kernel", type(algorithm).__name__,
        )  # fmt: skip
        return tuple(phases)
    # A graph that is collected clears torch's workspace of the stream that it was captured on, and
    # with its last graph a pool's memory goes: those of an earlier run in this process must be gone
    # before, and no other run may capture on this stream.
    gc.collect()
    if (index := torch.device(device).index) is not None:  # "cuda" alone names the present one
        torch.cuda.set_device(index)
    pool = torch.cuda.graph_pool_handle()
    capturing, warming = torch.cuda.Stream(), torch.cuda.Stream()
    captured = functools.partial(
        CapturedUpdate,
        make_graph=lambda: CudaGraph(pool, capturing),
        warm_up=functools.partial(run_on_side_stream, warming),
    )
    replay_minibatches(algorithm, captured)
    return tuple(
        phase
        if phase.update is None
        else dataclasses.replace(phase, update=captured(algorithm, phase.update))
        for phase in phases
    )


def is_capturable(algorithm: Algorithm) -> bool:
    """Return whether a method's class says so, for itself, and torch computes all its policies."""
    parts = vars(algorithm).values()
    held = [one for part in parts for one in (part if isinstance(part, list | tuple) else [part])]
    modules = [one for part in held if isinstance(part, nn.Module) for one in part.modules()]
    return bool(vars(type(algorithm)).get("capturable", False)) and all(
        one.computed_by_torch for one in modules if isinstance(one, Policy)
    )


def replay_minibatches(algorithm: Algorithm, make: Callable[..., CapturedUpdate]) -> None:
    """Let a method replay its steps on minibatches of a rollout.

    Args:
        algorithm: the method.
        make: returns a step that is replayed, as ``CapturedUpdate(algorithm, step, …)`` does.
    """
    for name in algorithm.minibatch_updates:
        setattr(algorithm, name, make(algorithm, getattr(algorithm, name)))


def run_on_side_stream(stream: torch.cuda.Stream, update: Callable[[], Metrics]) -> Metrics:
    """Update on another stream, as CUDA asks for before a capture."""
    present = torch.cuda.current_stream()
    stream.wait_stream(present)
    with torch.cuda.stream(stream):
        metrics = update()
    present.wait_stream(stream)
    return metrics


class Graph(Protocol):
    """The kernels of a function of tensors at fixed addresses."""

    def capture(self, function: Callable[[], None]) -> None:
        """Run a function once, and keep its kernels."""
        ...

    def replay(self) -> None:
        """Run the kernels again, on what now lies at their addresses."""
        ...


class CudaGraph:
    """A CUDA graph. All graphs of an update share their memory, as they never run at once.

    Args:
        pool: the memory, of ``torch.cuda.graph_pool_handle()``.
        stream: on which nothing else runs.
    """

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._graph, self._pool, self._stream = torch.cuda.CUDAGraph(), pool, stream

    def capture(self, function: Callable[[], None]) -> None:
        """Capture a function's kernels, which runs none of them, and run them."""
        # Other threads, such as JAX's, may go on with their work meanwhile.
        with torch.cuda.graph(
            self._graph, self._pool, self._stream, capture_error_mode="thread_local"
        ):
            function()
        self._graph.replay()

    def replay(self) -> None:
        """Run the kernels again."""
        self._graph.replay()


@dataclass(frozen=True)
class _Captured:
    """One branch of an update.

    Attributes:
        graph: its kernels.
        data: the tensors of the batch or minibatch that they read, at fixed addresses.
        metrics: what it returned; its tensors are stale.
        names: of the metrics that are tensors.
        values: their values ``[M]``, which each replay writes anew.
        counted: object, attribute and increment of each whole number that an update adds to.
    """

    graph: Graph
    data: list[Tensor]
    metrics: Metrics
    names: tuple[str, ...]
    values: Tensor
    counted: tuple[tuple[Any, str, int], ...]


class CapturedUpdate:
    """An update that is captured, and from then on replayed.

    The numbers are those of the update itself, to the last bit, if its draws come from torch's
    global generator. An update must change tensors alone, and these in place, apart from
    ``last_metrics`` and from whole numbers, to which it adds the same in each update of a branch.
    ``trimtab check algorithm`` tests that.

    Args:
        algorithm: the method.
        update: one of its updates on a batch, or its step on a minibatch.
        make_graph: returns a graph that holds nothing yet.
        warm_up: runs an update before it is captured; on a GPU on another stream.
        warmup: updates of each branch before it is captured.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        update: Callable[[Any], Metrics],
        make_graph: Callable[[], Graph],
        *,
        warm_up: Callable[[Callable[[], Metrics]], Metrics] = lambda update: update(),
        warmup: int = WARMUP,
    ) -> None:
        self.algorithm, self.update, self.make_graph = algorithm, update, make_graph
        self.warm_up, self.warmup = warm_up, warmup
        self._seen: dict[Hashable, int] = {}
        self._captured: dict[Hashable, _Captured] = {}
        self._last_metrics: dict[str, Tensor] = {}  # at fixed addresses: other branches read them

    def __call__(self, data: Any) -> Metrics:
        """Update the method; return its metrics. A rollout and the outcome of a trial vary in size.

        What learns from those is not captured.
        """
        if isinstance(data, Rollout | Outcome):
            return self.update(data)
        branch = self.algorithm.branch
        given = _tensors(data)
        shapes = tuple(one.shape for one in given)
        key = (shapes, getattr(data, "whole", None), branch)
        if key in self._captured:
            return self._replay(self._captured[key], given)
        device = given[0].device
        self._keep_last_metrics(device)
        self._seen[key] = self._seen.get(key, 0) + 1
        if branch is None or self._seen[key] <= self.warmup:
            metrics = self.warm_up(lambda: self.update(data))
            self._keep_last_metrics(device)
            # What is returned may be a latest metric, which the next update writes over.
            return map_tensors(metrics, torch.clone)
        if len(self._captured) == MOST:  # branches that never come again must not fill the memory
            del self._captured[next(iter(self._captured))]
        self._captured[key] = captured = self._capture(data, device)
        return self._metrics(captured)

    @property
    def branches(self) -> int:
        """How many branches are captured."""
        return len(self._captured)

    def _capture(self, data: Any, device: torch.device) -> _Captured:
        """Update once, and keep the kernels."""
        fixed = map_tensors(data, torch.clone)
        if isinstance(fixed, Batch):
            fixed = dataclasses.replace(fixed, fixed=True)
        before = self._whole_numbers()
        metrics: Metrics = {}
        values = torch.empty(0, device=device)

        def update() -> None:
            nonlocal values
            metrics.update(self.update(fixed))
            self._keep_last_metrics(device)
            if scalars := [value for value in metrics.values() if isinstance(value, Tensor)]:
                values = torch.stack(scalars)

        graph = self.make_graph()
        try:
            graph.capture(update)
        except RuntimeError as error:
            told = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TrimtabError(
                f"{type(self.algorithm).__name__}: its kernels cannot be captured ({told}); use "
                "graphs=false, and try the method with trimtab check"
            ) from error
        names = tuple(name for name, value in metrics.items() if isinstance(value, Tensor))
        counted = tuple(
            (part, name, now - then)
            for (part, name, then), (_, _, now) in zip(before, self._whole_numbers(), strict=True)
            if now != then
        )
        return _Captured(graph, _tensors(fixed), metrics, names, values, counted)

    def _replay(self, captured: _Captured, given: list[Tensor]) -> Metrics:
        torch._foreach_copy_(captured.data, given)
        captured.graph.replay()
        for part, name, more in captured.counted:
            setattr(part, name, getattr(part, name) + more)
        return self._metrics(captured)

    def _metrics(self, captured: _Captured) -> Metrics:
        """Return the metrics; the next replay does not change them."""
        values = captured.values.clone().unbind()
        return {**captured.metrics, **dict(zip(captured.names, values, strict=True))}

    def _keep_last_metrics(self, device: torch.device) -> None:
        """Move the method's latest metrics to the addresses where they stay."""
        latest = self.algorithm.last_metrics
        if latest is self._last_metrics:
            return
        for name, value in latest.items():
            if name not in self._last_metrics:
                self._last_metrics[name] = torch.zeros((), device=device)
            mine = self._last_metrics[name]
            mine.copy_(value) if isinstance(value, Tensor) else mine.fill_(value)
        self.algorithm.last_metrics = self._last_metrics

    def _whole_numbers(self) -> list[tuple[Any, str, int]]:
        """Return the whole numbers of the method and its parts: what has them, name, value."""
        parts = (self.algorithm, *self.algorithm.state().values())
        return [
            (part, name, value)
            for part in parts
            for name, value in vars(part).items()
            if type(value) is int  # and no bool
        ]


def map_tensors(value: Value, function: Callable[[Tensor], Tensor]) -> Value:
    """Return a batch, a rollout or a mapping with a function applied to all of its tensors."""
    found: Any = value
    if isinstance(value, Tensor):
        found = function(value)
    elif isinstance(value, Mapping):
        found = {name: map_tensors(one, function) for name, one in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = type(value)(**{name: map_tensors(v, function) for name, v in vars(value).items()})
    mapped: Value = found
    return mapped


def _tensors(data: Any) -> list[Tensor]:
    """Return the tensors of a batch, in a fixed order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(data, note)
    return found
