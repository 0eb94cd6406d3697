"""Find what a robot lacks, or is too slow for, before its motors are on.

A robot has numpy and onnxruntime alone, so this imports nothing else.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.errors import TrimtabError

__all__ = ["Finding", "examine_robot"]

_PACKAGES = ("numpy", "onnxruntime")
_CALLS, _WARMUP = 200, 20  # decisions that are timed, and before that


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``level`` is ok, note, warning or error."""

    level: str
    what: str
    message: str


def examine_robot(bundle: Path | None) -> list[Finding]:
    """Look at what a robot needs: its packages, a bundle's proof, and how long a decision takes.

    Args:
        bundle: folder of the bundle that it is to run; None for none yet.
    """
    findings = [
        Finding("ok", "python", ".".join(str(part) for part in sys.version_info[:3])),
        *map(_package, _PACKAGES),
        Finding("ok", "threads", f"a policy runs in one, of {_cores()} cores"),
    ]
    if bundle is None:
        hint = "trimtab doctor bundle=<folder> checks one, and times it on this machine"
        return [*findings, Finding("note", "bundle", hint)]
    if any(one.level == "error" for one in findings):
        return findings
    return [*findings, *_bundle(bundle)]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _package(name: str) -> Finding:
    """Return whether a package is there, and new enough."""
    needed = next(
        (line for line in importlib.metadata.requires("trimtab") or () if line.startswith(name)), ""
    )
    least = re.search(r">=([\d.]+)", needed)
    try:
        importlib.import_module(name)
        version = importlib.metadata.version(name)
    except Exception as error:  # a broken package may raise anything at import
        line = " ".join(str(error).split())
        return Finding("error", name, f"cannot be imported ({line}); pip install {name}")
    if least is not None and _numbers(version) < _numbers(least[1]):
        wanted = f"'{name}>={least[1]}'"
        return Finding("error", name, f"{version} is too old; pip install {wanted}")
    return Finding("ok", name, version)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def _bundle(folder: Path) -> list[Finding]:
    """Return whether a bundle proves itself here, and how long its decisions take."""
    import numpy as np

    from trimtab.policies.bundle.files import MODEL, inputs_of
    from trimtab.policies.bundle.onnx_policy import OnnxPolicy, read_policy

    try:
        files = read_policy(folder)
        contract, golden = files.contract, files.golden
        policy = OnnxPolicy(contract, files.model, f"bundle {folder}")
        error = policy.check(golden)
    except TrimtabError as wrong:
        return [Finding("error", "bundle", str(wrong))]
    found = [Finding("ok", "bundle", f"proves itself: golden actions within {error:.1e}")]
    if contract.limits is None:
        none = "none stated; load_policy needs limits=, or trimtab export limits= writes them"
        found.append(Finding("note", "limits", none))
    one = {name: rows[:1] for name, rows in golden.items()}
    obs, noise = inputs_of(one, contract)
    seconds = []
    for _ in range(_WARMUP + _CALLS):
        begun = time.perf_counter()
        policy.predict(obs, noise)
        seconds.append(time.perf_counter() - begun)
    middle, late = np.quantile(seconds[_WARMUP:], [0.5, 0.99])
    took = f"a decision takes {1e3 * middle:.2f} ms, one in a hundred more than {1e3 * late:.2f} ms"
    if contract.control_rate is None:
        return [*found, Finding("note", "latency", f"{took}; the bundle names no control rate")]
    period = 1.0 / contract.control_rate
    rate = f"{took}; a step of {contract.control_rate:g} Hz has {1e3 * period:.1f} ms"
    fewer = _steps(files.config.get("policy")) > 1 and MODEL in files.config["files"]
    return [*found, _latency(float(late), period, rate, fewer_steps=fewer)]


def _latency(late: float, period: float, rate: str, *, fewer_steps: bool) -> Finding:
    """Return whether decisions fit into a step, which sensors and motors share with them.

    Args:
        late: seconds that one decision in a hundred takes longer than.
        period: seconds of a step.
        rate: what was measured, in words.
        fewer_steps: whether the policy can be exported with fewer steps of its sampler.
    """
    if late > period:
        cures = ["give load_policy apart=True and a fallback, which decides beside the loop"]
        cures += ["export it with fewer policy.sampling_steps"] if fewer_steps else []
        return Finding("error", "latency", f"{rate}; {', or '.join(cures)}")
    if late > period / 2:
        rest = f"leaves {1e3 * (period - late):.1f} ms for sensors and motors"
        return Finding("note", "latency", f"{rate}, which {rest}")
    return Finding("ok", "latency", rate)


def _steps(policy: Any) -> int:
    """Return how many steps a sampler of a policy takes, at most; 0 for one without a sampler."""
    if not isinstance(policy, dict):
        return 0
    own = policy.get("sampling_steps", 0)
    return max([own if isinstance(own, int) else 0, *map(_steps, policy.values())])
