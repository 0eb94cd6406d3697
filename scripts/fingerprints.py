"""Write tests/envs/fingerprints.json: how every environment moves under the pinned packages.

``python scripts/fingerprints.py`` measures all of them anew, ``python scripts/fingerprints.py
metaworld gym/Ant-v5`` those of some families or ids, and keeps the other entries. Every family is
measured in a process of its own, and once more with the older instructions that another processor
would use. Where the two differ, a last bit decides a contact: the id is entered as unsteady, with
means of an episode that a test compares instead. Beside the fingerprint stand the horizon, the
time step, the frame skip, the integrator and the key of success. ``--other-machine`` enters those
as unsteady too whose fingerprint here differs from the table's, which then stays: for packages that
are the same on a machine that is not.

What cannot be measured keeps the entry that it has, and is told at the end with exit code 1. A
changed fingerprint means that scores from before are of another environment: say in the changelog
why it changed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from trimtab.envs.registry import get_spec, list_envs, list_families, make
from trimtab.envs.spec import EnvSpec
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_json

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "envs" / "fingerprints.json"
Row = dict[str, Any]

# What makes the C library, numpy, BLAS and XLA compute as on a processor without AVX2 and FMA.
OLDER_PROCESSOR = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-FMA,-FMA4",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
    "OPENBLAS_CORETYPE": "Nehalem",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX",
}
TOLERANCE = 1e-2
"""Relative difference of two means that a last bit may make within an episode of 25 steps."""


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

    A simulator opens some things once and for all when it is first used, and XLA a thread more when
    it is busy; so where something is left open the environment is made again, up to three times. A
    leak leaks every time, and what the last one leaves is what counts.
    """
    table = read_table()
    for id in ids:
        before, started = open_things(), time.perf_counter()
        try:
            spec = get_spec(id)
        except Exception as error:  # simulators raise anything, and the others are still wanted
            yield {"id": id, "error": " ".join(f"{type(error).__name__}: {error}".split())}
            continue
        seconds = time.perf_counter() - started
        left = {name: count - before[name] for name, count in open_things().items()}
        for _ in range(3):
            if all(count <= 0 for count in left.values()):
                break
            before = open_things()
            make_and_close(id)
            left = {name: count - before[name] for name, count in open_things().items()}
        row = {
            "id": id, "fingerprint": spec.fingerprint, "settings": settings_of(spec),
            "left_open": left, "seconds": round(seconds, 3),
        }  # fmt: skip
        if spec.fingerprint != table["fingerprints"].get(id):
            row["means"] = episode_means(id)
        yield row


def settings_of(spec: EnvSpec) -> Row:
    """Return what decides scores beside the physics, and what the physics is computed by."""
    names = ("timestep", "frame_skip", "integrator")
    return {
        "horizon": spec.horizon,
        **{name: spec.physics[name] for name in names},
        "success_key": spec.success_key,
    }


def make_and_close(id: str) -> None:
    """Make an environment, take a step and close it."""
    env = make(id)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()


def episode_means(id: str) -> dict[str, float]:
    """Return means over 25 steps of an episode, which tell physics apart where last bits matter."""
    env = make(id)
    generator = np.random.default_rng(0)
    observations, rewards = [env.reset(seed=0)[0]], []
    for _ in range(25):
        action = generator.uniform(env.action_space.low, env.action_space.high)
        obs, reward, terminated, truncated, _ = env.step(action.astype(np.float32))
        observations.append(obs)
        rewards.append(reward)
        if terminated or truncated:
            break
    env.close()
    all_of_them = np.array(observations, np.float64)
    values = {
        "reward": np.mean(rewards),
        "observation": all_of_them.mean(),
        "observation_size": np.abs(all_of_them).mean(),
        "observation_change": np.abs(np.diff(all_of_them, axis=0)).mean(),
    }
    return {name: float(f"{value:.6g}") for name, value in values.items()}


