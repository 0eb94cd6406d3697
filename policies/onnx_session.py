"""Graphs that onnxruntime carries out: those of bundles on a robot, and black boxes in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from trimtab.errors import TrimtabError

__all__ = ["open_session", "run_session"]


def open_session(graph: bytes, what: str) -> onnxruntime.InferenceSession:
    """Return a session of one thread, on the processor.

    Raises:
        TrimtabError: if onnxruntime cannot open the graph, which ``what`` names.
    """
    onnxruntime.disable_telemetry_events()  # a robot reports to nobody
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    try:
        # Without the fallback, which would print, and try the same provider again.
        return onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # onnxruntime's errors share no public base class
        raise TrimtabError(f"{what}: onnxruntime cannot open it ({error})") from error


def run_session(
    session: onnxruntime.InferenceSession,
    names: Sequence[str],
    inputs: Mapping[str, Any],
    what: str,
) -> list[NDArray[np.float32]]:
    """Return some outputs of a graph.

    Raises:
        TrimtabError: if onnxruntime fails; ``what`` names the graph.
    """
    try:
        found: list[NDArray[np.float32]] = session.run(list(names), dict(inputs))
    except Exception as error:  # as above
        raise TrimtabError(f"{what}: onnxruntime failed: {error}") from error
    return found
