"""``trimtab export``: a bundle for a robot."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.benchmarks.artefacts.export import export_policy, policy_settings
from trimtab.benchmarks.cli.options import command_limits, setting_choices
from trimtab.benchmarks.cli.screen import print_line
from trimtab.errors import TrimtabError
from trimtab.policies.imports.dialects import DIALECTS, write_dialect

__all__ = ["export"]


def export(
    run: str,
    out: str,
    env: str,
    contract: str,
    weights: str,
    chunking: str,
    limits: str,
    choices: str,
    mix: str,
    overrides: Sequence[str] = (),
    **layout: str,
) -> int:
    """Write a bundle with ONNX and check it; ``overrides`` are settings of acting."""
    written = layout["as"]
    if written in DIALECTS:
        given = env or contract or chunking or limits or choices or mix or overrides
        if given or weights == "false":
            raise TrimtabError(f"export: as={written}: give a bundle, and no other setting")
        write_dialect(run, out, written)
        print_line(f"{written}: {out}")
        return 0
    settings = policy_settings(list(overrides))
    errors = export_policy(
        run, out, env=env, contract=contract, weights=weights == "true", chunking=chunking,
        settings=settings, choices=setting_choices("export", choices), mix=mix,
        limits=command_limits("export", limits) if limits else None,
        lerobot=written == "lerobot",
    )  # fmt: skip
    print_line(
        f"{'program' if out.endswith('.pt2') else written}: {out}; golden rows replay within "
        + ", ".join(f"{error:.1e} ({backend})" for backend, error in errors.items())
    )
    return 0
