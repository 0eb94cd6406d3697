"""Wrong input to a run: one line that says what, where and what to do, and nothing half written."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.benchmarks.core.rundir import locked, remove_leftovers
from trimtab.benchmarks.runs.base import policy_folder
from trimtab.benchmarks.runs.train import train
from trimtab.benchmarks.settings.config import compose_run
from trimtab.datasets.formats.registry import get_format
from trimtab.files import atomic_directory, atomic_file, atomic_write_bytes, sha256_file
from trimtab.types import TrimtabError

MAIN = """
import sys
from trimtab.benchmarks.settings.config import compose_run
from trimtab.benchmarks.runs.train import train
from trimtab.types import TrimtabError
try:
    train(compose_run(sys.argv[1:]))
except TrimtabError as error:
    sys.exit(str(error))
"""
HOLDER = """
import sys
from pathlib import Path
from trimtab.benchmarks.core.rundir import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def refused(words: list[str], out: Path) -> str:
    """Return the one line with which a run is refused, which leaves nothing half written."""
    with pytest.raises(TrimtabError) as error:
        train(compose_run(words))
    message = str(error.value)
    assert "\n" not in message and len(message) < 600
    if out.is_dir():
        assert not half_written(out)
    return message


def half_written(out: Path) -> list[Path]:
    """Return temporary files, results and bundles below ``out``."""
    names = {"result.json", "policy", "episodes.parquet"}
    return [path for path in out.rglob("*") if path.suffix == ".tmp" or path.name in names]


# ---- datasets ------------------------------------------------------------------------------------


def without_seal(folder: Path) -> None:
    """Make a dataset one of a stranger, which has no hashes of ours to be checked against."""
    path = folder / "data" / "metadata.json"
    kept = {k: v for k, v in json.loads(path.read_text()).items() if not k.startswith("trimtab_")}
    path.write_text(json.dumps(kept))


