"""Damaged files of every format: one line or a valid dataset, never a crash, a hang or a change."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.datasets.episodes import validate
from trimtab.datasets.formats.registry import get_format, list_formats
from trimtab.datasets.io import hdf5, parquet
from trimtab.datasets.io import sandbox as apart
from trimtab.datasets.io import zarr as zarr_store
from trimtab.types import TrimtabError

pytestmark = pytest.mark.slow

CASES = 130


def damage(data: bytes, generator: np.random.Generator) -> bytes:
    """Return a file's bytes with one to thirty places flipped, or cut, filled or emptied."""
    changed = bytearray(data)
    place = int(generator.integers(max(1, len(changed))))
    match int(generator.integers(8)):
        case 0:
            del changed[place:]
        case 1:
            changed[place:place] = generator.bytes(int(generator.integers(1, 9)))
        case 2:
            del changed[place : place + int(generator.integers(1, 9))]
        case 3:
            changed[place : place + 8] = b"\xff" * 8
        case _:
            for _ in range(int(generator.integers(1, 30))):
                if changed:
                    changed[int(generator.integers(len(changed)))] = int(generator.integers(256))
    return bytes(changed)


def values(generator: np.random.Generator, array: Any) -> Any:
    """Return another array in place of ``array``: of another type, shape or meaning."""
    rows = max(1, len(array)) if np.ndim(array) else 1
    changed: tuple[Any, ...] = (
        np.array(array).astype("S3"), np.zeros(0), np.float64(3), np.full(np.shape(array), np.nan),
        np.asarray(array)[..., None], np.asarray(array)[: rows - 1], np.full(rows, 1 << 62),
        np.asarray(array, dtype=np.complex64), -np.asarray(array, dtype=np.float64) * 1e300,
        np.zeros((rows, 2, 2)),
    )  # fmt: skip
    return changed[int(generator.integers(len(changed)))]


