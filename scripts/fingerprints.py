"""Write envs/physics/: the names of every environment's physics, and the trajectories that confirm.

``python scripts/fingerprints.py`` plays all environments anew, ``python scripts/fingerprints.py
metaworld gym/Ant-v5`` those of some families or ids, and keeps what there is of the others.
``names.json`` holds each definition with its name. A name is never taken back: a definition that
is there keeps it, and a new one (another version, horizon, time step or revision) is added. Scores
from before cannot stand beside new ones then: say in the changelog why.

A reference is made of the numbers that no processor moves. Every trajectory is played again while
all positions and velocities are disturbed, before each step of physics, by up to 1e-12: thousands
of times what another processor's rounding does. A number that moves by more than a twentieth of the
tolerance, because a contact enlarges the difference, is left out of the reference from there on.

``--measure`` prints what this process sees of ids, one JSON document a line: name, definition,
deviation from the reference and bits. What cannot be played keeps what it has, and is told at the
end with exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mujoco
import numpy as np
from safetensors.numpy import load_file, save

from trimtab.envs.core import fingerprint as physics
from trimtab.envs.core.spec import Family
from trimtab.envs.registry import confirm, get_spec, list_envs, list_families, make
from trimtab.errors import TrimtabError
from trimtab.files import atomic_write_bytes, atomic_write_text
from trimtab.processor import processor_kind

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "envs" / "physics"
NAMES = FOLDER / "names.json"
Row = dict[str, Any]
Names = dict[str, list[dict[str, Any]]]

DISTURBANCES = (1e-12, 1e-12, 1e-13)
"""Size of each disturbance of positions and velocities, in their own units."""
SHARE = 0.05
"""Share of the tolerance that a disturbed number may move by and stay in the reference."""


def measure(ids: Sequence[str]) -> Iterable[Row]:
    """Yield a row for each id: its name and how it moves."""
    for id in ids:
        started = time.perf_counter()
        try:
            spec = get_spec(id)
            moved = confirm(spec)
        except Exception as error:  # simulators raise anything, and the others are still wanted
            yield {"id": id, "error": " ".join(f"{type(error).__name__}: {error}".split())}
            continue
        yield {
            "id": id, "name": spec.fingerprint, "definition": definition_of(id),
            **moved.to_json(), "seconds": round(time.perf_counter() - started, 3),
            "processor": processor_kind(),
        }  # fmt: skip


def family_of(id: str) -> Family:
    """Return the family of an environment, one of our own."""
    return next(family for family in list_families() if family.name == id.split("/", 1)[0])


def definition_of(id: str, **options: Any) -> Row:
    """Return the definition of an environment of one of our own families."""
    return physics.definition(get_spec(id, **options), family_of(id))


def changed_parts(known: Row) -> Row:
    """Return where a definition without options differs from the published one, by its parts."""
    (entry,) = [e for e in read_names()[known["id"]] if not e["definition"]["options"]]
    published = entry["definition"]
    return {
        part: (published.get(part), known.get(part))
        for part in known | published
        if published.get(part) != known.get(part)
    }


def measure_elsewhere(
    ids: Sequence[str], variables: Mapping[str, str] | None = None
) -> dict[str, Row]:
    """Return the rows of some ids, by id, measured in a process of its own.

    Args:
        ids: of any families.
        variables: of the process's environment, beside those of this one. They may make another
            kind of ``processor`` of it, which a row has.
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


@contextlib.contextmanager
def disturbed(size: float, seed: int) -> Iterator[None]:
    """Move all positions and velocities a little before every step of MuJoCo's and pymunk's.

    Args:
        size: largest change of each number, uniform around zero.
        seed: decides the changes.
    """
    generator = np.random.default_rng(seed)
    kept: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, function: str, disturb: Callable[..., None]) -> None:
        original = getattr(owner, function)
        kept.append((owner, function, original))

        def with_disturbance(*args: Any, **kwargs: Any) -> Any:
            disturb(*args)
            return original(*args, **kwargs)

        setattr(owner, function, with_disturbance)

    def of_mujoco(_: Any, data: Any, *__: Any) -> None:
        data.qpos[:] += generator.uniform(-size, size, data.qpos.shape)
        data.qvel[:] += generator.uniform(-size, size, data.qvel.shape)

    def of_pymunk(space: Any, *_: Any) -> None:
        for body in space.bodies:
            body.position += tuple(generator.uniform(-size, size, 2))
            body.velocity += tuple(generator.uniform(-size, size, 2))
            body.angle += float(generator.uniform(-size, size))

    for function in ("mj_step", "mj_step2", "mj_forward"):
        replace(mujoco, function, of_mujoco)
    with contextlib.suppress(ImportError):
        import pymunk

        replace(pymunk.Space, "step", of_pymunk)
    try:
        yield
    finally:
        for owner, function, original in kept:
            setattr(owner, function, original)