def measure_elsewhere(
    ids: Sequence[str], variables: Mapping[str, str] | None = None
) -> dict[str, Row]:
    """Return the rows of some ids, by id, measured in a process of its own.

    Args:
        ids: of one family.
        variables: of the process's environment, beside those of this one.
    """
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--measure", *ids],
        capture_output=True, text=True, check=False, env={**os.environ, **(variables or {})},
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
    before = table["settings"].get(id, {})
    changed = [
        f"{name} {before.get(name)} before, {value} now"
        for name, value in row["settings"].items()
        if before.get(name) != value
    ]
    if changed:
        return (
            f"{id} is another task than expected: {', '.join(changed)}; scores from before cannot "
            f"stand beside new ones: give it another name, or run `{command}` and say why"
        )
    expected, unsteady = table["fingerprints"][id], table["unsteady"].get(id)
    if unsteady is not None and row["fingerprint"] not in unsteady["fingerprints"]:
        held_means, means = unsteady["means"], row["means"]
        moved = {
            name: (value, means[name])
            for name, value in held_means.items()
            if not math.isclose(value, means[name], rel_tol=TOLERANCE, abs_tol=1e-6)
        }
        if moved:
            return (
                f"{id} moves otherwise than expected, by more than another processor's last bit: "
                f"fingerprint {expected} before, {row['fingerprint']} now, means {moved}; if that "
                f"is meant, run `{command}` and say why"
            )
    elif unsteady is None and row["fingerprint"] != expected:
        return (
            f"{id} moves otherwise than expected: fingerprint {expected} before, "
            f"{row['fingerprint']} now; if that is meant, run `{command}` and say why; if only the "
            "machine is another, add --other-machine"
        )
    return ""


def enter(
    table: dict[str, dict[str, Any]], here: Row, older: Row, *, other_machine: bool = False
) -> None:
    """Write an id's rows, from here and as on an older processor, into the table."""
    id, new = here["id"], here["fingerprint"]
    old = table["fingerprints"].get(id, "absent")
    keep = other_machine and old != "absent"
    if new != old:
        told = f"{old} stays, {new} here" if keep else f"{old} -> {new}"
        sys.stderr.write(f"fingerprints: {id}: {told}\n")
    table["settings"][id] = here["settings"]
    all_of_them = {new, older["fingerprint"], *([old] if keep else [])}
    table["fingerprints"][id] = old if keep else new
    if len(all_of_them) == 1:
        table["unsteady"].pop(id, None)
        return
    # A row that is as the table has it carries no means; of two that differ, one does.
    means = here.get("means") or older["means"]
    table["unsteady"][id] = {"fingerprints": sorted(all_of_them), "means": means}


def read_table() -> dict[str, dict[str, Any]]:
    """Return what the file holds; an empty table where there is none."""
    if not TABLE.is_file():
        return {"versions": {}, "fingerprints": {}, "settings": {}, "unsteady": {}}
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
    parser.add_argument(
        "--other-machine", action="store_true", help="keep the table's where this machine differs"
    )
    parser.add_argument("--workers", type=int, default=1, help="families measured side by side")
    words = parser.parse_args()
    ids = chosen(words.words)
    if words.measure:
        asked = {word: n for n, word in enumerate(words.words)}
        for row in measure(sorted(ids, key=lambda id: asked.get(id, 0))):
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
        return 0

    table, failed = read_table(), 0
    families: dict[str, list[str]] = {}
    for id in ids:
        families.setdefault(id.split("/", 1)[0], []).append(id)
    with ThreadPoolExecutor(words.workers) as pool:
        here = pool.map(measure_elsewhere, families.values())
        older = pool.map(lambda ids: measure_elsewhere(ids, OLDER_PROCESSOR), families.values())
        for family, rows, others in zip(families, here, older, strict=True):
            for id, row in rows.items():
                error = row.get("error") or others[id].get("error")
                if error:
                    failed += 1
                    sys.stderr.write(f"fingerprints: {id}: {error}\n")
                    continue
                enter(table, row, others[id], other_machine=words.other_machine)
                table["versions"][family] = installed_versions(family)
            seconds = sum(row.get("seconds", 0.0) for row in rows.values())
            sys.stderr.write(f"fingerprints: {family}: {len(rows)} in {seconds:.1f} s\n")
    known = {id: value for id, value in table["fingerprints"].items() if id in list_envs()}
    settings = {id: value for id, value in table["settings"].items() if id in list_envs()}
    unsteady = {id: value for id, value in table["unsteady"].items() if id in list_envs()}
    names = {family.name for family in list_families()}
    held = {family: value for family, value in table["versions"].items() if family in names}
    atomic_write_json(
        TABLE,
        {
            "versions": dict(sorted(held.items())),
            "fingerprints": dict(sorted(known.items())),
            "settings": dict(sorted(settings.items())),
            "unsteady": dict(sorted(unsteady.items())),
        },
    )
    sys.stderr.write(f"fingerprints: {len(known)} ids in {TABLE.relative_to(ROOT)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
