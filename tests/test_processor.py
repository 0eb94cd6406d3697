"""The kind of processor: the same every time, another one where libraries are held back."""

import os
import platform
import subprocess
import sys

import pytest

from trimtab.processor import _limits, processor_kind

TELL = "from trimtab.processor import processor_kind; print(processor_kind())"
HELD_BACK = {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}


def _kind(**variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", TELL],
        capture_output=True, text=True, check=True, env={**os.environ, **variables},
    )  # fmt: skip
    return done.stdout.strip()


def test_another_process_is_of_the_same_kind() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()
    assert _kind(XLA_FLAGS=flags, OMP_NUM_THREADS="2") == processor_kind()
    assert "\n" not in processor_kind() and len(processor_kind()) < 400


def test_libraries_that_are_held_back_make_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*HELD_BACK, "NPY_DISABLE_CPU_FEATURES"):  # these tests may run held back too
        monkeypatch.delenv(name, raising=False)
    free, older = _kind(), _kind(**HELD_BACK, NPY_DISABLE_CPU_FEATURES="AVX2 FMA3")
    parts = list(zip(free.split(", "), older.split(", "), strict=True))
    changed = {one.split()[0] for one, other in parts if one != other}
    # Elsewhere numpy has other features, OpenBLAS other kernels, and torch one set.
    expected = {"numpy", "OpenBLAS", "torch"} if platform.machine() == "x86_64" else set()
    assert changed >= expected


def test_a_variable_that_holds_a_library_back_is_named() -> None:
    variables = {
        "MKL_CBWR": "COMPATIBLE",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1 --xla_cpu_max_isa=SSE4_2",
        "GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.cpu.hwcaps=-AVX2,-FMA:glibc.rtld.nns=4",
        "OMP_NUM_THREADS": "1",
    }
    told = ["MKL_CBWR=COMPATIBLE", "XLA_FLAGS=SSE4_2", "GLIBC_TUNABLES=-AVX2,-FMA"]
    assert _limits(variables) == told
    assert _limits({"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "MKL_CBWR": ""}) == []
