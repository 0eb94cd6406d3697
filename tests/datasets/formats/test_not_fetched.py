"""Files that are empty, or Git LFS's pointers to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trimtab.datasets.formats.registry import recognise
from trimtab.types import TrimtabError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n"
FILES = {
    "robomimic": "x.hdf5",
    "dppo": "train.npz",
    "ogbench": "x.npz",
    "lerobot": "x/data/chunk-000/file-001.parquet",
    "minari": "x/data/main_data.hdf5",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("data", "said"),
    [(POINTER, "a pointer of Git LFS .*lfs pull"), (b"", "the file is em")],
)
def test_a_file_that_is_not_fetched(
    name: str, data: bytes, said: str, foreign: Any, tmp_path: Path
) -> None:
    place = tmp_path / Path(FILES[name]).parts[0]
    getattr(foreign, name)(place)
    (tmp_path / FILES[name]).write_bytes(data)
    with pytest.raises(TrimtabError, match=rf"^dataset \S+{FILES[name]}: {said}") as raised:
        recognise(place).load(place)
    assert "\n" not in str(raised.value)


def test_a_missing_action_space_is_named(foreign: Any, tmp_path: Path) -> None:
    foreign.minari(tmp_path / "x")
    place = tmp_path / "x/data/metadata.json"
    place.write_text(place.read_text().replace("action_space", "actions"))
    with pytest.raises(TrimtabError, match="metadata.json: 'action_space' is missing; write"):
        recognise(tmp_path / "x").load(tmp_path / "x")
