"""Around torch's exporter to ONNX: it says less, and does nothing twice or in vain."""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["unrepeated", "quiet"]

_CHATTY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")

_tables: dict[tuple[object, ...], Any] = {}
"""The exporter's tables of operators, by what they were asked for with."""
_swapping = threading.Lock()


@contextmanager
def unrepeated() -> Iterator[None]:
    """Let torch's exporter do once what it repeats for each graph.

    It makes the same table of operators anew, out of the source code of a few hundred functions,
    which takes as long as to trace a small policy. Whoever asks is given a copy: operators that
    another caller adds to it stay that caller's. It looks up all operators for each of their
    namespaces. And it notes which lines of source code led to each operation, which nobody reads:
    that is left out, for all that this process traces meanwhile.
    """
    from torch._export import utils  # these take a second
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with _swapping:  # two threads would each restore what the other one has put there
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
            _replaced(ONNXRegistry, "from_torchlib", staticmethod(copied)),
            _replaced(utils, "_materialize_cpp_cia_ops", lambda: None),
            _replaced(torch.fx.config, "do_not_emit_stack_traces", True),
        ):
            yield


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's remarks, which concern nobody who exports a policy."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
