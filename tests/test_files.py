"""Files that are read whole: those of anybody, which may be anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.errors import TrimtabError
from trimtab.files import check_own, read_bytes, read_json, resolved


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path) == read_bytes(path, 5) == b"12345"
    with pytest.raises(TrimtabError, match="file: has 0 MB, and at most 0 MB are read"):
        read_bytes(path, 4)
    (tmp_path / "link").symlink_to(path)
    assert read_bytes(tmp_path / "link") == b"12345"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TrimtabError, match=f"{path}: is no regular file"):
            read_bytes(path)
    with pytest.raises(TrimtabError, match="what: .*pipe: is no regular file"):
        read_json(tmp_path / "pipe", "what")
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing")
    with pytest.raises(TrimtabError, match="what: .* is not readable JSON"):
        read_json(tmp_path, "what")


def test_json_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").touch()
    os.truncate(tmp_path / "metadata.json", 2 * 10**9)  # takes no room on the disk
    with pytest.raises(TrimtabError, match="dataset: .*: has 2,000 MB, and at most 268 MB"):
        read_json(tmp_path / "metadata.json", "dataset")


def test_links_in_a_circle_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    try:
        resolved(tmp_path / "loop" / "x")  # later versions of Python return it as it is
    except TrimtabError as error:
        assert "links lead in a circle" in str(error)


def test_without_a_mark_nothing_is_ones_own(tmp_path: Path) -> None:
    (tmp_path / "figure.png").write_text("mine")
    check_own(tmp_path / "figure.png", "min", "out")
    with pytest.raises(TrimtabError, match="something is there that this command has not made"):
        check_own(tmp_path / "figure.png", None, "out")
    check_own(tmp_path / "other.png", None, "out")


@pytest.mark.skipif(sys.platform != "linux", reason="two folders change names at once on Linux")
def test_a_folder_that_is_replaced_is_there_at_every_moment(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "numbers").write_text("0 0")
    replacing = (
        "import sys; from trimtab.files import atomic_directory\n"
        "for number in range(300):\n"
        "    with atomic_directory(sys.argv[1]) as beside:\n"
        "        (beside / 'numbers').write_text(f'{number} {number}')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", replacing, folder])
    missing = looks = 0
    while process.poll() is None:
        for _ in range(1000):
            missing += not folder.is_dir()
            looks += 1
    assert process.returncode == 0 and looks > 1000
    assert missing == 0
    assert (folder / "numbers").read_text() == "299 299"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
