"""``trimtab export``: a bundle for a robot."""

from __future__ import annotations

from rich.console import Console

from trimtab.benchmarks.artefacts.export import export_policy

__all__ = ["export"]


def export(run: str, out: str, env: str, weights: str) -> int:
    """Write a bundle with ONNX and check it."""
    errors = export_policy(run, out, env=env, weights=weights == "true")
    Console(soft_wrap=True, highlight=False, markup=False).print(
        f"bundle: {out}; golden rows replay within "
        + ", ".join(f"{error:.1e} ({backend})" for backend, error in errors.items())
    )
    return 0
