"""``trimtab doctor``: what is wrong with this machine or installation."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

from trimtab.benchmarks.cli.robot import examine_robot
from trimtab.benchmarks.cli.surroundings import answer_stream
from trimtab.errors import TrimtabError

__all__ = ["doctor"]

_TRAINING = ("torch", "gymnasium", "hydra")


def doctor(out: str, format: str, bundle: str = "") -> int:
    """Print what is wrong with this machine or installation; exit code 1 if anything is.

    With ``bundle``, or where no package of training is installed, it asks for what a robot needs;
    there only the standard library is sure to be there.

    Raises:
        TrimtabError: if ``bundle`` is no bundle.
    """
    if bundle and not (Path(bundle) / "config.json").is_file():
        raise TrimtabError(
            f"doctor: bundle={bundle}: has no config.json; give a bundle's folder, which trimtab "
            "export writes"
        )
    if bundle or not any(map(importlib.util.find_spec, _TRAINING)):
        findings = examine_robot(Path(bundle) if bundle else None)
    else:
        from trimtab.benchmarks.cli.doctor import examine

        findings = examine(Path(out))
    rows = [asdict(finding) for finding in findings]
    lines = [f"{row['level']:<8} {row['what']:<16} {row['message']}" for row in rows]
    answer = json.dumps(rows, indent=2) if format == "json" else "\n".join(lines)
    answer_stream().write(answer + "\n")
    return int(any(finding.level == "error" for finding in findings))
