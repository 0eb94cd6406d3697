"""The kind of processor: what decides the last bits of a floating-point result.

The same program gives other last bits on another processor, because numpy, BLAS, torch, XLA and the
C library pick other instructions there: a fused multiplication rounds once where two instructions
round twice, and wider vectors add in another order. Two machines of one kind give equal bits as far
as these libraries decide them; on two kinds results agree within rounding.
The kind is in no identity of a run or of data; it only says where equal bits are promised.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["array_kind", "processor_kind"]

_LIMITS = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "XLA_FLAGS", "GLIBC_TUNABLES",
)  # fmt: skip
"""Variables that make a library use other instructions and that cannot be asked for otherwise."""
_IN_FLAGS = {
    "XLA_FLAGS": re.compile(r"--xla_cpu_max_isa=(\S+)"),
    "GLIBC_TUNABLES": re.compile(r"glibc\.cpu\.hwcaps=([^:]+)"),
}
"""Of a variable that holds many settings, the one that matters."""


@functools.cache
def processor_kind() -> str:
    """Return a short text that is equal on machines whose results are equal to the last bit.

    For example ``x86_64 GenuineIntel, numpy AVX512_ICL-7108, OpenBLAS SkylakeX, torch AVX512,
    glibc 2.36``. Its parts: the architecture and the vendor (MKL treats vendors differently); the
    highest instruction set that numpy uses, with four digits of a hash over all that it finds; the
    kernels of numpy's own OpenBLAS, where it has one; the instruction set of torch; the C library
    (its ``exp`` and ``sin``); and every variable that holds a library to older instructions.

    The text is found once a process: libraries read those variables when they are loaded.
    """
    return ", ".join([*_arrays(), f"torch {_torch()}", *_surroundings()])


@functools.cache
def array_kind() -> str:
    """Return :func:`processor_kind` without torch, for a robot, which has none."""
    return ", ".join([*_arrays(), *_surroundings()])


def _arrays() -> list[str]:
    kernels = _openblas()
    return [
        f"{platform.machine() or 'unknown'} {_vendor()}".strip(),
        f"numpy {_numpy()}",
        *([f"OpenBLAS {kernels}"] if kernels else []),
    ]


def _surroundings() -> list[str]:
    library = " ".join(platform.libc_ver()).strip()
    return [*([library] if library else []), *_limits(os.environ)]


def _vendor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return platform.processor()
    found = re.search(r"^(?:vendor_id|CPU implementer)\s*:\s*(\S+)", text, re.MULTILINE)
    return found.group(1) if found else ""


def _numpy() -> str:
    core = _numpy_core()
    features: Mapping[str, bool] = getattr(core, "__cpu_features__", {})
    levels = [*getattr(core, "__cpu_baseline__", []), *getattr(core, "__cpu_dispatch__", [])]
    used = [level for level in levels if features.get(level)]
    if not used:
        return "unknown"
    every = sorted(name for name, has in features.items() if has)
    digits = hashlib.sha256(" ".join(every).encode()).hexdigest()[:4]
    return f"{used[-1]}-{digits}"


def _numpy_core() -> ModuleType | None:
    for name in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):  # numpy 2 and 1
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _openblas() -> str:
    """Return what numpy's bundled OpenBLAS calls its kernels; empty if there is none to ask."""
    home = Path(np.__file__).parent
    folders = (home.parent / "numpy.libs", home / ".dylibs")
    for path in sorted(path for folder in folders for path in folder.glob("*openblas*")):
        try:
            library = ctypes.CDLL(str(path))  # numpy has loaded it: this is another handle of it
        except OSError:
            continue
        for prefix in ("", "scipy_"):
            for suffix in ("64_", "", "_64"):
                ask: Any = getattr(library, f"{prefix}openblas_get_corename{suffix}", None)
                if ask is not None:
                    ask.restype, ask.argtypes = ctypes.c_char_p, []
                    return bytes(ask()).decode(errors="replace")
    return ""


def _torch() -> str:
    import torch  # seconds, where it is not imported yet

    return str(torch.backends.cpu.get_cpu_capability())


def _limits(environment: Mapping[str, str]) -> list[str]:
    found = []
    for name in _LIMITS:
        value = environment.get(name, "").strip()
        if name in _IN_FLAGS:
            match = _IN_FLAGS[name].search(value)
            value = match.group(1) if match else ""
        if value:
            found.append(f"{name}={value}")
    return found
