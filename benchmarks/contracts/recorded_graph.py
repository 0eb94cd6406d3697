"""What a CUDA graph does with an update, on a processor: so that it is tested without a GPU.

The kernels that an update calls are recorded with the tensors that they read and write, and a
replay calls them again: with no Python in between, on the same tensors. So it has a CUDA graph's
limits: what Python decided or computed stays as it was, and what lies at other addresses is not
seen. What a GPU would have to wait for is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from trimtab.benchmarks.contracts.base import Broken

__all__ = ["RecordedGraph", "reads_back"]

_READS_BACK = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_WAITS = {"aten::multinomial", "aten::_linalg_check_errors"}
"""These look at their numbers on a GPU, though their results do not depend on it."""
_INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}
"""These look for the rows of a mask if they are given one; with numbers of rows they do not."""
_FROM_PYTHON = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default}


@dataclass(frozen=True)
class _Call:
    """A call of one of torch's operators, and the new tensors that it returned."""

    operator: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    made: list[Tensor]


class RecordedGraph(TorchDispatchMode):
    """The calls of torch's operators in a function, replayed on the same tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[_Call] = []

    def capture(self, function: Callable[[], None]) -> None:
        """Run a function and record it.

        Raises:
            Broken: where it reads a number back, or makes a tensor of Python's numbers.
        """
        with self:
            function()

    @torch.no_grad()
    def replay(self) -> None:
        """Call every operator again; what it returns takes the place of what it returned then."""
        for call in self._calls:
            result = call.operator(*call.arguments, **call.keywords)
            if call.made:
                for old, new in zip(call.made, _tensors(result), strict=True):
                    old.copy_(new)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operator and record the call."""
        keywords = kwargs or {}
        _check(func, args)
        result = func(*args, **keywords)
        if torch.Tag.inplace_view in func.tags:  # it changed a shape, and no number
            return result
        # Shapes may be changed in place later; what is kept here has those of now.
        kept, named, returned = tree_map_only(Tensor, Tensor.detach, (args, keywords, result))
        addresses = {_address(one) for one in _tensors((kept, named))}
        made = [one for one in _tensors(returned) if _address(one) not in addresses]
        self._calls.append(_Call(func, kept, named, made))
        return result


def reads_back(operator: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a GPU has to wait for what one of torch's operators gives."""
    if operator in _INDEXING:
        return any(one.dtype in (torch.bool, torch.uint8) for one in _tensors(arguments[1]))
    return bool(_READS_BACK & set(operator.tags)) or operator.name() in _WAITS


def _check(operator: Any, arguments: tuple[Any, ...]) -> None:
    """Check that a GPU does not have to wait for an operator.

    Raises:
        Broken: if it does.
    """
    if reads_back(operator, arguments):
        raise Broken(
            f"an update reads numbers back ({operator.name()}), by .item(), float(), if, or a mask "
            "as an index: a GPU would have to wait, and its kernels cannot be captured"
        )
    if operator in _FROM_PYTHON:
        raise Broken(
            "an update makes a tensor of Python's numbers, by torch.tensor(): make it once in the "
            "constructor, or by torch.full()"
        )


def _tensors(value: Any) -> list[Tensor]:
    """Return every tensor in something nested."""
    return [one for one in tree_leaves(value) if isinstance(one, Tensor)]


def _address(tensor: Tensor) -> int:
    """Return where the numbers of a tensor, and of all of its views, lie."""
    return tensor.untyped_storage().data_ptr()
