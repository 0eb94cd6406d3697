"""Around torch's exporter to ONNX: it says less, and does nothing twice or in vain."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from trimtab.turns import in_turn, replaced, without_warnings

__all__ = ["unrepeated", "quiet"]

_CHATTY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")

_tables: dict[tuple[object, ...], Any] = {}
"""The exporter's tables of operators, by what they were asked for with."""


@contextmanager
def unrepeated() -> Iterator[None]:
    """Let torch's exporter do once what it repeats for each graph.

    It makes the same table of operators anew, out of the source code of a few hundred functions,
    which takes as long as to trace a small policy. Each caller is given a copy: operators that
    another caller adds to it stay that caller's. It looks up all operators for each of their
    namespaces. It notes which lines of source code led to each operation; that is not read, and
    is left out, for all that this process traces meanwhile. And it puts torch's global generators
    back, from which it draws nothing; a run in another thread would draw the same numbers twice.
    """
    from torch._export import utils  # these take a second
    from torch._functorch import aot_autograd
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with in_turn():
        own = vars(ONNXRegistry)["from_torchlib"]

        def copied(*asked: object, **named: object) -> Any:
            key = (*asked, *sorted(named.items()))
            if key not in _tables:
                _tables[key] = own.__get__(None, ONNXRegistry)(*asked, **named)
            table = copy.copy(_tables[key])
            table.functions = {operator: [*found] for operator, found in table.functions.items()}
            return table

        utils._materialize_cpp_cia_ops()  # what the exporter calls for each namespace
        with (
            replaced(ONNXRegistry, "from_torchlib", staticmethod(copied)),
            replaced(utils, "_materialize_cpp_cia_ops", lambda: None),
            replaced(aot_autograd, "preserve_rng_state", nullcontext),
            replaced(torch.fx.config, "do_not_emit_stack_traces", True),
        ):
            yield


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's remarks, which concern no user."""
    with without_warnings(), in_turn() as note:
        for logger in map(logging.getLogger, _CHATTY):
            note(functools.partial(logger.setLevel, logger.level))
            logger.setLevel(logging.ERROR)
        yield
