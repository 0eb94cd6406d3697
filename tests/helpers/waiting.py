"""What shows, on a processor, that a GPU would have to be waited for."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.benchmarks.contracts.recorded_graph import reads_back


class NoWaiting(TorchDispatchMode):
    """Forbids what a GPU would have to be waited for."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator."""
        assert not reads_back(func, args), func
        return func(*args, **(kwargs or {}))