def edit(change: Callable[[h5py.File], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        without_seal(folder)
        with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
            change(file)

    return apply


def replace(key: str, new: Callable[[Any], Any]) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        array = file["episode_1"][key][()]
        del file["episode_1"][key]
        file["episode_1"][key] = new(array)

    return edit(change)


def cut(folder: Path) -> None:
    path = folder / "data" / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_without_seal(folder: Path) -> None:
    without_seal(folder)
    cut(folder)


def flip(folder: Path) -> None:
    path = folder / "data" / "main_data.hdf5"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(folder: Path) -> None:
    without_seal(folder)
    path = folder / "data" / "metadata.json"
    document = {**json.loads(path.read_text()), "total_episodes": 0, "total_steps": 0}
    path.write_text(json.dumps(document))
    with h5py.File(folder / "data" / "main_data.hdf5", "w"):
        pass


def poison(array: Any) -> Any:
    array[3] = np.nan
    return array


DATASETS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (shutil.rmtree, "there is no such file or folder"),
    "no data file": (lambda folder: (folder / "data" / "main_data.hdf5").unlink(), "is missing"),
    "truncated": (cut, "truncated or changed"),
    "truncated, a stranger's": (cut_without_seal, "main_data.hdf5"),
    "a byte changed": (flip, "truncated or changed"),
    "not a number": (replace("observations", poison), "episode 1, key 'observations': NaN"),
    "an infinite reward": (replace("rewards", lambda x: x + np.inf), "key 'rewards': NaN or inf"),
    "an action too few": (replace("actions", lambda x: x[:-1]), "episode 1, key"),
    "an observation too few": (replace("observations", lambda x: x[:-1]), "key 'observations'"),
    "flat actions": (replace("actions", lambda x: x[:, 0]), "episode 1, key 'actions': shape"),
    "other action lengths": (replace("actions", lambda x: x[:, :1]), "key 'actions': shape"),
    "text for numbers": (replace("rewards", lambda x: [b"a"] * len(x)), "'rewards'"),
    "no actions": (edit(lambda file: file["episode_1"].__delitem__("actions")), "actions"),
    "no episodes": (empty, "no episodes"),
}


@pytest.mark.parametrize("case", DATASETS)
def test_a_wrong_dataset(case: str, tiny: Any, tmp_path: Path) -> None:
    damage, expected = DATASETS[case]
    folder = tmp_path / "dataset"
    shutil.copytree(tiny.dataset, folder)
    damage(folder)
    words = [*tiny.cloning(tmp_path / "out"), f"dataset={folder}"]
    message = refused(words, tmp_path / "out")
    assert expected in message and str(folder) in message
    assert not (tmp_path / "out").exists()


def test_a_strangers_dataset_is_taken_if_it_is_right(tiny: Any, tmp_path: Path) -> None:
    """What the cases above change is what is refused, not the missing seal."""
    folder = tmp_path / "dataset"
    shutil.copytree(tiny.dataset, folder)
    without_seal(folder)
    words = [*tiny.cloning(tmp_path / "out"), f"dataset={folder}", "offline_steps=2"]
    assert train(compose_run(words)).summary["updates"] == 2


def test_a_dataset_of_another_task(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.cloning(tmp_path), "env=gym/Hopper-v5"]
    message = refused(words, tmp_path)
    assert "does not fit gym/Hopper-v5" in message and "was made in robotics/" in message


def test_rewards_of_another_single_task(tiny: Any, tmp_path: Path) -> None:
    tasks = [f"ogbench/pointmaze-medium-singletask{number}-v0" for number in ("", "-task2")]
    places = np.array([[0, 0], [10, 10], [20, 20], [20, 19]], np.float32)
    np.savez(
        tmp_path / "theirs.npz", observations=places, actions=places / 20, qpos=places,
        terminals=np.array([0, 0, 0, 1.0]),
    )  # fmt: skip
    format = get_format("ogbench")
    assert format.save is not None
    format.save(format.load(tmp_path / "theirs.npz", env=tasks[0]), tmp_path / "ours.npz")
    words = [*tiny.cloning(tmp_path / "out"), f"dataset={tmp_path / 'ours.npz'}", "offline_steps=2"]
    assert train(compose_run([*words, f"env={tasks[0]}"])).summary["updates"] == 2
    words.append(f"out={tmp_path / 'other'}")
    message = refused([*words, f"env={tasks[1]}"], tmp_path / "other")
    assert "has the rewards of ogbench/pointmaze-medium-singletask-task1-v0, not of" in message
    assert message.endswith(f"with env={tasks[1]}")


# ---- bases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["frozen", "dsrl_sac"])
def test_a_base_of_another_task(method: str, tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.task(tmp_path), f"algorithm={method}", f"base={tiny.base}", "env=gym/Hopper-v5"]
    message = refused(words, tmp_path)
    assert f"base {tiny.base}" in message
    assert "does not fit gym/Hopper-v5: observation length" in message


def test_a_base_with_shorter_chunks(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.online(tmp_path, "dsrl_sac"), "act_steps=5"]
    assert "act_steps=5: base" in refused(words, tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "golden.safetensors", "config.json"])
def test_a_base_with_a_byte_changed(file: str, tiny: Any, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny.base, base)
    path = base / "policy" / file
    data = bytearray(path.read_bytes())
    place = len(data) * 2 // 3
    data[place] = ord("7") if data[place] != ord("7") else ord("8")
    path.write_bytes(data)
    words = [*tiny.task(tmp_path / "out"), "algorithm=frozen", f"base={base}"]
    assert str(base) in refused(words, tmp_path / "out")
    path.unlink()
    assert str(base) in refused(words, tmp_path / "out")


