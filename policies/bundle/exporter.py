"""Around torch's exporter to ONNX: it says less, and makes its table of operators once."""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["operators_once", "quiet"]

_CHATTY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")

_tables: dict[tuple[object, ...], Any] = {}
"""The exporter's tables of operators, by what they were asked for with."""
_swapping = threading.Lock()


@contextmanager
def operators_once() -> Iterator[None]:
    """Keep the exporter's table of operators from one export to the next.

    For each graph it makes the same table anew, out of the source code of a few hundred functions,
    which takes as long as to trace a small policy. Whoever asks is given a copy: operators that
    another caller adds to it stay that caller's.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry  # which takes a second

    with _swapping:  # two threads would each restore what the other one has put there
        own = vars(ONNXRegistry)["from_torchlib"]

        def copied(*asked: object, **named: object) -> Any:
            key = (*asked, *sorted(named.items()))
            if key not in _tables:
                _tables[key] = own.__get__(None, ONNXRegistry)(*asked, **named)
            table = copy.copy(_tables[key])
            table.functions = {operator: [*found] for operator, found in table.functions.items()}
            return table

        setattr(ONNXRegistry, "from_torchlib", staticmethod(copied))  # noqa: B010 (it is a method)
        try:
            yield
        finally:
            setattr(ONNXRegistry, "from_torchlib", own)  # noqa: B010


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
