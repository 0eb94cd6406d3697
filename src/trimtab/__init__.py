"""Trimtab: a benchmark suite in which small policies steer, fine-tune and are measured.

Importing this package loads nothing heavy: what it offers is imported when it is first used. A
robot opens a bundle with ``trimtab.load_policy`` and needs numpy and onnxruntime alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trimtab.version import __version__ as __version__

if TYPE_CHECKING:
    from trimtab.benchmarks.api import Callback as Callback
    from trimtab.benchmarks.api import RunProgress as RunProgress
    from trimtab.benchmarks.api import evaluate as evaluate
    from trimtab.benchmarks.api import export as export
    from trimtab.benchmarks.api import leaderboard as leaderboard
    from trimtab.benchmarks.api import train as train
    from trimtab.envs.vector import make_vec as make_vec
    from trimtab.errors import TrimtabError as TrimtabError
    from trimtab.policies.opening import load_policy as load_policy

_PLACES = {
    "Callback": "trimtab.benchmarks.api",
    "RunProgress": "trimtab.benchmarks.api",
    "TrimtabError": "trimtab.errors",
    "evaluate": "trimtab.benchmarks.api",
    "export": "trimtab.benchmarks.api",
    "leaderboard": "trimtab.benchmarks.api",
    "load_policy": "trimtab.policies.opening",
    "make_vec": "trimtab.envs.vector",
    "train": "trimtab.benchmarks.api",
}
"""Where what the package offers is defined."""

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
