"""``trimtab train``: one run, or a sweep of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.benchmarks.cli.screen import print_result, progress_bar
from trimtab.benchmarks.runs.train import train as carry_out
from trimtab.benchmarks.settings import config, groups
from trimtab.benchmarks.suites.sweep import sweep
from trimtab.errors import TrimtabError

__all__ = ["explain_run", "train"]


def train(words: Sequence[str]) -> int:
    """Carry out one run, or with ``-m`` one for each combination of comma-separated values."""
    many = {"-m", "--multirun"}
    overrides = [word for word in words if word not in many]
    for word in overrides:
        if word.startswith("-"):
            raise TrimtabError(f"train: no option {word}; settings are key=value, sweeps take -m")
    if len(overrides) < len(words):
        sweep(overrides, _print_job)
        return 0
    settings = config.compose_run(overrides)

    with progress_bar(settings.algorithm) as tell:
        result = carry_out(settings, tell)
    print_result(result.folder, result.summary, already_done=result.already_done)
    return 0


def _print_job(job: Mapping[str, Any]) -> None:
    print_result(Path(job["folder"]), job, already_done=job["already_done"])


def explain_run() -> list[str]:
    """Return the lines of help on the settings of a run: those of ``conf/config.yaml``."""
    lines = [f"  {line}" for line in groups.settings_help()]
    for group in ("algorithm", "policy", "dataset"):
        lines.append(f"  {group}: {', '.join(groups.group_options(group))}")
    lines += [
        "  algorithm.<keyword>, policy.<keyword>: settings of the chosen method and policy",
        "  -m: a sweep over comma-separated values, such as -m seed=0,1,2, in parallel",
    ]
    return lines