def test_a_base_that_is_not_there_or_not_finished(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.task(tmp_path / "out"), "algorithm=dsrl_sac"]
    message = refused([*words, f"base={tmp_path}/nowhere"], tmp_path / "out")
    assert "nowhere does not exist; give the folder of a run or of a bundle" in message
    unfinished = tmp_path / "unfinished"
    shutil.copytree(tiny.base, unfinished, ignore=shutil.ignore_patterns("policy", "result.json"))
    message = refused([*words, f"base={unfinished}"], tmp_path / "out")
    assert "is a run that has not finished; run it again to finish it" in message
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refused([*words, f"base={tmp_path}/empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert policy_folder(str(tiny.base)) == policy_folder(str(tiny.base / "policy"))


# ---- folders and disks ---------------------------------------------------------------------------


def test_a_run_directory_in_use(tiny: Any, tmp_path: Path) -> None:
    done = train(compose_run([*tiny.task(tmp_path), "algorithm=frozen", f"base={tiny.base}"]))
    (done.folder / "result.json").unlink()
    words = [*tiny.task(tmp_path), "algorithm=frozen", f"base={tiny.base}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(done.folder)], **pipes) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        before = sorted(done.folder.rglob("*"))
        with pytest.raises(TrimtabError, match="is in use by another process; wait for") as error:
            train(compose_run(words))
        assert str(done.folder) in str(error.value) and "\n" not in str(error.value)
        assert sorted(done.folder.rglob("*")) == before
        holder.communicate()
    assert train(compose_run(words)).summary["success"] == done.summary["success"]


def test_a_lock_is_let_go_of(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with locked(folder), pytest.raises(TrimtabError, match="in use"), locked(folder):
        raise AssertionError("held twice")
    with pytest.raises(KeyError), locked(tmp_path / "run"):
        raise KeyError
    with locked(tmp_path / "run", wait=True):
        assert (tmp_path / "run" / "run.lock").exists()


def test_a_block_that_fails_at_once_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyError), locked(tmp_path / "there/a/b"):
        (tmp_path / "there/a/b/c/d").mkdir(parents=True)
        raise KeyError
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    with pytest.raises(KeyError), locked(tmp_path / "there"):  # it was there before
        raise KeyError
    assert (tmp_path / "there").is_dir()
    with pytest.raises(KeyError), locked(tmp_path / "a/b"):
        (tmp_path / "a/b/kept.txt").write_text("x")
        raise KeyError
    assert (tmp_path / "a/b/kept.txt").is_file()
    with pytest.raises(KeyError), locked(tmp_path / "a/c"):
        raise KeyError
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_who_waits_for_a_folder_that_is_removed_makes_it_again(tmp_path: Path) -> None:
    folder = tmp_path / "a/run"
    with contextlib.ExitStack() as stack:
        with pytest.raises(KeyError), locked(folder):
            code = HOLDER.replace("argv[1])", "argv[1]), wait=True")
            words = [sys.executable, "-c", code, str(folder)]
            waiting = stack.enter_context(
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert waiting.stdout is not None and waiting.stdin is not None
            _until_it_waits(waiting.pid)
            raise KeyError
        assert waiting.stdout.readline() == "held\n"
        with pytest.raises(TrimtabError, match="in use"), locked(folder):
            raise AssertionError("held twice")
        waiting.stdin.close()
        assert waiting.wait() == 0
    assert [path.name for path in folder.iterdir()] == ["run.lock"]


def _until_it_waits(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(f" {pid} " in x for x in Path("/proc/locks").read_text().split("\n") if "->" in x):
            return
        time.sleep(0.05)
    raise AssertionError("it does not wait for the lock")


def test_out_is_a_file(tiny: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("a file")
    message = refused(tiny.cloning(out), out)
    assert f"cannot write {out}" in message and "choose a writable folder with out=" in message
    assert out.read_text() == "a file"


@pytest.mark.parametrize("name", ["checkpoint", "metrics.jsonl", "episodes.parquet", "policy"])
def test_something_else_in_a_files_place(name: str, tiny: Any, tmp_path: Path) -> None:
    """A folder that cannot be written, as root too: what should be a file is a folder, or the
    reverse.
    """
    words = tiny.cloning(tmp_path)
    folder = train(compose_run(words)).folder
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "checkpoint")
    path = folder / name
    if path.is_file():
        path.unlink()
        (path / "inside").mkdir(parents=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
        path.write_text("not a folder")
    with pytest.raises(TrimtabError, match=f"{name}") as error:
        train(compose_run(words))
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    assert not (folder / "result.json").exists() and not list(folder.rglob("*.tmp"))


@pytest.fixture(scope="module")
def never_full(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights of a run that had room enough."""
    words = [*tiny.online(tmp_path_factory.mktemp("room"), "sac"), "env=gym/Hopper-v5"]
    folder = train(compose_run(words)).folder
    return sha256_file(folder / "policy" / "model.safetensors")


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file grows beyond ``size`` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("limit", "file"), [(500, "config.yaml"), (3_000, "checkpoint"), (9_000, "")]
)
def test_a_full_disk(limit: int, file: str, tiny: Any, tmp_path: Path, never_full: str) -> None:
    words = [*tiny.online(tmp_path, "sac"), "env=gym/Hopper-v5"]
    with files_of_at_most(limit), pytest.raises(TrimtabError) as error:
        train(compose_run(words))
    line = str(error.value)
    assert "\n" not in line
    assert "cannot write" in line and str(tmp_path) in line and file in line
    assert "free the disk" in line
    assert not list(tmp_path.rglob("*.tmp")) + list(tmp_path.rglob("result.json"))
    folder = train(compose_run(words)).folder  # with room again it goes on to the same end
    assert sha256_file(folder / "policy" / "model.safetensors") == never_full


def test_no_room_for_a_simulators_own_files(tiny: Any, tmp_path: Path) -> None:
    """The maze writes its XML where temporary files are."""
    words = tiny.cloning(tmp_path)
    child = subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert child.returncode == 1
    (line,) = child.stderr.strip().splitlines()
    assert "cannot write" in line and "free the disk" in line
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_a_dataset_is_made(tiny: Any, tmp_path: Path) -> None:
    words = [w for w in tiny.cloning(tmp_path) if not w.startswith("dataset=")]
    words += ["dataset=two_routes", "dataset.episodes=2"]
    with files_of_at_most(10_000), pytest.raises(TrimtabError) as error:
        train(compose_run(words))
    line = str(error.value)
    assert "\n" not in line
    assert "cannot write" in line and str(tmp_path / "datasets") in line
    assert not list(tmp_path.rglob("*"))


def test_what_is_no_file_is_never_replaced_by_one(tmp_path: Path) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link", "file"))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    file.write_text("mine")
    for place in (pipe, link, tmp_path):
        with pytest.raises(TrimtabError, match="what is there is no file"):
            atomic_write_bytes(place, b"x")
        with pytest.raises(TrimtabError, match="is no file"), atomic_file(place):
            raise AssertionError("it may be written")
    for place in (pipe, link, file):
        with pytest.raises(TrimtabError, match="is no folder"), atomic_directory(place):
            raise AssertionError("it may be written")
    with pytest.raises(TrimtabError, match="it is a folder; name a file"):
        atomic_write_bytes(Path("."), b"x")
    assert pipe.is_fifo() and file.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "file"}


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / ".step-1.7.ab.tmp" / "deep").mkdir(parents=True)
    (tmp_path / "checkpoint" / "step-1").mkdir()
    (tmp_path / ".result.json.7.ab.tmp").write_text("{")
    (tmp_path / "notes.tmp").write_text("mine")
    remove_leftovers(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["checkpoint", "checkpoint/step-1", "notes.tmp"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["policy.hidden=[]"], "policy.* "),
        (["dataset.episodes=abc"], "dataset.episodes=abc"),
        (["dataset.episodes=0"], "at least 1"),
        (["dataset.controller.routes=7"], "dataset.controller"),
        (["algorithm.batch_size=0"], "algorithm.batch_size=0"),
        (["algorithm.ema_decay=2"], "algorithm.ema_decay=2"),
    ],
)
def test_a_value_out_of_range_is_named(words: list[str], part: str, tmp_path: Path) -> None:
    """One line, whatever part of the run the value belongs to, and no result."""
    base = [
        "env=robotics/PointMaze-TwoRoutes-v0", "algorithm=bc", "policy=flow",
        "dataset=two_routes", "dataset.episodes=2", "offline_steps=2", f"out={tmp_path}",
    ]  # fmt: skip
    with pytest.raises(TrimtabError) as raised:
        train(compose_run([*base, *words]))
    assert part.strip() in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.rglob("result.json"))
