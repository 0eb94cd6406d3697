"""What of torch a policy is made and loaded with, whatever the program around has set or draws."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["OwnDraws", "float32", "torch_defaults"]

_DRAWS = frozenset({
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_",
    "multinomial", "normal", "normal_", "poisson", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "random_", "uniform_",
    "kaiming_normal_", "kaiming_uniform_", "orthogonal_", "sparse_", "trunc_normal_",
    "xavier_normal_", "xavier_uniform_",
})  # fmt: skip
"""Functions of torch and of ``torch.nn.init`` that draw, and take a generator."""


class OwnDraws(TorchFunctionMode):
    """A block whose draws on the processor come from a generator of its own.

    Fresh weights that are replaced by saved ones are drawn in such a block. It is the thread's own.
    To save torch's global generator and put it back would take a run in another thread back, too.

    Args:
        seed: of the generator.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, one that draws with the generator."""
        given = dict(kwargs or {})
        if getattr(func, "__name__", "") in _DRAWS and given.get("generator") is None:
            given["generator"] = self._generator
        return func(*args, **given)


_lock = threading.Lock()
_blocks = 0
_callers_type = torch.float32


@contextlib.contextmanager
def float32() -> Iterator[None]:
    """Let torch make tensors of float32 where no type is named.

    The default type is the whole process's: several threads may be in such a block, and the last
    one to leave puts back the caller's.
    """
    global _blocks, _callers_type
    with _lock:
        if not _blocks:
            _callers_type = torch.get_default_dtype()
        _blocks += 1
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks:
                torch.set_default_dtype(_callers_type)


@contextlib.contextmanager
def torch_defaults() -> Iterator[None]:
    """Let torch compute in float32 on the processor, with gradients and without autocast.

    But for the default type (:func:`float32`), these are the thread's own.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(float32())
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield
