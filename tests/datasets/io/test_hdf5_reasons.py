"""HDF5 files that are whole or unfinished: each refusal has the true reason, and the cure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.datasets.formats.registry import recognise
from trimtab.types import TrimtabError

FORMATS = {
    "d4rl": ("x.hdf5", "x.hdf5", "observations"),
    "minari": ("x", "x/data/main_data.hdf5", "episode_0/actions"),
    "robomimic": ("x.hdf5", "x.hdf5", "data/demo_0/actions"),
}
"""What is read, its HDF5 file, and the name of an array of it."""


@pytest.fixture(params=FORMATS)
def written(request: pytest.FixtureRequest, foreign: Any, tmp_path: Path) -> tuple[Path, Path, str]:
    path, file, key = FORMATS[request.param]
    foreign.WRITERS[request.param][1](tmp_path / path)
    return tmp_path / path, tmp_path / file, key


def compress(file: h5py.File, key: str, code: int) -> None:
    """Put an array in the place of another, in chunks that went through a filter."""
    shape = file[key].shape
    del file[key]
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk(shape)
    plist.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (3,))
    link = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple(shape, shape)
    made = h5py.h5d.create(file.id, key.encode(), h5py.h5t.IEEE_F32LE, space, plist, link)
    made.write_direct_chunk((0,) * len(shape), bytes(4 * int(np.prod(shape))))


@pytest.mark.parametrize("code, name", [(32015, "Zstandard"), (32001, "Blosc"), (40123, "40123")])
def test_a_filter_that_is_missing(code: int, name: str, written: tuple[Path, Path, str]) -> None:
    path, place, key = written
    with h5py.File(place, "r+") as file:
        compress(file, key, code)
    with pytest.raises(TrimtabError, match=f"{name}, which is not installed here.*hdf5plugin"):
        recognise(path).load(path)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 100)


def left_open(file: Path) -> None:
    """Rewrite it in a process that ends without closing it."""
    code = f"import h5py, os; f = h5py.File({str(file)!r}, 'a', libver='v110'); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)


REASONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "it is cut short; let the program that writes or copies it finish"),
    "not closed": (left_open, "the program that wrote it has not closed it.*h5clear -s"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_unfinished_files(reason: str, foreign: Any, tmp_path: Path) -> None:
    change, message = REASONS[reason]
    for name, (path, file, _) in FORMATS.items():
        folder = tmp_path / name
        folder.mkdir()
        foreign.WRITERS[name][1](folder / path)
        if change is left_open:  # whole again in the format that notes whether it is open
            with (
                h5py.File(folder / file) as old,
                h5py.File(folder / "n", "w", libver="v110") as new,
            ):
                for key in old:
                    old.copy(key, new)
            os.replace(folder / "n", folder / file)
        change(folder / file)
        with pytest.raises(TrimtabError, match=message) as raised:
            recognise(folder / path).load(folder / path)
        assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_that_is_being_written(written: tuple[Path, Path, str]) -> None:
    path, place, _ = written
    with (
        h5py.File(place, "r+"),
        pytest.raises(TrimtabError, match="another program has it open for writing; close it"),
    ):
        recognise(path).load(path)
    assert recognise(path).load(path).num_steps


READ = """
import sys
from trimtab.datasets.formats.registry import recognise
from trimtab.errors import TrimtabError
for path in sys.argv[1:]:
    try:
        recognise(path).load(path)
        print("whole")
    except TrimtabError as error:
        print(error)
"""
AS_ANYONE = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
"""What takes root's right to read everything away."""


HIDDEN = ("x.hdf5", "x/data/main_data.hdf5", "y/meta/info.json", "y/meta", "y/data")


def test_what_may_not_be_read_is_named_and_beside_the_data_does_not_matter(
    foreign: Any, tmp_path: Path
) -> None:
    given, places = [], []
    for number, hidden in enumerate((*HIDDEN, "y/lost+found")):
        name, folder = Path(hidden).parts[0], tmp_path / str(number)
        folder.mkdir()
        {"x.hdf5": foreign.robomimic, "x": foreign.minari, "y": foreign.lerobot}[name](
            folder / name
        )
        given.append(str(folder / name))
        places.append(folder / hidden)
    places[-1].mkdir()
    for place in places:
        place.chmod(0)
    command = [sys.executable, "-c", READ, *given]
    command = [*AS_ANYONE, *command] if os.geteuid() == 0 else command
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for place in places:
        place.chmod(0o755)
    *refused, beside = done.stdout.splitlines()
    assert len(refused) == len(HIDDEN) and beside == "whole"
    for line, place in zip(refused, places, strict=False):
        assert f"dataset {place}: you may not read it; run chmod u+rX" in line
