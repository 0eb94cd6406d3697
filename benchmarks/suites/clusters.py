"""Clusters that take jobs from submitit: Slurm's, and this machine in its place, to try it out."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

import yaml

from trimtab.errors import TrimtabError

__all__ = ["CLUSTERS", "MOST_IN_ARRAY", "Cluster", "further_options", "line_of"]

logger = logging.getLogger(__name__)

MOST_IN_ARRAY = 500
"""Jobs that are submitted as one array; most clusters take 1001."""


class Cluster(Protocol):
    """What differs between a real cluster and this machine.

    Attributes:
        gathers: seconds for which jobs wait for others that can be submitted with them, where not
            all that wait have a place: each array waits in the queue anew.
    """

    gathers: float

    def check(self) -> None:
        """Raise a ``TrimtabError`` where nothing can be submitted."""

    def room(self, runs: int, most: int, there: int) -> int:
        """Return how many more jobs may be submitted.

        Args:
            runs: how many runs a job carries out.
            most: how many jobs may run at once; 0 for no limit.
            there: how many were submitted and have not ended.
        """

    def parameters(self, settings: Mapping[str, Any], runs: int, most: int) -> dict[str, Any]:
        """Return what submitit is told for a job of so many runs."""

    def states(self, jobs: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the state of each job that is known, by its id; None where that is not told.

        It is one word, as Slurm has them; ``UNKNOWN`` where a job is listed without any.
        """

    def cancel(self, id: str) -> None:
        """Have a job told to end; it may be told again."""

    def cancel_named(self, name: str) -> None:
        """Have every job of a name told to end: of an array whose ids are not known.

        It may be told again.
        """


class _Slurm:
    """A cluster."""

    gathers = 30.0

    def check(self) -> None:
        for program in ("sbatch", "srun", "squeue"):
            if shutil.which(program) is None:
                raise TrimtabError(
                    f"launcher=slurm: {program} is not on the PATH; call it on a machine that "
                    "submits to the cluster, or try it out here with launcher.cluster=local"
                )

    def room(self, runs: int, most: int, there: int) -> int:
        # A first array may be long: Slurm itself carries out so many of its jobs at once. A later
        # one beside it has the places that are free.
        return max(most - there, 0) if most and there else MOST_IN_ARRAY

    def parameters(self, settings: Mapping[str, Any], runs: int, most: int) -> dict[str, Any]:
        named = {key: settings[key] for key in ("partition", "account", "qos", "constraint")}
        found: dict[str, Any] = {"slurm_" + key: value for key, value in named.items() if value} | {
            "cpus_per_task": settings["cpus"] * runs,
            "timeout_min": settings["minutes"],
        }
        if settings["gpus"]:
            found["gpus_per_node"] = settings["gpus"]
        if settings["memory_gb"]:
            found["mem_gb"] = settings["memory_gb"] * runs
        if more := further_options(settings["more"]):
            found["slurm_additional_parameters"] = more
        if settings["setup"]:
            found["slurm_setup"] = [settings["setup"]]
        return found | {
            "slurm_signal_delay_s": settings["signal_seconds"],
            "slurm_array_parallelism": most or MOST_IN_ARRAY,
        }

    def states(self, jobs: Mapping[str, Any]) -> dict[str, str] | None:
        # By its number: in a container a user may have no name.
        command = ["squeue", f"--user={os.getuid()}", "--states=all", "--array"]
        command += ["--noheader", "--format=%i|%T"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("squeue gave no answer (%s); it is asked again", line_of(error))
            return None
        lines = [line.strip().split("|") for line in answer.stdout.splitlines()]
        found = {parts[0]: parts[1].split() for parts in lines if len(parts) == 2}
        return {id: state[0] if state else "UNKNOWN" for id, state in found.items()}

    def cancel(self, id: str) -> None:
        _scancel(id)

    def cancel_named(self, name: str) -> None:
        _scancel(f"--user={os.getuid()}", f"--name={name}")


def _scancel(*words: str) -> None:
    """Tell jobs to end; where nothing answers, the caller tells them again."""
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", *words], capture_output=True, check=False, timeout=60)


class _ThisMachine:
    """Processes of this machine, which submitit starts as it starts jobs."""

    gathers = 0.0

    def check(self) -> None:
        return

    def room(self, runs: int, most: int, there: int) -> int:
        return (most or max((os.cpu_count() or 1) // runs, 1)) - there

    def parameters(self, settings: Mapping[str, Any], runs: int, most: int) -> dict[str, Any]:
        return {"timeout_min": settings["minutes"], "gpus_per_node": settings["gpus"]}

    def states(self, jobs: Mapping[str, Any]) -> dict[str, str] | None:
        return {id: "COMPLETED" if job.done() else "RUNNING" for id, job in jobs.items()}

    def cancel(self, id: str) -> None:
        with suppress(ProcessLookupError):  # a job is known by the number of its process
            os.kill(int(id), signal.SIGTERM)

    def cancel_named(self, name: str) -> None:
        return  # a process either started or did not


CLUSTERS: Mapping[str, type[Cluster]] = {"slurm": _Slurm, "local": _ThisMachine}


def further_options(text: str) -> dict[str, Any]:
    """Return further options of sbatch.

    Raises:
        TrimtabError: if they are no mapping of names.
    """
    try:
        found = yaml.safe_load(text) if text else {}
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise TrimtabError(f"launcher.more={text}: must be like '{{reservation: mine}}'")
    return found


def line_of(error: BaseException) -> str:
    """Return what an error says, as one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