def reference_of(id: str) -> tuple[str, physics.Numbers]:
    """Return an environment's reference, by its name: what moves with no processor.

    Raises:
        TrimtabError: if nothing is left, or a disturbance does not reach the simulator.
    """
    family = family_of(id)
    with contextlib.closing(make(id)) as env:

        def played() -> physics.Numbers:
            return physics.trajectory(env.raw if family.probe is None else family.probe(env.raw))

        expected = played()
        enlarged = np.zeros(expected.shape, np.bool_)
        for seed, size in enumerate(DISTURBANCES):
            with disturbed(size, seed):
                moved = played()
            if physics.bits(moved) == physics.bits(expected):
                raise TrimtabError(f"{id}: a disturbance does not reach its simulator")
            enlarged |= physics.relative_deviations(moved, expected) > SHARE * physics.TOLERANCE
    expected[np.logical_or.accumulate(enlarged, axis=1)] = np.nan
    if not np.isfinite(expected[:, 1:]).any():
        raise TrimtabError(f"{id}: every number behind the reset depends on the processor")
    return physics.reference_key(definition_of(id), {}), expected


def write_references(ids: Sequence[str], path: Path) -> None:
    """Play some ids of one family and write their references, and the definitions beside them."""
    tensors, definitions = {}, {}
    for id in ids:
        started = time.perf_counter()
        try:
            key, expected = reference_of(id)
        except Exception as error:  # simulators raise anything, and the others are still wanted
            sys.stderr.write(f"fingerprints: {id}: {type(error).__name__}: {error}\n")
            continue
        share = np.isfinite(expected).mean()
        seconds = time.perf_counter() - started
        sys.stderr.write(f"fingerprints: {id}: {share:.0%} of it kept, {seconds:.1f} s\n")
        tensors[key], definitions[id] = expected.astype(np.float32), definition_of(id)
    atomic_write_bytes(path, save(tensors, {"definitions": json.dumps(definitions)}))


def enter(names: Names, known: Row) -> None:
    """Add a definition to the names, under the digits of its own, unless it is there."""
    entries = names.setdefault(known["id"], [])
    if all(entry["definition"] != known for entry in entries):
        new = physics.name(known)
        sys.stderr.write(f"fingerprints: {known['id']}: a new name, {new}\n")
        entries.append({"name": new, "definition": known})


def read_names() -> Names:
    """Return what names.json holds; nothing where there is no file."""
    names: Names = json.loads(NAMES.read_text(encoding="utf-8")) if NAMES.is_file() else {}
    return names


def write_names(names: Names) -> None:
    """Write names.json, a definition a line."""
    blocks = [
        f'  "{id}": [\n' + ",\n".join(f"    {json.dumps(entry)}" for entry in names[id]) + "\n  ]"
        for id in sorted(names)
    ]
    atomic_write_text(NAMES, "{\n" + ",\n".join(blocks) + "\n}\n")


def chosen(words: Sequence[str]) -> list[str]:
    """Return the ids that are named, themselves or by their family; all of them for no words.

    Raises:
        TrimtabError: if a word names neither.
    """
    for word in words:
        if not any(word in (id, id.split("/", 1)[0]) for id in list_envs()):
            raise TrimtabError(f"{word} is neither a task nor a family; see `trimtab list env`")
    return [id for id in list_envs() if not words or {id, id.split("/", 1)[0]} & set(words)]


def _references_elsewhere(ids: Sequence[str], folder: Path) -> dict[str, Any]:
    """Make references in a process of its own; return the definitions, and add to the family's."""
    family = ids[0].split("/", 1)[0]
    made, path = folder / f"{family}.safetensors", FOLDER / f"{family}.safetensors"
    subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--references", str(made), *ids],
        check=True,
    )
    with physics.safe_open(made, framework="numpy") as file:
        definitions: dict[str, Any] = json.loads(file.metadata()["definitions"])
    kept = load_file(path) if path.is_file() else {}  # those of older definitions too
    atomic_write_bytes(path, save(dict(sorted((kept | load_file(made)).items()))))
    return definitions


def main() -> int:
    """Play, tell what is new, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="FAMILY_OR_ID")
    parser.add_argument("--measure", action="store_true", help="only print rows, from this process")
    parser.add_argument("--references", type=Path, help="only write references, of one family")
    parser.add_argument("--workers", type=int, default=1, help="families played side by side")
    words = parser.parse_args()
    try:
        ids = chosen(words.words)
    except TrimtabError as error:
        sys.stderr.write(f"fingerprints: {error}\n")
        return error.exit_code
    if words.references:
        write_references(ids, words.references)
        return 0
    if words.measure:
        asked = {word: n for n, word in enumerate(words.words)}
        for row in measure(sorted(ids, key=lambda id: asked.get(id, 0))):
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
        return 0

    FOLDER.mkdir(exist_ok=True)
    families: dict[str, list[str]] = {}
    for id in ids:
        families.setdefault(id.split("/", 1)[0], []).append(id)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(words.workers) as pool:
        made = pool.map(lambda ids: _references_elsewhere(ids, Path(folder)), families.values())
        definitions = {id: known for found in made for id, known in found.items()}
    names = read_names()
    for known in definitions.values():
        enter(names, known)
    write_names(names)
    sys.stderr.write(f"fingerprints: {len(definitions)} of {len(ids)} ids written\n")
    return 0 if len(definitions) == len(ids) else 1


if __name__ == "__main__":
    sys.exit(main())
