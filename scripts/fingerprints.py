"""Write tests/envs/fingerprints.json: how every environment moves under the pinned packages.

``python scripts/fingerprints.py`` measures all of them anew, ``python scripts/fingerprints.py
metaworld gym/Ant-v5`` those of some families or ids, and keeps the other entries. Every family is
measured in a process of its own. What cannot be measured keeps the entry that it has, and is told
at the end with exit code 1. A changed fingerprint means that scores from before are of another
environment: say in the changelog why it changed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium

from trimtab.envs.registry import get_spec, list_envs, list_families, make
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "envs" / "fingerprints.json"
Row = dict[str, Any]


def installed_versions(family: str) -> dict[str, str]:
    """Return the version of each distribution that decides a family's physics.

    Raises:
        TrimtabError: if one is not installed.
    """
    (found,) = (f for f in list_families() if f.name == family)
    try:
        return {package: importlib.metadata.version(package) for package in found.packages}
    except importlib.metadata.PackageNotFoundError as error:
        raise TrimtabError(
            f"{family}: pip install '{found.install}' ({error} is missing)"
        ) from error


def open_things() -> dict[str, int]:
    """Return how much of what ``close`` should give back there is: Linux alone counts it so."""
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    return {
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "environments": sum(issubclass(kind, gymnasium.Env) for kind in kinds),
    }


def measure(ids: Sequence[str]) -> Iterable[Row]:
    """Yield a row for each id: its fingerprint, and what closing its environment left open.

    The first id is made and stepped before, so that what a simulator opens once and for all when it
    is loaded is not counted.
    """
    try:
        env = make(ids[0])
        env.reset(seed=0)
        env.step(env.action_space.sample())
        env.close()
        del env
    except Exception:  # its own row says what is wrong
        pass
    for id in ids:
        before, started = open_things(), time.perf_counter()
        try:
            found = get_spec(id).fingerprint
        except Exception as error:  # simulators raise anything, and the others are still wanted
            yield {"id": id, "error": " ".join(f"{type(error).__name__}: {error}".split())}
            continue
        seconds = time.perf_counter() - started
        left = {name: count - before[name] for name, count in open_things().items()}
        yield {"id": id, "fingerprint": found, "left_open": left, "seconds": round(seconds, 3)}


def measure_elsewhere(ids: Sequence[str]) -> dict[str, Row]:
    """Return the rows of some ids, by id, measured in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--measure", *ids],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    rows = {row["id"]: row for row in map(json.loads, lines)}
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    ended = f"its process ended with code {done.returncode}: {last}"
    return {id: rows.get(id, {"id": id, "error": ended}) for id in ids}


def complaint(table: Mapping[str, Any], row: Row, versions: Mapping[str, str]) -> str:
    """Return what is wrong with a measured row against the table; empty if nothing.

    Args:
        table: what the file holds.
        row: as :func:`measure` yields it.
        versions: those installed of the packages of the id's family.
    """
    id = row["id"]
    command = f"python scripts/fingerprints.py {id}"
    if "error" in row:
        return f"{id} cannot be measured: {row['error']}"
    if id not in table["fingerprints"]:
        return f"{id} has no expected fingerprint; run `{command}` and commit the file"
    held = table["versions"].get(id.split("/", 1)[0])
    if held != versions:
        return (
            f"{id}: the expected fingerprint holds for {held}, installed is {dict(versions)}; "
            "install requirements.lock, or measure all anew"
        )
    expected = table["fingerprints"][id]
    if row["fingerprint"] != expected:
        return (
            f"{id} moves otherwise than expected: fingerprint {expected} before, "
            f"{row['fingerprint']} now; if that is meant, run `{command}` and say why (another "
            "kind of processor can do it too, see envs/fingerprint.py)"
        )
    return ""


def read_table() -> dict[str, dict[str, Any]]:
    """Return what the file holds; an empty table where there is none."""
    if not TABLE.is_file():
        return {"versions": {}, "fingerprints": {}}
    table: dict[str, dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def chosen(words: Sequence[str]) -> list[str]:
    """Return the ids that are named, themselves or by their family; all of them for no words.

    Raises:
        SystemExit: if a word names neither.
    """
    for word in words:
        if not any(word in (id, id.split("/", 1)[0]) for id in list_envs()):
            sys.exit(f"fingerprints: {word} is neither a task nor a family; see `trimtab list env`")
    return [id for id in list_envs() if not words or {id, id.split("/", 1)[0]} & set(words)]


def main() -> int:
    """Measure, tell what changed, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="FAMILY_OR_ID")
    parser.add_argument("--measure", action="store_true", help="only print rows, from this process")
    parser.add_argument("--workers", type=int, default=1, help="families measured side by side")
    settings = parser.parse_args()
    ids = chosen(settings.words)
    if settings.measure:
        asked = {word: n for n, word in enumerate(settings.words)}
        for row in measure(sorted(ids, key=lambda id: asked.get(id, 0))):
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
        return 0

    table, failed = read_table(), 0
    families: dict[str, list[str]] = {}
    for id in ids:
        families.setdefault(id.split("/", 1)[0], []).append(id)
    with ThreadPoolExecutor(settings.workers) as pool:
        for family, rows in zip(
            families, pool.map(measure_elsewhere, families.values()), strict=True
        ):
            good = {id: row["fingerprint"] for id, row in rows.items() if "error" not in row}
            for row in rows.values():
                if "error" in row:
                    failed += 1
                    sys.stderr.write(f"fingerprints: {row['id']}: {row['error']}\n")
            for id, new in good.items():
                old = table["fingerprints"].get(id, "absent")
                if new != old:
                    sys.stderr.write(f"fingerprints: {id}: {old} -> {new}\n")
            table["fingerprints"] |= good
            if good:
                table["versions"][family] = installed_versions(family)
            seconds = sum(row.get("seconds", 0.0) for row in rows.values())
            sys.stderr.write(f"fingerprints: {family}: {len(good)} in {seconds:.1f} s\n")
    known = {id: value for id, value in table["fingerprints"].items() if id in list_envs()}
    names = {family.name for family in list_families()}
    held = {family: value for family, value in table["versions"].items() if family in names}
    atomic_write_json(
        TABLE,
        {"versions": dict(sorted(held.items())), "fingerprints": dict(sorted(known.items()))},
    )
    sys.stderr.write(f"fingerprints: {len(known)} ids in {TABLE.relative_to(ROOT)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
