"""``trimtab doctor``: what is wrong with this machine or installation."""

from __future__ import annotations

from pathlib import Path

from trimtab.benchmarks.cli.doctor import examine
from trimtab.benchmarks.cli.screen import print_json, print_rows

__all__ = ["doctor"]


def doctor(out: str, format: str) -> int:
    """Print what is wrong with this machine or installation; exit code 1 if anything is."""
    findings = examine(Path(out))
    if format == "json":
        print_json([finding.to_json() for finding in findings])
    else:
        print_rows("doctor", [finding.to_json() for finding in findings])
    return 1 if any(finding.level == "error" for finding in findings) else 0