def rewrite(path: Path, generator: np.random.Generator) -> bool:
    """Change or drop one key of a file whose structure stays whole; return whether it could."""
    if path.suffix in (".hdf5", ".h5"):
        with h5py.File(path, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            name = names[int(generator.integers(len(names)))]
            member = file[name]
            array = member[()] if isinstance(member, h5py.Dataset) else None
            del file[name]
            numbers = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
            if numbers and generator.random() < 0.7:
                file[name] = values(generator, array)
        return True
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as loaded:
            arrays = dict(loaded)
        name = sorted(arrays)[int(generator.integers(len(arrays)))]
        array = arrays.pop(name)
        if generator.random() < 0.7:
            arrays[name] = values(generator, array)
        np.savez(path, **arrays)
        return True
    if path.suffix in (".json", "") and path.name != ".zgroup":
        try:
            document = json.loads(path.read_text())
        except ValueError:
            return False
        if not isinstance(document, dict):
            return False
        name = sorted(document)[int(generator.integers(len(document)))]
        other: tuple[Any, ...] = (None, [], {}, "x", -1, 0, 1 << 70, True, 1.5, "{", [0], [1 << 40])
        document[name] = other[int(generator.integers(len(other)))]
        if generator.random() < 0.2:
            del document[name]
        path.write_text(json.dumps(document))
        return True
    return False


def read_here(path: Path, read: Callable[..., Any], *arguments: Any) -> Any:
    """Stand in for ``read_apart``: any error but ours goes through, and a crash is a crash."""
    with read(*json.loads(json.dumps(arguments))) as (values, arrays):
        return values, {
            name: np.concatenate(list(array.read())).astype(array.dtype).reshape(array.shape)
            if isinstance(array, apart.Blocks)
            else array
            for name, array in arrays
        }


def survey(run: Callable[[int], bool], cases: range) -> Iterator[tuple[int, bool | None]]:
    """Yield each case and what ``run`` returned; None where the process that ran it died.

    The cases share a process, for it is a fork for each that would take the time.
    """
    done = mmap.mmap(-1, len(cases) + 1)  # a byte a case: 0, or 1 and the answer
    failure = mmap.mmap(-1, 1 << 16)
    begin = 0
    while begin < len(cases):
        child = os.fork()
        if child == 0:
            try:
                # Not the handler of the tests' own time limit, which no reader in C lets run.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                for index in range(begin, len(cases)):
                    signal.alarm(4)
                    done[index] = 1 + run(cases[index])
                os._exit(0)
            except BaseException:
                failure.write(traceback.format_exc().encode()[-60000:])
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            pytest.fail(failure[:].rstrip(b"\0").decode())
        end = begin
        while end < len(cases) and done[end]:
            yield cases[end], bool(done[end] - 1)
            end += 1
        if end < len(cases):
            yield cases[end], None
        begin = end + 1


VARIANTS = ("blosc diffusion_policy", "zipped diffusion_policy")


def kinds() -> list[str]:
    own = [f"own {f.name}" for f in list_formats() if f.save is not None]
    return [*(f.name for f in list_formats()), *VARIANTS, *own]


def test_every_format_is_damaged(foreign: Any) -> None:
    assert set(foreign.WRITERS) == {format.name for format in list_formats()}
    assert set(foreign.VARIANTS) == set(VARIANTS)


@pytest.mark.parametrize("kind", kinds())
def test_damage_ends_in_one_line_or_a_valid_dataset(
    kind: str, foreign: Any, make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every case is read without the guard of a process apart; some, and those that crash, with."""
    name = kind.rpartition(" ")[2]
    ours = kind == f"own {name}"
    format = get_format(name)
    file_name, write = foreign.VARIANTS.get(kind, foreign.WRITERS[name])
    path = tmp_path / "whole" / file_name
    path.parent.mkdir()
    if not ours:
        write(path)
    else:
        assert format.save is not None
        masks = {"masks": {"valid": [1]}}  # OGBench has a second file then
        format.save(dataclasses.replace(make_dataset((2, 1)), recipe=masks), path)
    whole = format.load(path)
    originals = {p: p.read_bytes() for p in sorted(path.parent.rglob("*")) if p.is_file()}
    hints: dict[str, Any] = {"horizon": 3} if "horizon" in format.hints and not ours else {}
    if kind == "ogbench":
        hints["env"] = "ogbench/pointmaze-medium-singletask-v0"  # states are looked at too

    def run(case: int) -> bool:
        """Damage a file, read it, put it back; return whether it was refused."""
        generator = np.random.default_rng([sum(map(ord, kind)), case])
        target = list(originals)[int(generator.integers(len(originals)))]
        target.write_bytes(originals[target])
        if generator.random() < 0.6 or not rewrite(target, generator):
            target.write_bytes(damage(originals[target], generator))
        before = target.read_bytes()
        assert format.recognises(path) in (True, False)
        try:
            loaded = format.load(path, **hints)
        except TrimtabError as error:
            assert "\n" not in str(error) and str(tmp_path) in str(error)
            return True
        else:
            validate(loaded, "read")
            stranger = loaded.id.startswith("imported/")  # what we noted was dropped
            assert not ours or stranger or loaded.content_hash == whole.content_hash
        finally:
            assert target.read_bytes() == before
            target.write_bytes(originals[target])
        return False

    cases = range(CASES // 4 if ours else CASES)
    guarded = set(cases[::40])
    with monkeypatch.context() as patch:
        for module in (hdf5, parquet, zarr_store):
            patch.setattr(module, "read_apart", read_here)
        answers = dict(survey(run, cases))
    monkeypatch.setattr(apart, "_SECONDS", 1.0)
    for case in guarded | {case for case, answer in answers.items() if answer is None}:
        for file, data in originals.items():
            file.write_bytes(data)
        refused = run(case)
        assert answers[case] in (None, refused)
    assert set(answers) == set(cases)
    assert sum(answer is not False for answer in answers.values()) > len(cases) // 3
    assert format.load(path).content_hash == whole.content_hash
