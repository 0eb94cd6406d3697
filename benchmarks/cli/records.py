"""One record a run of a suite: what its result says, and what is measured of its policy.

``runs.json`` stands beside the suite's rows and is raw as they are: the arena's tables are computed
from both. What is measured (a decision's time, the distance from the base) is so of the first seed
of each configuration, and once: a record of the same run is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.benchmarks.artefacts.measures import base_distance, decision_times, held_out_states
from trimtab.benchmarks.suites.run_suite import SuiteRuns
from trimtab.benchmarks.suites.suite import Job, Suite
from trimtab.benchmarks.training.folder import read_result
from trimtab.files import atomic_write_text, read_json
from trimtab.policies.agent import ArrayObs

__all__ = ["RECORDS", "merged_records", "methods_of", "records_of", "write_records"]

RECORDS = "runs.json"
_KEPT = (
    "env", "algorithm", "policy", "config_hash", "env_steps", "updates", "seconds",
    "trained_parameters", "offline_share", "evaluations", "stop_at_success", "reached",
)  # fmt: skip
Record = dict[str, Any]


def records_of(suite: Suite, outcome: SuiteRuns, folder: Path, console: Console) -> list[Record]:
    """Return the records of a suite's runs, and write them to ``runs.json``.

    Args:
        suite: the suite.
        outcome: the folders of its runs.
        folder: that of the suite's tables.
        console: where it is said that policies are measured.
    """
    before = _before(folder / RECORDS)
    states: dict[Path, ArrayObs] = {}
    records = []
    for job in suite.jobs:
        run = outcome.folder(job.name, job.seed)
        result = read_result(run)
        record = {"name": job.name, "seed": job.seed, "place": dict(job.place)}
        record |= {key: result[key] for key in _KEPT if key in result}
        known = before.get((job.name, job.seed), {})
        if _is_same(known, record):
            record = known
        elif job.base is not None and job.seed == _first_seed(suite, job):
            console.print(f"measuring {job.label}", highlight=False)
            record |= _measured(run, outcome.folder(job.base, job.seed), result, states)
        records.append(record)
    write_records(folder / RECORDS, records)
    return records


def merged_records(files: Sequence[Path], order: Sequence[str]) -> list[Record]:
    """Return the records of several files as one list; of the same run the last one counts.

    Args:
        files: of records; those that do not exist are passed over.
        order: names of runs; others come last.
    """
    found = {run: record for file in files for run, record in _before(file).items()}
    places = {name: number for number, name in enumerate(order)}
    runs = sorted(found, key=lambda run: (places.get(run[0], len(places)), run[1]))
    return [found[run] for run in runs]


def methods_of(records: Sequence[Record]) -> dict[str, str]:
    """Return what a suite's grid calls each configuration, by the configuration's hash.

    A variant of a method is called ``<method>~<variant>``, unless it is the same configuration.
    """
    names = dict[str, str]()
    for record in records:
        place = record.get("place", {})
        if place.get("method"):
            variant = place.get("variant")
            name = place["method"] + (f"~{variant}" if variant else "")
            if not variant or record["config_hash"] not in names:
                names[record["config_hash"]] = name
    return names


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write records, a line each."""
    lines = ",\n".join(json.dumps(record, sort_keys=True) for record in records)
    atomic_write_text(path, f"[\n{lines}\n]\n")


def _before(path: Path) -> dict[tuple[str, int], Record]:
    if not path.is_file():
        return {}
    return {(record["name"], record["seed"]): record for record in read_json(path, "runs")}


def _is_same(known: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Return whether an earlier record is of this very run."""
    return all(known.get(key) == value for key, value in record.items())


def _first_seed(suite: Suite, job: Job) -> int:
    return next(other.seed for other in suite.jobs if other.name == job.name)


def _measured(
    run: Path, base: Path, result: Mapping[str, Any], states: dict[Path, ArrayObs]
) -> Record:
    """Return what is measured of a run's policy; each base's states are gathered once."""
    if base not in states:
        options = read_json(run / "policy" / "config.json", "bundle")["env"]["options"]
        states[base] = held_out_states(base, result["env"], options)
    return {
        "decision_ms": decision_times(run, states[base]),
        "base_distance": base_distance(run, base, states[base]),
    }
