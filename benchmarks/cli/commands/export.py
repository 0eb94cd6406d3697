"""``trimtab export``: a bundle for a robot."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from trimtab.benchmarks.artefacts.export import export_black_box, export_bundle, export_sb3
from trimtab.errors import TrimtabError

__all__ = ["export"]


def export(run: str, out: str, env: str, weights: str) -> int:
    """Write a bundle with ONNX and check it."""
    source, target = Path(run), Path(out)
    if not out:
        raise TrimtabError("export: out= is empty; name the bundle's folder")
    bundle = source if (source / "config.json").is_file() else source / "policy"
    if bundle.resolve() in target.resolve().parents:
        raise TrimtabError(
            f"export: out={out} lies within {bundle}, a bundle; choose another place"
        )
    if env and source.is_dir():
        raise TrimtabError(f"export: env={env}: {run} names its task itself; leave env= out")
    if not env and source.is_file():
        raise TrimtabError(f"export: {run} does not say its task: add env=<a task>")
    write: Callable[[Path], dict[str, float]] = (
        functools.partial(export_sb3, source, env)
        if env
        else functools.partial(export_bundle, source)
    )
    errors = write(target) if weights == "true" else export_black_box(write, target)
    Console(soft_wrap=True, highlight=False, markup=False).print(
        f"bundle: {out}; golden rows replay within "
        + ", ".join(f"{error:.1e} ({backend})" for backend, error in errors.items())
    )
    return 0
